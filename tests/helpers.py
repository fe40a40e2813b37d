"""Run a torch function through decomposition, lowering and XLA without Dynamo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from tpu_compile.executable import Executable, compile_graph
from tpu_compile.lowering import decompositions
from tpu_compile.lowering.interpreter import Settings


def capture(fn: Callable[..., Any], args: Sequence[Any]) -> torch.fx.GraphModule:
    """The functional, decomposed ATen graph of ``fn`` on tensors like ``args``."""
    wrapped = torch.func.functionalize(fn, remove="mutations_and_views")
    return make_fx(wrapped, decomposition_table=decompositions.table(), tracing_mode="fake")(*args)


def lower(fn: Callable[..., Any], args: Sequence[Any], *, keep_text: bool = False) -> Executable:
    """``fn`` compiled for the CPU; raises where an op has no rule."""
    return compile_graph(capture(fn, args), Settings(), keep_text=keep_text)


def run_lowered(fn: Callable[..., Any], args: Sequence[Any]) -> list[Any]:
    """The flat outputs of ``fn`` run by XLA:CPU."""
    return lower(fn, args)(list(args))


def compare(
    fn: Callable[..., Any],
    *args: torch.Tensor,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Checks values, dtypes and shapes of the lowered ``fn`` against eager torch on the CPU."""
    expected = pytree.tree_leaves(fn(*args))
    actual = run_lowered(fn, args)
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=rtol, atol=atol, equal_nan=True)
