"""Arithmetic on runtime Python scalars (SymInt, SymFloat, SymBool): rank-0 StableHLO values.

A scalar that changes from call to call without being part of a shape is an input of the program,
not a constant in it; what the graph computes from it is lowered here.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from tpu_compile.errors import MissingLowering
from tpu_compile.lowering import builder
from tpu_compile.lowering.mlir import Value, hlo, ir
from tpu_compile.lowering.types import dtype_of


def _floor_div(x: Value, y: Value) -> Value:
    if dtype_of(x).is_floating_point:
        return hlo.floor(hlo.divide(x, y))
    zero = builder.full_like(x, 0)
    quotient, rest = hlo.divide(x, y), hlo.remainder(x, y)
    differ = builder.compare("NE", hlo.sign(rest), hlo.sign(y))
    adjust = hlo.and_(builder.compare("NE", rest, zero), differ)
    return hlo.subtract(quotient, builder.convert(adjust, dtype_of(x)))


def _mod(x: Value, y: Value) -> Value:
    return hlo.subtract(x, hlo.multiply(_floor_div(x, y), y))


_ARITHMETIC: dict[Any, Callable[..., Value]] = {
    operator.add: hlo.add,
    operator.sub: hlo.subtract,
    operator.mul: hlo.multiply,
    operator.floordiv: _floor_div,
    operator.mod: _mod,
    operator.pow: hlo.power,
    torch.sym_max: hlo.maximum,
    torch.sym_min: hlo.minimum,
}
_COMPARE = {
    operator.eq: "EQ",
    operator.ne: "NE",
    operator.lt: "LT",
    operator.le: "LE",
    operator.gt: "GT",
    operator.ge: "GE",
}
_FLOAT: dict[Any, Callable[..., Value]] = {
    operator.truediv: hlo.divide,
    math.sqrt: hlo.sqrt,
    math.exp: hlo.exponential,
    math.log: hlo.log,
    math.sin: hlo.sine,
    math.cos: hlo.cosine,
    math.tanh: hlo.tanh,
    math.pow: hlo.power,
    math.floor: hlo.floor,
    math.ceil: hlo.ceil,
}
for _name in ("sqrt", "exp", "log", "sin", "cos", "tanh"):
    if _sym := getattr(torch, f"_sym_{_name}", None):
        _FLOAT[_sym] = _FLOAT[getattr(math, _name)]
_CASTS = {torch.sym_float: torch.float64, torch.sym_int: torch.int64}
_UNARY: dict[Any, Callable[..., Value]] = {
    operator.neg: hlo.negate,
    operator.abs: hlo.abs,
    torch.sym_not: hlo.not_,
}
_ALL = {*_ARITHMETIC, *_COMPARE, *_FLOAT, *_CASTS, *_UNARY}


def is_scalar_op(target: Any) -> bool:
    """Whether a node's target computes a Python scalar from Python scalars."""
    return target in _ALL


def lower(node: fx.Node, args: tuple[Any, ...]) -> Any:
    """Emits one scalar op, or computes it where all of its arguments are known."""
    target = node.target
    if not any(isinstance(a, ir.Value) for a in args):
        return target(*args)  # type: ignore[operator]
    floats = any(
        isinstance(a, float) or (isinstance(a, ir.Value) and dtype_of(a).is_floating_point)
        for a in args
    )
    kind = torch.float64 if floats or target in _FLOAT else torch.int64
    if target in _CASTS:
        return builder.as_type(args[0], _CASTS[target])
    if target is torch.sym_not:
        return hlo.not_(args[0])
    values = [builder.as_type(a, kind) for a in args]
    if target in _COMPARE:
        return builder.compare(_COMPARE[target], *values)
    emit = _ARITHMETIC.get(target) or _FLOAT.get(target) or _UNARY.get(target)
    if emit is None:
        raise MissingLowering(op=target, node=node)
    out = emit(*values)
    if target in (math.floor, math.ceil):
        out = builder.convert(out, torch.int64)
    return out
