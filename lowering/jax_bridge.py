"""JAX functions inside a module: the long tail of ops, control flow, and Pallas kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.interpreters import mlir as jax_mlir

from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value
from tpu_compile.lowering.types import dtype_of, numpy_dtype, shape_of


def jnp_call(ctx: LoweringContext, fun: Callable[..., Any], *args: Value, **static: Any) -> Any:
    """Traces a JAX function on MLIR values into the module being built.

    Args:
        ctx: the node's context.
        fun: takes arrays of the values' shapes and dtypes (64-bit kept), returns an array or a
            tuple of arrays.
        args: the values.
        static: keyword arguments of ``fun`` that are known now.

    Returns:
        One value, or a list where ``fun`` returns a tuple.
    """
    many = False

    def flat(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        nonlocal many
        out = fun(*arrays, **static)
        many = isinstance(out, tuple | list)
        return tuple(out) if many else (out,)

    avals = [jax.core.ShapedArray(shape_of(v), numpy_dtype(dtype_of(v))) for v in args]
    jax_ctx = ctx.jax.replace(avals_in=avals, avals_out=None, tokens_out=None)
    outs = jax_mlir.lower_fun(flat, multiple_results=True)(jax_ctx, *args)
    return list(outs) if many else outs[0]
