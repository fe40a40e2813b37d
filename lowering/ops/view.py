"""Views, joins and cuts: reshape, transpose, slice, broadcast, pad and their scatters."""

from __future__ import annotations

import torch

from tpu_compile.lowering import builder
from tpu_compile.lowering.builder import (
    Scalar,
    as_type,
    broadcast_to,
    compare,
    concatenate,
    iota,
    reshape,
    select,
    slice_dim,
    transpose,
)
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import dtype_of, shape_of

aten = torch.ops.aten


# ---------------------------------------------------------------- the same elements


@lowers(aten.view.default, aten._unsafe_view.default)
def view(ctx: LoweringContext, x: Value, size: list[int]) -> Value:
    """view(Tensor(a) self, SymInt[] size) -> Tensor(a)"""
    return reshape(x, ctx.out.shape)


@lowers(aten._reshape_alias.default)
def _reshape_alias(ctx: LoweringContext, x: Value, size: list[int], stride: list[int]) -> Value:
    """_reshape_alias(Tensor(a) self, SymInt[] size, SymInt[] stride) -> Tensor(a)"""
    return reshape(x, ctx.out.shape)


@lowers(aten.squeeze.default)
def squeeze(ctx: LoweringContext, x: Value) -> Value:
    """squeeze(Tensor(a) self) -> Tensor(a)"""
    return reshape(x, ctx.out.shape)


@lowers(aten.squeeze.dim, aten.squeeze.dims)
def squeeze_dim(ctx: LoweringContext, x: Value, dim: int | list[int]) -> Value:
    """squeeze.dim(Tensor(a) self, int dim) -> Tensor(a)"""
    return reshape(x, ctx.out.shape)


@lowers(aten.unsqueeze.default)
def unsqueeze(ctx: LoweringContext, x: Value, dim: int) -> Value:
    """unsqueeze(Tensor(a) self, int dim) -> Tensor(a)"""
    return reshape(x, ctx.out.shape)


@lowers(aten.permute.default)
def permute(ctx: LoweringContext, x: Value, dims: list[int]) -> Value:
    """permute(Tensor(a) self, int[] dims) -> Tensor(a)"""
    rank = len(dims)
    return transpose(x, [d % rank for d in dims])


@lowers(aten.t.default)
def t(ctx: LoweringContext, x: Value) -> Value:
    """t(Tensor(a) self) -> Tensor(a)"""
    return transpose(x, range(len(shape_of(x)))[::-1])


@lowers(aten.transpose.int)
def transpose_int(ctx: LoweringContext, x: Value, dim0: int, dim1: int) -> Value:
    """transpose.int(Tensor(a) self, int dim0, int dim1) -> Tensor(a)"""
    perm = list(range(len(shape_of(x))))
    if perm:
        perm[dim0], perm[dim1] = perm[dim1], perm[dim0]
    return transpose(x, perm)


@lowers(aten.expand.default)
def expand(ctx: LoweringContext, x: Value, size: list[int], *, implicit: bool = False) -> Value:
    """expand(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)"""
    return broadcast_to(x, ctx.out.shape)


@lowers(aten.flip.default)
def flip(ctx: LoweringContext, x: Value, dims: list[int]) -> Value:
    """flip(Tensor self, int[] dims) -> Tensor"""
    return builder.reverse(x, [d % max(1, len(shape_of(x))) for d in dims])


@lowers(aten.repeat.default)
def repeat(ctx: LoweringContext, x: Value, repeats: list[int]) -> Value:
    """repeat(Tensor self, SymInt[] repeats) -> Tensor"""
    shape = [1] * (len(repeats) - len(shape_of(x))) + list(shape_of(x))
    tiled = [s for r, n in zip(repeats, shape, strict=True) for s in (r, n)]
    dims = range(1, len(tiled), 2)
    return reshape(builder.broadcast_in_dim(reshape(x, shape), tiled, dims), ctx.out.shape)


# ---------------------------------------------------------------- parts


def bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """A slice's start and end inside a dimension, as torch wraps and clamps them."""
    lo, hi = (0 if start is None else start), (size if end is None else end)
    lo, hi = (v + size if v < 0 else v for v in (lo, hi))
    lo = min(max(lo, 0), size)
    return lo, min(max(hi, lo), size)


@lowers(aten.slice.Tensor)
def slice(
    ctx: LoweringContext,
    x: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    """slice.Tensor(Tensor(a) self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor(a)"""  # noqa: E501
    dim %= len(shape_of(x))
    lo, hi = bounds(shape_of(x)[dim], start, end)
    return slice_dim(x, dim, lo, hi, step)


@lowers(aten.select.int)
def select_int(ctx: LoweringContext, x: Value, dim: int, index: int | Value) -> Value:
    """select.int(Tensor(a) self, int dim, SymInt index) -> Tensor(a)"""
    shape = list(shape_of(x))
    dim %= len(shape)
    if not isinstance(index, Value):
        index %= shape[dim]
        return reshape(slice_dim(x, dim, index, index + 1), ctx.out.shape)
    zero = builder.constant(0, torch.int64)
    wrapped = select(compare("LT", index, zero), builder.add_scalar(index, shape[dim]), index)
    starts = [wrapped if d == dim else zero for d in range(len(shape))]
    shape[dim] = 1
    return reshape(builder.dynamic_slice(x, starts, shape), ctx.out.shape)


@lowers(aten.split_with_sizes.default)
def split_with_sizes(
    ctx: LoweringContext, x: Value, split_sizes: list[int], dim: int = 0
) -> list[Value]:
    """split_with_sizes(Tensor(a -> *) self, SymInt[] split_sizes, int dim=0) -> Tensor(a)[]"""
    dim %= len(shape_of(x))
    out, start = [], 0
    for size in split_sizes:
        out.append(slice_dim(x, dim, start, start + size))
        start += size
    return out


@lowers(aten.unbind.int)
def unbind(ctx: LoweringContext, x: Value, dim: int = 0) -> list[Value]:
    """unbind.int(Tensor(a -> *) self, int dim=0) -> Tensor(a)[]"""
    dim %= len(shape_of(x))
    size = shape_of(x)[dim]
    return [reshape(slice_dim(x, dim, i, i + 1), ctx.out.shape) for i in range(size)]


@lowers(aten.diagonal.default)
def diagonal(
    ctx: LoweringContext, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    """diagonal(Tensor(a) self, int offset=0, int dim1=0, int dim2=1) -> Tensor(a)"""
    x, _perm = _diagonal_last(x, dim1, dim2)
    *lead, _rows, _cols = shape_of(x)
    n, r, c = ctx.out.shape[-1], max(0, -offset), max(0, offset)
    if n == 0:
        return builder.zeros(ctx.out.shape, ctx.out.dtype)
    rank = len(lead) + 2
    x = slice_dim(slice_dim(x, rank - 2, r, r + n), rank - 1, c, c + n)
    # In a flat n x n matrix the diagonal is every (n + 1)th element.
    flat = reshape(x, [*lead, n * n])
    return slice_dim(flat, len(lead), 0, n * n, n + 1)


def _diagonal_last(v: Value, dim1: int, dim2: int) -> tuple[Value, list[int]]:
    rank = len(shape_of(v))
    dim1, dim2 = dim1 % rank, dim2 % rank
    perm = [d for d in range(rank) if d not in (dim1, dim2)] + [dim1, dim2]
    return transpose(v, perm), perm


@lowers(aten.unfold.default)
def unfold(ctx: LoweringContext, x: Value, dimension: int, size: int, step: int) -> Value:
    """unfold(Tensor(a) self, int dimension, int size, int step) -> Tensor(a)"""
    if not shape_of(x):
        return reshape(x, ctx.out.shape)
    dim = dimension % len(shape_of(x))
    windows = [ctx.out.shape[dim], size]
    at = hlo.add(
        hlo.multiply(iota(windows, 0), builder.constant(step, torch.int64, windows)),
        iota(windows, 1),
    )
    out = builder.take(x, at, dim)
    rank = len(ctx.out.shape)
    perm = [d for d in range(rank) if d != dim + 1]
    return transpose(out, [*perm, dim + 1])


# ---------------------------------------------------------------- joins


@lowers(aten.cat.default)
def cat(ctx: LoweringContext, tensors: list[Value], dim: int = 0) -> Value:
    """cat(Tensor[] tensors, int dim=0) -> Tensor"""
    # torch skips tensors of shape (0,) whatever the rank of the others
    full = [v for v in tensors if shape_of(v) != (0,) or len(ctx.out.shape) == 1]
    if not full:
        return builder.zeros(ctx.out.shape, ctx.out.dtype)
    return concatenate([ctx.result(v) for v in full], dim % max(1, len(ctx.out.shape)))


@lowers(aten.stack.default, aten._stack.default)
def stack(ctx: LoweringContext, tensors: list[Value], dim: int = 0) -> Value:
    """stack(Tensor[] tensors, int dim=0) -> Tensor"""
    dim %= len(ctx.out.shape)
    return concatenate([builder.unsqueeze(ctx.result(v), dim) for v in tensors], dim)


@lowers(aten.constant_pad_nd.default)
def constant_pad_nd(
    ctx: LoweringContext, x: Value, pad: list[int], value: Value | Scalar = 0
) -> Value:
    """constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor"""
    lead = len(shape_of(x)) - len(pad) // 2
    low = [0] * lead + pad[-2::-2]
    high = [0] * lead + pad[::-2]
    return builder.pad(x, low, high, value)


# ---------------------------------------------------------------- writing parts


@lowers(aten.slice_scatter.default)
def slice_scatter(
    ctx: LoweringContext,
    x: Value,
    src: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    """slice_scatter(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor"""  # noqa: E501
    shape = shape_of(x)
    dim %= len(shape)
    lo, hi = bounds(shape[dim], start, end)
    count = -(-(hi - lo) // step)
    src = as_type(src, dtype_of(x), [count if d == dim else n for d, n in enumerate(shape)])
    if count == 0:
        return x
    if step == 1 or count == 1:
        return builder.update_slice(x, src, [lo if d == dim else 0 for d in range(len(shape))])
    span = (count - 1) * step + 1
    axes = range(len(shape))
    at = lambda n: [n if d == dim else 0 for d in axes]  # noqa: E731
    low, high, between = at(lo), at(shape[dim] - lo - span), at(step - 1)
    inside = builder.constant(True, torch.bool, shape_of(src))
    inside = builder.pad(inside, low, high, False, between)
    return select(inside, builder.pad(src, low, high, 0, between), x)


@lowers(aten.select_scatter.default)
def select_scatter(ctx: LoweringContext, x: Value, src: Value, dim: int, index: int) -> Value:
    """select_scatter(Tensor self, Tensor src, int dim, SymInt index) -> Tensor"""
    shape = shape_of(x)
    dim %= len(shape)
    src = as_type(src, dtype_of(x), [n for d, n in enumerate(shape) if d != dim])
    starts = [index % shape[dim] if d == dim else 0 for d in range(len(shape))]
    return builder.update_slice(x, builder.unsqueeze(src, dim), starts)


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(
    ctx: LoweringContext, x: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    """diagonal_scatter(Tensor self, Tensor src, int offset=0, int dim1=0, int dim2=1) -> Tensor"""
    x, perm = _diagonal_last(x, dim1, dim2)
    shape = shape_of(x)
    rank, n, r = len(shape), shape_of(src)[-1], max(0, -offset)
    if n == 0:
        return transpose(x, builder.inverse(perm))
    row = builder.add_scalar(iota(shape, rank - 2), offset)
    on_diagonal = compare("EQ", row, iota(shape, rank - 1))
    along = [0] * (rank - 2)
    src = as_type(src, dtype_of(x))
    src = builder.pad(src, [*along, r], [*along, shape[-2] - r - n])
    src = builder.broadcast_in_dim(src, shape, range(rank - 1))
    out = select(on_diagonal, src, x)
    return transpose(out, builder.inverse(perm))
