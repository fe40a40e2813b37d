"""Matrix products as one dot_general each: transposed operands are folded into its numbers."""

from __future__ import annotations

import torch

from tpu_compile.lowering.builder import Scalar, as_type, broadcast_in_dim, dot_general, reduce
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value, hlo, ir
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import dtype_of, math_dtype, shape_of

aten = torch.ops.aten


def untransposed(v: Value) -> tuple[Value, tuple[int, ...]]:
    """The operand of the transpose that made a value, and its permutation; else the value itself.

    XLA:CPU multiplies one row by a materialised transposed weight 13 times slower than it
    contracts on the weight's other dimension.
    """
    op = v.owner
    if isinstance(op, ir.Block) or op.name != "stablehlo.transpose":
        return v, tuple(range(len(shape_of(v))))
    return op.operands[0], tuple(ir.DenseI64ArrayAttr(op.attributes["permutation"]))


def product(ctx: LoweringContext, x: Value, y: Value) -> Value:
    """The (batched) matrix or vector product in the type torch accumulates in.

    All leading dimensions but the last two are batch; a rank-1 operand has no free dimension.
    """
    rank = max(len(shape_of(x)), len(shape_of(y)))
    batch = list(range(rank - 2)) if rank > 2 else []
    contract_x, contract_y = len(shape_of(x)) - 1, max(0, len(shape_of(y)) - 2)
    x, perm_x = untransposed(x)
    y, perm_y = untransposed(y)
    dtype = dtype_of(x)
    return dot_general(
        x,
        y,
        batch=([perm_x[i] for i in batch], [perm_y[i] for i in batch]),
        contract=([perm_x[contract_x]], [perm_y[contract_y]]),
        precision=ctx.matmul_precision if dtype.itemsize >= 4 else "DEFAULT",
        dtype=math_dtype(dtype),
    )


def _plus(
    ctx: LoweringContext, x: Value, xy: Value, beta: Scalar | Value, alpha: Scalar | Value
) -> Value:
    math = dtype_of(xy)
    if isinstance(alpha, Value) or alpha != 1:
        xy = hlo.multiply(xy, as_type(alpha, math, ctx.out.shape))
    if not isinstance(beta, Value) and beta == 0:  # NaN in x must not show
        return ctx.result(xy)
    x = as_type(x, math, ctx.out.shape)
    if isinstance(beta, Value) or beta != 1:
        x = hlo.multiply(x, as_type(beta, math, ctx.out.shape))
    return ctx.result(hlo.add(x, xy))


@lowers(aten.mm.default, aten.bmm.default)
def mm(ctx: LoweringContext, x: Value, mat2: Value) -> Value:
    """mm(Tensor self, Tensor mat2) -> Tensor"""
    return ctx.result(product(ctx, x, mat2))


@lowers(aten.mv.default)
def mv(ctx: LoweringContext, x: Value, vec: Value) -> Value:
    """mv(Tensor self, Tensor vec) -> Tensor"""
    return ctx.result(product(ctx, x, vec))


@lowers(aten.dot.default)
def dot(ctx: LoweringContext, x: Value, tensor: Value) -> Value:
    """dot(Tensor self, Tensor tensor) -> Tensor"""
    return ctx.result(product(ctx, x, tensor))


@lowers(aten._int_mm.default)
def _int_mm(ctx: LoweringContext, x: Value, mat2: Value) -> Value:
    """_int_mm(Tensor self, Tensor mat2) -> Tensor"""
    return product(ctx, as_type(x, ctx.out.dtype), as_type(mat2, ctx.out.dtype))


@lowers(aten.addmm.default)
def addmm(
    ctx: LoweringContext,
    x: Value,
    mat1: Value,
    mat2: Value,
    *,
    beta: Scalar | Value = 1,
    alpha: Scalar | Value = 1,
) -> Value:
    """addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    return _plus(ctx, x, product(ctx, mat1, mat2), beta, alpha)


@lowers(aten.baddbmm.default)
def baddbmm(
    ctx: LoweringContext,
    x: Value,
    batch1: Value,
    batch2: Value,
    *,
    beta: Scalar | Value = 1,
    alpha: Scalar | Value = 1,
) -> Value:
    """baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""  # noqa: E501
    return _plus(ctx, x, product(ctx, batch1, batch2), beta, alpha)


@lowers(aten.addbmm.default)
def addbmm(
    ctx: LoweringContext,
    x: Value,
    batch1: Value,
    batch2: Value,
    *,
    beta: Scalar | Value = 1,
    alpha: Scalar | Value = 1,
) -> Value:
    """addbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""  # noqa: E501
    products = product(ctx, batch1, batch2)
    return _plus(ctx, x, reduce(products, [0], hlo.add, 0), beta, alpha)


@lowers(aten.addr.default)
def addr(
    ctx: LoweringContext,
    x: Value,
    vec1: Value,
    vec2: Value,
    *,
    beta: Scalar | Value = 1,
    alpha: Scalar | Value = 1,
) -> Value:
    """addr(Tensor self, Tensor vec1, Tensor vec2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    dtype = ctx.promoted  # each step rounds in torch too
    vec1 = as_type(vec1, dtype)
    vec1 = hlo.multiply(vec1, as_type(alpha, dtype, shape_of(vec1)))
    outer = broadcast_in_dim(vec1, ctx.out.shape, [0])
    return _plus(ctx, x, hlo.multiply(outer, *ctx.operands(vec2, dtype=dtype)), beta, 1)


@lowers(aten.addmv.default)
def addmv(
    ctx: LoweringContext,
    x: Value,
    mat: Value,
    vec: Value,
    *,
    beta: Scalar | Value = 1,
    alpha: Scalar | Value = 1,
) -> Value:
    """addmv(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    return _plus(ctx, x, product(ctx, mat, vec), beta, alpha)
