"""Sampling at the places of a grid, and its gradients by JAX's differentiation of it."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpu_compile.lowering.builder import as_type
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.jax_bridge import jnp_call
from tpu_compile.lowering.mlir import Value
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import dtype_of, math_dtype

aten = torch.ops.aten

BILINEAR, NEAREST, BICUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)


def _clipped(at: jax.Array, size: int) -> jax.Array:
    """Moved inside; what was moved, or lies on the border, passes no gradient, as in torch."""
    moved = jax.lax.stop_gradient(jnp.clip(at, 0, size - 1))
    return jnp.where((at > 0) & (at < size - 1), at, moved)


def _reflected(at: jax.Array, size: int, align_corners: bool) -> jax.Array:
    low, span = (0.0, size - 1) if align_corners else (-0.5, size)
    if span == 0:
        return jnp.zeros_like(at)
    at = jnp.abs(at - low)
    turns = _floor(at / span)
    rest = at - turns * span
    return jnp.where(turns % 2 == 0, rest + low, span - rest + low)


def _inside(at: jax.Array, size: int, padding: int, align_corners: bool) -> jax.Array:
    if padding == REFLECTION:
        at = _reflected(at, size, align_corners)
    return at if padding == ZEROS else _clipped(at, size)


def _unnormalized(at: jax.Array, size: int, align_corners: bool) -> jax.Array:
    return (at + 1) / 2 * (size - 1) if align_corners else ((at + 1) * size - 1) / 2


def _weighted(x: jax.Array, taps: list[jax.Array], weights: list[jax.Array]) -> jax.Array:
    """Sums over all combinations of the taps along each dimension, which are zero outside.

    Args:
        x: [N, C, *size].
        taps: per dimension, integer places as floats, [N, *out, taps].
        weights: as the taps.

    Returns:
        [N, C, *out].
    """
    size, rank = x.shape[2:], len(taps)

    def spread(v: jax.Array, d: int) -> jax.Array:
        others = [i for i in range(rank) if i != d]
        return jnp.expand_dims(v, [rank + 1 + i for i in others])

    taps = [spread(t, d) for d, t in enumerate(taps)]
    inside = [(t >= 0) & (t < n) for t, n in zip(taps, size, strict=True)]
    at = [jnp.clip(t, 0, n - 1).astype(jnp.int64) for t, n in zip(taps, size, strict=True)]
    batch = jnp.arange(x.shape[0]).reshape(-1, *[1] * (2 * rank))
    read = x[(batch, slice(None), *at)]  # [N, *out, *taps, C]
    read = jnp.where(functools.reduce(jnp.logical_and, inside)[..., None], read, 0)
    weight = functools.reduce(jnp.multiply, [spread(w, d) for d, w in enumerate(weights)])
    out = jnp.sum(read * weight[..., None], axis=tuple(range(rank + 1, 2 * rank + 1)))
    return jnp.moveaxis(out, -1, 1)


def _floor(at: jax.Array) -> jax.Array:
    return jax.lax.stop_gradient(jnp.floor(at))


def _near(d: jax.Array) -> jax.Array:
    return (1.25 * d - 2.25) * d * d + 1


def _far(d: jax.Array) -> jax.Array:
    return ((-0.75 * d + 3.75) * d - 6) * d + 3


def _taps(at: jax.Array, mode: int) -> tuple[jax.Array, jax.Array]:
    """Which places make up the value at ``at`` along one dimension, and their weights."""
    if mode == NEAREST:
        place = jax.lax.stop_gradient(jnp.round(at))[..., None]
        return place, jnp.ones_like(place)
    low = _floor(at)
    t = at - low
    if mode == BILINEAR:
        return jnp.stack([low, low + 1], -1), jnp.stack([1 - t, t], -1)
    places = jnp.stack([low + i for i in range(-1, 3)], -1)
    return places, jnp.stack([_far(t + 1), _near(t), _near(1 - t), _far(2 - t)], -1)


def _sample(
    x: jax.Array, grid: jax.Array, *, mode: int, padding: int, align_corners: bool
) -> jax.Array:
    size = x.shape[2:]
    taps, weights = [], []
    for d, n in enumerate(size):
        at = _unnormalized(grid[..., len(size) - 1 - d], n, align_corners)  # the grid has x first
        if mode != BICUBIC:
            at = _inside(at, n, padding, align_corners)
        place, weight = _taps(at, mode)
        taps.append(_inside(place, n, padding, align_corners) if mode == BICUBIC else place)
        weights.append(weight)
    return _weighted(x, taps, weights)


def _settings(mode: int, padding: int, align_corners: bool) -> dict[str, int | bool]:
    return {"mode": mode, "padding": padding, "align_corners": align_corners}


@lowers(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default, bridged=True)
def grid_sampler(
    ctx: LoweringContext,
    input: Value,
    grid: Value,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> Value:
    """grid_sampler_2d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor"""  # noqa: E501
    x, grid = (as_type(v, math_dtype(dtype_of(v))) for v in (input, grid))
    settings = _settings(interpolation_mode, padding_mode, align_corners)
    return ctx.result(jnp_call(ctx, _sample, x, grid, **settings))


@lowers(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default, bridged=True)
def grid_sampler_backward(
    ctx: LoweringContext,
    grad_output: Value,
    input: Value,
    grid: Value,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: list[bool],
) -> tuple[Value | None, ...]:
    """grid_sampler_2d_backward(Tensor grad_output, Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners, bool[2] output_mask) -> (Tensor, Tensor)"""  # noqa: E501
    settings: dict[str, Any] = _settings(interpolation_mode, padding_mode, align_corners)

    def gradients(grad: jax.Array, x: jax.Array, grid: jax.Array) -> tuple[jax.Array, ...]:
        return jax.vjp(functools.partial(_sample, **settings), x, grid)[1](grad)

    wide = (as_type(v, math_dtype(dtype_of(v))) for v in (grad_output, input, grid))
    grad_input, grad_grid = jnp_call(ctx, gradients, *wide)
    # torch has no None for the grid
    return (
        as_type(grad_input, dtype_of(input)) if output_mask[0] else None,
        as_type(grad_grid, dtype_of(grid)),
    )
