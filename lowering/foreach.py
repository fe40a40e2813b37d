"""Decompositions of ops on lists of tensors, as optimizers use them: one op for each tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten

Decomposition = Callable[..., Any]


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _each(fn: Callable[..., Tensor]) -> Decomposition:
    """Calls a function once for each tensor; other arguments are per tensor too, or for all."""

    def run(*args: Any, **kwargs: Any) -> list[Tensor]:
        count = next(len(a) for a in args if _is_list(a))
        pick = lambda a, i: a[i] if _is_list(a) else a  # noqa: E731
        return [
            fn(*(pick(a, i) for a in args), **{k: pick(v, i) for k, v in kwargs.items()})
            for i in range(count)
        ]

    return run


def _scaled(fn: Callable[..., Tensor]) -> Decomposition:
    return _each(lambda x, a, b, value=1: fn(x, a, b, value=value))


def _norm(x: Tensor, ord: float = 2, dtype: torch.dtype | None = None) -> Tensor:
    return torch.linalg.vector_norm(x, ord, dtype=dtype)


def _power_sum(x: Tensor, ord: float = 2, dtype: torch.dtype | None = None) -> Tensor:
    return (x if dtype is None else x.to(dtype)).abs().pow(ord).sum()


_NAMED: dict[str, Decomposition] = {
    "addcdiv": _scaled(torch.addcdiv),
    "addcmul": _scaled(torch.addcmul),
    "clamp_max": _each(torch.clamp_max),
    "clamp_min": _each(torch.clamp_min),
    "copy": _each(aten.copy.default),
    "max": _each(torch.max),
    "maximum": _each(torch.clamp_min),
    "minimum": _each(torch.clamp_max),
    "norm": _each(_norm),
    "powsum": _each(_power_sum),
    "zero": _each(torch.zeros_like),
}


def _overloads(prefix: str) -> Iterator[tuple[str, OpOverload]]:
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.removeprefix("aten::").partition(".")
        if full.startswith(f"aten::{prefix}") and not name.endswith("_") and "out" not in overload:
            yield name.removeprefix(prefix), getattr(getattr(aten, name), overload or "default")


def _functional(name: str) -> Decomposition | None:
    if name in _NAMED:
        return _NAMED[name]
    fn = getattr(torch, name, None)
    return fn and _each(fn)


def decompositions() -> dict[Any, Decomposition]:
    """The decompositions of the functional foreach ops and fused Adam steps, by overload."""
    table = {op: fn for name, op in _overloads("_foreach_") if (fn := _functional(name))}
    table.update({op: _fused_adam for name, op in _overloads("_fused_adam") if not name})
    table.update({op: _fused_adamw for name, op in _overloads("_fused_adamw") if not name})
    return table


# ---------------------------------------------------------------- fused Adam

Lists = tuple[list[Tensor], ...]


def _adam(
    x: Tensor,
    grad: Tensor,
    mean: Tensor,
    square: Tensor,
    largest: Tensor | None,
    steps: Tensor,
    *,
    lr: float | Tensor,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    decoupled: bool,
) -> tuple[Tensor | None, ...]:
    slope = -grad if maximize else grad
    new = x
    if weight_decay and decoupled:
        new = new - lr * weight_decay * new
    elif weight_decay:
        slope = slope + weight_decay * new
    mean = mean + (1 - beta1) * (slope - mean)
    square = beta2 * square + (1 - beta2) * slope * slope
    bias1, bias2 = 1 - beta1**steps, 1 - beta2**steps
    if amsgrad and largest is not None:
        largest = torch.maximum(largest, square)
    width = (square if largest is None or not amsgrad else largest).sqrt()
    width = width / bias2.sqrt() + eps
    return new - lr / bias1 * mean / width, grad, mean, square, largest, steps


def _fused_adam(
    *lists: Any,
    decoupled: bool = False,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    **options: Any,
) -> Lists:
    """Steps each parameter: unscales its gradient, and changes nothing where one is infinite."""
    results: Lists = tuple([] for _ in lists)
    for i in range(len(lists[0])):
        old: list[Any] = [group[i] if group else None for group in lists]
        args = list(old)
        if grad_scale is not None:
            args[1] = (old[1] / grad_scale).to(old[1].dtype)
        new = _adam(*args, **options, decoupled=decoupled)
        for group, before, after in zip(results, old, new, strict=True):
            if before is not None and after is not None:
                kept = after.to(before.dtype)
                group.append(
                    kept if found_inf is None else torch.where(found_inf == 1, before, kept)
                )
    return results[:5]


def _fused_adamw(*lists: Any, **options: Any) -> Lists:
    return _fused_adam(*lists, **options, decoupled=True)
