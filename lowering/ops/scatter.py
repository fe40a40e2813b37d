"""Writing by index: scatter, index_put and their kin; updates out of range are left out."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jax import lax

from tpu_compile.lowering import builder
from tpu_compile.lowering.builder import (
    Scalar,
    as_type,
    compare,
    full_like,
    reshape,
    select,
    transpose,
)
from tpu_compile.lowering.checks import within
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.jax_bridge import jnp_call
from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.ops.indexing import Indices, along, moved, points, wrapped
from tpu_compile.lowering.ops.pointwise import floor_quotient
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import dtype_of, math_dtype, shape_of

aten = torch.ops.aten

Combine = Callable[[Value, Value], Value]


def last(_old: Value, new: Value) -> Value:
    """Combines by overwriting."""
    return new


_COMBINE: dict[str, Combine] = {
    "sum": hlo.add,
    "add": hlo.add,
    "mean": hlo.add,
    "prod": hlo.multiply,
    "multiply": hlo.multiply,
    "amax": hlo.maximum,
    "amin": hlo.minimum,
}


def _identity(reduce: str, dtype: torch.dtype) -> Scalar:
    if reduce == "prod":
        return 1
    if reduce in ("amax", "amin"):
        return builder.lowest(dtype) if reduce == "amax" else builder.highest(dtype)
    return 0


# ---------------------------------------------------------------- along one dimension


def _scatter(
    ctx: LoweringContext,
    x: Value,
    dim: int,
    index: Value,
    src: Value | Scalar,
    combine: Combine,
) -> Value:
    """Folds ``src`` into ``x`` in ``x``'s dtype."""
    if 0 in shape_of(index):
        return x
    shape = shape_of(x) or (1,)
    rank = len(shape)
    within(ctx, index, shape[dim])
    index = reshape(index, shape_of(index) or [1])
    src = as_type(src, dtype_of(x), None if isinstance(src, Value) else shape_of(index))
    src = reshape(src, shape_of(src) or [1])
    src = builder.slice_(src, [0] * rank, shape_of(index))
    at = along(index, dim % rank)
    out = builder.scatter(reshape(x, shape), at, src, list(range(rank)), combine)
    return reshape(out, shape_of(x))


@lowers(aten.scatter.src, checked=True)
def scatter_src(ctx: LoweringContext, x: Value, dim: int, index: Value, src: Value) -> Value:
    """scatter.src(Tensor self, int dim, Tensor index, Tensor src) -> Tensor"""
    return _scatter(ctx, x, dim, index, src, last)


@lowers(aten.scatter.value, checked=True)
def scatter_value(
    ctx: LoweringContext, x: Value, dim: int, index: Value, value: Value | Scalar
) -> Value:
    """scatter.value(Tensor self, int dim, Tensor index, Scalar value) -> Tensor"""
    value = as_type(value, dtype_of(x), shape_of(index))
    return _scatter(ctx, x, dim, index, value, last)


def _accumulate(
    ctx: LoweringContext, x: Value, dim: int, index: Value, src: Value, combine: Combine
) -> Value:
    math = math_dtype(dtype_of(x))
    return ctx.result(_scatter(ctx, as_type(x, math), dim, index, as_type(src, math), combine))


@lowers(aten.scatter.reduce, checked=True)
def scatter_with(
    ctx: LoweringContext, x: Value, dim: int, index: Value, src: Value, *, reduce: str
) -> Value:
    """scatter.reduce(Tensor self, int dim, Tensor index, Tensor src, *, str reduce) -> Tensor"""
    return _accumulate(ctx, x, dim, index, src, _COMBINE[reduce])


@lowers(aten.scatter.value_reduce, checked=True)
def scatter_value_with(
    ctx: LoweringContext, x: Value, dim: int, index: Value, value: Value | Scalar, *, reduce: str
) -> Value:
    """scatter.value_reduce(Tensor self, int dim, Tensor index, Scalar value, *, str reduce) -> Tensor"""  # noqa: E501
    value = as_type(value, dtype_of(x), shape_of(index))
    return _accumulate(ctx, x, dim, index, value, _COMBINE[reduce])


@lowers(aten.scatter_add.default, checked=True)
def scatter_add(ctx: LoweringContext, x: Value, dim: int, index: Value, src: Value) -> Value:
    """scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor"""
    return _accumulate(ctx, x, dim, index, src, hlo.add)


@lowers(aten.scatter_reduce.two, checked=True)
def scatter_reduce(
    ctx: LoweringContext,
    x: Value,
    dim: int,
    index: Value,
    src: Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    """scatter_reduce.two(Tensor self, int dim, Tensor index, Tensor src, str reduce, *, bool include_self=True) -> Tensor"""  # noqa: E501

    def fold(v: Value, src: Value | Scalar, combine: Combine) -> Value:
        return _scatter(ctx, v, dim, index, src, combine)

    return _reduced(ctx, x, src, reduce, include_self, fold)


def _reduced(
    ctx: LoweringContext,
    x: Value,
    src: Value,
    reduce: str,
    include_self: bool,
    fold: Callable[[Value, Value | Scalar, Combine], Value],
) -> Value:
    """What scatter_reduce and index_reduce share; ``fold`` scatters a source into a value."""
    math = math_dtype(dtype_of(x))
    v, src = as_type(x, math), as_type(src, math)
    if not include_self:
        v = fold(v, _identity(reduce, math), last)
    v = fold(v, src, _COMBINE[reduce])
    if reduce == "mean":
        start = full_like(builder.convert(x, torch.int32), int(include_self))
        counts = fold(start, 1, hlo.add)
        counts = hlo.maximum(counts, full_like(counts, 1))
        counts = builder.convert(counts, math)
        v = hlo.divide(v, counts) if math.is_floating_point else floor_quotient(v, counts)
    return ctx.result(v)


# ---------------------------------------------------------------- whole slices


def _slices(
    ctx: LoweringContext,
    x: Value,
    dim: int,
    index: Value,
    src: Value | Scalar,
    combine: Combine,
    *,
    wraps: bool = False,
) -> Value:
    """Folds slices of ``src`` along ``dim`` into ``x`` at ``index``, in ``x``'s dtype."""
    shape = shape_of(x) or (1,)
    dim %= len(shape)
    within(ctx, index, shape[dim], wraps=wraps)
    index = wrapped(index, shape[dim]) if wraps else index
    n = math.prod(shape_of(index))
    src = as_type(src, dtype_of(x))
    part = [n if d == dim else size for d, size in enumerate(shape)]
    src = reshape(src, part) if shape_of(src) else builder.broadcast_to(src, part)
    order = [dim, *(d for d in range(len(shape)) if d != dim)]
    at = reshape(index, [n, 1])
    out = builder.scatter(reshape(x, shape), at, transpose(src, order), [dim], combine)
    return reshape(out, shape_of(x))


@lowers(aten.index_add.default, checked=True)
def index_add(
    ctx: LoweringContext,
    x: Value,
    dim: int,
    index: Value,
    source: Value,
    *,
    alpha: Value | Scalar = 1,
) -> Value:
    """index_add(Tensor self, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor"""
    math = math_dtype(dtype_of(x))
    source = as_type(source, math)
    source = hlo.multiply(source, as_type(alpha, math, shape_of(source)))
    return ctx.result(_slices(ctx, as_type(x, math), dim, index, source, hlo.add))


@lowers(aten.index_copy.default, checked=True)
def index_copy(ctx: LoweringContext, x: Value, dim: int, index: Value, source: Value) -> Value:
    """index_copy(Tensor self, int dim, Tensor index, Tensor source) -> Tensor"""
    return _slices(ctx, x, dim, index, source, last)


@lowers(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor, checked=True)
def index_fill(
    ctx: LoweringContext, x: Value, dim: int, index: Value, value: Value | Scalar
) -> Value:
    """index_fill.int_Scalar(Tensor self, int dim, Tensor index, Scalar value) -> Tensor"""
    return _slices(ctx, x, dim, index, value, last, wraps=True)


@lowers(aten.index_reduce.default, checked=True)
def index_reduce(
    ctx: LoweringContext,
    x: Value,
    dim: int,
    index: Value,
    source: Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    """index_reduce(Tensor self, int dim, Tensor index, Tensor source, str reduce, *, bool include_self=True) -> Tensor"""  # noqa: E501

    def fold(v: Value, src: Value | Scalar, combine: Combine) -> Value:
        return _slices(ctx, v, dim, index, src, combine)

    return _reduced(ctx, x, source, reduce, include_self, fold)


@lowers(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    ctx: LoweringContext,
    grad_output: Value,
    indices: Value,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Value:
    """embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx, bool scale_grad_by_freq) -> Tensor"""  # noqa: E501
    acc = math_dtype(ctx.out.dtype)
    n, width = math.prod(shape_of(indices)), shape_of(grad_output)[-1]
    rows = reshape(builder.convert(indices, torch.int64), [n])
    grad = reshape(as_type(grad_output, acc), [n, width])
    if scale_grad_by_freq:
        ones = builder.constant(1, acc, [n])
        counts = builder.zeros([num_weights], acc)
        counts = builder.scatter(counts, reshape(rows, [n, 1]), ones, [0], hlo.add)
        freq = builder.unsqueeze(builder.take(counts, rows, 0), 1)
        grad = hlo.divide(grad, builder.broadcast_to(freq, [n, width]))
    # The padding row gets no gradient: out of range, its updates are left out.
    padding = compare("EQ", rows, full_like(rows, padding_idx))
    rows = select(padding, full_like(rows, num_weights), rows)
    zeros = builder.zeros(ctx.out.shape, acc)
    return ctx.result(builder.scatter(zeros, reshape(rows, [n, 1]), grad, [0], hlo.add))


# ---------------------------------------------------------------- index_put and masks


@lowers(aten.index_put.default, aten._unsafe_index_put.default, checked=True)
def index_put(
    ctx: LoweringContext, x: Value, indices: Indices, values: Value, accumulate: bool = False
) -> Value:
    """index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor"""
    if _is_mask(x, indices):
        return _put_where(ctx, x, indices, values, accumulate)
    acc = math_dtype(dtype_of(x)) if accumulate else dtype_of(x)
    at, dims, place = points(ctx, x, indices)
    batch = len(shape_of(at)) - 1
    others = [n for d, n in enumerate(shape_of(x)) if d not in dims]
    shape = [*others[:place], *shape_of(at)[:-1], *others[place:]]
    values = as_type(values, acc, shape)
    perm = moved(batch, len(shape), place)
    values = transpose(values, builder.inverse(perm))
    combine = hlo.add if accumulate else last
    return ctx.result(builder.scatter(as_type(x, acc), at, values, dims, combine))


def _is_mask(x: Value, indices: Indices) -> bool:
    first = indices[0] if indices else None
    return (
        first is not None
        and dtype_of(first) == torch.bool
        and all(at is None for at in indices[1:])
    )


def _put_where(
    ctx: LoweringContext, x: Value, indices: Indices, values: Value, accumulate: bool
) -> Value:
    """A mask with one value for all of its elements is a select, with no unknown size."""
    mask = indices[0]
    assert mask is not None
    rest = shape_of(x)[len(shape_of(mask)) :]
    if len(shape_of(values)) > len(rest) and shape_of(values)[-len(rest) - 1] != 1:
        ctx.fail("a mask as an index with one value per element; use torch.where or masked_scatter")
    if len(shape_of(values)) > len(rest):
        values = reshape(values, shape_of(values)[len(shape_of(values)) - len(rest) :])
    acc = math_dtype(dtype_of(x))
    mask = builder.broadcast_in_dim(mask, shape_of(x), range(len(shape_of(mask))))
    x, values = as_type(x, acc), as_type(values, acc, shape_of(x))
    return ctx.result(select(mask, hlo.add(x, values) if accumulate else values, x))


@lowers(aten.put.default, checked=True)
def put(
    ctx: LoweringContext, x: Value, index: Value, source: Value, accumulate: bool = False
) -> Value:
    """put(Tensor self, Tensor index, Tensor source, bool accumulate=False) -> Tensor"""
    numel, n = math.prod(shape_of(x)), math.prod(shape_of(index))
    acc = math_dtype(dtype_of(x)) if accumulate else dtype_of(x)
    flat = as_type(reshape(x, [numel]), acc)
    within(ctx, index, numel, wraps=True)
    at = reshape(wrapped(index, numel), [n, 1])
    source = as_type(reshape(source, [n]), acc)
    out = builder.scatter(flat, at, source, [0], hlo.add if accumulate else last)
    return ctx.result(reshape(out, shape_of(x)))


@lowers(aten.masked_scatter.default, bridged=True)
def masked_scatter(ctx: LoweringContext, x: Value, mask: Value, source: Value) -> Value:
    """masked_scatter(Tensor self, Tensor mask, Tensor source) -> Tensor"""
    x, (mask,) = ctx.operands(x, dtype=dtype_of(x))[0], ctx.operands(mask, dtype=torch.bool)
    numel, n = math.prod(ctx.out.shape), math.prod(shape_of(source))
    if not numel or not n:
        return x
    nth = _nth_true(ctx, reshape(mask, [numel]))
    # The i-th true element takes the i-th source element.
    picked = builder.take(reshape(source, [n]), nth, 0)
    return select(mask, reshape(picked, ctx.out.shape), x)


@lowers(aten.masked_scatter_backward.default, bridged=True)
def masked_scatter_backward(
    ctx: LoweringContext, grad_output: Value, mask: Value, sizes: list[int]
) -> Value:
    """masked_scatter_backward(Tensor grad_output, Tensor mask, SymInt[] sizes) -> Tensor"""
    n, numel = math.prod(ctx.out.shape), math.prod(shape_of(grad_output))
    if not n or not numel:
        return builder.zeros(ctx.out.shape, ctx.out.dtype)
    mask = reshape(builder.broadcast_to(mask, shape_of(grad_output)), [numel])
    nth = _nth_true(ctx, mask)
    nth = select(mask, nth, full_like(nth, n))  # out of range: left out
    grad = reshape(grad_output, [numel])
    out = builder.scatter(
        builder.zeros([n], ctx.out.dtype), reshape(nth, [numel, 1]), grad, [0], hlo.add
    )
    return reshape(out, ctx.out.shape)


def _nth_true(ctx: LoweringContext, mask: Value) -> Value:
    """For each true element of a flat mask, how many stand before it."""
    counts = jnp_call(ctx, lax.cumsum, builder.convert(mask, torch.int64), axis=0)
    return builder.add_scalar(counts, -1)
