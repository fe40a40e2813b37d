"""Softmax, its logarithm and their gradients, in float32 for the small floats."""

from __future__ import annotations

import torch

from tpu_compile.lowering import builder
from tpu_compile.lowering.builder import as_type, broadcast_to, full_like, select
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.ops.comparison import is_inf
from tpu_compile.lowering.ops.reduction import dims_of, largest, total
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import dtype_of, math_dtype, shape_of

aten = torch.ops.aten


def shifted(v: Value, dim: int) -> tuple[Value, Value]:
    """v minus its maximum along a dimension, and the exponential's sum, broadcast."""
    top = largest(v, dims_of(v, dim), keepdim=True)
    v = hlo.subtract(v, broadcast_to(top, shape_of(v)))
    sum_ = total(hlo.exponential(v), dim, keepdim=True)
    return v, broadcast_to(sum_, shape_of(v))


@lowers(aten._softmax.default)
def _softmax(ctx: LoweringContext, x: Value, dim: int, half_to_float: bool) -> Value:
    """_softmax(Tensor self, int dim, bool half_to_float) -> Tensor"""
    v, sum_ = shifted(as_type(x, math_dtype(dtype_of(x))), dim)
    return ctx.result(hlo.divide(hlo.exponential(v), sum_))


@lowers(aten._log_softmax.default)
def _log_softmax(ctx: LoweringContext, x: Value, dim: int, half_to_float: bool) -> Value:
    """_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor"""
    v, sum_ = shifted(as_type(x, math_dtype(dtype_of(x))), dim)
    return ctx.result(hlo.subtract(v, hlo.log(sum_)))


@lowers(aten._softmax_backward_data.default)
def _softmax_backward_data(
    ctx: LoweringContext, grad_output: Value, output: Value, dim: int, input_dtype: torch.dtype
) -> Value:
    """_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor"""  # noqa: E501
    math = math_dtype(dtype_of(grad_output))
    grad, out = as_type(grad_output, math), as_type(output, math)
    weighted = hlo.multiply(grad, out)
    sum_ = broadcast_to(total(weighted, dim, keepdim=True), shape_of(out))
    return ctx.result(hlo.multiply(hlo.subtract(grad, sum_), out))


@lowers(aten._log_softmax_backward_data.default)
def _log_softmax_backward_data(
    ctx: LoweringContext, grad_output: Value, output: Value, dim: int, input_dtype: torch.dtype
) -> Value:
    """_log_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor"""  # noqa: E501
    math = math_dtype(dtype_of(grad_output))
    grad, out = as_type(grad_output, math), as_type(output, math)
    sum_ = broadcast_to(total(grad, dim, keepdim=True), shape_of(out))
    return ctx.result(hlo.subtract(grad, hlo.multiply(hlo.exponential(out), sum_)))


@lowers(aten.logsumexp.default)
def logsumexp(ctx: LoweringContext, x: Value, dim: list[int], keepdim: bool = False) -> Value:
    """logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor"""
    v = as_type(x, math_dtype(ctx.out.dtype))
    dims = dims_of(v, dim)
    real = hlo.real(v) if dtype_of(v).is_complex else v
    top = largest(real, dims, keepdim=True)
    top = select(is_inf(top), full_like(top, 0), top)
    top = builder.convert(top, dtype_of(v))
    sum_ = total(hlo.exponential(hlo.subtract(v, broadcast_to(top, shape_of(v)))), dim)
    out = hlo.add(hlo.log(sum_), builder.reshape(top, shape_of(sum_)))
    return ctx.result(builder.reshape(out, ctx.out.shape))
