"""Maximum pooling over windows whose places are drawn at random."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import torch

from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.jax_bridge import jnp_call
from tpu_compile.lowering.mlir import Value
from tpu_compile.lowering.ops.max_pooling import to_places
from tpu_compile.lowering.registry import lowers

aten = torch.ops.aten


def _starts(sample: jax.Array, size: int, out: int, kernel: int) -> jax.Array:
    """The first place of each window, by plane: the last window ends where the input does."""
    i = jnp.arange(out, dtype=sample.dtype)
    alpha = (size - kernel) / max(out - 1, 1)
    sample = sample[..., None]
    places = jnp.trunc((i + sample) * alpha) - jnp.trunc(sample * alpha)
    return jnp.where(i == out - 1, size - kernel, places.astype(jnp.int64))


def _pooled(
    x: jax.Array, samples: jax.Array, *, kernel: Sequence[int], out: Sequence[int]
) -> tuple[jax.Array, jax.Array]:
    rank, size = len(out), x.shape[-len(out) :]
    x = x.reshape(samples.shape[:2] + size)
    order = [1, 0] if rank == 2 else [0, 1, 2]  # torch draws the width's sample first in 2-D only
    index, place = [], jnp.zeros((), jnp.int64)
    for d in range(rank):
        at = _starts(samples[:, :, order[d]], size[d], out[d], kernel[d])[..., None]
        at = at + jnp.arange(kernel[d])
        around = [1] * (2 * rank)
        around[d], around[rank + d] = out[d], kernel[d]
        at = at.reshape(*at.shape[:2], *around)
        index.append(at)
        place = place * size[d] + at
    planes = jnp.ogrid[tuple(slice(n) for n in (*samples.shape[:2], *[1] * (2 * rank)))][:2]
    v = x[tuple(planes) + tuple(index)]
    v = v.reshape(*v.shape[: 2 + rank], -1)
    place = jnp.broadcast_to(place, v.shape[: 2 + rank] + tuple(kernel)).reshape(v.shape)
    nan = jnp.isnan(v)
    last_nan = v.shape[-1] - 1 - jnp.argmax(nan[..., ::-1], axis=-1)
    best = jnp.where(nan.any(-1), last_nan, jnp.argmax(v, axis=-1))[..., None]
    value, where = (jnp.take_along_axis(a, best, axis=-1)[..., 0] for a in (v, place))
    return value, where


def _fractional(
    ctx: LoweringContext, x: Value, kernel: list[int], out: list[int], samples: Value
) -> tuple[Value, ...]:
    def run(x: jax.Array, samples: jax.Array) -> tuple[jax.Array, ...]:
        results = _pooled(x, samples, kernel=kernel, out=out)
        return tuple(r.reshape(t.shape) for r, t in zip(results, ctx.outs, strict=True))

    return tuple(jnp_call(ctx, run, x, samples))


@lowers(aten.fractional_max_pool2d.default, bridged=True)
def fractional_max_pool2d(
    ctx: LoweringContext,
    x: Value,
    kernel_size: list[int],
    output_size: list[int],
    random_samples: Value,
) -> tuple[Value, ...]:
    """fractional_max_pool2d(Tensor self, int[2] kernel_size, int[2] output_size, Tensor random_samples) -> (Tensor, Tensor)"""  # noqa: E501
    return _fractional(ctx, x, kernel_size, output_size, random_samples)


@lowers(aten.fractional_max_pool3d.default, bridged=True)
def fractional_max_pool3d(
    ctx: LoweringContext,
    x: Value,
    kernel_size: list[int],
    output_size: list[int],
    random_samples: Value,
) -> tuple[Value, ...]:
    """fractional_max_pool3d(Tensor self, int[3] kernel_size, int[3] output_size, Tensor random_samples) -> (Tensor, Tensor)"""  # noqa: E501
    return _fractional(ctx, x, kernel_size, output_size, random_samples)


@lowers(aten.fractional_max_pool2d_backward.default)
def fractional_max_pool2d_backward(
    ctx: LoweringContext,
    grad_output: Value,
    x: Value,
    kernel_size: list[int],
    output_size: list[int],
    indices: Value,
) -> Value:
    """fractional_max_pool2d_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] output_size, Tensor indices) -> Tensor"""  # noqa: E501
    return to_places(ctx, grad_output, indices, 2)


@lowers(aten.fractional_max_pool3d_backward.default)
def fractional_max_pool3d_backward(
    ctx: LoweringContext,
    grad_output: Value,
    x: Value,
    kernel_size: list[int],
    output_size: list[int],
    indices: Value,
) -> Value:
    """fractional_max_pool3d_backward(Tensor grad_output, Tensor self, int[3] kernel_size, int[3] output_size, Tensor indices) -> Tensor"""  # noqa: E501
    return to_places(ctx, grad_output, indices, 3)
