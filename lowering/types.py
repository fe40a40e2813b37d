"""torch dtypes and shapes as MLIR types, and back."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import torch

from tpu_compile.errors import UnsupportedDtype
from tpu_compile.lowering.mlir import Value, ir

_MLIR_NAME = {
    torch.bool: "i1",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "ui8",
    torch.uint16: "ui16",
    torch.uint32: "ui32",
    torch.uint64: "ui64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex64: "complex<f32>",
    torch.complex128: "complex<f64>",
    torch.float8_e4m3fn: "f8E4M3FN",
    torch.float8_e5m2: "f8E5M2",
    torch.float8_e4m3fnuz: "f8E4M3FNUZ",
    torch.float8_e5m2fnuz: "f8E5M2FNUZ",
}
_TORCH_DTYPE = {name: dtype for dtype, name in _MLIR_NAME.items()}
_INSTEAD = {torch.complex32: torch.complex64}


@dataclass(frozen=True)
class TensorType:
    """A shape of concrete sizes and a torch dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


@dataclass(frozen=True)
class RuntimeScalar:
    """A Python number that a program takes as an input, as ``meta["val"]`` of its node.

    Attributes:
        kind: int, float or bool.
    """

    kind: type

    @property
    def dtype(self) -> torch.dtype:
        """The dtype it is computed in."""
        return {int: torch.int64, float: torch.float64, bool: torch.bool}[self.kind]

    @property
    def example(self) -> int | float | bool:
        """A number of its kind, for type promotion."""
        return self.kind(1)


def element_type(dtype: torch.dtype) -> ir.Type:
    """The MLIR element type of a torch dtype; needs an MLIR context."""
    if dtype not in _MLIR_NAME:
        raise UnsupportedDtype(dtype=dtype, instead=_INSTEAD.get(dtype, torch.float32))
    return ir.Type.parse(_MLIR_NAME[dtype])


def tensor_type(shape: Sequence[int], dtype: torch.dtype) -> ir.RankedTensorType:
    """The MLIR tensor type of a shape and a torch dtype; needs an MLIR context."""
    return ir.RankedTensorType.get(list(shape), element_type(dtype))


def shape_of(v: Value) -> tuple[int, ...]:
    """The shape of an MLIR tensor value."""
    return tuple(ir.RankedTensorType(v.type).shape)


def dtype_of(v: Value) -> torch.dtype:
    """The torch dtype of an MLIR tensor value."""
    return _TORCH_DTYPE[str(ir.RankedTensorType(v.type).element_type)]


def type_of(v: Value) -> TensorType:
    """Shape and torch dtype of an MLIR tensor value."""
    return TensorType(shape_of(v), dtype_of(v))


@functools.cache
def numpy_dtype(dtype: torch.dtype) -> np.dtype:
    """The numpy (or ml_dtypes) dtype that JAX uses for a torch dtype."""
    if dtype not in _MLIR_NAME:
        raise UnsupportedDtype(dtype=dtype, instead=_INSTEAD.get(dtype, torch.float32))
    name = str(dtype).removeprefix("torch.")
    return np.dtype(getattr(jnp, "bool_" if name == "bool" else name))


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for complex64, float64 for complex128, any other dtype as it is."""
    return {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype)


def math_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype torch computes in: float32 for the 8 and 16-bit floats, any other as it is."""
    return torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype
