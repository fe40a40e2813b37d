"""Conversions between dtypes, copies, and complex numbers as pairs of real ones."""

from __future__ import annotations

import math
from typing import Any

import torch

from tpu_compile.lowering import builder
from tpu_compile.lowering.builder import (
    compare,
    concatenate,
    convert,
    full_like,
    reshape,
    select,
    slice_dim,
)
from tpu_compile.lowering.checks import holds
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import dtype_of, real_dtype, shape_of, tensor_type

aten = torch.ops.aten
prims = torch.ops.prims


@lowers(aten._to_copy.default)
def _to_copy(
    ctx: LoweringContext,
    x: Value,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> Value:
    """_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool non_blocking=False, MemoryFormat? memory_format=None) -> Tensor"""  # noqa: E501
    return ctx.result(x)


@lowers(prims.convert_element_type.default)
def convert_element_type(ctx: LoweringContext, a: Value, dtype: torch.dtype) -> Value:
    """convert_element_type(Tensor a, ScalarType dtype) -> Tensor"""
    return ctx.result(a)


@lowers(prims.device_put.default)
def device_put(ctx: LoweringContext, a: Value, device: Any, non_blocking: bool = False) -> Value:
    """device_put(Tensor a, Device device, bool non_blocking=False) -> Tensor"""
    return a


@lowers(aten.clone.default, prims.clone.default)
def clone(ctx: LoweringContext, x: Value, *, memory_format: Any = None) -> Value:
    """clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor"""
    return x


@lowers(
    aten.alias.default,
    aten.detach.default,
    aten.lift.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
)
def alias(ctx: LoweringContext, x: Value) -> Value:
    """alias(Tensor(a) self) -> Tensor(a)"""
    return x


@lowers(aten.copy.default)
def copy(ctx: LoweringContext, x: Value, src: Value, non_blocking: bool = False) -> Value:
    """copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor"""
    return builder.as_type(src, ctx.out.dtype, ctx.out.shape)


@lowers(aten._assert_async.default, checked=True)
def _assert_async(ctx: LoweringContext, x: Value) -> None:
    """_assert_async(Tensor self) -> ()"""
    holds(ctx, x, "a tensor that must be true is not")


@lowers(aten._assert_async.msg, checked=True)
def _assert_async_msg(ctx: LoweringContext, x: Value, assert_msg: str) -> None:
    """_assert_async.msg(Tensor self, str assert_msg) -> ()"""
    holds(ctx, x, assert_msg)


# ---------------------------------------------------------------- complex numbers


@lowers(aten.complex.default)
def complex(ctx: LoweringContext, real: Value, imag: Value) -> Value:
    """complex(Tensor real, Tensor imag) -> Tensor"""
    return hlo.complex(*ctx.operands(real, imag, dtype=dtype_of(real)))


def conjugate(v: Value) -> Value:
    """The complex conjugate, of a real value the value."""
    return hlo.complex(hlo.real(v), hlo.negate(hlo.imag(v))) if dtype_of(v).is_complex else v


@lowers(
    aten._conj.default,
    aten._conj_physical.default,
    aten.conj_physical.default,
    aten._conj_copy.default,
)
def conj_physical(ctx: LoweringContext, x: Value) -> Value:
    """conj_physical(Tensor self) -> Tensor"""
    return conjugate(x)


@lowers(aten._neg_view.default, aten._neg_view_copy.default)
def _neg_view(ctx: LoweringContext, x: Value) -> Value:
    """_neg_view(Tensor(a) self) -> Tensor(a)"""
    return hlo.negate(x)


@lowers(aten.angle.default)
def angle(ctx: LoweringContext, x: Value) -> Value:
    """angle(Tensor self) -> Tensor"""
    if dtype_of(x).is_complex:
        return hlo.atan2(hlo.imag(x), hlo.real(x))
    x = convert(x, ctx.out.dtype)
    zero = full_like(x, 0)
    turned = select(compare("LT", x, zero), full_like(x, math.pi), zero)
    return select(builder.is_nan(x), x, turned)


@lowers(aten.polar.default)
def polar(ctx: LoweringContext, abs: Value, angle: Value) -> Value:
    """polar(Tensor abs, Tensor angle) -> Tensor"""
    size, angle = ctx.operands(abs, angle, dtype=dtype_of(abs))
    return hlo.complex(hlo.multiply(size, hlo.cosine(angle)), hlo.multiply(size, hlo.sine(angle)))


@lowers(prims.real.default)
def real(ctx: LoweringContext, x: Value) -> Value:
    """real(Tensor(a) self) -> Tensor(a)"""
    return hlo.real(x)


@lowers(prims.imag.default)
def imag(ctx: LoweringContext, x: Value) -> Value:
    """imag(Tensor(a) self) -> Tensor(a)"""
    return hlo.imag(x)


def as_pairs(v: Value) -> Value:
    """Complex values as real ones with a last dimension of two."""
    parts = [builder.unsqueeze(p, len(shape_of(v))) for p in (hlo.real(v), hlo.imag(v))]
    return concatenate(parts, len(shape_of(v)))


def from_pairs(v: Value) -> Value:
    """Real values with a last dimension of two as complex ones."""
    shape, last = shape_of(v)[:-1], len(shape_of(v)) - 1
    return hlo.complex(*(reshape(slice_dim(v, last, i, i + 1), shape) for i in (0, 1)))


@lowers(aten.view_as_real.default)
def view_as_real(ctx: LoweringContext, x: Value) -> Value:
    """view_as_real(Tensor(a) self) -> Tensor(a)"""
    return as_pairs(x)


@lowers(aten.view_as_complex.default)
def view_as_complex(ctx: LoweringContext, x: Value) -> Value:
    """view_as_complex(Tensor(a) self) -> Tensor(a)"""
    return from_pairs(x)


# ---------------------------------------------------------------- bits


@lowers(aten.view.dtype)
def view_dtype(ctx: LoweringContext, x: Value, dtype: torch.dtype) -> Value:
    """view.dtype(Tensor(a) self, ScalarType dtype) -> Tensor(a)"""
    if dtype_of(x) == dtype:
        return x
    if dtype_of(x).is_complex:
        x = _join_last(as_pairs(x))
    if dtype_of(x) == torch.bool:
        x = convert(x, torch.uint8)
    target = real_dtype(dtype) if dtype.is_complex else dtype
    out = _bitcast(x, torch.uint8 if target == torch.bool else target)
    if dtype.is_complex:
        return from_pairs(reshape(out, [*ctx.out.shape, 2]))
    return convert(out, dtype)


@lowers(prims.view_of_dtype.default)
def view_of_dtype(ctx: LoweringContext, a: Value, dtype: torch.dtype) -> Value:
    """view_of_dtype(Tensor(a) a, ScalarType dtype) -> Tensor(a)"""
    return view_dtype(ctx, a, dtype)


def _join_last(v: Value) -> Value:
    *lead, n, k = shape_of(v)
    return reshape(v, [*lead, n * k])


def _bitcast(v: Value, dtype: torch.dtype) -> Value:
    shape, src = shape_of(v), dtype_of(v)
    ratio = src.itemsize // dtype.itemsize
    if ratio > 1:
        return _join_last(hlo.bitcast_convert(tensor_type([*shape, ratio], dtype), v))
    group = dtype.itemsize // src.itemsize
    if group == 1:
        return hlo.bitcast_convert(tensor_type(shape, dtype), v)
    *lead, n = shape
    v = reshape(v, [*lead, n // group, group])
    return hlo.bitcast_convert(tensor_type([*lead, n // group], dtype), v)
