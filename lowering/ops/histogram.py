"""Counts of elements in bins of equal width."""

from __future__ import annotations

from math import prod

import torch

from tpu_compile.lowering import builder, checks
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import dtype_of, math_dtype, shape_of

aten = torch.ops.aten


@lowers(aten.histc.default, checked=True)
def histc(ctx: LoweringContext, x: Value, bins: int = 100, min: float = 0, max: float = 0) -> Value:
    """histc(Tensor self, int bins=100, Scalar min=0, Scalar max=0) -> Tensor"""
    math = dtype_of(x)  # eager rounds at each step: it decides which bin an edge is in
    size = prod(shape_of(x))
    if size == 0:
        return builder.zeros([bins], ctx.out.dtype)
    flat = builder.reshape(x, [size])
    low, high = _edges(ctx, flat, min, max)
    low, high = (builder.broadcast_to(v, [size]) for v in (low, high))
    inside = hlo.and_(builder.compare("GE", flat, low), builder.compare("LE", flat, high))
    count = builder.constant(bins, math, [size])
    place = hlo.divide(hlo.multiply(hlo.subtract(flat, low), count), hlo.subtract(high, low))
    index = builder.convert(place, torch.int32)
    last = builder.full_like(index, bins - 1)
    # the highest edge is in the last bin; what is outside of the range is in none
    index = builder.select(inside, hlo.minimum(index, last), builder.full_like(index, bins))
    wide = math_dtype(math)
    ones = builder.constant(1, wide, [size])
    counts = builder.scatter(
        builder.zeros([bins], wide), builder.unsqueeze(index, 1), ones, [0], hlo.add
    )
    return ctx.result(counts)


def _edges(ctx: LoweringContext, flat: Value, low: float, high: float) -> tuple[Value, Value]:
    """The range as scalars: the given one, or where that is empty the data's."""
    math = dtype_of(flat)
    if low != high:
        return builder.constant(low, math), builder.constant(high, math)
    least = builder.reduce(flat, [0], hlo.minimum, builder.highest(math))
    most = builder.reduce(flat, [0], hlo.maximum, builder.lowest(math))
    finite = hlo.is_finite(hlo.subtract(most, least))
    checks.holds(ctx, finite, "the range of histc's input is not finite")
    same = builder.compare("EQ", least, most)
    one = builder.constant(1, math)
    return (
        builder.select(same, hlo.subtract(least, one), least),
        builder.select(same, hlo.add(most, one), most),
    )
