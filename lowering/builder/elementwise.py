"""Comparisons and choices, element by element."""

from __future__ import annotations

import torch

from tpu_compile.lowering.builder.constants import Scalar, full_like
from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.types import dtype_of, shape_of, tensor_type


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


def add_scalar(v: Value, n: Scalar) -> Value:
    """Adds a number known when lowering."""
    return hlo.add(v, full_like(v, n)) if n else v
