"""Fourier transforms over any dimensions, through JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import torch

from tpu_compile.lowering import builder
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.jax_bridge import jnp_call
from tpu_compile.lowering.mlir import Value
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import shape_of

aten = torch.ops.aten

# torch's normalization: 0 is none, 1 by the root of n, 2 by n; for JAX it depends on the direction.
FORWARD = ("backward", "ortho", "forward")
INVERSE = ("forward", "ortho", "backward")


def _transform(
    ctx: LoweringContext,
    x: Value,
    fun: Callable[..., Any],
    dim: Sequence[int],
    norm: str,
    size: Sequence[int] | None = None,
) -> Value:
    if 0 in (*shape_of(x), *ctx.out.shape):
        return builder.zeros(ctx.out.shape, ctx.out.dtype)
    if not dim:
        return ctx.result(x)
    return ctx.result(jnp_call(ctx, fun, x, s=size, axes=tuple(dim), norm=norm))


@lowers(aten._fft_c2c.default, bridged=True)
def _fft_c2c(
    ctx: LoweringContext, x: Value, dim: list[int], normalization: int, forward: bool
) -> Value:
    """_fft_c2c(Tensor self, SymInt[] dim, int normalization, bool forward) -> Tensor"""
    if forward:
        return _transform(ctx, x, jnp.fft.fftn, dim, FORWARD[normalization])
    return _transform(ctx, x, jnp.fft.ifftn, dim, INVERSE[normalization])


@lowers(aten._fft_r2c.default, bridged=True)
def _fft_r2c(
    ctx: LoweringContext, x: Value, dim: list[int], normalization: int, onesided: bool
) -> Value:
    """_fft_r2c(Tensor self, int[] dim, int normalization, bool onesided) -> Tensor"""
    fun = jnp.fft.rfftn if onesided else jnp.fft.fftn
    return _transform(ctx, x, fun, dim, FORWARD[normalization])


@lowers(aten._fft_c2r.default, bridged=True)
def _fft_c2r(
    ctx: LoweringContext, x: Value, dim: list[int], normalization: int, last_dim_size: int
) -> Value:
    """_fft_c2r(Tensor self, int[] dim, int normalization, SymInt last_dim_size) -> Tensor"""
    size = [*(shape_of(x)[d] for d in dim[:-1]), last_dim_size]
    return _transform(ctx, x, jnp.fft.irfftn, dim, INVERSE[normalization], size)
