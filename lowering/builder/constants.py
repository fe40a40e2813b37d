"""Constants of torch's dtypes, rounded and wrapped as torch's fill does."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from tpu_compile.lowering.builder.attributes import dense
from tpu_compile.lowering.builder.shapes import broadcast_to
from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.types import dtype_of, element_type, numpy_dtype, shape_of, tensor_type

Scalar = bool | int | float | complex


def constant(value: Scalar, dtype: torch.dtype, shape: Sequence[int] = ()) -> Value:
    """A tensor of one repeated value, rounded or wrapped to the dtype as torch's fill does."""
    array = as_numpy(value, dtype)
    splat = dense(
        np.packbits(array.reshape(1), bitorder="little") * 255
        if dtype == torch.bool
        else array.reshape(()),
        type=element_type(dtype),
        shape=list(shape) if dtype == torch.bool else [],
    )
    if dtype == torch.bool:
        return hlo.constant(splat)
    return broadcast_to(hlo.constant(splat), shape)


def as_numpy(value: Scalar, dtype: torch.dtype) -> np.ndarray:
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
    return hlo.constant(dense(array, type=element_type(dtype), shape=list(array.shape)))


def zeros(shape: Sequence[int], dtype: torch.dtype) -> Value:
    """A tensor of zeros."""
    return constant(0, dtype, shape)


def full_like(v: Value, value: Scalar) -> Value:
    """A constant of another value's type."""
    return constant(value, dtype_of(v), shape_of(v))


def iota(shape: Sequence[int], dim: int, dtype: torch.dtype = torch.int64) -> Value:
    """0, 1, 2, ... along one dimension, equal along the others."""
    return hlo.iota(tensor_type(shape, dtype), dim)


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
