"""The pure random ops: samples from (seed, number, position) by JAX's Threefry generator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpu_compile import random_ops  # noqa: F401  (defines the ops)
from tpu_compile.lowering.builder import Scalar, as_type
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.jax_bridge import jnp_call
from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import math_dtype, numpy_dtype, tensor_type

tpu = torch.ops.tpu


def _sample(
    ctx: LoweringContext, seed: Value, number: int, sampler: Callable[..., Any], *extra: Value
) -> Value:
    words = hlo.bitcast_convert(tensor_type((2,), torch.uint32), seed)

    def sample(words: jax.Array, *extra: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(words, impl="threefry2x32")
        return sampler(jax.random.fold_in(key, number), *extra)

    return jnp_call(ctx, sample, words, *extra)


@lowers(tpu.uniform.default, bridged=True)
def uniform(
    ctx: LoweringContext, seed: Value, number: int, size: list[int], dtype: torch.dtype
) -> Value:
    """uniform(Tensor seed, int number, SymInt[] size, ScalarType dtype) -> Tensor"""
    kind = numpy_dtype(dtype if dtype.itemsize < 8 else math_dtype(dtype))
    return _sample(ctx, seed, number, lambda key: jax.random.uniform(key, tuple(size), kind))


@lowers(tpu.normal.default, bridged=True)
def normal(
    ctx: LoweringContext, seed: Value, number: int, size: list[int], dtype: torch.dtype
) -> Value:
    """normal(Tensor seed, int number, SymInt[] size, ScalarType dtype) -> Tensor"""
    kind = numpy_dtype(math_dtype(dtype))
    if dtype.is_complex:
        kind = numpy_dtype(dtype)
    sample = _sample(ctx, seed, number, lambda key: jax.random.normal(key, tuple(size), kind))
    return as_type(sample, dtype)


@lowers(tpu.randint.default, bridged=True)
def randint(
    ctx: LoweringContext,
    seed: Value,
    number: int,
    low: Value | Scalar,
    high: Value | Scalar,
    size: list[int],
    dtype: torch.dtype,
) -> Value:
    """randint(Tensor seed, int number, SymInt low, SymInt high, SymInt[] size, ScalarType dtype)
    -> Tensor"""
    limits = [as_type(v, torch.int64) for v in (low, high)]
    sample = _sample(
        ctx,
        seed,
        number,
        lambda key, lo, hi: jax.random.randint(key, tuple(size), lo, hi, jnp.int64),
        *limits,
    )
    return as_type(sample, dtype)
