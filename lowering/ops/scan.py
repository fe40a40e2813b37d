"""Cumulative sums, products and extremes along one dimension, by JAX's scans."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from tpu_compile.lowering.builder import as_type
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.jax_bridge import jnp_call
from tpu_compile.lowering.mlir import Value
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import math_dtype, shape_of

aten = torch.ops.aten


def _scan(ctx: LoweringContext, fun: Callable[..., Any], x: Value, dim: int) -> Value:
    x = as_type(x, math_dtype(ctx.out.dtype))
    if shape_of(x):
        x = jnp_call(ctx, fun, x, axis=dim % len(shape_of(x)))
    return ctx.result(x)


@lowers(aten.cumsum.default, bridged=True)
def cumsum(ctx: LoweringContext, x: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
    """cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor"""
    return _scan(ctx, lax.cumsum, x, dim)


@lowers(aten.cumprod.default, bridged=True)
def cumprod(ctx: LoweringContext, x: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
    """cumprod(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor"""
    return _scan(ctx, lax.cumprod, x, dim)


@lowers(aten.logcumsumexp.default, aten._logcumsumexp.default, bridged=True)
def logcumsumexp(ctx: LoweringContext, x: Value, dim: int) -> Value:
    """logcumsumexp(Tensor self, int dim) -> Tensor"""
    return _scan(ctx, _log_cum_sum_exp, x, dim)


def _log_cum_sum_exp(x: jax.Array, axis: int) -> jax.Array:
    return lax.associative_scan(jnp.logaddexp, x, axis=axis)


def _cumulative_extreme(x: jax.Array, axis: int, better: Any) -> tuple[jax.Array, jax.Array]:
    def combine(a: tuple[Any, Any], b: tuple[Any, Any]) -> tuple[Any, Any]:
        later = better(b[0], a[0])
        if jnp.issubdtype(x.dtype, jnp.floating):
            later = jnp.isnan(b[0]) | (~jnp.isnan(a[0]) & later)
        return jnp.where(later, b[0], a[0]), jnp.where(later, b[1], a[1])

    at = lax.broadcasted_iota(jnp.int64, x.shape, axis)
    return lax.associative_scan(combine, (x, at), axis=axis)


def _cummax(ctx: LoweringContext, x: Value, dim: int, better: Any) -> tuple[Value, Value]:
    rank = len(shape_of(x))
    if not rank:
        return x, as_type(0, torch.int64)
    fun = functools.partial(_cumulative_extreme, axis=dim % rank, better=better)
    values, indices = jnp_call(ctx, fun, x)
    return values, indices


@lowers(aten.cummax.default, bridged=True)
def cummax(ctx: LoweringContext, x: Value, dim: int) -> tuple[Value, Value]:
    """cummax(Tensor self, int dim) -> (Tensor values, Tensor indices)"""
    return _cummax(ctx, x, dim, jnp.greater_equal)


@lowers(aten.cummin.default, bridged=True)
def cummin(ctx: LoweringContext, x: Value, dim: int) -> tuple[Value, Value]:
    """cummin(Tensor self, int dim) -> (Tensor values, Tensor indices)"""
    return _cummax(ctx, x, dim, jnp.less_equal)
