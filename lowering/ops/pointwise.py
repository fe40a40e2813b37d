"""Elementwise arithmetic: converted to torch's math type, computed, rounded once."""

from __future__ import annotations

import math

import torch

from tpu_compile.lowering import builder
from tpu_compile.lowering.builder import (
    Scalar,
    as_type,
    compare,
    full_like,
    is_nan,
    select,
    sign_bit,
)
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.ops.elementwise import Unary, binary, unary
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import dtype_of, math_dtype, shape_of

aten = torch.ops.aten


def is_one(v: Value | Scalar) -> bool:
    """Whether a scalar argument is known to be 1; a runtime scalar never is."""
    return not isinstance(v, Value) and v == 1


# ---------------------------------------------------------------- sums, products, quotients


@lowers(aten.add.Tensor, aten.add.Scalar)
def add(ctx: LoweringContext, x: Value, other: Value | Scalar, alpha: Value | Scalar = 1) -> Value:
    """add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"""
    x, other = ctx.rounded(x, other)
    if not is_one(alpha):
        other = hlo.multiply(other, *ctx.rounded(alpha))
    return ctx.result(hlo.add(x, other))


@lowers(aten.sub.Tensor, aten.sub.Scalar)
def sub(ctx: LoweringContext, x: Value, other: Value | Scalar, alpha: Value | Scalar = 1) -> Value:
    """sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"""
    x, other = ctx.rounded(x, other)
    if not is_one(alpha):
        other = hlo.multiply(other, *ctx.rounded(alpha))
    return ctx.result(hlo.subtract(x, other))


@lowers(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(ctx: LoweringContext, x: Value, other: Value | Scalar, alpha: Value | Scalar = 1) -> Value:
    """rsub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"""
    x, other = ctx.rounded(x, other)
    if not is_one(alpha):
        x = hlo.multiply(x, *ctx.rounded(alpha))
    return ctx.result(hlo.subtract(other, x))


def floor_quotient(x: Value, y: Value) -> Value:
    """x // y as Python rounds, for ints and floats."""
    if not dtype_of(x).is_floating_point:
        quotient = hlo.divide(x, y)
        if not dtype_of(x).is_signed:
            return quotient
        off = _needs_shift(hlo.remainder(x, y), y)
        return hlo.subtract(quotient, as_type(off, dtype_of(x)))
    # By way of fmod, so that 1 // 0.1 is 9 where floor(1 / 0.1) is 10.
    rest, ratio = hlo.remainder(x, y), hlo.divide(x, y)
    whole = hlo.divide(hlo.subtract(x, rest), y)
    whole = hlo.subtract(whole, as_type(_needs_shift(rest, y), dtype_of(x)))
    floor = hlo.floor(whole)
    far = compare("GT", hlo.subtract(whole, floor), full_like(whole, 0.5))
    floor = hlo.add(floor, as_type(far, dtype_of(x)))
    zero = full_like(x, 0)
    signed_zero = select(sign_bit(ratio), full_like(x, -0.0), zero)
    out = select(compare("EQ", whole, zero), signed_zero, floor)
    return select(compare("EQ", y, zero), ratio, out)


def _needs_shift(rest: Value, y: Value) -> Value:
    zero = full_like(rest, 0)
    differ = compare("NE", compare("LT", rest, zero), compare("LT", y, zero))
    return hlo.and_(compare("NE", rest, zero), differ)


@lowers(aten.div.Tensor, aten.div.Scalar)
def div(ctx: LoweringContext, x: Value, other: Value | Scalar) -> Value:
    """div.Tensor(Tensor self, Tensor other) -> Tensor"""
    (x,) = ctx.operands(x, dtype=ctx.float_math_type)
    return ctx.result(hlo.divide(x, builder.divisor(other, x)))


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(
    ctx: LoweringContext, x: Value, other: Value | Scalar, *, rounding_mode: str | None
) -> Value:
    """div.Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor"""
    if rounding_mode is None:
        return div(ctx, x, other)
    # Each step rounds in torch too, but for floors by a scalar.
    whole = rounding_mode == "floor" and (not isinstance(other, Value) or not shape_of(other))
    (x,) = ctx.operands(x, dtype=ctx.math_type if whole else ctx.promoted)
    other = builder.divisor(other, x)
    if rounding_mode == "floor":
        return ctx.result(floor_quotient(x, other))
    return ctx.result(trunc(hlo.divide(x, other)))


def remainder(x: Value, y: Value) -> Value:
    """x % y with the divisor's sign, as Python has it."""
    rest = hlo.remainder(x, y)
    if not dtype_of(x).is_signed:
        return rest
    return select(_needs_shift(rest, y), hlo.add(rest, y), rest)


def hypotenuse(x: Value, y: Value) -> Value:
    """sqrt(x * x + y * y) without overflow in between."""
    x, y = hlo.abs(x), hlo.abs(y)
    big, small = hlo.maximum(x, y), hlo.minimum(x, y)
    zero, inf = full_like(x, 0), full_like(x, float("inf"))
    ratio = hlo.divide(small, select(compare("EQ", big, zero), full_like(x, 1), big))
    root = hlo.multiply(big, hlo.sqrt(hlo.add(full_like(x, 1), hlo.multiply(ratio, ratio))))
    infinite = hlo.or_(compare("EQ", x, inf), compare("EQ", y, inf))
    return select(infinite, inf, root)


def copy_sign(x: Value, y: Value) -> Value:
    """|x| with the sign of y, also of -0.0 and NaN."""
    x = hlo.abs(x)
    return select(sign_bit(y), hlo.negate(x), x)


def fmax(x: Value, y: Value) -> Value:
    """The larger one, or the one that is not NaN."""
    return select(is_nan(x), y, select(is_nan(y), x, hlo.maximum(x, y)))


def fmin(x: Value, y: Value) -> Value:
    """The smaller one, or the one that is not NaN."""
    return select(is_nan(x), y, select(is_nan(y), x, hlo.minimum(x, y)))


binary({(aten.mul.Tensor, aten.mul.Scalar): hlo.multiply}, rounded=False)
binary(
    {
        (aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor): remainder,
        (aten.fmod.Tensor, aten.fmod.Scalar): hlo.remainder,
        aten.maximum.default: hlo.maximum,
        aten.minimum.default: hlo.minimum,
        aten.fmax.default: fmax,
        aten.fmin.default: fmin,
        aten.hypot.default: hypotenuse,
    }
)
binary({(aten.floor_divide.default, aten.floor_divide.Scalar): floor_quotient}, "promoted")
binary(
    {
        aten.atan2.default: hlo.atan2,
        (aten.copysign.Tensor, aten.copysign.Scalar): copy_sign,
    },
    "float",
)


# ---------------------------------------------------------------- powers


def int_power(x: Value, y: Value) -> Value:
    """x ** y in wrapping integers; a negative power is 0 but for 1 and -1."""
    dtype = dtype_of(x)
    out = hlo.power(x, y)
    if not dtype.is_signed:
        return out
    one, minus = full_like(x, 1), full_like(x, -1)
    odd = compare("NE", hlo.and_(y, one), full_like(x, 0))
    tiny = select(compare("EQ", x, minus), select(odd, minus, one), full_like(x, 0))
    tiny = select(compare("EQ", x, one), one, tiny)
    return select(compare("LT", y, full_like(x, 0)), tiny, out)


@lowers(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow(ctx: LoweringContext, x: Value | Scalar, exponent: Value) -> Value:
    """pow.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor"""
    return ctx.result(power(*ctx.rounded(x, exponent, dtype=math_dtype(ctx.out.dtype))))


def power(x: Value, y: Value) -> Value:
    """x ** y for values of one dtype."""
    dtype = dtype_of(x)
    return hlo.power(x, y) if dtype.is_floating_point or dtype.is_complex else int_power(x, y)


@lowers(aten.pow.Tensor_Scalar)
def pow_scalar(ctx: LoweringContext, x: Value, exponent: Value | Scalar) -> Value:
    """pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor"""
    # Small powers are products, each rounded as torch's are.
    (v,) = ctx.operands(x, dtype=ctx.out.dtype)
    known = None if isinstance(exponent, Value) else _known_power(v, exponent)
    if known is not None:
        return known
    return ctx.result(power(*ctx.rounded(x, exponent, dtype=math_dtype(ctx.out.dtype))))


def _known_power(x: Value, exponent: Scalar) -> Value | None:
    dtype = dtype_of(x)
    floats = dtype.is_floating_point
    if exponent == 0:
        return full_like(x, 1)
    if exponent == 1:
        return x
    if exponent in (2, 3):
        square = hlo.multiply(x, x)
        return square if exponent == 2 else hlo.multiply(square, x)
    if exponent == 0.5 and floats:
        return hlo.sqrt(x)
    if exponent == -0.5 and floats:
        return hlo.rsqrt(x)
    if exponent in (-1, -2) and floats:
        return hlo.divide(full_like(x, 1), x if exponent == -1 else hlo.multiply(x, x))
    return None


@lowers(aten.xlogy.Tensor, aten.xlogy.Scalar_Other, aten.xlogy.Scalar_Self)
def xlogy(ctx: LoweringContext, x: Value | Scalar, other: Value | Scalar) -> Value:
    """xlogy.Tensor(Tensor self, Tensor other) -> Tensor"""
    x, other = ctx.operands(x, other, dtype=ctx.out.dtype)
    math = math_dtype(ctx.out.dtype)
    log = as_type(ctx.result(hlo.log(as_type(other, math))), math)  # torch rounds it
    out = ctx.result(hlo.multiply(as_type(x, math), log))
    out = select(compare("EQ", x, full_like(x, 0)), full_like(x, 0), out)
    return select(is_nan(other), other, out)


# ---------------------------------------------------------------- one operand


def absolute(v: Value) -> Value:
    """|v|, of complex values the modulus."""
    return hlo.abs(v) if dtype_of(v).is_signed else v


def sign(v: Value) -> Value:
    """-1, 0 or 1; 0 for NaN."""
    dtype, zero = dtype_of(v), full_like(v, 0)
    positive = as_type(compare("GT", v, zero), dtype)
    if not dtype.is_signed:
        return positive
    return hlo.subtract(positive, as_type(compare("LT", v, zero), dtype))


def sgn(v: Value) -> Value:
    """v / |v|, and 0 at 0; the sign of a real number."""
    if not dtype_of(v).is_complex:
        return sign(v)
    size = hlo.abs(v)
    unit = hlo.divide(v, as_type(size, dtype_of(v)))
    return select(compare("EQ", size, full_like(size, 0)), full_like(v, 0), unit)


def _floats_only(emit: Unary) -> Unary:
    return lambda v: emit(v) if dtype_of(v).is_floating_point else v


def trunc(v: Value) -> Value:
    """Rounds floats towards zero, keeping the sign of zero."""
    if not dtype_of(v).is_floating_point:
        return v
    return select(sign_bit(v), hlo.ceil(v), hlo.floor(v))


def exp2(v: Value) -> Value:
    """2 ** v."""
    return hlo.power(full_like(v, 2), v)


def log_of_base(base: float) -> Unary:
    """The emitter of a logarithm to a base."""

    def emit(v: Value) -> Value:
        return hlo.divide(hlo.log(v), full_like(v, math.log(base)))

    return emit


unary(
    {
        aten.abs.default: absolute,
        aten.neg.default: hlo.negate,
        aten.sign.default: sign,
        aten.sgn.default: sgn,
        aten.ceil.default: _floats_only(hlo.ceil),
        aten.floor.default: _floats_only(hlo.floor),
        aten.round.default: _floats_only(hlo.round_nearest_even),
        aten.trunc.default: trunc,
    }
)
unary(
    {
        aten.reciprocal.default: lambda v: hlo.divide(full_like(v, 1), v),
        aten.sqrt.default: hlo.sqrt,
        aten.rsqrt.default: hlo.rsqrt,
        aten.exp.default: hlo.exponential,
        aten.exp2.default: exp2,
        aten.expm1.default: hlo.exponential_minus_one,
        aten.log.default: hlo.log,
        aten.log1p.default: hlo.log_plus_one,
        aten.log2.default: log_of_base(2),
        aten.log10.default: log_of_base(10),
    },
    "float",
)


@lowers(aten.round.decimals)
def round_decimals(ctx: LoweringContext, x: Value, *, decimals: int) -> Value:
    """round.decimals(Tensor self, *, int decimals) -> Tensor"""
    (x,) = ctx.operands(x)
    if not dtype_of(x).is_floating_point:
        return ctx.result(x)
    scale = full_like(x, 10.0 ** abs(decimals))
    apply, undo = (hlo.multiply, hlo.divide) if decimals >= 0 else (hlo.divide, hlo.multiply)
    return ctx.result(undo(hlo.round_nearest_even(apply(x, scale)), scale))


# ---------------------------------------------------------------- bounds and choices


@lowers(aten.clamp.default, aten.clamp.Tensor)
def clamp(
    ctx: LoweringContext,
    x: Value,
    min: Value | Scalar | None = None,
    max: Value | Scalar | None = None,
) -> Value:
    """clamp(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor"""
    (v,) = ctx.operands(x, dtype=ctx.out.dtype)
    if min is not None:
        v = hlo.maximum(v, *ctx.operands(min, dtype=ctx.out.dtype))
    if max is not None:
        v = hlo.minimum(v, *ctx.operands(max, dtype=ctx.out.dtype))
    return ctx.result(v)


@lowers(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(ctx: LoweringContext, x: Value, min: Value | Scalar) -> Value:
    """clamp_min(Tensor self, Scalar min) -> Tensor"""
    return clamp(ctx, x, min=min)


@lowers(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(ctx: LoweringContext, x: Value, max: Value | Scalar) -> Value:
    """clamp_max(Tensor self, Scalar max) -> Tensor"""
    return clamp(ctx, x, max=max)


@lowers(aten.where.self)
def where(ctx: LoweringContext, condition: Value, x: Value, other: Value) -> Value:
    """where.self(Tensor condition, Tensor self, Tensor other) -> Tensor"""
    (condition,) = ctx.operands(condition, dtype=torch.bool)
    return select(condition, *ctx.operands(x, other, dtype=ctx.out.dtype))
