"""Compiles with buckets, and what tests put into the padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def garbage(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """NaN, or integers that are no index of anything."""
    dtype = like.dtype
    if dtype == torch.bool:
        return torch.rand(shape) > 0.5
    if dtype.is_floating_point or dtype.is_complex:
        return torch.full(shape, float("nan"), dtype=dtype)
    return torch.full(shape, torch.iinfo(dtype).max, dtype=dtype)


def compile_with(
    fn: Callable[..., Any],
    buckets: dict[str, list[int]],
    *,
    dynamic: bool | None = None,
    **options: Any,
) -> Callable[..., Any]:
    """``fn`` compiled whole, with buckets, with no eager fallback unless asked for."""
    options = {"fallback": "error", "buckets": buckets, **options}
    return torch.compile(fn, backend="tpu", fullgraph=True, dynamic=dynamic, options=options)


def results(
    f: Callable[..., Any], args: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """What a function returns, and gradients of the arguments that want one, at one cotangent."""
    out = f(*args)
    outs = [out] if isinstance(out, torch.Tensor) else list(out)
    wanted = [o for o in outs if o.requires_grad and o.is_floating_point()]
    leaves = [a for a in args if a.requires_grad]
    if not wanted or not leaves:
        return outs, []
    torch.manual_seed(1)
    cotangents = [torch.randn_like(o) for o in wanted]
    return outs, list(torch.autograd.grad(wanted, leaves, cotangents, allow_unused=True))
