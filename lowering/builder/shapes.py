"""Shape ops: broadcasting, reshaping, slicing."""

from __future__ import annotations

from collections.abc import Sequence

from tpu_compile.lowering.builder.attributes import i64s
from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.types import dtype_of, shape_of, tensor_type


def rank_of(v: Value) -> int:
    """The number of dimensions."""
    return len(shape_of(v))


def broadcast_to(v: Value, shape: Sequence[int]) -> Value:
    """Broadcasts as torch does: dimensions align at the right, sizes of 1 repeat."""
    src, shape = shape_of(v), tuple(shape)
    if src == shape:
        return v
    lead = len(shape) - len(src)
    keep = [i for i, n in enumerate(src) if n == shape[lead + i]]
    if len(keep) < len(src):
        v = reshape(v, [src[i] for i in keep])
    dims = [lead + i for i in keep]
    return hlo.broadcast_in_dim(tensor_type(shape, dtype_of(v)), v, i64s(dims))


def broadcast_in_dim(v: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
    """Puts a value's dimensions at ``dims`` of a larger shape and repeats along the others."""
    return hlo.broadcast_in_dim(tensor_type(shape, dtype_of(v)), v, i64s(dims))


def reshape(v: Value, shape: Sequence[int]) -> Value:
    """The same elements, row-major, in another shape of concrete sizes."""
    if shape_of(v) == tuple(shape):
        return v
    return hlo.reshape(tensor_type(shape, dtype_of(v)), v)


def transpose(v: Value, perm: Sequence[int]) -> Value:
    """Reorders dimensions as ``Tensor.permute`` does."""
    if tuple(perm) == tuple(range(len(perm))):
        return v
    return hlo.transpose(v, i64s(perm))


def inverse(perm: Sequence[int]) -> list[int]:
    """The permutation that undoes another."""
    return sorted(range(len(perm)), key=perm.__getitem__)


def slice_(
    v: Value, start: Sequence[int], stop: Sequence[int], step: Sequence[int] | None = None
) -> Value:
    """A strided box of a value, one start, stop and step per dimension."""
    return hlo.slice(v, i64s(start), i64s(stop), i64s(step or [1] * len(start)))


def slice_dim(v: Value, dim: int, start: int, stop: int, step: int = 1) -> Value:
    """A strided range along one dimension."""
    shape = shape_of(v)
    starts, stops, steps = [0] * len(shape), list(shape), [1] * len(shape)
    starts[dim], stops[dim], steps[dim] = start, stop, step
    return slice_(v, starts, stops, steps)


def concatenate(values: Sequence[Value], dim: int) -> Value:
    """Joins values along one dimension."""
    return values[0] if len(values) == 1 else hlo.concatenate(list(values), dim)


def unsqueeze(v: Value, dim: int) -> Value:
    """Inserts a dimension of size 1 at ``dim``."""
    shape = list(shape_of(v))
    shape.insert(dim, 1)
    return reshape(v, shape)


def reverse(v: Value, dims: Sequence[int]) -> Value:
    """Reverses the order along dimensions."""
    return hlo.reverse(v, i64s(dims)) if dims else v


def dynamic_slice(v: Value, starts: Sequence[Value], sizes: Sequence[int]) -> Value:
    """A box at runtime offsets, moved inside the value where it would reach out."""
    return hlo.dynamic_slice(v, list(starts), i64s(sizes))
