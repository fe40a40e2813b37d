"""Reading by index: embedding, gather, index, index_select.

An index out of range is an error where values are checked, else it is moved inside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tpu_compile.lowering import builder
from tpu_compile.lowering.builder import compare, concatenate, full_like, iota, reshape, select
from tpu_compile.lowering.checks import within
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import dtype_of, shape_of

aten = torch.ops.aten

Indices = Sequence[Value | None]

# torch's own decompositions use these where they know that indices are in range.
UNCHECKED = (aten._unsafe_index.Tensor, aten._unsafe_index_put.default)


def wrapped(at: Value, size: int) -> Value:
    """Indices with ``size`` added to the negative ones, as int64."""
    at = builder.convert(at, torch.int64)
    return select(compare("LT", at, full_like(at, 0)), builder.add_scalar(at, size), at)


def points(ctx: LoweringContext, v: Value, indices: Indices) -> tuple[Value, list[int], int]:
    """Several index tensors as one.

    Returns:
        Integers of shape [*broadcast shape, number of indices], the dimensions they index, and
        where in the result the broadcast shape stands: torch puts it at the first indexed
        dimension when those are adjacent, else in front.
    """
    dims = [d for d, at in enumerate(indices) if at is not None]
    given = [at for at in indices if at is not None]
    if any(dtype_of(at) in (torch.bool, torch.uint8) for at in given):
        ctx.fail("a mask as an index gives a result of unknown size; use torch.where")
    if ctx.node.target not in UNCHECKED:
        for d, at in zip(dims, given, strict=True):
            within(ctx, at, shape_of(v)[d], wraps=True)
    shape = torch.broadcast_shapes(*(shape_of(at) for at in given))
    parts = [
        builder.unsqueeze(builder.broadcast_to(wrapped(at, shape_of(v)[d]), shape), len(shape))
        for d, at in zip(dims, given, strict=True)
    ]
    adjacent = dims == list(range(dims[0], dims[-1] + 1))
    return concatenate(parts, len(shape)), dims, dims[0] if adjacent else 0


def moved(batch: int, rank: int, place: int) -> list[int]:
    """The permutation that moves ``batch`` leading dimensions to stand at ``place``."""
    rest = range(batch, rank)
    return [*rest[:place], *range(batch), *rest[place:]]


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor, checked=True)
def index(ctx: LoweringContext, x: Value, indices: Indices) -> Value:
    """index.Tensor(Tensor self, Tensor?[] indices) -> Tensor"""
    if all(at is None for at in indices):
        return x
    at, dims, place = points(ctx, x, indices)
    out = builder.gather(x, at, dims)
    return builder.transpose(out, moved(len(shape_of(at)) - 1, len(ctx.out.shape), place))


@lowers(aten.index_select.default, checked=True)
def index_select(ctx: LoweringContext, x: Value, dim: int, index: Value) -> Value:
    """index_select(Tensor self, int dim, Tensor index) -> Tensor"""
    within(ctx, index, (shape_of(x) or (1,))[dim])
    if not shape_of(x):
        return builder.broadcast_to(x, ctx.out.shape)
    at = reshape(index, [math.prod(shape_of(index))])
    return builder.take(x, at, dim % len(shape_of(x)))


@lowers(aten.embedding.default, checked=True)
def embedding(
    ctx: LoweringContext,
    weight: Value,
    indices: Value,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:
    """embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False) -> Tensor"""  # noqa: E501
    within(ctx, indices, shape_of(weight)[0])
    return builder.take(weight, indices, 0)


def along(index: Value, dim: int) -> Value:
    """The full coordinates of what gather and scatter address: ``index`` along one dimension."""
    shape = shape_of(index)
    index = builder.convert(index, torch.int64)
    parts = [index if d == dim else iota(shape, d) for d in range(len(shape))]
    return concatenate([builder.unsqueeze(p, len(shape)) for p in parts], len(shape))


@lowers(aten.gather.default, checked=True)
def gather(
    ctx: LoweringContext, x: Value, dim: int, index: Value, *, sparse_grad: bool = False
) -> Value:
    """gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor"""
    if 0 in ctx.out.shape:
        return builder.zeros(ctx.out.shape, ctx.out.dtype)
    rank = max(len(shape_of(x)), len(ctx.out.shape))
    within(ctx, index, (shape_of(x) or (1,))[dim])
    if not rank:
        return x
    # one of x and index may be a scalar where the other has one dimension
    x = reshape(x, shape_of(x) or [1])
    at = along(reshape(index, shape_of(index) or [1]), dim % rank)
    return reshape(builder.gather(x, at, range(rank)), ctx.out.shape)


@lowers(aten.take.default, checked=True)
def take(ctx: LoweringContext, x: Value, index: Value) -> Value:
    """take(Tensor self, Tensor index) -> Tensor"""
    numel = math.prod(shape_of(x))
    if not numel:
        return builder.zeros(ctx.out.shape, ctx.out.dtype)
    within(ctx, index, numel, wraps=True)
    return builder.take(reshape(x, [numel]), wrapped(index, numel), 0)
