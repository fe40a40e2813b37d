"""as_strided and its scatter: a box of the flat memory where there is one, else by index."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tpu_compile.lowering import builder
from tpu_compile.lowering.builder import as_type, constant, iota, reshape, transpose
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import dtype_of, shape_of

aten = torch.ops.aten
prims = torch.ops.prims


@dataclass(frozen=True)
class Box:
    """A strided view as a box of the flat memory, reshaped to a grid.

    Attributes:
        grid: the grid's sizes; it may reach beyond the memory's end.
        low: where the box starts, per grid dimension.
        sizes: the box's sizes, per grid dimension.
        dims: the view's dimension of each grid dimension but the last.
    """

    grid: list[int]
    low: list[int]
    sizes: list[int]
    dims: list[int]


def box_of(numel: int, size: Sequence[int], stride: Sequence[int], offset: int) -> Box | None:
    """The box of a view, or None where its elements overlap or interleave."""
    dims = [d for d in range(len(size)) if size[d] != 1]
    if any(stride[d] <= 0 for d in dims):
        return None
    dims.sort(key=lambda d: -stride[d])
    grid, low, outer, rest = [], [], 0, offset
    for d in dims:
        first, rest = divmod(rest, stride[d])
        if not outer:
            grid.append(-(-numel // stride[d]))
        elif outer % stride[d] or first + size[d] > outer // stride[d]:
            return None
        else:
            grid.append(outer // stride[d])
        low.append(first)
        outer = stride[d]
    return Box([*grid, outer or numel], [*low, rest], [size[d] for d in dims] + [1], dims)


def memory_order(size: Sequence[int], stride: Sequence[int]) -> list[int] | None:
    """The dimensions from outermost to innermost of a gapless layout, else None."""
    order = sorted(range(len(size)), key=lambda d: (-stride[d], size[d] == 1))
    expected = 1
    for d in reversed(order):
        if size[d] != 1:
            if stride[d] != expected:
                return None
            expected *= size[d]
    return order


def _memory(ctx: LoweringContext, x: Value) -> tuple[Value, list[int], int]:
    """The flat memory of the operand, its order of dimensions, and where the memory starts."""
    size, stride, offset = ctx.layout(0)
    order = memory_order(size, stride) if 0 not in size else list(range(len(size)))
    if order is None:
        ctx.fail(f"the operand of sizes {size} and strides {stride} has gaps or overlaps")
    return reshape(transpose(x, order), [math.prod(size)]), order, offset


def _check_inside(
    ctx: LoweringContext, numel: int, size: Sequence[int], stride: Sequence[int], offset: int
) -> None:
    last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if offset < 0 or last >= numel:
        ctx.fail("it reaches memory outside of its operand")


def _indices(size: Sequence[int], stride: Sequence[int], offset: int) -> Value:
    at = constant(offset, torch.int64, size)
    for d, s in enumerate(stride):
        step = hlo.multiply(iota(size, d), constant(s, torch.int64, size))
        at = hlo.add(at, step)
    return at


@lowers(aten.as_strided.default)
def as_strided(
    ctx: LoweringContext,
    x: Value,
    size: list[int],
    stride: list[int],
    storage_offset: int | None = None,
) -> Value:
    """as_strided(Tensor(a) self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor(a)"""  # noqa: E501
    if 0 in size:
        return builder.zeros(size, ctx.out.dtype)
    flat, _order, base = _memory(ctx, x)
    offset = 0 if storage_offset is None else storage_offset - base
    (numel,) = shape_of(flat)
    _check_inside(ctx, numel, size, stride, offset)
    repeated = [0 if s == 0 else n for n, s in zip(size, stride, strict=True)]
    once = [n or 1 for n in repeated]
    box = box_of(numel, once, stride, offset)
    if box is None:
        return builder.take(flat, _indices(size, stride, offset), 0)
    grid = builder.pad(flat, [0], [math.prod(box.grid) - numel])
    part = builder.slice_(
        reshape(grid, box.grid), box.low, [a + n for a, n in zip(box.low, box.sizes, strict=True)]
    )
    part = reshape(part, box.sizes[:-1])
    part = transpose(part, builder.inverse(box.dims))
    return builder.broadcast_to(reshape(part, once), size)


def _as_strided_scatter(
    ctx: LoweringContext,
    x: Value,
    src: Value,
    size: list[int],
    stride: list[int],
    offset: int | None,
) -> Value:
    if 0 in size:
        return x
    flat, order, base = _memory(ctx, x)
    offset = 0 if offset is None else offset - base
    (numel,) = shape_of(flat)
    _check_inside(ctx, numel, size, stride, offset)
    src = as_type(src, dtype_of(x), size)
    box = box_of(numel, size, stride, offset)
    if box is None:
        at = _indices(size, stride, offset)
        at = reshape(at, [math.prod(size), 1])
        flat = builder.scatter(flat, at, reshape(src, [math.prod(size)]), [0])
    else:
        kept = reshape(src, [n for n in size if n != 1])
        ranks = sorted(box.dims)
        kept = transpose(kept, [ranks.index(d) for d in box.dims])
        extra = math.prod(box.grid) - numel
        grid = reshape(builder.pad(flat, [0], [extra]), box.grid)
        grid = builder.update_slice(grid, reshape(kept, box.sizes), box.low)
        flat = builder.slice_dim(reshape(grid, [numel + extra]), 0, 0, numel)
    shape = shape_of(x)
    out = reshape(flat, [shape[d] for d in order])
    return transpose(out, builder.inverse(order))


@lowers(aten.as_strided_scatter.default)
def as_strided_scatter(
    ctx: LoweringContext,
    x: Value,
    src: Value,
    size: list[int],
    stride: list[int],
    storage_offset: int | None = None,
) -> Value:
    """as_strided_scatter(Tensor self, Tensor src, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor"""  # noqa: E501
    return _as_strided_scatter(ctx, x, src, size, stride, storage_offset)


@lowers(prims.as_strided_scatter.default)
def prims_as_strided_scatter(
    ctx: LoweringContext,
    x: Value,
    src: Value,
    size: list[int],
    stride: list[int],
    storage_offset: int,
) -> Value:
    """as_strided_scatter(Tensor self, Tensor src, SymInt[] size, SymInt[] stride, SymInt storage_offset) -> Tensor"""  # noqa: E501
    return _as_strided_scatter(ctx, x, src, size, stride, storage_offset)
