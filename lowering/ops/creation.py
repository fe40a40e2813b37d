"""Tensors made of nothing: fills, ranges, and empty ones, which are zeros here."""

from __future__ import annotations

from typing import Any

import torch

from tpu_compile.lowering import builder
from tpu_compile.lowering.builder import Scalar, as_type, iota
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import math_dtype

aten = torch.ops.aten
prims = torch.ops.prims


def filled(ctx: LoweringContext, value: Value | Scalar) -> Value:
    """The op's result, all of one value."""
    return as_type(value, ctx.out.dtype, ctx.out.shape)


@lowers(aten.full.default)
def full(
    ctx: LoweringContext,
    size: list[int],
    fill_value: Value | Scalar,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> Value:
    """full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"""  # noqa: E501
    return filled(ctx, fill_value)


@lowers(aten.full_like.default)
def full_like(
    ctx: LoweringContext,
    x: Value,
    fill_value: Value | Scalar,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
    memory_format: Any = None,
) -> Value:
    """full_like(Tensor self, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor"""  # noqa: E501
    return filled(ctx, fill_value)


@lowers(aten.new_full.default)
def new_full(
    ctx: LoweringContext,
    x: Value,
    size: list[int],
    fill_value: Value | Scalar,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> Value:
    """new_full(Tensor self, SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"""  # noqa: E501
    return filled(ctx, fill_value)


@lowers(aten.scalar_tensor.default)
def scalar_tensor(
    ctx: LoweringContext,
    s: Value | Scalar,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> Value:
    """scalar_tensor(Scalar s, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"""  # noqa: E501
    return filled(ctx, s)


@lowers(aten.fill.Scalar, aten.fill.Tensor)
def fill(ctx: LoweringContext, x: Value, value: Value | Scalar) -> Value:
    """fill.Scalar(Tensor self, Scalar value) -> Tensor"""
    return filled(ctx, value)


@lowers(aten._efficientzerotensor.default)
def _efficientzerotensor(
    ctx: LoweringContext,
    size: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> Value:
    """_efficientzerotensor(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"""  # noqa: E501
    return filled(ctx, 0)


# ---------------------------------------------------------------- ranges


def arithmetic_range(ctx: LoweringContext, start: Value | Scalar, step: Value | Scalar) -> Value:
    """start, start + step, ... in float64 or int64, then rounded to the result's dtype."""
    shape, dtype = ctx.out.shape, ctx.out.dtype
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    at = hlo.multiply(iota(shape, 0, wide), as_type(step, wide, shape))
    return ctx.result(hlo.add(at, as_type(start, wide, shape)))


@lowers(aten.arange.start_step)
def arange(
    ctx: LoweringContext,
    start: Value | Scalar,
    end: Value | Scalar,
    step: Value | Scalar = 1,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> Value:
    """arange.start_step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"""  # noqa: E501
    return arithmetic_range(ctx, start, step)


@lowers(
    aten.linspace.default,
    aten.linspace.Tensor_Tensor,
    aten.linspace.Tensor_Scalar,
    aten.linspace.Scalar_Tensor,
)
def linspace(
    ctx: LoweringContext,
    start: Value | Scalar,
    end: Value | Scalar,
    steps: int,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> Value:
    """linspace(Scalar start, Scalar end, SymInt steps, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"""  # noqa: E501
    shape, out = ctx.out.shape, ctx.out.dtype
    wide = math_dtype(out) if out.is_floating_point or out.is_complex else torch.float64
    start, end = (as_type(as_type(v, out), wide) for v in (start, end))
    if steps < 2:
        return ctx.result(builder.broadcast_to(start, shape))
    step: Value = hlo.subtract(end, start)
    step = hlo.divide(step, builder.divisor(steps - 1, step))
    start, end, step = (builder.broadcast_to(v, shape) for v in (start, end, step))
    index = iota(shape, 0)
    # From both ends, so that both are exact.
    rising = hlo.add(start, hlo.multiply(step, as_type(index, wide)))
    left = hlo.subtract(builder.full_like(index, steps - 1), index)
    falling = hlo.subtract(end, hlo.multiply(step, as_type(left, wide)))
    first_half = builder.compare("LT", index, builder.full_like(index, steps // 2))
    return ctx.result(builder.select(first_half, rising, falling))


@lowers(prims.iota.default)
def prims_iota(
    ctx: LoweringContext,
    length: int,
    *,
    start: Value | int,
    step: Value | int,
    dtype: torch.dtype,
    device: Any,
    requires_grad: bool,
) -> Value:
    """iota(SymInt length, *, SymInt start, SymInt step, ScalarType dtype, Device device, bool requires_grad) -> Tensor"""  # noqa: E501
    return arithmetic_range(ctx, start, step)


# ---------------------------------------------------------------- empty


def empty(ctx: LoweringContext) -> Value:
    """The op's result, undefined to torch: zeros, so that runs are repeatable."""
    return builder.zeros(ctx.out.shape, ctx.out.dtype)


@lowers(aten.empty.memory_format)
def empty_memory_format(
    ctx: LoweringContext,
    size: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
    memory_format: Any = None,
) -> Value:
    """empty.memory_format(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor"""  # noqa: E501
    return empty(ctx)


@lowers(aten.empty_strided.default)
def empty_strided(
    ctx: LoweringContext,
    size: list[int],
    stride: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> Value:
    """empty_strided(SymInt[] size, SymInt[] stride, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"""  # noqa: E501
    return empty(ctx)


@lowers(aten.empty_permuted.default)
def empty_permuted(
    ctx: LoweringContext,
    size: list[int],
    physical_layout: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> Value:
    """empty_permuted(SymInt[] size, int[] physical_layout, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"""  # noqa: E501
    return empty(ctx)


@lowers(aten.new_empty_strided.default)
def new_empty_strided(
    ctx: LoweringContext,
    x: Value,
    size: list[int],
    stride: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> Value:
    """new_empty_strided(Tensor self, SymInt[] size, SymInt[] stride, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"""  # noqa: E501
    return empty(ctx)


@lowers(prims.empty_permuted.default)
def prims_empty_permuted(
    ctx: LoweringContext,
    shape: list[int],
    physical_layout: list[int],
    *,
    dtype: torch.dtype,
    device: Any,
    requires_grad: bool,
) -> Value:
    """empty_permuted(SymInt[] shape, int[] physical_layout, *, ScalarType dtype, Device device, bool requires_grad) -> Tensor"""  # noqa: E501
    return empty(ctx)


@lowers(prims.empty_strided.default)
def prims_empty_strided(
    ctx: LoweringContext,
    shape: list[int],
    strides: list[int],
    *,
    dtype: torch.dtype,
    device: Any,
    requires_grad: bool,
) -> Value:
    """empty_strided(SymInt[] shape, SymInt[] strides, *, ScalarType dtype, Device device, bool requires_grad) -> Tensor"""  # noqa: E501
    return empty(ctx)
