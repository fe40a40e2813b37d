"""Reductions: sums in the accumulator torch uses, extremes with torch's NaN and tie rules."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tpu_compile.lowering import builder
from tpu_compile.lowering.builder import Scalar, as_type, compare, full_like, is_nan, reduce, select
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import dtype_of, math_dtype, shape_of

aten = torch.ops.aten

Dims = Sequence[int] | int | None


def dims_of(v: Value, dim: Dims) -> list[int]:
    """The dimensions to reduce, non-negative; None and an empty list are all of them."""
    rank = len(shape_of(v))
    if dim is None or (isinstance(dim, Sequence) and not dim):
        return list(range(rank))
    dims = [dim] if isinstance(dim, int) else dim
    return [d % rank for d in dims] if rank else []


def total(v: Value, dim: Dims, *, keepdim: bool = False) -> Value:
    """The sum in the value's own dtype."""
    return reduce(v, dims_of(v, dim), hlo.add, 0, keepdim=keepdim)


def count(v: Value, dims: Sequence[int]) -> int:
    """How many elements reducing these dimensions folds into one."""
    return math.prod(shape_of(v)[d] for d in dims)


# ---------------------------------------------------------------- sums and products


def sum_of(ctx: LoweringContext, x: Value, dim: Dims, keepdim: bool) -> Value:
    """The op's result as a sum, in the accumulator torch uses."""
    x = as_type(x, math_dtype(ctx.out.dtype))
    return ctx.result(total(x, dim, keepdim=keepdim))


@lowers(aten.sum.default)
def sum(ctx: LoweringContext, x: Value, *, dtype: torch.dtype | None = None) -> Value:
    """sum(Tensor self, *, ScalarType? dtype=None) -> Tensor"""
    return sum_of(ctx, x, None, False)


@lowers(aten.sum.dim_IntList)
def sum_dim(
    ctx: LoweringContext,
    x: Value,
    dim: list[int] | None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    """sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"""  # noqa: E501
    return sum_of(ctx, x, dim, keepdim)


def _mean(ctx: LoweringContext, x: Value, dim: Dims, keepdim: bool) -> Value:
    x = as_type(x, math_dtype(ctx.out.dtype))
    out = total(x, dim, keepdim=keepdim)
    return ctx.result(hlo.divide(out, builder.divisor(count(x, dims_of(x, dim)), out)))


@lowers(aten.mean.default)
def mean(ctx: LoweringContext, x: Value, *, dtype: torch.dtype | None = None) -> Value:
    """mean(Tensor self, *, ScalarType? dtype=None) -> Tensor"""
    return _mean(ctx, x, None, False)


@lowers(aten.mean.dim)
def mean_dim(
    ctx: LoweringContext,
    x: Value,
    dim: list[int] | None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    """mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"""  # noqa: E501
    return _mean(ctx, x, dim, keepdim)


def product_of(ctx: LoweringContext, x: Value, dim: Dims, keepdim: bool) -> Value:
    """The op's result as a product, in the accumulator torch uses."""
    x = as_type(x, math_dtype(ctx.out.dtype))
    return ctx.result(reduce(x, dims_of(x, dim), hlo.multiply, 1, keepdim=keepdim))


@lowers(aten.prod.default)
def prod(ctx: LoweringContext, x: Value, *, dtype: torch.dtype | None = None) -> Value:
    """prod(Tensor self, *, ScalarType? dtype=None) -> Tensor"""
    return product_of(ctx, x, None, False)


@lowers(aten.prod.dim_int)
def prod_dim(
    ctx: LoweringContext,
    x: Value,
    dim: int,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    """prod.dim_int(Tensor self, int dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"""  # noqa: E501
    return product_of(ctx, x, dim, keepdim)


# ---------------------------------------------------------------- variance


def moments(
    v: Value, dim: Dims, correction: Scalar | Value | None, *, keepdim: bool
) -> tuple[Value, Value]:
    """Variance (real) and mean along dimensions, in two passes."""
    dims = dims_of(v, dim)
    n = count(v, dims)
    mean = reduce(v, dims, hlo.add, 0, keepdim=True)
    mean = hlo.divide(mean, full_like(mean, n))
    off = hlo.subtract(v, builder.broadcast_to(mean, shape_of(v)))
    if dtype_of(v).is_complex:
        re, im = hlo.real(off), hlo.imag(off)
        square = hlo.add(hlo.multiply(re, re), hlo.multiply(im, im))
    else:
        square = hlo.multiply(off, off)
    spread = reduce(square, dims, hlo.add, 0, keepdim=keepdim)
    free = builder.constant(n, dtype_of(spread), shape_of(spread))
    correction = as_type(
        1 if correction is None else correction, dtype_of(spread), shape_of(spread)
    )
    free = hlo.maximum(hlo.subtract(free, correction), full_like(free, 0))
    return hlo.divide(spread, free), builder.reshape(mean, shape_of(spread))


def moments_of(
    ctx: LoweringContext, x: Value, dim: Dims, correction: Scalar | Value | None, keepdim: bool
) -> tuple[Value, Value]:
    """Variance and mean in the math type."""
    return moments(as_type(x, math_dtype(dtype_of(x))), dim, correction, keepdim=keepdim)


@lowers(aten.var.correction)
def var(
    ctx: LoweringContext,
    x: Value,
    dim: list[int] | None = None,
    *,
    correction: Scalar | Value | None = None,
    keepdim: bool = False,
) -> Value:
    """var.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor"""  # noqa: E501
    return ctx.result(moments_of(ctx, x, dim, correction, keepdim)[0])


@lowers(aten.std.correction)
def std(
    ctx: LoweringContext,
    x: Value,
    dim: list[int] | None = None,
    *,
    correction: Scalar | Value | None = None,
    keepdim: bool = False,
) -> Value:
    """std.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor"""  # noqa: E501
    return ctx.result(hlo.sqrt(moments_of(ctx, x, dim, correction, keepdim)[0]))


@lowers(aten.var_mean.correction)
def var_mean(
    ctx: LoweringContext,
    x: Value,
    dim: list[int] | None = None,
    *,
    correction: Scalar | Value | None = None,
    keepdim: bool = False,
) -> tuple[Value, Value]:
    """var_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor, Tensor)"""  # noqa: E501
    var, mean = moments_of(ctx, x, dim, correction, keepdim)
    return as_type(var, ctx.outs[0].dtype), as_type(mean, ctx.outs[1].dtype)


# ---------------------------------------------------------------- truth


def _any(ctx: LoweringContext, x: Value, dim: Dims, keepdim: bool) -> Value:
    x = builder.convert(x, torch.bool)
    return ctx.result(reduce(x, dims_of(x, dim), hlo.or_, False, keepdim=keepdim))


def _all(ctx: LoweringContext, x: Value, dim: Dims, keepdim: bool) -> Value:
    x = builder.convert(x, torch.bool)
    return ctx.result(reduce(x, dims_of(x, dim), hlo.and_, True, keepdim=keepdim))


@lowers(aten.any.default)
def any(ctx: LoweringContext, x: Value) -> Value:
    """any(Tensor self) -> Tensor"""
    return _any(ctx, x, None, False)


@lowers(aten.any.dim, aten.any.dims)
def any_dim(
    ctx: LoweringContext, x: Value, dim: int | list[int] | None = None, keepdim: bool = False
) -> Value:
    """any.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor"""
    return _elementwise_truth(ctx, x) if dim == [] else _any(ctx, x, dim, keepdim)


@lowers(aten.all.default)
def all(ctx: LoweringContext, x: Value) -> Value:
    """all(Tensor self) -> Tensor"""
    return _all(ctx, x, None, False)


@lowers(aten.all.dim, aten.all.dims)
def all_dim(
    ctx: LoweringContext, x: Value, dim: int | list[int] | None = None, keepdim: bool = False
) -> Value:
    """all.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor"""
    return _elementwise_truth(ctx, x) if dim == [] else _all(ctx, x, dim, keepdim)


def _elementwise_truth(ctx: LoweringContext, x: Value) -> Value:
    return ctx.result(builder.convert(x, torch.bool))


# ---------------------------------------------------------------- extremes


def largest(v: Value, dims: Sequence[int], *, keepdim: bool = False) -> Value:
    """The maximum along dimensions; NaN wins."""
    return reduce(v, dims, hlo.maximum, builder.lowest(dtype_of(v)), keepdim=keepdim)


def smallest(v: Value, dims: Sequence[int], *, keepdim: bool = False) -> Value:
    """The minimum along dimensions; NaN wins."""
    return reduce(v, dims, hlo.minimum, builder.highest(dtype_of(v)), keepdim=keepdim)


@lowers(aten.amax.default)
def amax(ctx: LoweringContext, x: Value, dim: list[int] = [], keepdim: bool = False) -> Value:  # noqa: B006
    """amax(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor"""
    return largest(x, dims_of(x, dim), keepdim=keepdim)


@lowers(aten.amin.default)
def amin(ctx: LoweringContext, x: Value, dim: list[int] = [], keepdim: bool = False) -> Value:  # noqa: B006
    """amin(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor"""
    return smallest(x, dims_of(x, dim), keepdim=keepdim)


@lowers(aten.max.default)
def max(ctx: LoweringContext, x: Value) -> Value:
    """max(Tensor self) -> Tensor"""
    return largest(x, dims_of(x, None))


@lowers(aten.min.default)
def min(ctx: LoweringContext, x: Value) -> Value:
    """min(Tensor self) -> Tensor"""
    return smallest(x, dims_of(x, None))


def extreme(v: Value, dim: int, direction: str, *, keepdim: bool) -> tuple[Value, Value]:
    """The extreme value along one dimension and its first index; the first NaN wins.

    Args:
        v: the operand, of rank 1 at least.
        dim: the non-negative dimension.
        direction: "GT" for the maximum, "LT" for the minimum.
        keepdim: whether the dimension stays, with size 1.
    """
    dtype = dtype_of(v)
    index = builder.index_type(shape_of(v))

    def combine(x: Sequence[Value], y: Sequence[Value]) -> Sequence[Value]:
        better, same = compare(direction, x[0], y[0]), compare("EQ", x[0], y[0])
        if dtype.is_floating_point:
            nan_x, nan_y = is_nan(x[0]), is_nan(y[0])
            better = hlo.or_(better, hlo.and_(nan_x, hlo.not_(nan_y)))
            same = hlo.or_(same, hlo.and_(nan_x, nan_y))
        first = hlo.or_(better, hlo.and_(same, compare("LT", x[1], y[1])))
        return select(first, x[0], y[0]), select(first, x[1], y[1])

    worst = builder.lowest(dtype) if direction == "GT" else builder.highest(dtype)
    at = builder.iota(shape_of(v), dim, index)
    value, where = builder.reduce_many([v, at], [dim], combine, [worst, builder.highest(index)])
    where = builder.convert(where, torch.int64)
    if keepdim:
        return builder.unsqueeze(value, dim), builder.unsqueeze(where, dim)
    return value, where


def _arg(ctx: LoweringContext, x: Value, dim: int | None, direction: str) -> Value:
    rank = len(shape_of(x))
    if dim is None or not rank:
        x, dim = builder.reshape(x, [math.prod(shape_of(x))]), 0
    index = extreme(x, dim % builder.rank_of(x), direction, keepdim=False)[1]
    return builder.reshape(index, ctx.out.shape)


@lowers(aten.argmax.default)
def argmax(ctx: LoweringContext, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor"""
    return _arg(ctx, x, dim, "GT")


@lowers(aten.argmin.default)
def argmin(ctx: LoweringContext, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """argmin(Tensor self, int? dim=None, bool keepdim=False) -> Tensor"""
    return _arg(ctx, x, dim, "LT")


def _extreme(
    ctx: LoweringContext, x: Value, dim: int, keepdim: bool, direction: str
) -> tuple[Value, Value]:
    if not shape_of(x):
        return x, builder.zeros((), torch.int64)
    return extreme(x, dim % builder.rank_of(x), direction, keepdim=keepdim)


@lowers(aten.max.dim)
def max_dim(ctx: LoweringContext, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    return _extreme(ctx, x, dim, keepdim, "GT")


@lowers(aten.min.dim)
def min_dim(ctx: LoweringContext, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """min.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    return _extreme(ctx, x, dim, keepdim, "LT")
