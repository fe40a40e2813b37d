"""Embedding bags: rows of a table summed, averaged or maximised per bag, and the gradients."""

from __future__ import annotations

import jax.numpy as jnp
import torch

from tpu_compile.lowering import builder
from tpu_compile.lowering.builder import (
    as_type,
    broadcast_in_dim,
    compare,
    full_like,
    reshape,
    select,
)
from tpu_compile.lowering.checks import within
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.jax_bridge import jnp_call
from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import dtype_of, math_dtype, shape_of

aten = torch.ops.aten

SUM, MEAN, MAX = 0, 1, 2


def _bags(ctx: LoweringContext, indices: Value, offsets: Value) -> Value:
    """The bag of each index: how many offsets after the first are not beyond it."""
    at = builder.iota(shape_of(indices), 0)
    after = jnp_call(
        ctx,
        lambda o, i: jnp.searchsorted(o, i, side="right").astype(jnp.int64) - 1,
        as_type(offsets, torch.int64),
        at,
    )
    return after


def _out_of_range_where(mask: Value, bag: Value, size: int) -> Value:
    """Bag numbers as scatter indices, with updates under the mask left out."""
    bag = select(mask, full_like(bag, size), bag)
    return builder.unsqueeze(bag, 1)


@lowers(
    aten._embedding_bag.default,
    aten._embedding_bag_forward_only.default,
    bridged=True,
    checked=True,
)
def _embedding_bag(
    ctx: LoweringContext,
    weight: Value,
    indices: Value,
    offsets: Value,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Value | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Value, Value, Value, Value]:
    """_embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1) -> (Tensor, Tensor, Tensor, Tensor)"""  # noqa: E501
    bags, width = ctx.outs[0].shape
    (n,) = shape_of(indices)
    math_type = math_dtype(ctx.outs[0].dtype)
    within(ctx, indices, shape_of(weight)[0])
    indices = as_type(indices, torch.int64)
    offsets = builder.slice_dim(offsets, 0, 0, bags)
    bag = _bags(ctx, indices, offsets) if bags else builder.zeros([n], torch.int64)
    padding = compare("EQ", indices, full_like(indices, padding_idx))
    at = _out_of_range_where(padding, bag, bags)
    rows = as_type(builder.take(weight, indices, 0), math_type)
    if per_sample_weights is not None:
        scale = as_type(per_sample_weights, math_type)
        rows = hlo.multiply(rows, broadcast_in_dim(scale, [n, width], [0]))
    sizes = builder.zeros([bags], torch.int64)
    ones = builder.constant(1, torch.int64, [n])
    sizes = builder.scatter(sizes, at, ones, [0], hlo.add)
    wide_sizes = broadcast_in_dim(sizes, [bags, width], [0])
    empty = compare("EQ", wide_sizes, full_like(wide_sizes, 0))
    if mode == MAX:
        start = builder.constant(builder.lowest(math_type), math_type, [bags, width])
        out = builder.scatter(start, at, rows, [0], hlo.maximum)
        winners = _winners(rows, out, bag, at, indices)
        out = select(empty, full_like(out, 0), out)
        winners = select(empty, full_like(winners, -1), winners)
    else:
        out = builder.scatter(builder.zeros([bags, width], math_type), at, rows, [0], hlo.add)
        winners = sizes
    if mode == MEAN:
        out = hlo.divide(out, as_type(hlo.maximum(wide_sizes, full_like(wide_sizes, 1)), math_type))
    extra = (as_type(out, ctx.outs[0].dtype), bag, sizes, winners)
    first, second, third, fourth = (
        _shaped(as_type(v, t.dtype), t.shape) for v, t in zip(extra, ctx.outs, strict=True)
    )
    return first, second, third, fourth


def _winners(rows: Value, out: Value, bag: Value, at: Value, indices: Value) -> Value:
    """Per bag and column, the table's row that holds the first maximum."""
    n, width = shape_of(rows)
    highest = builder.take(out, bag, 0)
    place = builder.iota([n, width], 0)
    never = full_like(place, n)
    place = select(compare("EQ", rows, highest), place, never)
    first = builder.constant(n, torch.int64, shape_of(out))
    first = builder.scatter(first, at, place, [0], hlo.minimum)
    return builder.take(indices, first, 0)


def _shaped(v: Value, shape: tuple[int, ...]) -> Value:
    """The value, or zeros where torch wants an unused result of another size."""
    return v if shape_of(v) == shape else builder.zeros(shape, dtype_of(v))


@lowers(aten._embedding_bag_dense_backward.default)
def _embedding_bag_dense_backward(
    ctx: LoweringContext,
    grad: Value,
    indices: Value,
    offset2bag: Value,
    bag_size: Value,
    maximum_indices: Value,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Value | None,
    padding_idx: int = -1,
) -> Value:
    """_embedding_bag_dense_backward(Tensor grad, Tensor indices, Tensor offset2bag, Tensor bag_size, Tensor maximum_indices, SymInt num_weights, bool scale_grad_by_freq, int mode, Tensor? per_sample_weights, int padding_idx=-1) -> Tensor"""  # noqa: E501
    math_type = math_dtype(ctx.out.dtype)
    grad, zeros = as_type(grad, math_type), builder.zeros(ctx.out.shape, math_type)
    if mode == MAX:
        column = builder.iota(shape_of(maximum_indices), 1)
        parts = [builder.unsqueeze(as_type(p, torch.int64), 2) for p in (maximum_indices, column)]
        at = builder.concatenate(parts, 2)  # -1, of an empty bag, is out of range
        return ctx.result(builder.scatter(zeros, at, grad, [0, 1], hlo.add))
    (n,) = shape_of(indices)
    indices = as_type(indices, torch.int64)
    scale = builder.constant(1, math_type, [n])
    if per_sample_weights is not None:
        scale = as_type(per_sample_weights, math_type)
    if mode == MEAN:
        size = as_type(builder.take(bag_size, offset2bag, 0), math_type)
        scale = hlo.divide(scale, hlo.maximum(size, full_like(size, 1)))
    padding = compare("EQ", indices, full_like(indices, padding_idx))
    at = _out_of_range_where(padding, indices, num_weights)
    if scale_grad_by_freq:
        counts = builder.zeros([num_weights], math_type)
        ones = builder.constant(1, math_type, [n])
        counts = builder.scatter(counts, at, ones, [0], hlo.add)
        scale = hlo.divide(scale, builder.take(counts, indices, 0))
    rows = builder.take(grad, offset2bag, 0)
    rows = hlo.multiply(rows, broadcast_in_dim(scale, shape_of(rows), [0]))
    return ctx.result(builder.scatter(zeros, at, rows, [0], hlo.add))


@lowers(aten._embedding_bag_backward.default, bridged=True)
def _embedding_bag_backward(
    ctx: LoweringContext,
    grad: Value,
    indices: Value,
    offsets: Value,
    offset2bag: Value,
    bag_size: Value,
    maximum_indices: Value,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Value | None,
    padding_idx: int = -1,
) -> Value:
    """_embedding_bag_backward(Tensor grad, Tensor indices, Tensor offsets, Tensor offset2bag, Tensor bag_size, Tensor maximum_indices, SymInt num_weights, bool scale_grad_by_freq, int mode, bool sparse, Tensor? per_sample_weights, int padding_idx=-1) -> Tensor"""  # noqa: E501
    if sparse:
        ctx.fail("a sparse gradient; use sparse=False")
    return _embedding_bag_dense_backward(
        ctx,
        grad,
        indices,
        _known_bags(ctx, indices, offsets, offset2bag),
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


def _known_bags(ctx: LoweringContext, indices: Value, offsets: Value, bag: Value) -> Value:
    """The forward's bags, which torch leaves out where its own fast path needs none."""
    return bag if shape_of(bag) == shape_of(indices) else _bags(ctx, indices, offsets)


@lowers(aten._embedding_bag_per_sample_weights_backward.default, bridged=True)
def _embedding_bag_per_sample_weights_backward(
    ctx: LoweringContext,
    grad: Value,
    weight: Value,
    indices: Value,
    offsets: Value,
    offset2bag: Value,
    mode: int,
    padding_idx: int = -1,
) -> Value:
    """_embedding_bag_per_sample_weights_backward(Tensor grad, Tensor weight, Tensor indices, Tensor offsets, Tensor offset2bag, int mode, int padding_idx=-1) -> Tensor"""  # noqa: E501
    math_type = math_dtype(ctx.out.dtype)
    bag = _known_bags(ctx, indices, offsets, offset2bag)
    rows = as_type(builder.take(weight, indices, 0), math_type)
    grads = as_type(builder.take(grad, bag, 0), math_type)
    out = builder.reduce(hlo.multiply(rows, grads), [1], hlo.add, 0)
    padding = compare("EQ", indices, full_like(indices, padding_idx))
    return ctx.result(reshape(select(padding, full_like(out, 0), out), ctx.out.shape))
