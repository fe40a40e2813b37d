"""Trigonometric, hyperbolic and special functions: StableHLO, CHLO, and jax.scipy for the tail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import torch
from jax.scipy import special as scipy

from tpu_compile.lowering.builder import Scalar
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.jax_bridge import jnp_call
from tpu_compile.lowering.mlir import Value, chlo, hlo
from tpu_compile.lowering.ops.elementwise import Ops, register, unary
from tpu_compile.lowering.registry import Rule, lowers

aten = torch.ops.aten
prims = torch.ops.prims

unary(
    {
        aten.sin.default: hlo.sine,
        aten.cos.default: hlo.cosine,
        aten.tan.default: chlo.tan,
        aten.asin.default: chlo.asin,
        aten.acos.default: chlo.acos,
        aten.atan.default: chlo.atan,
        aten.sinh.default: chlo.sinh,
        aten.cosh.default: chlo.cosh,
        aten.tanh.default: hlo.tanh,
        aten.asinh.default: chlo.asinh,
        aten.acosh.default: chlo.acosh,
        aten.atanh.default: chlo.atanh,
        aten.erf.default: chlo.erf,
        aten.erfc.default: chlo.erfc,
        aten.erfinv.default: chlo.erf_inv,
        aten.lgamma.default: chlo.lgamma,
        aten.digamma.default: chlo.digamma,
        prims.cbrt.default: hlo.cbrt,
    },
    "float",
)


def _bridged_unary(table: dict[Ops, Callable[[Any], Any]]) -> None:
    def make(fun: Callable[[Any], Any]) -> Rule:
        def rule(ctx: LoweringContext, x: Value) -> Value:
            (x,) = ctx.operands(x, dtype=ctx.float_math_type)
            return ctx.result(jnp_call(ctx, fun, x))

        return rule

    for ops, fun in table.items():
        register(make(fun), ops, bridged=True)


def _bridged_binary(table: dict[Ops, Callable[[Any, Any], Any]]) -> None:
    def make(fun: Callable[[Any, Any], Any]) -> Rule:
        def rule(ctx: LoweringContext, x: Value | Scalar, other: Value | Scalar) -> Value:
            x, other = ctx.operands(x, other, dtype=ctx.float_math_type)
            return ctx.result(jnp_call(ctx, fun, x, other))

        return rule

    for ops, fun in table.items():
        register(make(fun), ops, bridged=True)


_bridged_unary(
    {
        aten.i0.default: scipy.i0,
        aten.special_i0e.default: scipy.i0e,
        aten.special_i1.default: scipy.i1,
        aten.special_i1e.default: scipy.i1e,
        aten.special_ndtri.default: scipy.ndtri,
    }
)
_bridged_binary(
    {
        aten.igamma.default: jax.lax.igamma,
        aten.igammac.default: jax.lax.igammac,
        (
            aten.special_zeta.default,
            aten.special_zeta.other_scalar,
            aten.special_zeta.self_scalar,
        ): scipy.zeta,
    }
)


@lowers(aten.polygamma.default, bridged=True)
def polygamma(ctx: LoweringContext, n: int, x: Value) -> Value:
    """polygamma(int n, Tensor self) -> Tensor"""
    (x,) = ctx.operands(x, dtype=ctx.float_math_type)
    return ctx.result(jnp_call(ctx, lambda v: scipy.polygamma(n, v), x))
