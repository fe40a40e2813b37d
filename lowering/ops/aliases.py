"""Ops that are another op under another name, as they come out of transforms and scalar passes."""

from __future__ import annotations

import torch
import torch._inductor.inductor_prims  # defines torch.ops.prims.fma

from tpu_compile.lowering.builder import Scalar, as_type, reshape, zeros
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.ops import pointwise
from tpu_compile.lowering.registry import lowers

aten = torch.ops.aten

lowers(aten.true_divide.Tensor, aten.true_divide.Scalar)(pointwise.div)


@lowers(aten.detach_copy.default)
def detach_copy(ctx: LoweringContext, x: Value) -> Value:
    """detach_copy(Tensor self) -> Tensor"""
    return x


@lowers(aten._new_zeros_with_same_feature_meta.default)
def new_zeros_with_same_feature_meta(
    ctx: LoweringContext, x: Value, other: Value, self_num_batch_dims: int = 0
) -> Value:
    """_new_zeros_with_same_feature_meta(Tensor self, Tensor other, *,
    int self_num_batch_dims=0) -> Tensor"""
    return zeros(ctx.out.shape, ctx.out.dtype)


@lowers(torch.ops.prims.fma.default)
def fma(ctx: LoweringContext, a: Value | Scalar, b: Value | Scalar, c: Value | Scalar) -> Value:
    """fma(Tensor a, Tensor b, Tensor c) -> Tensor"""
    a, b, c = (as_type(v, ctx.math_type, ctx.out.shape) for v in (a, b, c))
    return ctx.result(hlo.add(hlo.multiply(a, b), c))


@lowers(aten._local_scalar_dense.default)
def local_scalar_dense(ctx: LoweringContext, x: Value) -> Value:
    """_local_scalar_dense(Tensor self) -> Scalar"""
    return as_type(reshape(x, ()), ctx.out.dtype)
