"""Interpolation (upsample ops) and its gradients.

Each is linear and separable: along a dimension, a result is a weighted sum of a few taps whose
places and weights are known when lowering; the gradient has the same taps, transposed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from tpu_compile.lowering import builder
from tpu_compile.lowering.builder import as_type, reshape, select
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import dtype_of, math_dtype, shape_of

aten = torch.ops.aten

UNROLLED = 16  # taps up to which each is a term of its own


@dataclass(frozen=True)
class Taps:
    """What the results along one dimension are made of.

    Attributes:
        index: [results, taps], which element; -1 where a result has fewer taps.
        weight: [results, taps]; 1 where there is none.
    """

    index: np.ndarray
    weight: np.ndarray

    def transposed(self, size: int) -> Taps:
        """The taps of the gradient, for that many elements."""
        result, tap = np.nonzero(self.index >= 0)
        element = self.index[result, tap]
        order = np.argsort(element, kind="stable")
        element, result, tap = element[order], result[order], tap[order]
        count = np.bincount(element, minlength=size)
        nth = np.arange(len(element)) - np.repeat(np.cumsum(count) - count, count)
        index = np.full((size, max(1, count.max())), -1)
        weight = np.ones(index.shape, self.weight.dtype)
        index[element, nth] = result
        weight[element, nth] = self.weight[result, tap]
        return Taps(index, weight)


def apply(v: Value, dim: int, taps: Taps) -> Value:
    """Replaces a dimension's elements by the weighted sums of their taps."""
    n, count = taps.index.shape
    size = shape_of(v)[dim]
    if (taps.weight == 1).all() and _is_repeat(taps.index, size):
        shape = [*shape_of(v)[: dim + 1], n // size, *shape_of(v)[dim + 1 :]]
        keep = [d for d in range(len(shape)) if d != dim + 1]
        v = builder.broadcast_in_dim(v, shape, keep)
        return reshape(v, [*shape[:dim], n, *shape[dim + 2 :]])
    if count > UNROLLED or np.array_equal(taps.index.ravel(), np.arange(size)):
        return builder.reduce(_terms(v, dim, taps), [dim + 1], hlo.add, 0)
    total = None
    for t in range(count):
        one = Taps(taps.index[:, t : t + 1], taps.weight[:, t : t + 1])
        term = _terms(v, dim, one)
        total = term if total is None else hlo.add(total, term)
    assert total is not None
    return reshape(total, [*shape_of(v)[:dim], n, *shape_of(v)[dim + 1 :]])


def _is_repeat(index: np.ndarray, size: int) -> bool:
    n, count = index.shape
    return count == 1 and n % size == 0 and (index[:, 0] == np.arange(n) // (n // size)).all()


def _terms(v: Value, dim: int, taps: Taps) -> Value:
    """The weighted taps, in two dimensions in place of one."""
    shape = [*shape_of(v)[:dim], *taps.index.shape, *shape_of(v)[dim + 1 :]]
    if np.array_equal(taps.index.ravel(), np.arange(shape_of(v)[dim])):
        terms = reshape(v, shape)
    else:
        at = builder.array_constant(np.maximum(taps.index, 0), torch.int64)
        terms = builder.take(v, at, dim)
    if (taps.weight != 1).any():
        weight = builder.array_constant(taps.weight, dtype_of(v))
        terms = hlo.multiply(terms, builder.broadcast_in_dim(weight, shape, [dim, dim + 1]))
    if (taps.index < 0).any():
        there = builder.array_constant(taps.index >= 0, torch.bool)
        there = builder.broadcast_in_dim(there, shape, [dim, dim + 1])
        terms = select(there, terms, builder.full_like(terms, 0))
    return terms


# ---------------------------------------------------------------- taps

# Places and weights are computed in float32, as torch does, since rounding decides between taps.
Method = Callable[[int, int, bool, float | None], Taps]


def _ratio(size: int, out: int, align_corners: bool, scale: float | None) -> np.float32:
    if align_corners:
        return np.float32((size - 1) / (out - 1) if out > 1 else 0)
    return np.float32(1 / scale if scale is not None and scale > 0 else size / out)


def ones(index: np.ndarray) -> Taps:
    """One tap for each result, as it is."""
    return Taps(index[:, None], np.ones((len(index), 1), np.float32))


def nearest(size: int, out: int, align_corners: bool, scale: float | None) -> Taps:
    at = np.arange(out, dtype=np.float32) * _ratio(size, out, False, scale)
    if out == size:
        return ones(np.arange(out))
    if out == 2 * size:
        return ones(np.arange(out) // 2)
    return ones(np.minimum(np.floor(at).astype(np.int64), size - 1))


def nearest_exact(size: int, out: int, align_corners: bool, scale: float | None) -> Taps:
    at = (np.arange(out, dtype=np.float32) + np.float32(0.5)) * _ratio(size, out, False, scale)
    return ones(np.minimum(np.floor(at).astype(np.int64), size - 1))


def _sources(size: int, out: int, align_corners: bool, scale: float | None) -> np.ndarray:
    """Where each result lies among the elements."""
    ratio, at = _ratio(size, out, align_corners, scale), np.arange(out, dtype=np.float32)
    half = np.float32(0.5)
    return ratio * at if align_corners else ratio * (at + half) - half


def linear(size: int, out: int, align_corners: bool, scale: float | None) -> Taps:
    if out == size:
        return ones(np.arange(out))
    at = np.maximum(_sources(size, out, align_corners, scale), 0)
    low = np.minimum(at.astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    part = np.clip(at - low.astype(np.float32), 0, 1)
    return Taps(np.stack([low, high], 1), np.stack([1 - part, part], 1))


def _near(x: np.ndarray, a: float | np.floating) -> np.ndarray:
    return ((a + 2) * x - (a + 3)) * x * x + 1


def _far(x: np.ndarray, a: float | np.floating) -> np.ndarray:
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a


def cubic(size: int, out: int, align_corners: bool, scale: float | None) -> Taps:
    at = _sources(size, out, align_corners, scale)
    first = np.floor(at)
    t, a = at - first, np.float32(-0.75)
    weight = np.stack([_far(t + 1, a), _near(t, a), _near(1 - t, a), _far(2 - t, a)], 1)
    index = first.astype(np.int64)[:, None] + np.arange(-1, 3)
    return Taps(np.clip(index, 0, size - 1), weight)


def triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0)


def keys(x: np.ndarray) -> np.ndarray:
    x, a = np.abs(x), np.float32(-0.5)
    return np.where(x < 1, _near(x, a), np.where(x < 2, _far(x, a), 0))


def lanczos(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


def smooth(curve: Callable[[np.ndarray], np.ndarray], radius: int) -> Method:
    """Taps of a filter that is as wide as results are apart, where they are further than 1."""

    def taps(size: int, out: int, align_corners: bool, scale: float | None) -> Taps:
        ratio = _ratio(size, out, align_corners, scale)
        wide = max(ratio, np.float32(1))
        support, half = np.float32(radius) * wide, np.float32(0.5)
        center = ratio * (np.arange(out, dtype=np.float32) + half)
        first = np.maximum((center - support + half).astype(np.int64), 0)
        end = np.minimum((center + support + half).astype(np.int64), size)
        place = np.arange(max(1, (end - first).max()))
        index = first[:, None] + place
        from_center = (index.astype(np.float32) - center[:, None] + half) * (1 / wide)
        weight = np.where(index < end[:, None], curve(from_center), 0)
        total = weight.sum(1, keepdims=True)
        weight = np.divide(weight, total, out=weight, where=total != 0)
        there = index < end[:, None]
        return Taps(np.where(there, index, -1), np.where(there, weight, 1))

    return taps


# ---------------------------------------------------------------- rules


def _resize(
    ctx: LoweringContext,
    x: Value,
    method: Method,
    align_corners: bool,
    *scales: float | None,
) -> Value:
    out, dtype = ctx.out.shape, dtype_of(x)
    if 0 in (*shape_of(x), *out):
        return builder.zeros(out, ctx.out.dtype)
    one_tap = method in (nearest, nearest_exact)
    if not one_tap and not dtype.is_floating_point:
        ctx.fail(f"interpolation of {dtype}")
    v = x if one_tap else as_type(x, math_dtype(dtype))
    for d, scale in enumerate(scales, 2):
        v = apply(v, d, method(shape_of(x)[d], out[d], align_corners, scale))
    return ctx.result(v)


@lowers(aten.upsample_nearest1d.default)
def upsample_nearest1d(
    ctx: LoweringContext,
    x: Value,
    output_size: list[int],
    scales: float | None = None,
) -> Value:
    """upsample_nearest1d(Tensor self, SymInt[1] output_size, float? scales=None) -> Tensor"""
    return _resize(ctx, x, nearest, False, scales)


@lowers(aten.upsample_nearest2d.default)
def upsample_nearest2d(
    ctx: LoweringContext,
    x: Value,
    output_size: list[int],
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Value:
    """upsample_nearest2d(Tensor self, SymInt[2] output_size, float? scales_h=None, float? scales_w=None) -> Tensor"""  # noqa: E501
    return _resize(ctx, x, nearest, False, scales_h, scales_w)


@lowers(aten.upsample_nearest3d.default)
def upsample_nearest3d(
    ctx: LoweringContext,
    x: Value,
    output_size: list[int],
    scales_d: float | None = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Value:
    """upsample_nearest3d(Tensor self, SymInt[3] output_size, float? scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor"""  # noqa: E501
    return _resize(ctx, x, nearest, False, scales_d, scales_h, scales_w)


@lowers(aten._upsample_nearest_exact1d.default)
def _upsample_nearest_exact1d(
    ctx: LoweringContext,
    x: Value,
    output_size: list[int],
    scales: float | None = None,
) -> Value:
    """_upsample_nearest_exact1d(Tensor self, SymInt[1] output_size, float? scales=None) -> Tensor"""  # noqa: E501
    return _resize(ctx, x, nearest_exact, False, scales)


@lowers(aten._upsample_nearest_exact2d.default)
def _upsample_nearest_exact2d(
    ctx: LoweringContext,
    x: Value,
    output_size: list[int],
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Value:
    """_upsample_nearest_exact2d(Tensor self, SymInt[2] output_size, float? scales_h=None, float? scales_w=None) -> Tensor"""  # noqa: E501
    return _resize(ctx, x, nearest_exact, False, scales_h, scales_w)


@lowers(aten._upsample_nearest_exact3d.default)
def _upsample_nearest_exact3d(
    ctx: LoweringContext,
    x: Value,
    output_size: list[int],
    scales_d: float | None = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Value:
    """_upsample_nearest_exact3d(Tensor self, SymInt[3] output_size, float? scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor"""  # noqa: E501
    return _resize(ctx, x, nearest_exact, False, scales_d, scales_h, scales_w)


@lowers(aten.upsample_linear1d.default)
def upsample_linear1d(
    ctx: LoweringContext,
    x: Value,
    output_size: list[int],
    align_corners: bool,
    scales: float | None = None,
) -> Value:
    """upsample_linear1d(Tensor self, SymInt[1] output_size, bool align_corners, float? scales=None) -> Tensor"""  # noqa: E501
    return _resize(ctx, x, linear, align_corners, scales)


@lowers(aten.upsample_bilinear2d.default)
def upsample_bilinear2d(
    ctx: LoweringContext,
    x: Value,
    output_size: list[int],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Value:
    """upsample_bilinear2d(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor"""  # noqa: E501
    return _resize(ctx, x, linear, align_corners, scales_h, scales_w)


@lowers(aten.upsample_trilinear3d.default)
def upsample_trilinear3d(
    ctx: LoweringContext,
    x: Value,
    output_size: list[int],
    align_corners: bool,
    scales_d: float | None = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Value:
    """upsample_trilinear3d(Tensor self, SymInt[3] output_size, bool align_corners, float? scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor"""  # noqa: E501
    return _resize(ctx, x, linear, align_corners, scales_d, scales_h, scales_w)


@lowers(aten.upsample_bicubic2d.default)
def upsample_bicubic2d(
    ctx: LoweringContext,
    x: Value,
    output_size: list[int],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Value:
    """upsample_bicubic2d(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor"""  # noqa: E501
    return _resize(ctx, x, cubic, align_corners, scales_h, scales_w)


@lowers(aten._upsample_bilinear2d_aa.default)
def _upsample_bilinear2d_aa(
    ctx: LoweringContext,
    x: Value,
    output_size: list[int],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Value:
    """_upsample_bilinear2d_aa(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor"""  # noqa: E501
    return _resize(ctx, x, smooth(triangle, 1), align_corners, scales_h, scales_w)


@lowers(aten._upsample_bicubic2d_aa.default)
def _upsample_bicubic2d_aa(
    ctx: LoweringContext,
    x: Value,
    output_size: list[int],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Value:
    """_upsample_bicubic2d_aa(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor"""  # noqa: E501
    return _resize(ctx, x, smooth(keys, 2), align_corners, scales_h, scales_w)


@lowers(aten._upsample_lanczos2d_aa.default)
def _upsample_lanczos2d_aa(
    ctx: LoweringContext,
    x: Value,
    output_size: list[int],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Value:
    """_upsample_lanczos2d_aa(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor"""  # noqa: E501
    return _resize(ctx, x, smooth(lanczos, 3), align_corners, scales_h, scales_w)
