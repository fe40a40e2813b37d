"""Activation functions, computed in the math type and rounded once."""

from __future__ import annotations

import math

import torch

from tpu_compile.lowering.builder import Scalar, compare, full_like, select
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value, chlo, hlo
from tpu_compile.lowering.ops.elementwise import unary
from tpu_compile.lowering.ops.pointwise import clamp
from tpu_compile.lowering.registry import lowers

aten = torch.ops.aten


unary({aten.relu.default: lambda v: hlo.maximum(v, full_like(v, 0))})
unary(
    {
        aten.sigmoid.default: hlo.logistic,
        aten.silu.default: lambda v: hlo.multiply(v, hlo.logistic(v)),
    },
    "float",
)


@lowers(aten.gelu.default)
def gelu(ctx: LoweringContext, x: Value, *, approximate: str = "none") -> Value:
    """gelu(Tensor self, *, str approximate='none') -> Tensor"""
    (x,) = ctx.operands(x)
    half, one = full_like(x, 0.5), full_like(x, 1)
    if approximate == "none":
        curve = chlo.erf(hlo.multiply(x, full_like(x, math.sqrt(0.5))))
    else:
        cube = hlo.multiply(full_like(x, 0.044715), hlo.multiply(x, hlo.multiply(x, x)))
        curve = hlo.tanh(hlo.multiply(full_like(x, math.sqrt(2 / math.pi)), hlo.add(x, cube)))
    return ctx.result(hlo.multiply(hlo.multiply(half, x), hlo.add(one, curve)))


@lowers(aten.elu.default)
def elu(
    ctx: LoweringContext,
    x: Value,
    alpha: Value | Scalar = 1,
    scale: Value | Scalar = 1,
    input_scale: Value | Scalar = 1,
) -> Value:
    """elu(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> Tensor"""
    x, alpha, scale, input_scale = ctx.operands(x, alpha, scale, input_scale)
    low = hlo.exponential_minus_one(hlo.multiply(x, input_scale))
    low = hlo.multiply(low, hlo.multiply(alpha, scale))
    return ctx.result(select(compare("GT", x, full_like(x, 0)), hlo.multiply(x, scale), low))


@lowers(aten.leaky_relu.default)
def leaky_relu(ctx: LoweringContext, x: Value, negative_slope: Value | Scalar = 0.01) -> Value:
    """leaky_relu(Tensor self, Scalar negative_slope=0.01) -> Tensor"""
    x, slope = ctx.operands(x, negative_slope)
    return ctx.result(select(compare("GT", x, full_like(x, 0)), x, hlo.multiply(x, slope)))


@lowers(aten.hardtanh.default)
def hardtanh(
    ctx: LoweringContext, x: Value, min_val: Value | Scalar = -1, max_val: Value | Scalar = 1
) -> Value:
    """hardtanh(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor"""
    return clamp(ctx, x, min_val, max_val)
