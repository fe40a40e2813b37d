"""Elementwise arithmetic: converted to torch's math type, computed, rounded once."""

from __future__ import annotations

import torch

from tpu_compile.lowering.builder import Scalar, as_type
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.registry import lowers

aten = torch.ops.aten


@lowers(aten.add.Tensor, aten.add.Scalar)
def add(ctx: LoweringContext, x: Value, other: Value | Scalar, alpha: Scalar = 1) -> Value:
    """add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"""
    x, other = ctx.operands(x, other)
    if ctx.math_type == torch.bool:
        return ctx.result(hlo.or_(x, other) if alpha else x)
    if alpha != 1:
        other = hlo.multiply(other, as_type(alpha, ctx.math_type, ctx.out.shape))
    return ctx.result(hlo.add(x, other))
