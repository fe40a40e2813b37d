"""Comparisons and logic on truth values: bool results, compared in the promoted dtype."""

from __future__ import annotations

import functools

import torch

from tpu_compile.lowering import builder
from tpu_compile.lowering.builder import compare, full_like
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.ops.elementwise import binary
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import dtype_of

aten = torch.ops.aten

binary(
    {
        (aten.eq.Tensor, aten.eq.Scalar): functools.partial(compare, "EQ"),
        (aten.ne.Tensor, aten.ne.Scalar): functools.partial(compare, "NE"),
        (aten.lt.Tensor, aten.lt.Scalar): functools.partial(compare, "LT"),
        (aten.le.Tensor, aten.le.Scalar): functools.partial(compare, "LE"),
        (aten.gt.Tensor, aten.gt.Scalar): functools.partial(compare, "GT"),
        (aten.ge.Tensor, aten.ge.Scalar): functools.partial(compare, "GE"),
    },
    # A scalar is rounded to bf16 before it is compared, unlike in arithmetic.
    "promoted",
)
binary(
    {
        aten.logical_and.default: hlo.and_,
        aten.logical_or.default: hlo.or_,
        aten.logical_xor.default: hlo.xor,
    },
    "bool",
)


@lowers(aten.logical_not.default)
def logical_not(ctx: LoweringContext, x: Value) -> Value:
    """logical_not(Tensor self) -> Tensor"""
    return hlo.not_(builder.convert(x, torch.bool))


def is_inf(v: Value) -> Value:
    """True where a float, or either part of a complex element, is infinite."""
    if dtype_of(v).is_complex:
        return hlo.or_(is_inf(hlo.real(v)), is_inf(hlo.imag(v)))
    if not dtype_of(v).is_floating_point:
        return compare("NE", v, v)
    size = hlo.abs(v)
    return compare("EQ", size, full_like(size, float("inf")))


def is_finite(v: Value) -> Value:
    """True where an element is neither infinite nor NaN."""
    if dtype_of(v).is_complex:
        return hlo.and_(is_finite(hlo.real(v)), is_finite(hlo.imag(v)))
    return hlo.is_finite(v) if dtype_of(v).is_floating_point else compare("EQ", v, v)


@lowers(aten.isnan.default)
def isnan(ctx: LoweringContext, x: Value) -> Value:
    """isnan(Tensor self) -> Tensor"""
    return builder.is_nan(x)


@lowers(aten.isinf.default)
def isinf(ctx: LoweringContext, x: Value) -> Value:
    """isinf(Tensor self) -> Tensor"""
    return is_inf(x)


@lowers(torch.ops.prims.isfinite.default)
def isfinite(ctx: LoweringContext, x: Value) -> Value:
    """isfinite(Tensor self) -> Tensor"""
    return is_finite(x)


@lowers(aten.signbit.default)
def signbit(ctx: LoweringContext, x: Value) -> Value:
    """signbit(Tensor self) -> Tensor"""
    return builder.sign_bit(x)
