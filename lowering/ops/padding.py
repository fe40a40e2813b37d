"""Padding by reflected or repeated elements, and its gradients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from tpu_compile.lowering import builder
from tpu_compile.lowering.builder import as_type
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value
from tpu_compile.lowering.ops.resize import Taps, apply, ones
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import dtype_of, math_dtype, shape_of

aten = torch.ops.aten

Places = Callable[[np.ndarray, int], np.ndarray]


def _reflected(at: np.ndarray, size: int) -> np.ndarray:
    return size - 1 - np.abs(size - 1 - np.abs(at))


def _repeated(at: np.ndarray, size: int) -> np.ndarray:
    return np.clip(at, 0, size - 1)


def _taps(size: int, low: int, high: int, places: Places) -> Taps:
    return ones(places(np.arange(-low, size + high), size))


def _padded(ctx: LoweringContext, x: Value, padding: list[int], places: Places) -> Value:
    if 0 in ctx.out.shape:
        return builder.zeros(ctx.out.shape, ctx.out.dtype)
    for i, (low, high) in enumerate(zip(padding[::2], padding[1::2], strict=True)):
        dim = len(shape_of(x)) - 1 - i
        if low or high:
            x = apply(x, dim, _taps(shape_of(x)[dim], low, high, places))
    return x


def _backward(ctx: LoweringContext, grad: Value, padding: list[int], places: Places) -> Value:
    if 0 in (*shape_of(grad), *ctx.out.shape):
        return builder.zeros(ctx.out.shape, ctx.out.dtype)
    v = as_type(grad, math_dtype(dtype_of(grad)))
    for i, (low, high) in enumerate(zip(padding[::2], padding[1::2], strict=True)):
        dim = len(ctx.out.shape) - 1 - i
        size = ctx.out.shape[dim]
        if low or high:
            v = apply(v, dim, _taps(size, low, high, places).transposed(size))
    return ctx.result(v)


@lowers(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)
def reflection_pad(ctx: LoweringContext, x: Value, padding: list[int]) -> Value:
    """reflection_pad2d(Tensor self, SymInt[4] padding) -> Tensor"""
    return _padded(ctx, x, padding, _reflected)


@lowers(
    aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default
)
def replication_pad(ctx: LoweringContext, x: Value, padding: list[int]) -> Value:
    """replication_pad2d(Tensor self, SymInt[4] padding) -> Tensor"""
    return _padded(ctx, x, padding, _repeated)


@lowers(
    aten.reflection_pad1d_backward.default,
    aten.reflection_pad2d_backward.default,
    aten.reflection_pad3d_backward.default,
)
def reflection_pad_backward(
    ctx: LoweringContext, grad_output: Value, x: Value, padding: list[int]
) -> Value:
    """reflection_pad2d_backward(Tensor grad_output, Tensor self, SymInt[4] padding) -> Tensor"""
    return _backward(ctx, grad_output, padding, _reflected)


@lowers(
    aten.replication_pad1d_backward.default,
    aten.replication_pad2d_backward.default,
    aten.replication_pad3d_backward.default,
)
def replication_pad_backward(
    ctx: LoweringContext, grad_output: Value, x: Value, padding: list[int]
) -> Value:
    """replication_pad2d_backward(Tensor grad_output, Tensor self, SymInt[4] padding) -> Tensor"""
    return _backward(ctx, grad_output, padding, _repeated)
