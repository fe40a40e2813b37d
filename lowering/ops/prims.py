"""The prims that torch's reference decompositions end in: aten's rules again, and a few views."""

from __future__ import annotations

from typing import Any

import torch

from tpu_compile.lowering import builder
from tpu_compile.lowering.builder import Scalar, as_type, reshape
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value
from tpu_compile.lowering.ops import (
    activation,
    bitwise,
    comparison,
    convert,
    pointwise,
    reduction,
    special,
)
from tpu_compile.lowering.ops.creation import filled
from tpu_compile.lowering.registry import find, lowers
from tpu_compile.lowering.types import shape_of

aten = torch.ops.aten
prims = torch.ops.prims

# Imported so that their rules are there to be shared.
_FAMILIES = (activation, bitwise, comparison, convert, pointwise, special)

# Same parameters, same meaning once the arguments are of one dtype and shape.
_SHARED = {
    "abs acos acosh asin asinh atan atanh bitwise_not ceil conj_physical cos cosh digamma erf erfc "
    "exp exp2 expm1 floor lgamma log log10 log1p log2 neg reciprocal round rsqrt sign signbit sin "
    "sinh sqrt tan tanh trunc": "default",
    "add bitwise_and bitwise_or bitwise_xor div eq fmod ge gt le lt mul ne remainder sub": "Tensor",
    "atan2 fmax fmin gcd hypot igamma igammac maximum minimum nextafter": "default",
}
_RENAMED = {
    "bessel_i0": aten.i0.default,
    "bessel_i0e": aten.special_i0e.default,
    "bessel_i1": aten.special_i1.default,
    "bessel_i1e": aten.special_i1e.default,
    "erfcx": aten.special_erfcx.default,
    "erf_inv": aten.erfinv.default,
    "ndtri": aten.special_ndtri.default,
    "shift_left": aten.bitwise_left_shift.Tensor,
    "shift_right_arithmetic": aten.bitwise_right_shift.Tensor,
    "zeta": aten.special_zeta.default,
}


def _share() -> None:
    pairs = {n: getattr(getattr(aten, n), o) for ns, o in _SHARED.items() for n in ns.split()}
    for name, op in {**pairs, **_RENAMED}.items():
        rule = find(op)
        assert rule is not None, f"no rule for {op}"
        lowers(getattr(prims, name).default)(rule)


_share()


@lowers(prims.pow.default)
def pow(ctx: LoweringContext, x: Value, other: Value) -> Value:
    """pow(Tensor self, Tensor other) -> Tensor"""
    return ctx.result(pointwise.power(*ctx.operands(x, other)))


@lowers(prims.where.default)
def where(ctx: LoweringContext, pred: Value, a: Value, b: Value) -> Value:
    """where(Tensor pred, Tensor a, Tensor b) -> Tensor"""
    return pointwise.where(ctx, pred, a, b)


@lowers(prims.broadcast_in_dim.default)
def broadcast_in_dim(
    ctx: LoweringContext, a: Value, shape: list[int], broadcast_dimensions: list[int]
) -> Value:
    """broadcast_in_dim(Tensor(a) a, SymInt[] shape, int[] broadcast_dimensions) -> Tensor(a)"""
    return builder.broadcast_in_dim(a, shape, broadcast_dimensions)


@lowers(prims.transpose.default)
def transpose(ctx: LoweringContext, a: Value, permutation: list[int]) -> Value:
    """transpose(Tensor(a) a, int[] permutation) -> Tensor(a)"""
    return builder.transpose(a, permutation)


@lowers(prims.collapse_view.default, prims.collapse.default)
def collapse_view(ctx: LoweringContext, a: Value, start: int, end: int) -> Value:
    """collapse_view(Tensor(a) a, int start, int end) -> Tensor(a)"""
    return reshape(a, ctx.out.shape)


@lowers(prims.split_dim.default)
def split_dim(ctx: LoweringContext, a: Value, dim: int, outer_length: int) -> Value:
    """split_dim(Tensor(a) a, int dim, SymInt outer_length) -> Tensor(a)"""
    return reshape(a, ctx.out.shape)


@lowers(prims.squeeze.default)
def squeeze(ctx: LoweringContext, a: Value, dimensions: list[int]) -> Value:
    """squeeze(Tensor(a) a, int[] dimensions) -> Tensor(a)"""
    return reshape(a, ctx.out.shape)


@lowers(prims.reshape.default)
def reshape_(ctx: LoweringContext, a: Value, shape: list[int]) -> Value:
    """reshape(Tensor a, SymInt[] shape) -> Tensor"""
    return reshape(a, shape)


@lowers(prims.rev.default)
def rev(ctx: LoweringContext, a: Value, dims: list[int]) -> Value:
    """rev(Tensor a, int[] dims) -> Tensor"""
    return builder.reverse(a, dims)


@lowers(prims.cat.default)
def cat(ctx: LoweringContext, tensors: list[Value], dim: int) -> Value:
    """cat(Tensor[] tensors, int dim) -> Tensor"""
    return builder.concatenate([ctx.result(v) for v in tensors], dim)


@lowers(prims.view_of.default)
def view_of(ctx: LoweringContext, a: Value) -> Value:
    """view_of(Tensor(a) a) -> Tensor(a)"""
    return a


@lowers(prims.copy_strided.default)
def copy_strided(ctx: LoweringContext, a: Value, stride: list[int]) -> Value:
    """copy_strided(Tensor a, SymInt[] stride) -> Tensor"""
    return a


@lowers(prims.conj.default)
def conj(ctx: LoweringContext, a: Value) -> Value:
    """conj(Tensor(a) a) -> Tensor(a)"""
    return convert.conjugate(a)


@lowers(prims.full.default)
def full(
    ctx: LoweringContext,
    shape: list[int],
    fill_value: Value | Scalar,
    *,
    dtype: torch.dtype,
    device: Any,
    requires_grad: bool,
) -> Value:
    """full(SymInt[] shape, Scalar fill_value, *, ScalarType dtype, Device device, bool requires_grad) -> Tensor"""  # noqa: E501
    return filled(ctx, fill_value)


@lowers(prims.full_like.default)
def full_like(
    ctx: LoweringContext,
    a: Value,
    fill_value: Value | Scalar,
    *,
    dtype: torch.dtype,
    device: Any,
    requires_grad: bool,
) -> Value:
    """full_like(Tensor a, Scalar fill_value, *, ScalarType dtype, Device device, bool requires_grad) -> Tensor"""  # noqa: E501
    return filled(ctx, fill_value)


@lowers(prims.scalar_tensor.default)
def scalar_tensor(
    ctx: LoweringContext, s: Value | Scalar, *, dtype: torch.dtype | None = None, device: Any = None
) -> Value:
    """scalar_tensor(Scalar s, *, ScalarType? dtype=None, Device? device=None) -> Tensor"""
    return filled(ctx, s)


@lowers(prims.fill.default)
def fill(ctx: LoweringContext, x: Value, value: Value | Scalar) -> Value:
    """fill(Tensor self, Scalar value) -> Tensor"""
    return as_type(value, ctx.out.dtype, ctx.out.shape)


# ---------------------------------------------------------------- reductions


@lowers(prims.sum.default)
def sum(
    ctx: LoweringContext,
    inp: Value,
    dims: list[int] | None,
    *,
    output_dtype: torch.dtype | None = None,
) -> Value:
    """sum(Tensor inp, int[]? dims, *, ScalarType? output_dtype=None) -> Tensor"""
    return reduction.sum_of(ctx, inp, range(len(shape_of(inp))) if dims is None else dims, False)


@lowers(prims.prod.default)
def prod(
    ctx: LoweringContext,
    inp: Value,
    dims: list[int] | None,
    *,
    output_dtype: torch.dtype | None = None,
) -> Value:
    """prod(Tensor inp, int[]? dims, *, ScalarType? output_dtype=None) -> Tensor"""
    return reduction.product_of(ctx, inp, dims, False)


@lowers(prims.var.default)
def var(
    ctx: LoweringContext,
    inp: Value,
    dims: list[int] | None,
    correction: float | Value | None = 1,
    *,
    output_dtype: torch.dtype | None = None,
) -> Value:
    """var(Tensor inp, int[]? dims, float? correction=1, *, ScalarType? output_dtype=None) -> Tensor"""  # noqa: E501
    return ctx.result(reduction.moments_of(ctx, inp, dims, correction, False)[0])


@lowers(prims.amax.default)
def amax(
    ctx: LoweringContext,
    inp: Value,
    dims: list[int] | None,
    *,
    output_dtype: torch.dtype | None = None,
) -> Value:
    """amax(Tensor inp, int[]? dims, *, ScalarType? output_dtype=None) -> Tensor"""
    return reduction.largest(inp, reduction.dims_of(inp, dims))


@lowers(prims.amin.default)
def amin(
    ctx: LoweringContext,
    inp: Value,
    dims: list[int] | None,
    *,
    output_dtype: torch.dtype | None = None,
) -> Value:
    """amin(Tensor inp, int[]? dims, *, ScalarType? output_dtype=None) -> Tensor"""
    return reduction.smallest(inp, reduction.dims_of(inp, dims))
