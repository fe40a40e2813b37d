"""Distances between the rows of matrices, and their gradients."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpu_compile.lowering import builder
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.jax_bridge import jnp_call
from tpu_compile.lowering.mlir import Value
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import shape_of

aten = torch.ops.aten

MANY = 25  # rows from which torch takes Euclidean distances from one matrix product
BY_PRODUCT, BY_DIFFERENCE = 1, 2


def _norm(diff: jax.Array, p: float) -> jax.Array:
    size = jnp.abs(diff)
    if p == 0:
        return (size != 0).sum(-1).astype(size.dtype)
    if p == math.inf:
        return size.max(-1, initial=0)
    if p == 1:
        return size.sum(-1)
    if p == 2:
        return jnp.sqrt((size * size).sum(-1))
    return (size**p).sum(-1) ** (1 / p)


def _by_product(x: jax.Array, y: jax.Array) -> jax.Array:
    squares = [(v * v).sum(-1) for v in (x, y)]
    product = jnp.matmul(x, y.mT, precision=jax.lax.Precision.HIGHEST)
    square = squares[0][..., :, None] + squares[1][..., None, :] - 2 * product
    return jnp.sqrt(jnp.maximum(square, 0))


def _slope(diff: jax.Array, grad: jax.Array, dist: jax.Array, p: float) -> jax.Array:
    """The gradient of a norm, zero where the norm is, as torch defines it."""
    grad, dist = grad[..., None], dist[..., None]
    sign, size = jnp.sign(diff), jnp.abs(diff)
    if p == 0:
        return jnp.zeros_like(diff)
    if p == 1:
        return grad * sign
    if p == math.inf:
        return grad * sign * (size == dist)
    safe = jnp.where(dist == 0, 1, dist)
    if p == 2:
        return jnp.where(dist == 0, 0, grad * diff / safe)
    power = jnp.where(size == 0, 1, size) ** (p - 1)
    slope = sign * power * grad / safe ** (p - 1)
    return jnp.where((dist == 0) | (size == 0), 0, slope)


@lowers(aten._cdist_forward.default, bridged=True)
def _cdist_forward(
    ctx: LoweringContext, x1: Value, x2: Value, p: float, compute_mode: int | None
) -> Value:
    """_cdist_forward(Tensor x1, Tensor x2, float p, int? compute_mode) -> Tensor"""
    rows = max(shape_of(x1)[-2], shape_of(x2)[-2])
    product = p == 2 and (
        compute_mode == BY_PRODUCT or (compute_mode != BY_DIFFERENCE and rows > MANY)
    )

    def run(x: jax.Array, y: jax.Array) -> jax.Array:
        if product:
            return _by_product(x, y)
        return _norm(x[..., :, None, :] - y[..., None, :, :], p)

    return ctx.result(jnp_call(ctx, run, x1, x2))


@lowers(aten._cdist_backward.default, bridged=True)
def _cdist_backward(
    ctx: LoweringContext, grad: Value, x1: Value, x2: Value, p: float, cdist: Value
) -> Value:
    """_cdist_backward(Tensor grad, Tensor x1, Tensor x2, float p, Tensor cdist) -> Tensor"""
    shape = ctx.out.shape

    def run(grad: jax.Array, x: jax.Array, y: jax.Array, dist: jax.Array) -> jax.Array:
        slope = _slope(x[..., :, None, :] - y[..., None, :, :], grad, dist, p)
        return jnp.broadcast_to(slope.sum(-2), shape)

    return jnp_call(ctx, run, grad, x1, x2, cdist)


def _pairs(rows: int) -> tuple[np.ndarray, np.ndarray]:
    return np.triu_indices(rows, 1)


@lowers(aten._pdist_forward.default, bridged=True)
def _pdist_forward(ctx: LoweringContext, x: Value, p: float = 2.0) -> Value:
    """_pdist_forward(Tensor self, float p=2.) -> Tensor"""
    if 0 in ctx.out.shape:
        return builder.zeros(ctx.out.shape, ctx.out.dtype)
    first, second = _pairs(shape_of(x)[0])
    return jnp_call(ctx, lambda x: _norm(x[first] - x[second], p), x)


@lowers(aten._pdist_backward.default, bridged=True)
def _pdist_backward(ctx: LoweringContext, grad: Value, x: Value, p: float, pdist: Value) -> Value:
    """_pdist_backward(Tensor grad, Tensor self, float p, Tensor pdist) -> Tensor"""
    if 0 in shape_of(pdist):
        return builder.zeros(ctx.out.shape, ctx.out.dtype)
    first, second = _pairs(shape_of(x)[0])

    def run(grad: jax.Array, x: jax.Array, dist: jax.Array) -> jax.Array:
        slope = _slope(x[first] - x[second], grad, dist, p)
        return jnp.zeros_like(x).at[first].add(slope).at[second].add(-slope)

    return jnp_call(ctx, run, grad, x, pdist)
