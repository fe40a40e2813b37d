"""Small builders over StableHLO that know torch's dtypes, conversions and broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from tpu_compile.lowering.mlir import Value, hlo, ir
from tpu_compile.lowering.types import (
    dtype_of,
    element_type,
    numpy_dtype,
    real_dtype,
    shape_of,
    tensor_type,
)

Scalar = bool | int | float | complex


# ---------------------------------------------------------------- constants


def constant(value: Scalar, dtype: torch.dtype, shape: Sequence[int] = ()) -> Value:
    """A tensor of one repeated value, rounded or wrapped to the dtype as torch's fill does."""
    array = _as_numpy(value, dtype)
    splat = _dense(
        np.packbits(array.reshape(1), bitorder="little") * 255
        if dtype == torch.bool
        else array.reshape(()),
        type=element_type(dtype),
        shape=list(shape) if dtype == torch.bool else [],
    )
    if dtype == torch.bool:
        return hlo.constant(splat)
    return broadcast_to(hlo.constant(splat), shape)


def _as_numpy(value: Scalar, dtype: torch.dtype) -> np.ndarray:
    target = numpy_dtype(dtype)
    if dtype.is_complex or dtype.is_floating_point or dtype == torch.bool:
        with np.errstate(over="ignore"):
            return np.asarray(value).astype(target)
    if isinstance(value, float) and not math.isfinite(value):
        return np.asarray(np.iinfo(target).min, target)
    bits = 8 * dtype.itemsize
    assert not isinstance(value, complex)
    wrapped = int(value) & ((1 << bits) - 1)
    if np.iinfo(target).min < 0 and wrapped >> (bits - 1):
        wrapped -= 1 << bits
    return np.asarray(wrapped, target)


def array_constant(array: np.ndarray, dtype: torch.dtype) -> Value:
    """A tensor with the elements of a numpy array (small ones only: they are embedded)."""
    array = array.astype(numpy_dtype(dtype), order="C")
    if array.size == 0:
        return constant(0, dtype, array.shape)
    return hlo.constant(_dense(array, type=element_type(dtype), shape=list(array.shape)))


def zeros(shape: Sequence[int], dtype: torch.dtype) -> Value:
    """A tensor of zeros."""
    return constant(0, dtype, shape)


def full_like(v: Value, value: Scalar) -> Value:
    """A constant of another value's type."""
    return constant(value, dtype_of(v), shape_of(v))


def iota(shape: Sequence[int], dim: int, dtype: torch.dtype = torch.int64) -> Value:
    """0, 1, 2, ... along one dimension, equal along the others."""
    return hlo.iota(tensor_type(shape, dtype), dim)


def rank_of(v: Value) -> int:
    """The number of dimensions."""
    return len(shape_of(v))


def lowest(dtype: torch.dtype) -> Scalar:
    """The identity of max: -inf, or the least integer, or False."""
    if dtype.is_floating_point:
        return -math.inf
    return False if dtype == torch.bool else torch.iinfo(dtype).min


def highest(dtype: torch.dtype) -> Scalar:
    """The identity of min: inf, or the greatest integer, or True."""
    if dtype.is_floating_point:
        return math.inf
    return True if dtype == torch.bool else torch.iinfo(dtype).max


# ---------------------------------------------------------------- conversion and shape


def as_type(v: Value | Scalar, dtype: torch.dtype, shape: Sequence[int] | None = None) -> Value:
    """Converts a value or a Python scalar to a dtype as ``Tensor.to`` does, and broadcasts it."""
    if not isinstance(v, ir.Value):
        return constant(v, dtype, shape or ())
    v = convert(v, dtype)
    return v if shape is None else broadcast_to(v, shape)


def rounded(v: Value | Scalar, dtype: torch.dtype) -> Value | Scalar:
    """A value or a Python scalar as the dtype can hold it; scalars stay Python's."""
    return convert(v, dtype) if isinstance(v, ir.Value) else _as_numpy(v, dtype).item()


def convert(v: Value, dtype: torch.dtype) -> Value:
    """Converts elements as ``Tensor.to(dtype)`` does: nonzero is True, floats truncate."""
    src = dtype_of(v)
    if src == dtype:
        return v
    if dtype == torch.bool:
        return compare("NE", v, full_like(v, 0))
    if src.is_complex and not dtype.is_complex:
        v = hlo.real(v)
        src = dtype_of(v)
        if src == dtype:
            return v
    if dtype.is_complex and not src.is_complex:
        part = convert(v, real_dtype(dtype))
        return hlo.complex(part, full_like(part, 0))
    if src.is_floating_point and not dtype.is_floating_point and not dtype.is_complex:
        return _float_to_int(v, dtype)
    return hlo.convert(tensor_type(shape_of(v), dtype), v)


def _float_to_int(v: Value, dtype: torch.dtype) -> Value:
    # StableHLO saturates where C (and so torch on the CPU) goes through a wider integer and wraps:
    # -1.0 to uint8 is 255. NaN and what doesn't fit int64 is undefined in torch.
    wide = torch.uint64 if dtype == torch.uint64 else torch.int64
    if dtype.itemsize < 8:
        v = hlo.convert(tensor_type(shape_of(v), wide), v)
    return hlo.convert(tensor_type(shape_of(v), dtype), v)


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
    return hlo.broadcast_in_dim(tensor_type(shape, dtype_of(v)), v, _i64s(dims))


def broadcast_in_dim(v: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
    """Puts a value's dimensions at ``dims`` of a larger shape and repeats along the others."""
    return hlo.broadcast_in_dim(tensor_type(shape, dtype_of(v)), v, _i64s(dims))


def reshape(v: Value, shape: Sequence[int]) -> Value:
    """The same elements, row-major, in another shape of concrete sizes."""
    if shape_of(v) == tuple(shape):
        return v
    return hlo.reshape(tensor_type(shape, dtype_of(v)), v)


def transpose(v: Value, perm: Sequence[int]) -> Value:
    """Reorders dimensions as ``Tensor.permute`` does."""
    if tuple(perm) == tuple(range(len(perm))):
        return v
    return hlo.transpose(v, _i64s(perm))


def inverse(perm: Sequence[int]) -> list[int]:
    """The permutation that undoes another."""
    return sorted(range(len(perm)), key=perm.__getitem__)


def slice_(
    v: Value, start: Sequence[int], stop: Sequence[int], step: Sequence[int] | None = None
) -> Value:
    """A strided box of a value, one start, stop and step per dimension."""
    return hlo.slice(v, _i64s(start), _i64s(stop), _i64s(step or [1] * len(start)))


def slice_dim(v: Value, dim: int, start: int, stop: int, step: int = 1) -> Value:
    """A strided range along one dimension."""
    shape = shape_of(v)
    starts, stops, steps = [0] * len(shape), list(shape), [1] * len(shape)
    starts[dim], stops[dim], steps[dim] = start, stop, step
    return slice_(v, starts, stops, steps)


def pad(
    v: Value,
    low: Sequence[int],
    high: Sequence[int],
    value: Value | Scalar = 0,
    interior: Sequence[int] | None = None,
) -> Value:
    """Pads each dimension with a value; negative amounts cut."""
    fill = as_type(value, dtype_of(v))
    return hlo.pad(v, fill, _i64s(low), _i64s(high), _i64s(interior or [0] * len(low)))


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
    return hlo.reverse(v, _i64s(dims)) if dims else v


def dynamic_slice(v: Value, starts: Sequence[Value], sizes: Sequence[int]) -> Value:
    """A box at runtime offsets, moved inside the value where it would reach out."""
    return hlo.dynamic_slice(v, list(starts), _i64s(sizes))


def update_slice(v: Value, part: Value, starts: Sequence[int | Value]) -> Value:
    """Writes a box at the given offsets."""
    at = [as_type(s, torch.int32) for s in starts]
    return hlo.dynamic_update_slice(v, part, at) if at else part


# ---------------------------------------------------------------- indexing


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
    return hlo.gather(v, convert(at, index_type(shape)), numbers, _i64s(sizes))


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
    _fill_region(op.regions[0], [dtype_of(v)], lambda x, y: [combine(x[0], y[0])])
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


# ---------------------------------------------------------------- elementwise


def add_scalar(v: Value, n: Scalar) -> Value:
    """Adds a number known when lowering."""
    return hlo.add(v, full_like(v, n)) if n else v


def compare(direction: str, x: Value, y: Value) -> Value:
    """Compares elementwise: EQ NE LT LE GT GE, with torch's rules for NaN and complex."""
    dtype = dtype_of(x)
    if dtype.is_floating_point or dtype.is_complex:
        kind = "FLOAT"
    else:
        kind = "UNSIGNED" if dtype == torch.bool or not dtype.is_signed else "SIGNED"
    return hlo.compare(
        x,
        y,
        hlo.ComparisonDirectionAttr.get(direction),
        compare_type=hlo.ComparisonTypeAttr.get(kind),
    )


def divisor(y: Value | Scalar, x: Value) -> Value:
    """``y`` in x's type, for ``x / y`` to round as a division does where y is one number.

    XLA would multiply by its rounded reciprocal, and 49 / 49 be less than 1. It doesn't where the
    number stands behind a select.
    """
    exact = not isinstance(y, ir.Value) and (isinstance(y, complex) or abs(math.frexp(y)[0]) == 0.5)
    one = not isinstance(y, ir.Value) or not shape_of(y)
    out = as_type(y, dtype_of(x), shape_of(x))
    if not one or exact or not dtype_of(x).is_floating_point:
        return out
    return select(compare("EQ", x, x), out, full_like(x, math.nan))


def is_nan(v: Value) -> Value:
    """True where a float or complex element is NaN."""
    return compare("NE", v, v)


def sign_bit(v: Value) -> Value:
    """True where an element is negative, for floats also -0.0 and NaN with the sign bit set."""
    dtype = dtype_of(v)
    if dtype.is_floating_point:
        as_int = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        v = hlo.bitcast_convert(tensor_type(shape_of(v), as_int), v)
    return compare("LT", v, full_like(v, 0))


def select(condition: Value, x: Value, y: Value) -> Value:
    """Takes from x where the condition holds, else from y; equal shapes."""
    return hlo.select(condition, x, y)


# ---------------------------------------------------------------- reduction


def reduce(
    v: Value,
    dims: Sequence[int],
    combine: Callable[[Value, Value], Value],
    identity: Scalar,
    *,
    keepdim: bool = False,
) -> Value:
    """Folds one value along dimensions.

    Args:
        v: the operand.
        dims: non-negative dimensions; none of them reduces nothing.
        combine: emits one binary op, e.g. ``hlo.add``, on rank-0 values.
        identity: what an empty range gives.
        keepdim: whether reduced dimensions stay, with size 1.
    """
    shape = shape_of(v)
    (out,) = reduce_many([v], dims, lambda x, y: [combine(x[0], y[0])], [identity])
    if keepdim:
        return reshape(out, [1 if i in set(dims) else n for i, n in enumerate(shape)])
    return out


def reduce_many(
    values: Sequence[Value],
    dims: Sequence[int],
    combine: Callable[[Sequence[Value], Sequence[Value]], Sequence[Value]],
    identities: Sequence[Scalar],
) -> list[Value]:
    """Folds several values of one shape together, as argmax folds values and indices."""
    shape = shape_of(values[0])
    out_shape = [n for i, n in enumerate(shape) if i not in set(dims)]
    inits = [constant(i, dtype_of(v)) for i, v in zip(identities, values, strict=True)]
    op = hlo.ReduceOp(
        [tensor_type(out_shape, dtype_of(v)) for v in values], list(values), inits, _i64s(dims)
    )
    _fill_region(op.regions[0], [dtype_of(v) for v in values], combine)
    return list(op.results)


def _fill_region(
    region: ir.Region,
    dtypes: Sequence[torch.dtype],
    combine: Callable[[Sequence[Value], Sequence[Value]], Sequence[Value]],
) -> None:
    scalars = [tensor_type((), d) for d in dtypes]
    n = len(scalars)
    block = region.blocks.append(*scalars, *scalars, arg_locs=[ir.Location.unknown()] * (2 * n))
    with ir.InsertionPoint(block):
        args = list(block.arguments)
        hlo.return_(list(combine(args[:n], args[n:])))


def reduce_window(
    v: Value,
    combine: Callable[[Value, Value], Value],
    identity: Scalar,
    *,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int] | None = None,
) -> Value:
    """Folds every window of a value; one entry per dimension in each argument."""
    (out,) = reduce_window_many(
        [v],
        lambda x, y: [combine(x[0], y[0])],
        [identity],
        window=window,
        strides=strides,
        padding=padding,
        dilation=dilation,
    )
    return out


def reduce_window_many(
    values: Sequence[Value],
    combine: Callable[[Sequence[Value], Sequence[Value]], Sequence[Value]],
    identities: Sequence[Scalar],
    *,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int] | None = None,
) -> list[Value]:
    """Folds every window of several values of one shape together, as ``reduce_many`` does."""
    dtypes = [dtype_of(v) for v in values]
    dilation = list(dilation or [1] * len(window))
    sizes = [
        max(0, (n + lo + hi - ((w - 1) * d + 1)) // s + 1)
        for n, (lo, hi), w, d, s in zip(
            shape_of(values[0]), padding, window, dilation, strides, strict=True
        )
    ]
    op = hlo.ReduceWindowOp(
        [tensor_type(sizes, d) for d in dtypes],
        list(values),
        [constant(i, d) for i, d in zip(identities, dtypes, strict=True)],
        _i64s(window),
        window_strides=_i64s(strides),
        window_dilations=_i64s(dilation),
        padding=_dense_ints(np.asarray(padding, np.int64), shape=[len(window), 2]),
    )
    _fill_region(op.regions[0], dtypes, combine)
    return list(op.results)


# ---------------------------------------------------------------- contraction


def dot_general(
    x: Value,
    y: Value,
    *,
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
    contract: tuple[Sequence[int], Sequence[int]],
    precision: str = "HIGHEST",
    dtype: torch.dtype | None = None,
) -> Value:
    """Contracts two values; the result has batch, then x's, then y's free dimensions.

    Args:
        x: the left operand.
        y: the right operand, of x's dtype.
        batch: the batch dimensions of x and of y.
        contract: the contracted dimensions of x and of y.
        precision: DEFAULT, HIGH or HIGHEST.
        dtype: the result's dtype, and the accumulator's; default x's.
    """
    xs, ys = shape_of(x), shape_of(y)
    free_x = [n for i, n in enumerate(xs) if i not in (*batch[0], *contract[0])]
    free_y = [n for i, n in enumerate(ys) if i not in (*batch[1], *contract[1])]
    out = [*(xs[i] for i in batch[0]), *free_x, *free_y]
    numbers = hlo.DotDimensionNumbers.get(
        lhs_batching_dimensions=list(batch[0]),
        rhs_batching_dimensions=list(batch[1]),
        lhs_contracting_dimensions=list(contract[0]),
        rhs_contracting_dimensions=list(contract[1]),
    )
    each = hlo.PrecisionAttr.get(precision)
    return hlo.dot_general(
        tensor_type(out, dtype or dtype_of(x)),
        x,
        y,
        numbers,
        precision_config=ir.ArrayAttr.get([each, each]),
    )


def convolution(
    x: Value,
    kernel: Value,
    shape: Sequence[int],
    dtype: torch.dtype,
    *,
    input_dims: Sequence[int],
    kernel_dims: Sequence[int],
    output_dims: Sequence[int],
    padding: Sequence[tuple[int, int]],
    strides: Sequence[int] | None = None,
    input_dilation: Sequence[int] | None = None,
    kernel_dilation: Sequence[int] | None = None,
    feature_groups: int = 1,
    batch_groups: int = 1,
    precision: str = "HIGHEST",
) -> Value:
    """Slides a kernel over a value.

    Args:
        x: the input.
        kernel: of x's dtype.
        shape: the result's.
        dtype: the result's, and the accumulator's.
        input_dims: where x has batch, features, and each spatial dimension.
        kernel_dims: where the kernel has output features, input features, and each spatial one.
        output_dims: where the result has batch, features, and each spatial dimension.
        padding: low and high, per spatial dimension; negative amounts cut.
        strides: of the kernel's places.
        input_dilation: the distance of x's elements.
        kernel_dilation: the distance of the kernel's elements.
        feature_groups: how many groups the features fall into.
        batch_groups: how many groups the batch falls into, each with its own output features.
        precision: DEFAULT, HIGH or HIGHEST.
    """
    ones = [1] * len(padding)
    numbers = hlo.ConvDimensionNumbers.get(
        input_batch_dimension=input_dims[0],
        input_feature_dimension=input_dims[1],
        input_spatial_dimensions=list(input_dims[2:]),
        kernel_input_feature_dimension=kernel_dims[1],
        kernel_output_feature_dimension=kernel_dims[0],
        kernel_spatial_dimensions=list(kernel_dims[2:]),
        output_batch_dimension=output_dims[0],
        output_feature_dimension=output_dims[1],
        output_spatial_dimensions=list(output_dims[2:]),
    )
    each = hlo.PrecisionAttr.get(precision)
    i64 = ir.IntegerType.get_signless(64)
    return hlo.convolution(
        tensor_type(shape, dtype),
        x,
        kernel,
        numbers,
        ir.IntegerAttr.get(i64, feature_groups),
        ir.IntegerAttr.get(i64, batch_groups),
        window_strides=_i64s(strides or ones),
        padding=_dense_ints(np.asarray(padding, np.int64), shape=[len(ones), 2]),
        lhs_dilation=_i64s(input_dilation or ones),
        rhs_dilation=_i64s(kernel_dilation or ones),
        precision_config=ir.ArrayAttr.get([each, each]),
    )


def _i64s(values: Sequence[int]) -> ir.DenseI64ArrayAttr:
    return ir.DenseI64ArrayAttr.get([int(v) for v in values])


# The bindings' stubs know neither numpy arrays nor shapes as arguments of these two.
_dense: Callable[..., ir.Attribute] = ir.DenseElementsAttr.get
_dense_ints: Callable[..., ir.Attribute] = ir.DenseIntElementsAttr.get
