"""Maximum pooling with the places of the maxima, and its gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from tpu_compile.lowering import builder
from tpu_compile.lowering.builder import as_type, compare, full_like, is_nan, reshape, select
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.ops.pooling import Sizes, Windows, adaptive_ranges
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import dtype_of, math_dtype, shape_of

aten = torch.ops.aten

Combine = Callable[[Sequence[Value], Sequence[Value]], Sequence[Value]]


UNROLLED = 64  # elements of a window up to which it is taken apart


def _largest(x: Value, w: Windows) -> tuple[Value, Value]:
    """The largest element of each window and its flat place: the first, or the last NaN.

    One chain of selects over the elements of a window: XLA makes one loop of it, where a
    reduce_window of values and places is a loop over each window.
    """
    dtype, lead = dtype_of(x), len(shape_of(x)) - len(w.size)
    none = [0] * lead
    lowest = builder.lowest(dtype)
    padded = builder.pad(x, [*none, *w.padding], [*none, *w.high], lowest)
    if math.prod(w.kernel) > UNROLLED:
        return _largest_of_many(padded, w)
    shape = [*shape_of(x)[:lead], *w.out]
    best = builder.constant(lowest, dtype, shape)
    starts = [w.starts(d) for d in range(len(w.size))]
    inside = [s + -(np.minimum(s, 0) // d) * d for s, d in zip(starts, w.dilation, strict=True)]
    origin = w.flat(starts)
    at = builder.broadcast_to(w.flat(inside), shape)
    for offset in itertools.product(*map(range, w.kernel)):
        low = [k * d for k, d in zip(offset, w.dilation, strict=True)]
        high = [a + (o - 1) * s + 1 for a, o, s in zip(low, w.out, w.stride, strict=True)]
        v = builder.slice_(
            padded,
            [*none, *low],
            [*shape[:lead], *high],
            [*[1] * lead, *w.stride],
        )
        better = compare("GT", v, best)
        if dtype.is_floating_point:
            better = hlo.or_(better, is_nan(v))
        step = sum(a * math.prod(w.size[i + 1 :]) for i, a in enumerate(low))
        best = select(better, v, best)
        place = builder.broadcast_to(builder.add_scalar(origin, step), shape)
        at = select(better, place, at)
    return best, builder.convert(at, torch.int64)


def _first(dtype: torch.dtype) -> Combine:
    """The greater of two (element, place): of equal ones the first, of NaNs the last."""

    def combine(x: Sequence[Value], y: Sequence[Value]) -> Sequence[Value]:
        earlier = compare("LT", x[1], y[1])
        same = hlo.and_(compare("EQ", x[0], y[0]), earlier)
        mine: Value = hlo.or_(compare("GT", x[0], y[0]), same)
        if dtype.is_floating_point:
            nan_x, nan_y = is_nan(x[0]), is_nan(y[0])
            only = hlo.not_(hlo.and_(nan_y, earlier))
            mine = select(nan_x, only, mine)
        return select(mine, x[0], y[0]), select(mine, x[1], y[1])

    return combine


def _largest_of_many(padded: Value, w: Windows) -> tuple[Value, Value]:
    shape, dtype = shape_of(padded), dtype_of(padded)
    none = [0] * (len(shape) - len(w.size))
    ones = [1] * len(none)
    index = builder.index_type([math.prod(w.size)])
    place = reshape(builder.iota([math.prod(w.size)], 0, index), [*ones, *w.size])
    place = builder.broadcast_to(place, [*shape[: len(none)], *w.size])
    last = builder.highest(index)
    place = builder.pad(place, [*none, *w.padding], [*none, *w.high], last)
    best, at = builder.reduce_window_many(
        [padded, place],
        _first(dtype),
        [builder.lowest(dtype), last],
        window=[*ones, *w.kernel],
        strides=[*ones, *w.stride],
        padding=[(0, 0)] * len(shape),
        dilation=[*ones, *w.dilation],
    )
    return best, builder.convert(at, torch.int64)


def _max_pool(ctx: LoweringContext, x: Value, rank: int, *window: Sizes) -> tuple[Value, Value]:
    out = ctx.outs[0].shape
    if 0 in out:
        return builder.zeros(out, dtype_of(x)), builder.zeros(out, torch.int64)
    return _largest(x, Windows.of(rank, x, out, *window))


@lowers(aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(
    ctx: LoweringContext,
    x: Value,
    kernel_size: list[int],
    stride: list[int] = [],  # noqa: B006
    padding: list[int] = [0, 0],  # noqa: B006
    dilation: list[int] = [1, 1],  # noqa: B006
    ceil_mode: bool = False,
) -> tuple[Value, Value]:
    """max_pool2d_with_indices(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)"""  # noqa: E501
    return _max_pool(ctx, x, 2, kernel_size, stride, padding, dilation)


@lowers(aten.max_pool3d_with_indices.default)
def max_pool3d_with_indices(
    ctx: LoweringContext,
    x: Value,
    kernel_size: list[int],
    stride: list[int] = [],  # noqa: B006
    padding: list[int] = [0, 0, 0],  # noqa: B006
    dilation: list[int] = [1, 1, 1],  # noqa: B006
    ceil_mode: bool = False,
) -> tuple[Value, Value]:
    """max_pool3d_with_indices(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, int[3] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)"""  # noqa: E501
    return _max_pool(ctx, x, 3, kernel_size, stride, padding, dilation)


def to_places(ctx: LoweringContext, grad: Value, indices: Value, rank: int) -> Value:
    """Adds each gradient to its flat place in a plane of zeros."""
    shape = ctx.out.shape
    lead, n = math.prod(shape[:-rank]), math.prod(shape[-rank:])
    count = math.prod(shape_of(grad)[-rank:])
    if 0 in (lead, n, count):
        return builder.zeros(shape, ctx.out.dtype)
    math_type = math_dtype(dtype_of(grad))
    at = reshape(indices, [lead, count])
    plane = builder.iota([lead, count], 0)
    at = builder.concatenate([builder.unsqueeze(v, 2) for v in (plane, at)], 2)
    grad = reshape(as_type(grad, math_type), [lead, count])
    out = builder.scatter(builder.zeros([lead, n], math_type), at, grad, [0, 1], hlo.add)
    return ctx.result(reshape(out, shape))


def _from_windows(ctx: LoweringContext, grad: Value, indices: Value, w: Windows) -> Value:
    """Sums, at each input element, the gradients of the windows whose maximum it is.

    As many selects as a window has elements; XLA:CPU scatters one element after the other. Input
    elements that are ``stride`` apart are one phase: the same elements of windows reach them.
    """
    shape = ctx.out.shape
    none = [0] * (len(shape) - len(w.size))
    grad = as_type(grad, math_dtype(dtype_of(grad)))
    indices = builder.convert(indices, builder.index_type([math.prod(w.size)]))
    phases: dict[tuple[int, ...], list[list[int]]] = {}
    for offset in itertools.product(*map(range, w.kernel)):
        first = [k * d - p for k, d, p in zip(offset, w.dilation, w.padding, strict=True)]
        phase = tuple(f % s for f, s in zip(first, w.stride, strict=True))
        phases.setdefault(phase, []).append([f // s for f, s in zip(first, w.stride, strict=True)])
    total = builder.zeros(shape, dtype_of(grad))
    for phase, shifts in phases.items():
        part = _one_phase(grad, indices, w, phase, shifts)
        if part is not None:
            dims = zip(w.size, phase, shape_of(part)[len(none) :], w.stride, strict=True)
            high = [n - r - (m - 1) * s - 1 for n, r, m, s in dims]
            between = [*none, *(s - 1 for s in w.stride)]
            part = builder.pad(part, [*none, *phase], [*none, *high], 0, between)
            total = hlo.add(total, part)
    return ctx.result(total)


def _one_phase(
    grad: Value,
    indices: Value,
    w: Windows,
    phase: Sequence[int],
    shifts: Sequence[Sequence[int]],
) -> Value | None:
    """The gradients of the input elements at ``phase`` + a multiple of the stride."""
    lead = shape_of(grad)[: -len(w.size)]
    count = [-(-(n - r) // s) for n, r, s in zip(w.size, phase, w.stride, strict=True)]
    if any(m <= 0 for m in count):
        return None
    dims = zip(count, phase, w.stride, strict=True)
    own = w.flat([np.arange(m) * s + r for m, r, s in dims])
    shape, none = [*lead, *count], [0] * len(lead)
    own = builder.broadcast_to(own, shape)
    total = builder.zeros(shape, dtype_of(grad))
    for shift in shifts:
        low = [*none, *shift]
        high = [*none, *(m - q - o for m, q, o in zip(count, shift, w.out, strict=True))]
        at, part = builder.pad(indices, low, high, -1), builder.pad(grad, low, high, 0)
        total = hlo.add(total, select(compare("EQ", at, own), part, full_like(part, 0)))
    return total


def _max_pool_backward(
    ctx: LoweringContext, grad: Value, indices: Value, x: Value, rank: int, *window: Sizes
) -> Value:
    if 0 in (*shape_of(grad), *shape_of(x)):
        return builder.zeros(ctx.out.shape, ctx.out.dtype)
    w = Windows.of(rank, x, shape_of(grad), *window)
    if math.prod(w.kernel) > UNROLLED:
        return to_places(ctx, grad, indices, rank)
    return _from_windows(ctx, grad, indices, w)


@lowers(aten.max_pool2d_with_indices_backward.default)
def max_pool2d_with_indices_backward(
    ctx: LoweringContext,
    grad_output: Value,
    x: Value,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
    indices: Value,
) -> Value:
    """max_pool2d_with_indices_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation, bool ceil_mode, Tensor indices) -> Tensor"""  # noqa: E501
    window = kernel_size, stride, padding, dilation
    return _max_pool_backward(ctx, grad_output, indices, x, 2, *window)


@lowers(aten.max_pool3d_with_indices_backward.default)
def max_pool3d_with_indices_backward(
    ctx: LoweringContext,
    grad_output: Value,
    x: Value,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
    indices: Value,
) -> Value:
    """max_pool3d_with_indices_backward(Tensor grad_output, Tensor self, int[3] kernel_size, int[3] stride, int[3] padding, int[3] dilation, bool ceil_mode, Tensor indices) -> Tensor"""  # noqa: E501
    window = kernel_size, stride, padding, dilation
    return _max_pool_backward(ctx, grad_output, indices, x, 3, *window)


def _adaptive_max_pool(
    ctx: LoweringContext, x: Value, output_size: list[int]
) -> tuple[Value, Value]:
    out, dtype, rank = ctx.outs[0].shape, dtype_of(x), len(output_size)
    if 0 in out:
        return builder.zeros(out, dtype), builder.zeros(out, torch.int64)
    lead, size = len(out) - rank, shape_of(x)[-rank:]
    index = builder.index_type([math.prod(size)])
    inside: Value | None = None
    v, place = x, reshape(builder.iota([math.prod(size)], 0, index), size)
    for d, (n, o) in enumerate(zip(size, output_size, strict=True)):
        start, end = adaptive_ranges(n, o)
        places = start[:, None] + np.arange(int((end - start).max()))
        at = builder.array_constant(np.minimum(places, n - 1), torch.int64)
        v, place = builder.take(v, at, lead + 2 * d), builder.take(place, at, 2 * d)
        mine = builder.array_constant(places < end[:, None], torch.bool)
        inside = mine if inside is None else _outer(inside, mine)
    assert inside is not None
    last = builder.highest(index)
    shape = shape_of(v)
    place = select(inside, place, full_like(place, last))
    lowest = builder.constant(builder.lowest(dtype), dtype, shape)
    v = select(builder.broadcast_to(inside, shape), v, lowest)
    dims = [lead + 2 * d + 1 for d in range(rank)]
    best, at = builder.reduce_many(
        [v, builder.broadcast_to(place, shape)], dims, _first(dtype), [builder.lowest(dtype), last]
    )
    return best, builder.convert(at, torch.int64)


def _outer(x: Value, y: Value) -> Value:
    """Whether both hold, for all pairs."""
    first, second = len(shape_of(x)), len(shape_of(y))
    shape = [*shape_of(x), *shape_of(y)]
    x = builder.broadcast_in_dim(x, shape, range(first))
    return hlo.and_(x, builder.broadcast_in_dim(y, shape, range(first, first + second)))


@lowers(aten.adaptive_max_pool2d.default)
def adaptive_max_pool2d(
    ctx: LoweringContext, x: Value, output_size: list[int]
) -> tuple[Value, Value]:
    """adaptive_max_pool2d(Tensor self, int[2] output_size) -> (Tensor, Tensor)"""
    return _adaptive_max_pool(ctx, x, output_size)


@lowers(aten.adaptive_max_pool3d.default)
def adaptive_max_pool3d(
    ctx: LoweringContext, x: Value, output_size: list[int]
) -> tuple[Value, Value]:
    """adaptive_max_pool3d(Tensor self, int[3] output_size) -> (Tensor, Tensor)"""
    return _adaptive_max_pool(ctx, x, output_size)


@lowers(aten.adaptive_max_pool2d_backward.default)
def adaptive_max_pool2d_backward(
    ctx: LoweringContext, grad_output: Value, x: Value, indices: Value
) -> Value:
    """adaptive_max_pool2d_backward(Tensor grad_output, Tensor self, Tensor indices) -> Tensor"""
    return to_places(ctx, grad_output, indices, 2)


@lowers(aten.adaptive_max_pool3d_backward.default)
def adaptive_max_pool3d_backward(
    ctx: LoweringContext, grad_output: Value, x: Value, indices: Value
) -> Value:
    """adaptive_max_pool3d_backward(Tensor grad_output, Tensor self, Tensor indices) -> Tensor"""
    return to_places(ctx, grad_output, indices, 3)
