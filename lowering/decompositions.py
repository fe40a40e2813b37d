"""Which ops torch decomposes for us: everything it can, but what has a rule of its own."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp import _core_aten_decompositions_post_autograd, decomposition_table
from torch._decomp.decompositions import Reduction
from torch._library import simple_registry
from torch._ops import OpOverload

from tpu_compile.lowering import fast_paths, foreach, registry

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


def _weight_norm_backward(
    grad_w: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    others = [d for d in range(saved_v.dim()) if d != dim % saved_v.dim()]
    norms = saved_norms.to(saved_g.dtype)
    along = (grad_w * saved_v).sum(others, keepdim=True)
    grad_v = saved_g / norms * (grad_w - saved_v * (along / (norms * norms)))
    return grad_v, along / norms


def _trilinear(
    i1: Tensor,
    i2: Tensor,
    i3: Tensor,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    sumdim: list[int],
    unroll_dim: int = 1,
) -> Tensor:
    for d in expand1:
        i1 = i1.unsqueeze(d)
    for d in expand2:
        i2 = i2.unsqueeze(d)
    for d in expand3:
        i3 = i3.unsqueeze(d)
    product = i1 * i2 * i3
    return product.sum(sumdim) if sumdim else product


def _masked_scatter_backward(grad_output: Tensor, mask: Tensor, sizes: list[int]) -> Tensor:
    mask = mask.expand(grad_output.shape).flatten()
    count = math.prod(sizes)
    # what the mask leaves out goes to one more place, which is cut off
    at = torch.where(mask, mask.cumsum(0) - 1, count).clamp(max=count)
    out = grad_output.new_zeros(count + 1).scatter(0, at, grad_output.flatten())
    return out[:count].reshape(sizes)


def _repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Tensor:
    if output_size is None:
        return NotImplemented
    places = torch.arange(output_size, device=repeats.device)
    return torch.searchsorted(repeats.cumsum(0), places, right=True).to(repeats.dtype)


def _power_sum(
    x: Tensor,
    ord: float = 2,
    dim: list[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    powers = (x if dtype is None else x.to(dtype)).abs().pow(ord)
    return powers.sum(dim, keepdim=keepdim)


def _multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    # torch's also counts the places of target after the -1 that ends it
    x, labels = torch.atleast_2d(x), torch.atleast_2d(target)
    size = x.shape[-1]
    place = torch.arange(size, device=x.device)
    end = torch.where(labels == -1, place, size).amin(-1, keepdim=True)
    listed = place < end
    named = (place == labels.unsqueeze(-1)) & listed.unsqueeze(-1)
    is_target = named.any(-2)
    score = x.gather(-1, torch.where(listed, labels, 0))
    margin = (1 - score.unsqueeze(-1) + x.unsqueeze(-2)).clamp_min(0)
    counted = listed.unsqueeze(-1) & ~is_target.unsqueeze(-2)
    loss = torch.where(counted, margin, 0).sum((-1, -2)) / size
    if reduction != Reduction.NONE.value:
        loss = loss.mean() if reduction == Reduction.MEAN.value else loss.sum()
    else:
        loss = loss.reshape(target.shape[:-1])
    return loss, is_target.to(x.dtype).reshape(target.shape)


# Decompositions of our own, by overload, where torch has none or one that is wrong or slow.
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    **foreach.decompositions(),
    **fast_paths.DECOMPOSITIONS,
    aten.linalg_pinv.atol_rtol_tensor: _pinv,
    aten.linalg__powsum.default: _power_sum,
    aten._weight_norm_interface_backward.default: _weight_norm_backward,
    aten._trilinear.default: _trilinear,
    aten.masked_scatter_backward.default: _masked_scatter_backward,
    aten.repeat_interleave.Tensor: _repeat_interleave,
    aten.multilabel_margin_loss_forward.default: _multilabel_margin_loss,
    aten._is_all_true.default: torch.all,
    aten._is_any_true.default: torch.any,
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
    saved = {op: dict(op.py_kernels) for op in _with_python_kernels()}
    for op in saved:
        op.py_kernels.pop(DispatchKey.CompositeImplicitAutograd, None)
        if op.py_kernels.pop(DispatchKey.Autograd, None) and op in DECOMPOSITIONS:
            op.py_kernels[DispatchKey.Autograd] = DECOMPOSITIONS[op]
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
        for op, kernels in saved.items():
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()


@functools.cache
def _with_python_kernels() -> list[OpOverload]:
    """The ops with rules or our own decompositions that torch has Python kernels for."""
    ours = [*registry.rules(), *DECOMPOSITIONS, *filter(_has_ruled_parts, decomposition_table)]
    keys = {DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd}
    return [op for op in ours if isinstance(op, OpOverload) and keys & set(op.py_kernels)]


def _has_ruled_parts(op: Any) -> bool:
    """Whether an op that is left whole is traced as ops with rules, which torch's table goes past.

    These are the interpolations whose sizes may be given as scale factors.
    """
    return isinstance(op, OpOverload) and op._overloadname == "vec"
