"""Scaled dot product attention and its gradient: batched dots around a softmax in float32.

Scores are [batch, key head, query, key]. With fewer key heads than query heads, a group of query
heads shares a key head: their queries stand one behind the other, and no key or value is repeated.
"""

from __future__ import annotations

import math

import torch

from tpu_compile.lowering import builder
from tpu_compile.lowering.builder import as_type, broadcast_to, compare, full_like, select
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.ops.reduction import total
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import dtype_of, math_dtype, shape_of

aten = torch.ops.aten

QUERY, KEY = 2, 3  # dimensions of the scores


def _grouped(v: Value, heads: int) -> Value:
    """[batch, query head, query, ...] as [batch, key head, queries of the group, ...]."""
    batch, count, time, *rest = shape_of(v)
    return builder.reshape(v, [batch, heads, count // heads * time, *rest])


def _dot(ctx: LoweringContext, x: Value, y: Value, contract: tuple[list[int], list[int]]) -> Value:
    dtype = dtype_of(x)
    return builder.dot_general(
        x,
        y,
        batch=([0, 1], [0, 1]),
        contract=contract,
        precision=ctx.matmul_precision if dtype.itemsize >= 4 else "DEFAULT",
        dtype=math_dtype(dtype),
    )


def _scores(
    ctx: LoweringContext,
    query: Value,
    key: Value,
    attn_mask: Value | None,
    scale: float | None,
    *,
    groups: int,
    is_causal: bool,
) -> Value:
    """Scaled and masked products of a grouped query with a key."""
    if scale is None:
        scale = 1 / math.sqrt(shape_of(query)[-1])
    scores = _dot(ctx, query, key, ([3], [3]))
    scores = hlo.multiply(scores, full_like(scores, scale))
    shape = shape_of(scores)
    if attn_mask is not None:
        scores = _masked(scores, attn_mask, groups)
    if is_causal:
        past = _past(shape[QUERY] // groups, shape[KEY])
        past = broadcast_to(past, [groups, *shape_of(past)])
        past = builder.reshape(past, shape[QUERY:])
        scores = select(broadcast_to(past, shape), scores, full_like(scores, -math.inf))
    return scores


def _past(queries: int, keys: int) -> Value:
    """[query, key]: whether a key is not after a query."""
    at = (builder.iota([queries, keys], d, torch.int32) for d in (0, 1))
    return compare("GE", *at)


def _masked(scores: Value, mask: Value, groups: int) -> Value:
    """Scores with a mask of shape [query, key] or [batch, head, query, key]; 1s broadcast."""
    shape = shape_of(scores)
    if groups > 1:
        batch, heads, queries, keys = shape
        whole = [batch, heads * groups, queries // groups, keys]
        mask = builder.reshape(broadcast_to(mask, whole), shape)
    if dtype_of(mask) == torch.bool:
        return select(broadcast_to(mask, shape), scores, full_like(scores, -math.inf))
    return hlo.add(scores, as_type(mask, dtype_of(scores), shape))


def _along_query(v: Value, shape: tuple[int, ...]) -> Value:
    """A value per query, repeated along a last dimension."""
    return builder.broadcast_in_dim(v, shape, range(len(shape) - 1))


@lowers(aten._scaled_dot_product_flash_attention_for_cpu.default)
def _scaled_dot_product_flash_attention_for_cpu(
    ctx: LoweringContext,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value, Value]:
    """_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, float dropout_p=0., bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor output, Tensor logsumexp)"""  # noqa: E501
    if dropout_p:
        ctx.fail("dropout inside attention")
    out, lse = ctx.outs
    heads = shape_of(key)[1]
    groups = shape_of(query)[1] // heads
    query = _grouped(query, heads)
    scores = _scores(ctx, query, key, attn_mask, scale, groups=groups, is_causal=is_causal)
    # From a finite number on, so that a query that sees no key has weights of zero, as in torch's
    # kernel. A select in place of that makes XLA:CPU take twice the time.
    least = torch.finfo(dtype_of(scores)).min
    top = builder.reduce(scores, [KEY], hlo.maximum, least)
    weights = hlo.exponential(hlo.subtract(scores, _along_query(top, shape_of(scores))))
    sum_ = total(weights, KEY)
    mixed = _dot(ctx, as_type(weights, dtype_of(value)), value, ([KEY], [2]))
    mixed = hlo.divide(mixed, _along_query(hlo.maximum(sum_, full_like(sum_, 1)), shape_of(mixed)))
    unseen = compare("EQ", sum_, full_like(sum_, 0))
    logsumexp = select(unseen, sum_, hlo.add(top, hlo.log(sum_)))
    return (
        builder.reshape(as_type(mixed, out.dtype), out.shape),
        builder.reshape(logsumexp, lse.shape),
    )


def _over_queries(ctx: LoweringContext, scores: Value, v: Value) -> Value:
    """[batch, head, key, width]: sums v over the queries, weighted by what are like scores.

    The scores come second, as XLA:CPU copies a left operand that it contracts by its rows.
    """
    return builder.transpose(_dot(ctx, v, scores, ([2], [QUERY])), [0, 1, 3, 2])


@lowers(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def _scaled_dot_product_flash_attention_for_cpu_backward(
    ctx: LoweringContext,
    grad_out: Value,
    query: Value,
    key: Value,
    value: Value,
    out: Value,
    logsumexp: Value,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value, Value, Value]:
    """_scaled_dot_product_flash_attention_for_cpu_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, float dropout_p, bool is_causal, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)"""  # noqa: E501
    if dropout_p:
        ctx.fail("dropout inside attention")
    if scale is None:
        scale = 1 / math.sqrt(shape_of(query)[-1])
    heads, low, math_type = shape_of(key)[1], dtype_of(query), dtype_of(logsumexp)
    groups = shape_of(query)[1] // heads
    query, grad_out, out, logsumexp = (
        _grouped(v, heads) for v in (query, grad_out, out, logsumexp)
    )
    scores = _scores(ctx, query, key, attn_mask, scale, groups=groups, is_causal=is_causal)
    weights = hlo.exponential(hlo.subtract(scores, _along_query(logsumexp, shape_of(scores))))
    grad_value = _over_queries(ctx, as_type(weights, low), grad_out)
    moved = hlo.multiply(as_type(grad_out, math_type), as_type(out, math_type))
    slope = _dot(ctx, grad_out, value, ([3], [3]))
    slope = hlo.subtract(slope, _along_query(total(moved, 3), shape_of(scores)))
    slope = as_type(hlo.multiply(weights, slope), low)
    grad_query = _dot(ctx, slope, key, ([KEY], [2]))
    grad_key = _over_queries(ctx, slope, query)
    scaled = (hlo.multiply(v, full_like(v, scale)) for v in (grad_query, grad_key))
    return tuple(  # type: ignore[return-value]
        builder.reshape(as_type(v, t.dtype), t.shape)
        for v, t in zip((*scaled, grad_value), ctx.outs, strict=True)
    )
