"""What only a run can know: indices in range, the user's own assertions.

A compiled program can't raise half way. It returns the number of the first check that failed, and
the caller raises. Eager torch raises for the same on the CPU; without a check an index out of range
would read another row in silence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from tpu_compile.errors import AssertionFailed, IndexOutOfRange, TpuCompileError, user_frame
from tpu_compile.lowering import builder
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.types import dtype_of, shape_of


@dataclass
class Checks:
    """The checks of one program, collected while its rules run.

    Attributes:
        errors: what to raise for each.
    """

    errors: list[tuple[type[TpuCompileError], dict[str, Any]]] = field(default_factory=list)
    _passed: list[Value] = field(default_factory=list)

    def add(
        self, node: fx.Node, passed: Value, error: type[TpuCompileError], **fields: str
    ) -> None:
        """Adds a condition: a bool tensor of any shape, all of which must hold."""
        dims = list(range(len(shape_of(passed))))
        self._passed.append(builder.reduce(passed, dims, hlo.and_, True))
        where = user_frame(node)
        fields["where"] = f"\nfrom your code:\n{where}" if where else ""
        self.errors.append((error, {"op": str(node.target), **fields}))

    def first_failure(self) -> Value:
        """int32 scalar: the number of the first check that failed, or how many there are."""
        count, passed = len(self._passed), self._passed
        self._passed = []
        first = builder.constant(count, torch.int32)
        for i, ok in reversed(list(enumerate(passed))):
            first = builder.select(ok, first, builder.constant(i, torch.int32))
        return first

    def raise_failure(self, number: int) -> None:
        """Raises for what ``first_failure`` was in a run; does nothing where all held."""
        if number < len(self.errors):
            error, fields = self.errors[number]
            raise error(**fields)


def within(ctx: LoweringContext, index: Value, size: int, *, wraps: bool = False) -> None:
    """Requires integers to be in [0, size), or in [-size, size) where negative ones wrap."""
    if ctx.checks is None or not dtype_of(index).is_signed:
        return
    low = -size if wraps else 0
    index = builder.convert(index, torch.int64)
    passed = hlo.and_(
        builder.compare("GE", index, builder.full_like(index, low)),
        builder.compare("LT", index, builder.full_like(index, size)),
    )
    ctx.checks.add(ctx.node, passed, IndexOutOfRange, valid=f"[{low}, {size})")


def holds(ctx: LoweringContext, condition: Value, message: str) -> None:
    """Requires a user's condition (a tensor of one element) to be true."""
    if ctx.checks is not None:
        passed = builder.convert(condition, torch.bool)
        ctx.checks.add(ctx.node, passed, AssertionFailed, message=message)
