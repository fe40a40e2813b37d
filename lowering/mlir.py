"""The only import of MLIR's Python bindings."""

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import chlo
from jax.extend.mlir.dialects import stablehlo as hlo

Value = ir.Value

__all__ = ["Value", "chlo", "hlo", "ir"]
