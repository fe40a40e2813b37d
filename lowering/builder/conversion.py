"""Conversions between dtypes, as ``Tensor.to`` does them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tpu_compile.lowering.builder.constants import Scalar, as_numpy, constant, full_like
from tpu_compile.lowering.builder.elementwise import compare, select
from tpu_compile.lowering.builder.shapes import broadcast_to
from tpu_compile.lowering.mlir import Value, hlo, ir
from tpu_compile.lowering.types import dtype_of, real_dtype, shape_of, tensor_type


def as_type(v: Value | Scalar, dtype: torch.dtype, shape: Sequence[int] | None = None) -> Value:
    """Converts a value or a Python scalar to a dtype as ``Tensor.to`` does, and broadcasts it."""
    if not isinstance(v, ir.Value):
        return constant(v, dtype, shape or ())
    v = convert(v, dtype)
    return v if shape is None else broadcast_to(v, shape)


def rounded(v: Value | Scalar, dtype: torch.dtype) -> Value | Scalar:
    """A value or a Python scalar as the dtype can hold it; scalars stay Python's."""
    return convert(v, dtype) if isinstance(v, ir.Value) else as_numpy(v, dtype).item()


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
