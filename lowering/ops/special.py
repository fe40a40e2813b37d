"""Trigonometric, hyperbolic and special functions: StableHLO, CHLO, and jax.scipy for the tail."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from jax.scipy import special as scipy

from tpu_compile.lowering.builder import Scalar, as_type, compare, full_like, select, sign_bit
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.jax_bridge import jnp_call
from tpu_compile.lowering.mlir import Value, chlo, hlo
from tpu_compile.lowering.ops.elementwise import Ops, register, unary
from tpu_compile.lowering.registry import Rule, lowers

aten = torch.ops.aten
prims = torch.ops.prims


def digamma(v: Value) -> Value:
    """The logarithmic derivative of gamma, with torch's signed infinity at zero."""
    zero = full_like(v, 0)
    pole = select(sign_bit(v), full_like(v, math.inf), full_like(v, -math.inf))
    return select(compare("EQ", v, zero), pole, chlo.digamma(v))


def logit(v: Value) -> Value:
    """log(v / (1 - v))."""
    return hlo.log(hlo.divide(v, hlo.subtract(full_like(v, 1), v)))


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
        aten.digamma.default: digamma,
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


def _erfcx(x: jax.Array) -> jax.Array:
    """exp(x * x) * erfc(x) in float64, whose range holds it up to 20; beyond, its series in 1/x."""
    wide = x.astype(jnp.float64)
    near = jnp.minimum(wide, 20)
    term = total = jnp.ones_like(wide)
    inverse = 1 / (2 * wide * wide)
    for n in range(1, 8):
        term = -term * (2 * n - 1) * inverse
        total += term
    far = total / (wide * math.sqrt(math.pi))
    return jnp.where(wide > 20, far, jnp.exp(near * near) * lax.erfc(near)).astype(x.dtype)


def _zeta_head(x: jax.Array, q: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The zeta function's terms left of zero, where XLA's series is inexact; and q after them."""

    def going(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        count, _head, q = state
        return (count < 1 << 16) & jnp.any(q < 0)

    def term(
        state: tuple[jax.Array, jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        count, head, q = state
        left = q < 0
        head = jnp.where(left, head + jnp.where(left, q, 1) ** -x, head)
        return count + 1, head, jnp.where(left, q + 1, q)

    _count, head, q = lax.while_loop(going, term, (jnp.int32(0), jnp.zeros_like(q + x), q + 0 * x))
    return head, q


def _zeta(x: jax.Array, q: jax.Array) -> jax.Array:
    """The Hurwitz zeta function, with torch's values at and left of its poles."""
    pole = (q <= 0) & (q == jnp.floor(q))
    undefined = (q <= 0) & ~pole & (x != jnp.floor(x))
    head, q = _zeta_head(x, q)
    inner = jnp.where(pole, jnp.inf, jnp.where(undefined, jnp.nan, head + scipy.zeta(x, q)))
    return jnp.where(x == 1, jnp.inf, jnp.where(x < 1, jnp.nan, inner))


_bridged_unary(
    {
        aten.i0.default: scipy.i0,
        aten.special_i0e.default: scipy.i0e,
        aten.special_i1.default: scipy.i1,
        aten.special_i1e.default: scipy.i1e,
        aten.special_ndtri.default: scipy.ndtri,
        aten.special_log_ndtr.default: scipy.log_ndtr,
        aten.special_erfcx.default: _erfcx,
    }
)
_bridged_binary(
    {
        aten.igamma.default: lax.igamma,
        aten.igammac.default: lax.igammac,
        (
            aten.special_zeta.default,
            aten.special_zeta.other_scalar,
            aten.special_zeta.self_scalar,
        ): _zeta,
    }
)


@lowers(aten.polygamma.default, bridged=True)
def polygamma(ctx: LoweringContext, n: int, x: Value) -> Value:
    """polygamma(int n, Tensor self) -> Tensor"""
    (x,) = ctx.operands(x, dtype=ctx.float_math_type)
    if n == 0:
        return ctx.result(digamma(x))
    fun = _trigamma if n == 1 else functools.partial(_polygamma, n)
    return ctx.result(jnp_call(ctx, fun, x))


def _polygamma(n: int, x: jax.Array) -> jax.Array:
    sign = 1 if n % 2 else -1
    return sign * math.factorial(n) * _zeta(jnp.full_like(x, n + 1), x)


def _trigamma(x: jax.Array) -> jax.Array:
    """By reflection where the series doesn't hold."""
    low = x < 0.5
    right = scipy.polygamma(1, jnp.where(low, 1 - x, x))
    return jnp.where(low, (math.pi / jnp.sin(math.pi * x)) ** 2 - right, right)


@lowers(aten.logit.default)
def logit_(ctx: LoweringContext, x: Value, eps: float | None = None) -> Value:
    """logit(Tensor self, float? eps=None) -> Tensor"""
    (x,) = ctx.operands(x, dtype=ctx.out.dtype)  # each step rounds in torch too
    if eps is not None:
        x = hlo.minimum(hlo.maximum(x, full_like(x, eps)), full_like(x, 1 - eps))
    return logit(x)


@lowers(aten.gcd.default, bridged=True)
def gcd(ctx: LoweringContext, x: Value, other: Value) -> Value:
    """gcd(Tensor self, Tensor other) -> Tensor"""
    return jnp_call(ctx, jnp.gcd, *ctx.operands(x, other))


@lowers(aten.nextafter.default)
def nextafter(ctx: LoweringContext, x: Value, other: Value) -> Value:
    """nextafter(Tensor self, Tensor other) -> Tensor"""
    return chlo.next_after(*ctx.operands(x, other, dtype=ctx.out.dtype))


@lowers(aten.frexp.Tensor, prims.frexp.default, bridged=True)
def frexp(ctx: LoweringContext, x: Value) -> tuple[Value, Value]:
    """frexp.Tensor(Tensor self) -> (Tensor mantissa, Tensor exponent)"""
    (x,) = ctx.operands(x)
    mantissa, exponent = jnp_call(ctx, jnp.frexp, x)
    return ctx.result(mantissa), as_type(exponent, torch.int32)
