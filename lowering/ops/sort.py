"""Sorting and searching in sorted sequences; NaN sorts last, equal elements keep their order."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import torch

from tpu_compile.lowering import builder
from tpu_compile.lowering.builder import compare, is_nan, select
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.jax_bridge import jnp_call
from tpu_compile.lowering.mlir import Value, chlo, hlo
from tpu_compile.lowering.ops.creation import filled
from tpu_compile.lowering.ops.indexing import along
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import dtype_of, math_dtype, shape_of

aten = torch.ops.aten


def before(x: Value, y: Value, *, descending: bool) -> Value:
    """Whether x stands before y: NaN is greater than all numbers."""
    less = compare("GT" if descending else "LT", x, y)
    if not dtype_of(x).is_floating_point:
        return less
    first, second = (x, y) if descending else (y, x)
    return hlo.or_(less, hlo.and_(is_nan(first), hlo.not_(is_nan(second))))


def sorted_with_indices(v: Value, dim: int, *, descending: bool) -> tuple[Value, Value]:
    """A stable sort along one dimension, and where each element was."""
    if not shape_of(v):
        return v, builder.zeros((), torch.int64)
    dim %= len(shape_of(v))
    at = builder.iota(shape_of(v), dim, builder.index_type(shape_of(v)))
    values, at = builder.sort([v, at], dim, lambda x, y: before(x[0], y[0], descending=descending))
    return values, builder.convert(at, torch.int64)


@lowers(aten.sort.default)
def sort(
    ctx: LoweringContext, x: Value, dim: int = -1, descending: bool = False
) -> tuple[Value, Value]:
    """sort(Tensor self, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)"""
    return sorted_with_indices(x, dim, descending=descending)


@lowers(aten.sort.stable)
def sort_stable(
    ctx: LoweringContext, x: Value, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[Value, Value]:
    """sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)"""  # noqa: E501
    return sorted_with_indices(x, dim, descending=descending)


@lowers(aten.topk.default)
def topk(
    ctx: LoweringContext,
    x: Value,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> tuple[Value, Value]:
    """topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor values, Tensor indices)"""  # noqa: E501
    rank = len(shape_of(x))
    if not rank or not k:
        at = builder.zeros(ctx.out.shape, torch.int64)
        return builder.reshape(x, ()) if not rank and k else filled(ctx, 0), at
    perm = [d for d in range(rank) if d != dim % rank] + [dim % rank]
    back = builder.inverse(perm)
    v = builder.transpose(x, perm)
    places: Value
    ranked, places = chlo.top_k(_ranked(v, largest=largest), k)
    values = builder.convert(_ranked(ranked, largest=largest), dtype_of(x))
    places = builder.convert(places, torch.int64)
    return builder.transpose(values, back), builder.transpose(places, back)


def _ranked(v: Value, *, largest: bool) -> Value:
    """The values so that the largest ones are wanted, NaN among them where torch has it so.

    Its own inverse. top_k orders NaN by its sign bit: where the smallest are wanted, a NaN comes
    last, as negative; else first, as positive.
    """
    dtype = dtype_of(v)
    if not dtype.is_floating_point:
        return v if largest else hlo.not_(v)
    v = builder.convert(v, math_dtype(dtype))
    ranked = v if largest else hlo.negate(v)
    nan = builder.full_like(v, math.nan)
    return select(is_nan(v), nan if largest else hlo.negate(nan), ranked)


def nth(
    ctx: LoweringContext, v: Value, dim: int, n: int | Value, keepdim: bool
) -> tuple[Value, Value]:
    """The n-th smallest element along a dimension and its index; n may be per slice."""
    values, at = sorted_with_indices(v, dim, descending=False)
    if not shape_of(v):
        return values, at
    dim %= len(shape_of(v))
    picked = []
    for part in (values, at):
        if isinstance(n, Value):
            hit = compare("EQ", builder.iota(shape_of(v), dim), n)
            zeros = builder.full_like(part, 0)
            fold = hlo.or_ if dtype_of(part) == torch.bool else hlo.add
            part = builder.reduce(select(hit, part, zeros), [dim], fold, 0, keepdim=keepdim)
        else:
            part = builder.slice_dim(part, dim, n, n + 1)
        picked.append(part)
    # median() has one result where median(dim) has two, both of one shape
    first, second = (builder.reshape(p, ctx.out.shape) for p in picked)
    return first, second


@lowers(aten.kthvalue.default)
def kthvalue(
    ctx: LoweringContext, x: Value, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[Value, Value]:
    """kthvalue(Tensor self, SymInt k, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)"""  # noqa: E501
    return nth(ctx, x, dim, k - 1, keepdim)


# ---------------------------------------------------------------- medians


def _valid(v: Value, dim: int) -> Value:
    """How many elements along a dimension are not NaN, broadcast."""
    good = builder.convert(hlo.not_(is_nan(v)), torch.int64)
    counts = builder.reduce(good, [dim], hlo.add, 0, keepdim=True)
    return builder.broadcast_to(counts, shape_of(v))


def _middle(ctx: LoweringContext, v: Value, dim: int, *, skip_nan: bool) -> tuple[Value, Value]:
    rank = len(shape_of(v))
    if not rank:
        return v, builder.zeros((), torch.int64)
    dim %= rank
    valid = _valid(v, dim)
    size = builder.full_like(valid, shape_of(v)[dim])
    zero, two = builder.full_like(valid, 0), builder.full_like(valid, 2)
    half = lambda n: hlo.maximum(hlo.divide(builder.add_scalar(n, -1), two), zero)  # noqa: E731
    # With a NaN the median is the first NaN, which stands behind the numbers.
    full = compare("EQ", valid, size)
    at = half(valid) if skip_nan else select(full, half(size), valid)
    return nth(ctx, v, dim, at, False)


@lowers(aten.median.dim)
def median_dim(
    ctx: LoweringContext, x: Value, dim: int, keepdim: bool = False
) -> tuple[Value, Value]:
    """median.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    return _middle(ctx, x, dim, skip_nan=False)


@lowers(aten.nanmedian.dim)
def nanmedian_dim(
    ctx: LoweringContext, x: Value, dim: int, keepdim: bool = False
) -> tuple[Value, Value]:
    """nanmedian.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    return _middle(ctx, x, dim, skip_nan=True)


@lowers(aten.median.default)
def median(ctx: LoweringContext, x: Value) -> Value:
    """median(Tensor self) -> Tensor"""
    return _middle(ctx, _flat(x), 0, skip_nan=False)[0]


@lowers(aten.nanmedian.default)
def nanmedian(ctx: LoweringContext, x: Value) -> Value:
    """nanmedian(Tensor self) -> Tensor"""
    return _middle(ctx, _flat(x), 0, skip_nan=True)[0]


def _flat(v: Value) -> Value:
    return builder.reshape(v, [math.prod(shape_of(v))])


# ---------------------------------------------------------------- search


def _search(sequence: jax.Array, values: jax.Array, side: str) -> jax.Array:
    """Where values belong in sequences sorted along the last dimension, one per leading index."""
    find = lambda s, v: jnp.searchsorted(s, v, side=side, method="scan")  # noqa: E731
    if sequence.ndim == 1:
        return find(sequence, values).astype(jnp.int64)
    lead = sequence.shape[:-1]
    flat = jax.vmap(find)(
        sequence.reshape(-1, sequence.shape[-1]), values.reshape(-1, values.shape[-1])
    )
    return flat.reshape(*lead, -1).astype(jnp.int64)


def _searchsorted(
    ctx: LoweringContext, sequence: Value, v: Value | builder.Scalar, right: bool
) -> Value:
    kind = torch.promote_types(dtype_of(sequence), dtype_of(v)) if isinstance(v, Value) else None
    kind = kind or dtype_of(sequence)
    if isinstance(v, float) and not kind.is_floating_point:
        kind = torch.get_default_dtype()
    sequence, v = builder.as_type(sequence, kind), builder.as_type(v, kind)
    if not shape_of(sequence)[-1]:
        return builder.zeros(ctx.out.shape, ctx.out.dtype)
    return ctx.result(jnp_call(ctx, _search, sequence, v, side="right" if right else "left"))


@lowers(aten.searchsorted.Tensor, aten.searchsorted.Scalar, bridged=True)
def searchsorted(
    ctx: LoweringContext,
    sorted_sequence: Value,
    x: Value | builder.Scalar,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    """searchsorted.Tensor(Tensor sorted_sequence, Tensor self, *, bool out_int32=False, bool right=False, str? side=None, Tensor? sorter=None) -> Tensor"""  # noqa: E501
    if sorter is not None:
        last = len(shape_of(sorted_sequence)) - 1
        sorted_sequence = builder.gather(sorted_sequence, along(sorter, last), range(last + 1))
    return _searchsorted(ctx, sorted_sequence, x, right or side == "right")


@lowers(aten.bucketize.Tensor, aten.bucketize.Scalar, bridged=True)
def bucketize(
    ctx: LoweringContext,
    x: Value | builder.Scalar,
    boundaries: Value,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> Value:
    """bucketize.Tensor(Tensor self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor"""  # noqa: E501
    return _searchsorted(ctx, boundaries, x, right)
