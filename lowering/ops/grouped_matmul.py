"""Products of matrices in groups of rows, columns or summands, as mixtures of experts do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.lax import RaggedDotDimensionNumbers

from tpu_compile.lowering.builder import as_type
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.jax_bridge import jnp_call
from tpu_compile.lowering.mlir import Value
from tpu_compile.lowering.ops.matmul import product
from tpu_compile.lowering.registry import lowers, lowers_named
from tpu_compile.lowering.types import dtype_of, math_dtype, numpy_dtype, shape_of

aten = torch.ops.aten

_ROWS = RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0])
_SUMMANDS = RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])


@lowers(aten._grouped_mm.default, bridged=True)
def _grouped_mm(
    ctx: LoweringContext,
    x: Value,
    mat2: Value,
    offs: Value | None = None,
    bias: Value | None = None,
    out_dtype: torch.dtype | None = None,
) -> Value:
    """_grouped_mm(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, ScalarType? out_dtype=None) -> Tensor"""  # noqa: E501
    if bias is not None:
        raise ctx.fail("a bias")
    if offs is None:
        return ctx.result(product(ctx, x, mat2))
    forms = {(2, 3): _rows, (3, 2): _columns, (2, 2): _summands}
    form = forms[len(shape_of(x)), len(shape_of(mat2))]
    return ctx.result(_call(ctx, form, x, mat2, offs))


@lowers_named("transformers.grouped_mm_fallback.default", bridged=True)
def grouped_mm_fallback(ctx: LoweringContext, input: Value, weight: Value, offs: Value) -> Value:
    """grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor"""
    return ctx.result(_call(ctx, _rows, input, weight, offs))


@lowers_named("transformers.grouped_mm_fallback_backward.default", bridged=True)
def grouped_mm_fallback_backward(
    ctx: LoweringContext, input: Value, weight: Value, offs: Value, grad_output: Value
) -> list[Value]:
    """grouped_mm_fallback_backward(Tensor input, Tensor weight, Tensor offs, Tensor grad_output) -> (Tensor, Tensor)"""  # noqa: E501
    outs = _call(ctx, _rows_backward, input, weight, offs, grad_output)
    return [as_type(v, dtype_of(input)) for v in outs]


def _call(ctx: LoweringContext, form: Callable[..., Any], *args: Value) -> Any:
    dtype = dtype_of(args[0])
    math = numpy_dtype(math_dtype(dtype))
    precision = jax.lax.Precision[ctx.matmul_precision if dtype.itemsize >= 4 else "DEFAULT"]
    # XLA:CPU multiplies no bfloat16 into float32 in every layout; it would convert both itself
    wide = math if ctx.target == "cpu" else None
    times = functools.partial(_ragged, precision=precision, dtype=math, wide=wide)
    return jnp_call(ctx, functools.partial(form, times), *args)


Times = Callable[[jax.Array, jax.Array, jax.Array, RaggedDotDimensionNumbers], jax.Array]


def _ragged(
    x: jax.Array,
    y: jax.Array,
    offs: jax.Array,
    numbers: RaggedDotDimensionNumbers,
    *,
    precision: jax.lax.Precision,
    dtype: Any,
    wide: Any,
) -> jax.Array:
    if wide is not None:
        x, y = x.astype(wide), y.astype(wide)
    sizes = jnp.diff(offs, prepend=jnp.zeros(1, offs.dtype))
    return jax.lax.ragged_dot_general(
        x, y, sizes, numbers, precision=precision, preferred_element_type=dtype
    )


def _rows(times: Times, x: jax.Array, y: jax.Array, offs: jax.Array) -> jax.Array:
    """[rows, k] times [groups, k, n]: each group's rows by its own matrix."""
    return times(x, y, offs, _ROWS)


def _columns(times: Times, x: jax.Array, y: jax.Array, offs: jax.Array) -> jax.Array:
    """[groups, m, k] times [k, columns]: each group's columns by its own matrix."""
    return times(y.T, x.mT, offs, _ROWS).T


def _summands(times: Times, x: jax.Array, y: jax.Array, offs: jax.Array) -> jax.Array:
    """[m, k] times [k, n], summed over each group's part of k: [groups, m, n]."""
    return times(x.T, y, offs, _SUMMANDS)


def _rows_backward(
    times: Times, x: jax.Array, y: jax.Array, offs: jax.Array, grad: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return times(grad, y.mT, offs, _ROWS), times(x, grad, offs, _SUMMANDS)
