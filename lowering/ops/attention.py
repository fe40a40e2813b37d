"""Scaled dot product attention and its gradient: batched dots around a softmax in float32.

Scores are [batch, key head, group, query, key]: with fewer key heads than query heads, a group of
query heads shares a key head, and no key or value is repeated.
"""

from __future__ import annotations

import math

import torch

from tpu_compile.lowering import builder
from tpu_compile.lowering.builder import as_type, broadcast_to, compare, constant, full_like, select
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.ops.reduction import largest, total
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import dtype_of, math_dtype, shape_of

aten = torch.ops.aten

QUERY, KEY = 3, 4  # dimensions of the scores


def _grouped(v: Value, heads: int) -> Value:
    """[batch, query head, ...] with the query heads split into key heads and groups."""
    batch, count, *rest = shape_of(v)
    return builder.reshape(v, [batch, heads, count // heads, *rest])


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
    is_causal: bool,
) -> Value:
    """Scaled and masked products of a grouped query with a key."""
    if scale is None:
        scale = 1 / math.sqrt(shape_of(query)[-1])
    scores = _dot(ctx, query, key, ([4], [3]))
    scores = hlo.multiply(scores, full_like(scores, scale))
    shape, dtype = shape_of(scores), dtype_of(scores)
    if attn_mask is not None:
        scores = _masked(scores, attn_mask)
    if is_causal:
        past = compare("GE", builder.iota(shape, QUERY), builder.iota(shape, KEY))
        scores = select(past, scores, constant(-math.inf, dtype, shape))
    return scores


def _masked(scores: Value, mask: Value) -> Value:
    """Scores with a mask of shape [query, key] or [batch, head, query, key]; 1s broadcast."""
    shape, dtype = shape_of(scores), dtype_of(scores)
    if len(shape_of(mask)) == 4:
        mask = _grouped(mask, 1 if shape_of(mask)[1] == 1 else shape[1])
    if dtype_of(mask) == torch.bool:
        return select(broadcast_to(mask, shape), scores, constant(-math.inf, dtype, shape))
    return hlo.add(scores, as_type(mask, dtype, shape))


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
    query = _grouped(query, shape_of(key)[1])
    scores = _scores(ctx, query, key, attn_mask, scale, is_causal=is_causal)
    top = largest(scores, [KEY])
    # A query that may see no key gives zeros and a logsumexp of zero, as torch's kernel does.
    top = select(compare("EQ", top, full_like(top, -math.inf)), full_like(top, 0), top)
    weights = hlo.exponential(hlo.subtract(scores, _along_query(top, shape_of(scores))))
    sum_ = total(weights, KEY)
    sum_ = select(compare("EQ", sum_, full_like(sum_, 0)), full_like(sum_, 1), sum_)
    mixed = _dot(ctx, as_type(weights, dtype_of(value)), value, ([KEY], [2]))
    mixed = hlo.divide(mixed, _along_query(sum_, shape_of(mixed)))
    return (
        builder.reshape(as_type(mixed, out.dtype), out.shape),
        builder.reshape(hlo.add(top, hlo.log(sum_)), lse.shape),
    )


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
    query, grad_out, out, logsumexp = (
        _grouped(v, heads) for v in (query, grad_out, out, logsumexp)
    )
    scores = _scores(ctx, query, key, attn_mask, scale, is_causal=is_causal)
    weights = hlo.exponential(hlo.subtract(scores, _along_query(logsumexp, shape_of(scores))))
    grad_value = _dot(ctx, as_type(weights, low), grad_out, ([2, QUERY], [2, 3]))
    moved = hlo.multiply(as_type(grad_out, math_type), as_type(out, math_type))
    slope = _dot(ctx, grad_out, value, ([4], [3]))
    slope = hlo.subtract(slope, _along_query(total(moved, 4), shape_of(scores)))
    slope = as_type(hlo.multiply(weights, slope), low)
    grad_query = _dot(ctx, slope, key, ([KEY], [2]))
    grad_key = _dot(ctx, slope, query, ([2, QUERY], [2, 3]))
    scaled = (hlo.multiply(v, full_like(v, scale)) for v in (grad_query, grad_key))
    return tuple(  # type: ignore[return-value]
        builder.reshape(as_type(v, t.dtype), t.shape)
        for v, t in zip((*scaled, grad_value), ctx.outs, strict=True)
    )
