"""Compare ``torch.compile(fn, backend="tpu")`` with eager torch in everything a caller can see."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

STRICT = {"fallback": "error"}


def compile_tpu(fn: Callable[..., Any], **kwargs: Any) -> Callable[..., Any]:
    """``fn`` compiled whole, with no eager fallback unless asked for."""
    kwargs.setdefault("fullgraph", True)
    kwargs.setdefault("options", STRICT)
    return torch.compile(fn, backend="tpu", **kwargs)


def check(
    fn: Callable[..., Any],
    *args: Any,
    grad: bool = False,
    calls: int = 2,
    rtol: float | None = None,
    atol: float | None = None,
    **kwargs: Any,
) -> None:
    """Calls eager and compiled ``fn`` on equal arguments and compares what the caller sees.

    That is: values, dtypes, shapes, strides and offsets of outputs; the arguments afterwards;
    which outputs share memory with which arguments and with each other; ``requires_grad``; and,
    with ``grad``, the gradients of all arguments that require one.
    """
    compiled = compile_tpu(fn, **kwargs)
    for _ in range(calls):
        mine, theirs = _clone(args), _clone(args)
        expected, actual = fn(*theirs), compiled(*mine)
        compare(actual, expected, mine, theirs, rtol=rtol, atol=atol)
        if grad:
            # the same for both: a result one rounding apart is compared above, not here again
            cotangents = [2 * t.detach() for t in _tensors(expected) if t.requires_grad]
            _backward(actual, cotangents)
            _backward(expected, cotangents)
            for a, e in zip(_leaves(mine), _leaves(theirs), strict=True):
                torch.testing.assert_close(a.grad, e.grad, rtol=rtol, atol=atol)


def compare(
    actual: Any,
    expected: Any,
    mine: Any,
    theirs: Any,
    *,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Compares results and arguments of one compiled and one eager call."""
    got, want = pytree.tree_leaves(actual), pytree.tree_leaves(expected)
    assert len(got) == len(want)
    for a, e in zip(got, want, strict=True):
        if not isinstance(e, torch.Tensor):
            assert type(a) is type(e)
            assert a == e
            continue
        torch.testing.assert_close(a, e, rtol=rtol, atol=atol, equal_nan=True, check_stride=True)
        assert a.requires_grad == e.requires_grad
        assert a.storage_offset() == e.storage_offset() or not _shared(e, _tensors(theirs))
    for a, e in zip(_tensors(mine), _tensors(theirs), strict=True):
        torch.testing.assert_close(a, e, rtol=rtol, atol=atol, equal_nan=True, check_stride=True)
    assert _sharing(actual, mine) == _sharing(expected, theirs)


def _clone(args: Any) -> Any:
    """Deep copies that keep views of one base as views of one base."""
    return copy.deepcopy(args)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


def _leaves(tree: Any) -> list[torch.Tensor]:
    return [t for t in _tensors(tree) if t.requires_grad and t.is_leaf]


def _backward(tree: Any, cotangents: list[torch.Tensor]) -> None:
    outs = [t for t in _tensors(tree) if t.requires_grad]
    torch.autograd.backward(outs, cotangents)


def _shared(t: torch.Tensor, others: list[torch.Tensor]) -> bool:
    return any(t.untyped_storage()._cdata == o.untyped_storage()._cdata for o in others)


def _sharing(outs: Any, args: Any) -> list[list[bool]]:
    """Which tensors are the same storage; torch allocates none for empty ones."""
    everything = [t for t in (*_tensors(outs), *_tensors(args)) if t.numel()]
    keys = [t.untyped_storage()._cdata for t in everything]
    return [[a == b for b in keys] for a in keys]
