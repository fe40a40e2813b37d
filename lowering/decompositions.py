"""Which ops torch decomposes for us: everything it can, but what has a rule of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._decomp import _core_aten_decompositions_post_autograd, decomposition_table
from torch._library import simple_registry

from tpu_compile.lowering import registry

aten = torch.ops.aten


def _pinv(
    x: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False
) -> Tensor:
    if x.numel() == 0:
        return x.new_zeros(*x.shape[:-2], x.shape[-1], x.shape[-2])
    atol = x.new_zeros((), dtype=x.real.dtype) if atol is None else atol
    if rtol is None:
        eps = torch.finfo(x.dtype).eps * max(x.shape[-2:])
        rtol = torch.where(atol > 0, 0.0, eps)
    if hermitian:
        values, u = torch.linalg.eigh(x)
        vh = u.mH
    else:
        u, values, vh = torch.linalg.svd(x, full_matrices=False)
    sizes = values.abs()
    cut = torch.maximum(atol.unsqueeze(-1), rtol.unsqueeze(-1) * sizes.amax(-1, keepdim=True))
    inverse = torch.where(sizes > cut, 1 / values, 0).to(x.dtype)
    return (vh.mH * inverse.unsqueeze(-2)) @ u.mH


# Decompositions of our own, by overload, where torch has none or one that is wrong or slow.
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.linalg_pinv.atol_rtol_tensor: _pinv,
}


@functools.cache
def table(keep: frozenset[Any] = frozenset()) -> dict[Any, Callable[..., Any]]:
    """The decompositions to trace with, by overload.

    Args:
        keep: overloads to leave whole although they have no rule, for a pass that rewrites them.
    """
    merged = {**decomposition_table, **_core_aten_decompositions_post_autograd(), **DECOMPOSITIONS}
    whole = {*registry.rules(), *keep, *filter(_has_ruled_parts, merged)} - set(DECOMPOSITIONS)
    return {op: fn for op, fn in merged.items() if op not in whole}


@contextmanager
def rules_first() -> Iterator[None]:
    """Keeps torch, while it traces, from replacing ops with rules before the table is asked.

    Where symbolic shapes are on, as under Dynamo, most interpolations have Python kernels for
    autograd: gathers at computed places, and so scatters in the gradient. The checks of
    factorizations are wrapped to keep their order.
    """
    keys = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
    ops: list[Any] = [op for op in decomposition_table if _has_ruled_parts(op)]
    ops += [default for op in ops if registry.find(default := op._overloadpacket.default)]
    taken = [(op, {k: op.py_kernels.pop(k) for k in keys if k in op.py_kernels}) for op in ops]
    for op in ops:
        op._dispatch_cache.clear()
    # Nothing can be raised from inside a program: results are NaN or infinite there, and ``info``
    # says so. Effects would order these checks by tokens through the graph.
    effect = simple_registry.singleton.find("aten::_linalg_check_errors").effect
    before = effect.effect
    effect.register(None)
    try:
        yield
    finally:
        effect.register(before)
        for op, kernels in taken:
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()


def _has_ruled_parts(op: Any) -> bool:
    """Whether an op that is left whole is traced as ops with rules, which torch's table goes past.

    These are the interpolations whose sizes may be given as scale factors.
    """
    return isinstance(op, torch._ops.OpOverload) and op._overloadname == "vec"
