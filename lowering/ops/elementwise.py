"""Makes elementwise rules from one emitter each, for the tables of the families."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch._ops import OpOverload

from tpu_compile.lowering.builder import Scalar
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value
from tpu_compile.lowering.registry import Rule, lowers

Unary = Callable[[Value], Value]
Binary = Callable[[Value, Value], Value]
Math = Literal["math", "float", "promoted", "bool"]
Ops = OpOverload | Sequence[OpOverload]


def math_of(ctx: LoweringContext, math: Math) -> torch.dtype:
    """The dtype an emitter works in: the math type, its float version, or with no widening."""
    if math == "bool":
        return torch.bool
    if math == "promoted":
        return ctx.promoted
    return ctx.float_math_type if math == "float" else ctx.math_type


def as_list(ops: Ops) -> Sequence[OpOverload]:
    """One overload or several, as a sequence."""
    return (ops,) if isinstance(ops, OpOverload) else ops


def register(rule: Rule, ops: Ops, *, bridged: bool = False) -> None:
    """Registers a made rule under the name and schema of its first overload."""
    first = as_list(ops)[0]
    rule.__name__ = rule.__qualname__ = first._schema.name.split("::")[1]
    rule.__doc__ = str(first._schema).split("::", 1)[1]
    lowers(*as_list(ops), bridged=bridged)(rule)


def unary(table: Mapping[Ops, Unary], math: Math = "math") -> None:
    """Registers op(Tensor self): convert, emit, round once."""

    def make(emit: Unary) -> Rule:
        def rule(ctx: LoweringContext, x: Value) -> Value:
            (x,) = ctx.operands(x, dtype=math_of(ctx, math))
            return ctx.result(emit(x))

        return rule

    for ops, emit in table.items():
        register(make(emit), ops)


def binary(table: Mapping[Ops, Binary], math: Math = "math", *, rounded: bool = True) -> None:
    """Registers op(self, other), each a tensor or a scalar: promote, emit, round once.

    Args:
        table: the emitter of each op, or of several overloads.
        math: what to compute in.
        rounded: whether scalars are rounded to the promoted dtype before.
    """

    def make(emit: Binary) -> Rule:
        def rule(ctx: LoweringContext, x: Value | Scalar, other: Value | Scalar) -> Value:
            operands = ctx.rounded if rounded else ctx.operands
            return ctx.result(emit(*operands(x, other, dtype=math_of(ctx, math))))

        return rule

    for ops, emit in table.items():
        register(make(emit), ops)
