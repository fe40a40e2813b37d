"""How often a ``while`` runs its body, read off its condition, first values and body.

The TPU's HLO has no trip counts. But a loop over a counter leaves ``compare(counter, limit)`` in
the condition, ``counter + step`` in the body and constants in the first values, through any number
of fusions, copies and outer loops that hand a constant on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tpu_compile.aot import shapes
from tpu_compile.aot.hlo import Computation, Module
from tpu_compile.aot.instruction import Instruction


@dataclass(frozen=True)
class Carried:
    """The value that element ``index`` of a loop's state has at the start of a trip, plus some."""

    index: int
    plus: int = 0


@dataclass(frozen=True)
class Elements:
    """A tuple, whose elements are worked out when asked for."""

    computation: Computation
    names: tuple[str, ...]
    bound: Bound


Value: TypeAlias = "int | Carried | Elements | Mapping[int, Value] | None"
Bound: TypeAlias = Mapping[int, Value]  # values of a computation's parameters, by number

_SAME_VALUE = frozenset((
    "copy", "bitcast", "reshape", "convert", "copy-done",
))  # fmt: skip
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "EQ": "EQ", "NE": "NE"}


class _State(dict[int, "Value"]):
    """A loop's state in its own body or condition: element i is ``Carried(i)``."""

    def __missing__(self, index: int) -> Value:
        return Carried(index)


@dataclass(frozen=True)
class _Comparison:
    left: Value
    right: Value
    direction: str


class TripCounts:
    """Trip counts of a module's loops."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._steps: dict[tuple[str, int], int | None] = {}

    def of(self, computation: Computation, loop: Instruction, bound: Bound) -> int | None:
        """Trips of one execution of a ``while``, or None.

        Args:
            computation: the one that the loop is in.
            loop: the instruction.
            bound: what is known of the computation's parameters.
        """
        if loop.known_trip_count is not None:
            return loop.known_trip_count
        test = self._comparison(loop)
        if test is None:
            return None
        left, right, direction = test.left, test.right, test.direction
        if not isinstance(left, Carried) or self._step(loop, left.index) in (0, None):
            left, right, direction = right, left, _MIRRORED[direction]
        if not isinstance(left, Carried):
            return None
        first = self.element(computation, loop.operands[0], left.index, bound)
        step = self._step(loop, left.index)
        limit = self._limit(computation, loop, right, bound)
        if not isinstance(first, int) or limit is None or not step:
            return None
        return _trips(first + left.plus, step, limit, direction)

    def body_bound(self, computation: Computation, loop: Instruction, bound: Bound) -> Bound:
        """What is known of the parameter of a loop's body: constants that all trips have."""
        state = {}
        for index in range(len(loop.shape) if isinstance(loop.shape, tuple) else 0):
            if self._step(loop, index) == 0:
                first = self.element(computation, loop.operands[0], index, bound)
                if isinstance(first, int):
                    state[index] = first
        return {0: state}

    def _limit(
        self, computation: Computation, loop: Instruction, value: Value, bound: Bound
    ) -> int | None:
        """A value that must be the same in all trips."""
        if isinstance(value, Carried) and self._step(loop, value.index) == 0:
            first = self.element(computation, loop.operands[0], value.index, bound)
            return first + value.plus if isinstance(first, int) else None
        return value if isinstance(value, int) else None

    def _step(self, loop: Instruction, index: int) -> int | None:
        """What a trip adds to an element of the state, or None where that is not constant."""
        key = (loop.name, index)
        if key not in self._steps:
            body = self._module.computations[loop.computation("body")]
            after = self.element(body, body.root.name, index, {0: _State()})
            same = isinstance(after, Carried) and after.index == index
            self._steps[key] = after.plus if same and isinstance(after, Carried) else None
        return self._steps[key]

    def _comparison(self, loop: Instruction) -> _Comparison | None:
        condition = self._module.computations[loop.computation("condition")]
        return self._compares(condition, condition.root, {0: _State()})

    def _compares(
        self, computation: Computation, at: Instruction, bound: Bound
    ) -> _Comparison | None:
        while at.opcode in _SAME_VALUE:
            at = computation.by_name[at.operands[0]]
        if at.opcode == "compare":
            left, right = (self.value(computation, name, bound) for name in at.operands)
            return _Comparison(left, right, at.attribute("direction"))
        callee = self._callee(at)
        if callee:
            return self._compares(callee, callee.root, self.passed(computation, at, bound))
        return None

    def _callee(self, at: Instruction) -> Computation | None:
        if at.opcode in ("fusion", "call"):
            return self._module.computations.get(at.called[0])
        return None

    def passed(self, computation: Computation, at: Instruction, bound: Bound) -> Bound:
        """Values of the parameters of what an instruction calls."""
        return {
            number: self.value(computation, name, bound) for number, name in enumerate(at.operands)
        }

    def value(self, computation: Computation, name: str, bound: Bound) -> Value:
        """An integer constant, something carried, a tuple, or None: not known."""
        at = computation.by_name[name]
        if isinstance(at.shape, shapes.ArrayShape) and at.shape.elements != 1:
            return None
        opcode = at.opcode
        if opcode == "constant":
            return _integer(at)
        if opcode == "parameter":
            return bound.get(int(at.literal))
        if opcode in _SAME_VALUE:
            return self.value(computation, at.operands[0], bound)
        if opcode == "copy-start":
            return self.value(computation, at.operands[0], bound)
        if opcode == "get-tuple-element":
            return self.element(computation, at.operands[0], int(at.attribute("index")), bound)
        if opcode == "tuple":
            return Elements(computation, at.operands, bound)
        if opcode in ("add", "subtract"):
            left, right = (self.value(computation, operand, bound) for operand in at.operands)
            return _sum(left, right, -1 if opcode == "subtract" else 1)
        callee = self._callee(at)
        if callee:
            return self.value(callee, callee.root.name, self.passed(computation, at, bound))
        return None

    def element(self, computation: Computation, name: str, index: int, bound: Bound) -> Value:
        """Element ``index`` of a tuple."""
        at = computation.by_name[name]
        if at.opcode == "while":
            if self._step(at, index) == 0:
                return self.element(computation, at.operands[0], index, bound)
            return None
        whole = self.value(computation, name, bound)
        if isinstance(whole, Elements):
            return self.value(whole.computation, whole.names[index], whole.bound)
        if isinstance(whole, _State):
            return whole[index]
        if isinstance(whole, Mapping):
            return whole.get(index)
        return None


def _integer(constant: Instruction) -> int | None:
    text = constant.literal.strip("{} ")
    return int(text) if text.lstrip("-").isdecimal() else None


def _sum(left: Value, right: Value, sign: int) -> Value:
    if isinstance(left, int) and isinstance(right, int):
        return left + sign * right
    if isinstance(left, Carried) and isinstance(right, int):
        return Carried(left.index, left.plus + sign * right)
    if isinstance(right, Carried) and isinstance(left, int) and sign > 0:
        return Carried(right.index, right.plus + left)
    return None


def _trips(first: int, step: int, limit: int, direction: str) -> int | None:
    """Trips of ``for (i = first; i <direction> limit; i += step)``; None if it does not end."""
    if direction in ("LE", "GE"):
        limit += 1 if direction == "LE" else -1
    if direction == "NE":
        trips, rest = divmod(limit - first, step)
        return trips if rest == 0 and trips >= 0 else None
    if direction == "EQ":
        return int(first == limit)
    forward = direction in ("LT", "LE")
    if first >= limit if forward else first <= limit:
        return 0
    if (step > 0) != forward:
        return None
    return -(-(limit - first) // step)
