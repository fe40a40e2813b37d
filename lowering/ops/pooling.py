"""Average pooling, fixed and adaptive, and its gradients; the windows of all poolings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tpu_compile.lowering import builder
from tpu_compile.lowering.builder import as_type, reshape
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import dtype_of, math_dtype, shape_of

aten = torch.ops.aten

Sizes = int | Sequence[int]


@dataclass(frozen=True)
class Windows:
    """Where the windows of a pooling lie in the last dimensions of its input.

    Attributes:
        size: of the input, along the pooled dimensions.
        out: of the result.
        kernel: of a window.
        stride: the distance of windows.
        padding: before the first element and after the last.
        dilation: the distance of a window's elements.
    """

    size: tuple[int, ...]
    out: tuple[int, ...]
    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]

    @staticmethod
    def of(
        rank: int,
        x: Value,
        out: Sequence[int],
        kernel: Sizes,
        stride: Sizes,
        padding: Sizes,
        dilation: Sizes = 1,
    ) -> Windows:
        """The windows over the last ``rank`` dimensions; one number stands for all of them."""
        every = (_sizes(v, rank) for v in (kernel, stride or kernel, padding, dilation))
        return Windows(shape_of(x)[-rank:], tuple(out[-rank:]), *every)

    @property
    def high(self) -> list[int]:
        """The padding after the last element that the windows reach, negative where they don't."""
        dims = zip(
            self.size, self.out, self.kernel, self.stride, self.padding, self.dilation, strict=True
        )
        return [(o - 1) * s + (k - 1) * d + 1 - n - p for n, o, k, s, p, d in dims]

    def starts(self, dim: int) -> np.ndarray:
        """The first place of each window along a dimension, before 0 where it is padding."""
        return np.arange(self.out[dim]) * self.stride[dim] - self.padding[dim]

    def flat(self, per_dim: Sequence[np.ndarray]) -> Value:
        """Places along each dimension as places in the flattened input, for all combinations."""
        shape = [len(places) for places in per_dim]
        total = builder.zeros(shape, builder.index_type([math.prod(self.size)]))
        for d, places in enumerate(per_dim):
            step = math.prod(self.size[d + 1 :])
            part = builder.array_constant(places * step, dtype_of(total))
            total = hlo.add(total, builder.broadcast_in_dim(part, shape, [d]))
        return total


def _sizes(v: Sizes, rank: int) -> list[int]:
    if isinstance(v, int):
        return [v] * rank
    return [*v] if len(v) == rank else [*v] * rank


# ---------------------------------------------------------------- average


def _divisors(w: Windows, count_include_pad: bool, divisor_override: int | None) -> np.ndarray:
    """What each window's sum is divided by."""
    if divisor_override is not None:
        return np.full(w.out, divisor_override)
    total = np.ones(w.out, np.int64)
    for d in range(len(w.size)):
        start = w.starts(d)
        end = np.minimum(start + w.kernel[d], w.size[d] + w.padding[d])
        if not count_include_pad:
            start, end = np.maximum(start, 0), np.minimum(end, w.size[d])
        shape = [1] * len(w.out)
        shape[d] = w.out[d]
        total = total * np.maximum(end - start, 1).reshape(shape)
    return total


def _divided(v: Value, by: np.ndarray) -> Value:
    """v divided by numbers along its last dimensions."""
    shape, dtype = shape_of(v), dtype_of(v)
    if (by == by.flat[0]).all():
        return hlo.divide(v, builder.full_like(v, int(by.flat[0])))
    lead = len(shape) - by.ndim
    return hlo.divide(
        v,
        builder.broadcast_in_dim(builder.array_constant(by, dtype), shape, range(lead, len(shape))),
    )


def _average_pool(
    ctx: LoweringContext,
    x: Value,
    rank: int,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Value:
    if 0 in ctx.out.shape:
        return builder.zeros(ctx.out.shape, ctx.out.dtype)
    w = Windows.of(rank, x, ctx.out.shape, kernel_size, stride, padding)
    x = as_type(x, math_dtype(dtype_of(x)))
    none, ones = [0] * (len(shape_of(x)) - rank), [1] * (len(shape_of(x)) - rank)
    sum_ = builder.reduce_window(
        builder.pad(x, [*none, *w.padding], [*none, *w.high]),
        hlo.add,
        0,
        window=[*ones, *w.kernel],
        strides=[*ones, *w.stride],
        padding=[(0, 0)] * len(shape_of(x)),
    )
    return ctx.result(_divided(sum_, _divisors(w, count_include_pad, divisor_override)))


@lowers(aten.avg_pool1d.default)
def avg_pool1d(
    ctx: LoweringContext,
    x: Value,
    kernel_size: list[int],
    stride: list[int] = [],  # noqa: B006
    padding: list[int] = [0],  # noqa: B006
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Value:
    """avg_pool1d(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=[0], bool ceil_mode=False, bool count_include_pad=True) -> Tensor"""  # noqa: E501
    return _average_pool(ctx, x, 1, kernel_size, stride, padding, count_include_pad, None)


@lowers(aten.avg_pool2d.default)
def avg_pool2d(
    ctx: LoweringContext,
    x: Value,
    kernel_size: list[int],
    stride: list[int] = [],  # noqa: B006
    padding: list[int] = [0, 0],  # noqa: B006
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    """avg_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> Tensor"""  # noqa: E501
    options = count_include_pad, divisor_override
    return _average_pool(ctx, x, 2, kernel_size, stride, padding, *options)


@lowers(aten.avg_pool3d.default)
def avg_pool3d(
    ctx: LoweringContext,
    x: Value,
    kernel_size: list[int],
    stride: list[int] = [],  # noqa: B006
    padding: list[int] = [0, 0, 0],  # noqa: B006
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    """avg_pool3d(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> Tensor"""  # noqa: E501
    options = count_include_pad, divisor_override
    return _average_pool(ctx, x, 3, kernel_size, stride, padding, *options)


def _average_pool_backward(
    ctx: LoweringContext,
    grad: Value,
    x: Value,
    rank: int,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Value:
    if 0 in shape_of(grad):
        return builder.zeros(ctx.out.shape, ctx.out.dtype)
    w = Windows.of(rank, x, shape_of(grad), kernel_size, stride, padding)
    grad = as_type(grad, math_dtype(dtype_of(grad)))
    grad = _divided(grad, _divisors(w, count_include_pad, divisor_override))
    lead = len(shape_of(grad)) - rank
    none, ones = [0] * lead, [1] * lead
    low = [k - 1 - p for k, p in zip(w.kernel, w.padding, strict=True)]
    dims = zip(w.size, w.kernel, w.out, w.stride, low, strict=True)
    high = [n + k - 1 - (o - 1) * s - 1 - a for n, k, o, s, a in dims]
    between = [s - 1 for s in w.stride]
    spread = builder.pad(grad, [*none, *low], [*none, *high], 0, [*none, *between])
    sum_ = builder.reduce_window(
        spread,
        hlo.add,
        0,
        window=[*ones, *w.kernel],
        strides=[1] * (lead + rank),
        padding=[(0, 0)] * (lead + rank),
    )
    return ctx.result(sum_)


@lowers(aten.avg_pool2d_backward.default)
def avg_pool2d_backward(
    ctx: LoweringContext,
    grad_output: Value,
    x: Value,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Value:
    """avg_pool2d_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, int[2] padding, bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor"""  # noqa: E501
    window = kernel_size, stride, padding, count_include_pad, divisor_override
    return _average_pool_backward(ctx, grad_output, x, 2, *window)


@lowers(aten.avg_pool3d_backward.default)
def avg_pool3d_backward(
    ctx: LoweringContext,
    grad_output: Value,
    x: Value,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Value:
    """avg_pool3d_backward(Tensor grad_output, Tensor self, int[3] kernel_size, int[3] stride, int[3] padding, bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor"""  # noqa: E501
    window = kernel_size, stride, padding, count_include_pad, divisor_override
    return _average_pool_backward(ctx, grad_output, x, 3, *window)


# ---------------------------------------------------------------- adaptive average


def adaptive_ranges(size: int, out: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each of ``out`` windows over ``size`` elements starts and ends."""
    i = np.arange(out)
    return i * size // out, -(-(i + 1) * size // out)


def _range_sums(v: Value, dim: int, start: np.ndarray, end: np.ndarray) -> Value:
    """Sums of ranges along one dimension, which they replace."""
    shape, width = shape_of(v), int((end - start).max())
    split = [*shape[:dim], len(start), width, *shape[dim + 1 :]]
    places = start[:, None] + np.arange(width)
    if np.array_equal(places.ravel(), np.arange(shape[dim])):
        return builder.reduce(reshape(v, split), [dim + 1], hlo.add, 0)
    at = builder.array_constant(np.minimum(places, shape[dim] - 1), torch.int64)
    v = builder.take(v, at, dim)
    if (places < end[:, None]).all():
        return builder.reduce(v, [dim + 1], hlo.add, 0)
    inside = builder.array_constant(places < end[:, None], torch.bool)
    inside = builder.broadcast_in_dim(inside, split, [dim, dim + 1])
    return builder.reduce(builder.select(inside, v, builder.full_like(v, 0)), [dim + 1], hlo.add, 0)


def _adaptive_divisors(size: Sequence[int], out: Sequence[int]) -> np.ndarray:
    total = np.ones(tuple(out), np.int64)
    for d, (n, o) in enumerate(zip(size, out, strict=True)):
        start, end = adaptive_ranges(n, o)
        total = total * (end - start).reshape([-1 if i == d else 1 for i in range(len(out))])
    return total


@lowers(
    aten.adaptive_avg_pool1d.default,
    aten._adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool3d.default,
)
def _adaptive_avg_pool(ctx: LoweringContext, x: Value, output_size: list[int]) -> Value:
    """_adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor"""
    if 0 in ctx.out.shape:
        return builder.zeros(ctx.out.shape, ctx.out.dtype)
    v = as_type(x, math_dtype(dtype_of(x)))
    rank, lead = len(output_size), len(shape_of(x)) - len(output_size)
    size = shape_of(x)[lead:]
    for d in range(rank):
        v = _range_sums(v, lead + d, *adaptive_ranges(size[d], output_size[d]))
    return ctx.result(_divided(v, _adaptive_divisors(size, output_size)))


def _adaptive_backward(ctx: LoweringContext, grad: Value, x: Value, rank: int) -> Value:
    if 0 in (*shape_of(grad), *shape_of(x)):
        return builder.zeros(ctx.out.shape, ctx.out.dtype)
    size, out = shape_of(x)[-rank:], shape_of(grad)[-rank:]
    lead = len(shape_of(x)) - rank
    v = _divided(as_type(grad, math_dtype(dtype_of(grad))), _adaptive_divisors(size, out))
    for d in range(rank):
        start, end = adaptive_ranges(size[d], out[d])
        place = np.arange(size[d])
        first = np.searchsorted(end, place, side="right")
        last = np.searchsorted(start, place, side="right")
        v = _range_sums(v, lead + d, first, last)
    return ctx.result(v)


@lowers(aten._adaptive_avg_pool2d_backward.default)
def _adaptive_avg_pool2d_backward(ctx: LoweringContext, grad_output: Value, x: Value) -> Value:
    """_adaptive_avg_pool2d_backward(Tensor grad_output, Tensor self) -> Tensor"""
    return _adaptive_backward(ctx, grad_output, x, 2)


@lowers(aten._adaptive_avg_pool3d_backward.default)
def _adaptive_avg_pool3d_backward(ctx: LoweringContext, grad_output: Value, x: Value) -> Value:
    """_adaptive_avg_pool3d_backward(Tensor grad_output, Tensor self) -> Tensor"""
    return _adaptive_backward(ctx, grad_output, x, 3)
