"""Gathers, scatters, sorts, and padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tpu_compile.lowering.builder.attributes import i64s
from tpu_compile.lowering.builder.constants import Scalar
from tpu_compile.lowering.builder.conversion import as_type, convert
from tpu_compile.lowering.builder.reduction import fill_region
from tpu_compile.lowering.builder.shapes import transpose, unsqueeze
from tpu_compile.lowering.mlir import Value, hlo, ir
from tpu_compile.lowering.types import dtype_of, shape_of, tensor_type


def pad(
    v: Value,
    low: Sequence[int],
    high: Sequence[int],
    value: Value | Scalar = 0,
    interior: Sequence[int] | None = None,
) -> Value:
    """Pads each dimension with a value; negative amounts cut."""
    fill = as_type(value, dtype_of(v))
    return hlo.pad(v, fill, i64s(low), i64s(high), i64s(interior or [0] * len(low)))


def update_slice(v: Value, part: Value, starts: Sequence[int | Value]) -> Value:
    """Writes a box at the given offsets."""
    at = [as_type(s, torch.int32) for s in starts]
    return hlo.dynamic_update_slice(v, part, at) if at else part


def index_type(shape: Sequence[int]) -> torch.dtype:
    """int32 where it can count along every dimension (it is faster), else int64."""
    return torch.int32 if max(shape, default=0) < 2**31 else torch.int64


def gather(v: Value, at: Value, dims: Sequence[int]) -> Value:
    """Picks slices of size 1 along ``dims``, whole along the others.

    Args:
        v: the operand.
        at: integers of shape [*batch, len(dims)]; out of range ones are moved inside.
        dims: the dimensions that the last dimension of ``at`` indexes.

    Returns:
        A value of shape [*batch, *other dimensions of v].
    """
    shape = shape_of(v)
    batch = len(shape_of(at)) - 1
    others = [n for d, n in enumerate(shape) if d not in dims]
    numbers = hlo.GatherDimensionNumbers.get(
        offset_dims=list(range(batch, batch + len(others))),
        collapsed_slice_dims=sorted(dims),
        operand_batching_dims=[],
        start_indices_batching_dims=[],
        start_index_map=list(dims),
        index_vector_dim=batch,
    )
    sizes = [1 if d in dims else n for d, n in enumerate(shape)]
    return hlo.gather(v, convert(at, index_type(shape)), numbers, i64s(sizes))


def take(v: Value, at: Value, dim: int) -> Value:
    """``v`` indexed along one dimension, which ``at``'s dimensions replace."""
    batch = len(shape_of(at))
    out = gather(v, unsqueeze(at, batch), [dim])
    perm = [*range(batch, batch + dim), *range(batch), *range(batch + dim, len(shape_of(out)))]
    return transpose(out, perm)


def scatter(
    v: Value,
    at: Value,
    updates: Value,
    dims: Sequence[int],
    combine: Callable[[Value, Value], Value] = lambda _old, new: new,
) -> Value:
    """Writes or folds slices into a value, the reverse of ``gather``.

    Args:
        v: the operand.
        at: integers of shape [*batch, len(dims)]; updates out of range are left out.
        updates: of shape [*batch, *other dimensions of v].
        dims: the dimensions that the last dimension of ``at`` indexes.
        combine: emits the new element from the old one and the update.
    """
    shape = shape_of(v)
    batch = len(shape_of(at)) - 1
    numbers = hlo.ScatterDimensionNumbers.get(
        update_window_dims=list(range(batch, len(shape_of(updates)))),
        inserted_window_dims=sorted(dims),
        input_batching_dims=[],
        scatter_indices_batching_dims=[],
        scattered_dims_to_operand_dims=list(dims),
        index_vector_dim=batch,
    )
    op = hlo.ScatterOp([v.type], [v], convert(at, index_type(shape)), [updates], numbers)
    fill_region(op.regions[0], [dtype_of(v)], lambda x, y: [combine(x[0], y[0])])
    return op.results[0]


def sort(
    values: Sequence[Value],
    dim: int,
    before: Callable[[Sequence[Value], Sequence[Value]], Value],
) -> list[Value]:
    """Sorts values of one shape together along a dimension, keeping the order of equal ones.

    Args:
        values: the operands.
        dim: a non-negative dimension.
        before: emits whether a tuple of elements must stand before another.
    """
    op = hlo.SortOp(
        [v.type for v in values],
        list(values),
        dimension=ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim),
        is_stable=ir.BoolAttr.get(True),
    )
    scalars = [tensor_type((), dtype_of(v)) for v in values for _ in range(2)]
    block = op.regions[0].blocks.append(*scalars, arg_locs=[ir.Location.unknown()] * len(scalars))
    with ir.InsertionPoint(block):
        args = list(block.arguments)
        hlo.return_([before(args[::2], args[1::2])])
    return list(op.results)
