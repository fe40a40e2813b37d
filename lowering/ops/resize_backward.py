"""The gradients of interpolation: the taps of ``resize``, transposed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tpu_compile.lowering import builder
from tpu_compile.lowering.builder import as_type
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value
from tpu_compile.lowering.ops import resize
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import dtype_of, math_dtype, shape_of

aten = torch.ops.aten


def _backward(
    ctx: LoweringContext,
    grad: Value,
    input_size: Sequence[int],
    method: resize.Method,
    align_corners: bool,
    *scales: float | None,
) -> Value:
    if 0 in (*shape_of(grad), *input_size):
        return builder.zeros(ctx.out.shape, ctx.out.dtype)
    v = as_type(grad, math_dtype(dtype_of(grad)))
    for d, scale in enumerate(scales, 2):
        taps = method(input_size[d], shape_of(grad)[d], align_corners, scale)
        v = resize.apply(v, d, taps.transposed(input_size[d]))
    return ctx.result(v)


@lowers(aten.upsample_nearest1d_backward.default)
def upsample_nearest1d_backward(
    ctx: LoweringContext,
    grad_output: Value,
    output_size: list[int],
    input_size: list[int],
    scales: float | None = None,
) -> Value:
    """upsample_nearest1d_backward(Tensor grad_output, SymInt[1] output_size, SymInt[3] input_size, float? scales=None) -> Tensor"""  # noqa: E501
    return _backward(ctx, grad_output, input_size, resize.nearest, False, scales)


@lowers(aten.upsample_nearest2d_backward.default)
def upsample_nearest2d_backward(
    ctx: LoweringContext,
    grad_output: Value,
    output_size: list[int],
    input_size: list[int],
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Value:
    """upsample_nearest2d_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] input_size, float? scales_h=None, float? scales_w=None) -> Tensor"""  # noqa: E501
    return _backward(ctx, grad_output, input_size, resize.nearest, False, scales_h, scales_w)


@lowers(aten.upsample_nearest3d_backward.default)
def upsample_nearest3d_backward(
    ctx: LoweringContext,
    grad_output: Value,
    output_size: list[int],
    input_size: list[int],
    scales_d: float | None = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Value:
    """upsample_nearest3d_backward(Tensor grad_output, SymInt[3] output_size, SymInt[5] input_size, float? scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor"""  # noqa: E501
    return _backward(
        ctx, grad_output, input_size, resize.nearest, False, scales_d, scales_h, scales_w
    )


@lowers(aten._upsample_nearest_exact1d_backward.default)
def _upsample_nearest_exact1d_backward(
    ctx: LoweringContext,
    grad_output: Value,
    output_size: list[int],
    input_size: list[int],
    scales: float | None = None,
) -> Value:
    """_upsample_nearest_exact1d_backward(Tensor grad_output, SymInt[1] output_size, SymInt[3] input_size, float? scales=None) -> Tensor"""  # noqa: E501
    return _backward(ctx, grad_output, input_size, resize.nearest_exact, False, scales)


@lowers(aten._upsample_nearest_exact2d_backward.default)
def _upsample_nearest_exact2d_backward(
    ctx: LoweringContext,
    grad_output: Value,
    output_size: list[int],
    input_size: list[int],
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Value:
    """_upsample_nearest_exact2d_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] input_size, float? scales_h=None, float? scales_w=None) -> Tensor"""  # noqa: E501
    return _backward(ctx, grad_output, input_size, resize.nearest_exact, False, scales_h, scales_w)


@lowers(aten._upsample_nearest_exact3d_backward.default)
def _upsample_nearest_exact3d_backward(
    ctx: LoweringContext,
    grad_output: Value,
    output_size: list[int],
    input_size: list[int],
    scales_d: float | None = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Value:
    """_upsample_nearest_exact3d_backward(Tensor grad_output, SymInt[3] output_size, SymInt[5] input_size, float? scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor"""  # noqa: E501
    return _backward(
        ctx, grad_output, input_size, resize.nearest_exact, False, scales_d, scales_h, scales_w
    )


@lowers(aten.upsample_linear1d_backward.default)
def upsample_linear1d_backward(
    ctx: LoweringContext,
    grad_output: Value,
    output_size: list[int],
    input_size: list[int],
    align_corners: bool,
    scales: float | None = None,
) -> Value:
    """upsample_linear1d_backward(Tensor grad_output, SymInt[1] output_size, SymInt[3] input_size, bool align_corners, float? scales=None) -> Tensor"""  # noqa: E501
    return _backward(ctx, grad_output, input_size, resize.linear, align_corners, scales)


@lowers(aten.upsample_bilinear2d_backward.default)
def upsample_bilinear2d_backward(
    ctx: LoweringContext,
    grad_output: Value,
    output_size: list[int],
    input_size: list[int],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Value:
    """upsample_bilinear2d_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] input_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor"""  # noqa: E501
    return _backward(ctx, grad_output, input_size, resize.linear, align_corners, scales_h, scales_w)


@lowers(aten.upsample_trilinear3d_backward.default)
def upsample_trilinear3d_backward(
    ctx: LoweringContext,
    grad_output: Value,
    output_size: list[int],
    input_size: list[int],
    align_corners: bool,
    scales_d: float | None = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Value:
    """upsample_trilinear3d_backward(Tensor grad_output, SymInt[3] output_size, SymInt[5] input_size, bool align_corners, float? scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor"""  # noqa: E501
    return _backward(
        ctx, grad_output, input_size, resize.linear, align_corners, scales_d, scales_h, scales_w
    )


@lowers(aten.upsample_bicubic2d_backward.default)
def upsample_bicubic2d_backward(
    ctx: LoweringContext,
    grad_output: Value,
    output_size: list[int],
    input_size: list[int],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Value:
    """upsample_bicubic2d_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] input_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor"""  # noqa: E501
    return _backward(ctx, grad_output, input_size, resize.cubic, align_corners, scales_h, scales_w)


@lowers(aten._upsample_bilinear2d_aa_backward.default)
def _upsample_bilinear2d_aa_backward(
    ctx: LoweringContext,
    grad_output: Value,
    output_size: list[int],
    input_size: list[int],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Value:
    """_upsample_bilinear2d_aa_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] input_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor"""  # noqa: E501
    return _backward(
        ctx,
        grad_output,
        input_size,
        resize.smooth(resize.triangle, 1),
        align_corners,
        scales_h,
        scales_w,
    )


@lowers(aten._upsample_bicubic2d_aa_backward.default)
def _upsample_bicubic2d_aa_backward(
    ctx: LoweringContext,
    grad_output: Value,
    output_size: list[int],
    input_size: list[int],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Value:
    """_upsample_bicubic2d_aa_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] input_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor"""  # noqa: E501
    return _backward(
        ctx,
        grad_output,
        input_size,
        resize.smooth(resize.keys, 2),
        align_corners,
        scales_h,
        scales_w,
    )


@lowers(aten._upsample_lanczos2d_aa_backward.default)
def _upsample_lanczos2d_aa_backward(
    ctx: LoweringContext,
    grad_output: Value,
    output_size: list[int],
    input_size: list[int],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Value:
    """_upsample_lanczos2d_aa_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] input_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor"""  # noqa: E501
    return _backward(
        ctx,
        grad_output,
        input_size,
        resize.smooth(resize.lanczos, 3),
        align_corners,
        scales_h,
        scales_w,
    )
