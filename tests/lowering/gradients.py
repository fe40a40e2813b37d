"""Results and gradients of one function, lowered, against eager torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import helpers
import torch
from torch.utils import _pytree as pytree

FAST = {"xla_backend_optimization_level": 0}  # of LLVM; XLA's own passes run as ever


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A random tensor that wants a gradient."""
    return torch.randn(shape, dtype=dtype).requires_grad_()


def check(fn: Callable[..., Any], *args: torch.Tensor, **tolerance: float) -> None:
    """Compares the tensors ``fn`` returns, and the gradients of those of ``args`` that want one."""

    def run(*xs: torch.Tensor) -> list[torch.Tensor]:
        every = [t for t in pytree.tree_leaves(fn(*xs)) if isinstance(t, torch.Tensor)]
        return [t.clone(memory_format=torch.contiguous_format) for t in every]

    expected, actual = helpers.run_with_gradients(run, args, **FAST)
    assert len(actual) == len(expected)
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        if e is not None:
            loose = tolerance if e.dtype.is_floating_point or e.is_complex() else {}
            torch.testing.assert_close(
                a, e, **loose, equal_nan=True, msg=lambda m, i=i: f"result {i}: {m}"
            )
