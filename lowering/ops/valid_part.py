"""Ops on the valid part of a padded dimension: filling behind it, reading and writing in it."""

from __future__ import annotations

import torch

from tpu_compile.lowering import builder
from tpu_compile.lowering.builder import Scalar, as_type
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import dtype_of, shape_of
from tpu_compile.padding import ops  # noqa: F401  (defines the ops)

tpu = torch.ops.tpu


@lowers(tpu.fill_padding.default)
def fill_padding(
    ctx: LoweringContext,
    x: Value,
    dim: int,
    size: int,
    inner: int,
    length: Value | int,
    fill: Scalar,
) -> Value:
    """fill_padding(Tensor x, int dim, SymInt size, SymInt inner, Scalar length, Scalar fill) -> Tensor"""  # noqa: E501
    shape = shape_of(x)
    at = builder.iota((shape[dim],), 0, torch.int32)
    if inner != 1:
        at = hlo.divide(at, builder.full_like(at, inner))
    if size * inner != shape[dim]:
        at = hlo.remainder(at, builder.full_like(at, size))
    limit = builder.broadcast_to(as_type(length, torch.int32), (shape[dim],))
    valid = builder.broadcast_in_dim(builder.compare("LT", at, limit), shape, [dim])
    return builder.select(valid, x, builder.full_like(x, fill))


def _starts(x: Value, dim: int, start: Value | int) -> list[Value]:
    zero = builder.constant(0, torch.int32)
    rank = len(shape_of(x))
    return [as_type(start, torch.int32) if d == dim else zero for d in range(rank)]


@lowers(tpu.slice_at.default)
def slice_at(ctx: LoweringContext, x: Value, dim: int, start: Value | int, size: int) -> Value:
    """slice_at(Tensor x, int dim, Scalar start, SymInt size) -> Tensor"""
    return builder.dynamic_slice(x, _starts(x, dim, start), ctx.out.shape)


@lowers(tpu.write_at.default)
def write_at(ctx: LoweringContext, x: Value, part: Value, dim: int, start: Value | int) -> Value:
    """write_at(Tensor x, Tensor part, int dim, Scalar start) -> Tensor"""
    return builder.update_slice(x, as_type(part, dtype_of(x)), _starts(x, dim, start))
