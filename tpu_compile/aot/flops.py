"""Arithmetic that one execution of an HLO instruction does, fusions and calls looked into."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tpu_compile.aot import shapes
from tpu_compile.aot.hlo import Computation, Module
from tpu_compile.aot.instruction import Instruction
from tpu_compile.aot.products import MATMUL_OPCODES, Product, meetings, product

TRANSCENDENTAL = frozenset((
    "atan2", "cbrt", "cosine", "erf", "exponential", "exponential-minus-one", "log",
    "log-plus-one", "logistic", "power", "rng", "rsqrt", "sine", "sqrt", "tan", "tanh", "acos",
    "acosh", "asin", "asinh", "atanh", "cosh", "sinh",
))  # fmt: skip
ELEMENTWISE = frozenset((
    "abs", "add", "and", "ceil", "clamp", "compare", "complex", "convert", "count-leading-zeros",
    "divide", "floor", "imag", "is-finite", "maximum", "minimum", "multiply", "negate", "not",
    "or", "popcnt", "real", "reduce-precision", "remainder", "round-nearest-afz",
    "round-nearest-even", "select", "shift-left", "shift-right-arithmetic", "shift-right-logical",
    "sign", "stochastic-convert", "subtract", "xor",
))  # fmt: skip
RUNS = ("fusion", "call", "async")  # they do what the computation they name does


@dataclass(frozen=True)
class Arithmetic:
    """Operations done.

    Args:
        flops: of products, elementwise ops and reductions. A fused multiply-add is two.
        transcendentals: elements of exp, log, tanh, ..., which are not in ``flops``.
        products: the part of ``flops`` in dots and convolutions, by kind.
    """

    flops: float = 0.0
    transcendentals: float = 0.0
    products: Mapping[Product, float] = field(default_factory=dict)

    def __add__(self, other: Arithmetic) -> Arithmetic:
        products = dict(self.products)
        for kind, flops in other.products.items():
            products[kind] = products.get(kind, 0.0) + flops
        return Arithmetic(
            self.flops + other.flops, self.transcendentals + other.transcendentals, products
        )

    def __mul__(self, times: float) -> Arithmetic:
        products = {kind: flops * times for kind, flops in self.products.items()}
        return Arithmetic(self.flops * times, self.transcendentals * times, products)


NOTHING = Arithmetic()


class ArithmeticOf:
    """Counts the arithmetic of a module's instructions; each computation once."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._known: dict[str, Arithmetic] = {}

    def computation(self, name: str) -> Arithmetic:
        """One execution of all of a computation's instructions."""
        known = self._known.get(name)
        if known is None:
            computation = self._module.computations.get(name)
            known = NOTHING
            for instruction in computation.instructions if computation else ():
                assert computation is not None
                one = self.instruction(computation, instruction)
                if one is not NOTHING:
                    known = known + one
            self._known[name] = known
        return known

    def instruction(self, computation: Computation, instruction: Instruction) -> Arithmetic:
        """One execution of an instruction. Loops and branches are for the caller: they are 0."""
        opcode = instruction.opcode.removesuffix("-start")
        if opcode in TRANSCENDENTAL:
            return Arithmetic(0.0, shapes.elements(instruction.shape))
        if opcode in ELEMENTWISE:
            return Arithmetic(shapes.elements(instruction.shape))
        if opcode in MATMUL_OPCODES:
            kind, flops = product(computation, instruction)
            return Arithmetic(flops, 0.0, {kind: flops})
        if opcode in RUNS:
            return self.computation(instruction.called[0]) if instruction.called else NOTHING
        times = _APPLICATIONS.get(opcode)
        if times is not None:
            return self._applied(instruction) * times(computation, instruction)
        special = _SPECIAL.get(opcode)
        return special(computation, instruction) if special else NOTHING

    def _applied(self, instruction: Instruction) -> Arithmetic:
        """One application of the functions that a reduction, scatter or sort takes."""
        total = NOTHING
        for name in instruction.called:
            total = total + self.computation(name)
        return total


def _input(computation: Computation, instruction: Instruction, index: int) -> shapes.ArrayShape:
    return shapes.first(computation.by_name[instruction.operands[index]].shape)


def _window(instruction: Instruction) -> int:
    return math.prod(dim.size for dim in instruction.window)


def _reduced(computation: Computation, instruction: Instruction) -> float:
    return _input(computation, instruction, 0).elements


def _all_reduced(computation: Computation, instruction: Instruction) -> float:
    return sum(shapes.elements(operand.shape) for operand in computation.operands(instruction))


def _windows(computation: Computation, instruction: Instruction) -> float:
    """Elements that windows take, padding left out.

    The TPU compiler writes a reduction whose result is broadcast again as windows that all hold
    the whole dimension: it reduces once, so each element counts once.
    """
    source, out = _input(computation, instruction, 0), shapes.first(instruction.shape)
    total = 1.0
    for size, outputs, window in zip(source.dims, out.dims, instruction.window, strict=True):
        below = (outputs - 1) * window.stride
        whole = window.pad_low >= below and window.size - window.pad_low >= size
        total *= size if whole else meetings(size, outputs, window)
    return total


def _selected(computation: Computation, instruction: Instruction) -> float:
    return _input(computation, instruction, 1).elements * _window(instruction)


def _scattered(computation: Computation, instruction: Instruction) -> float:
    return _input(computation, instruction, len(instruction.operands) - 1).elements


def _compared(computation: Computation, instruction: Instruction) -> float:
    """Comparisons of a merge sort: n log2 n for each row."""
    keys = _input(computation, instruction, 0)
    (dim,) = instruction.numbers("dimensions") or (0,)
    length = keys.dims[dim] if keys.dims else 1
    return keys.elements * math.ceil(math.log2(length)) if length > 1 else 0


# How many times an instruction applies the function it is given.
_APPLICATIONS: dict[str, Callable[[Computation, Instruction], float]] = {
    "reduce": _reduced,
    "all-reduce": _all_reduced,
    "reduce-scatter": _all_reduced,
    "map": lambda computation, instruction: shapes.elements(instruction.shape),
    "reduce-window": _windows,
    "select-and-scatter": _selected,
    "scatter": _scattered,
    "sort": _compared,
}


def _fft(computation: Computation, instruction: Instruction) -> Arithmetic:
    lengths = instruction.numbers("fft_length")
    signals = max(_reduced(computation, instruction), shapes.elements(instruction.shape))
    return Arithmetic(5.0 * signals * sum(math.log2(n) for n in lengths if n > 1))


def _cholesky(computation: Computation, instruction: Instruction) -> Arithmetic:
    shape = shapes.first(instruction.shape)
    return Arithmetic(shape.elements * shape.dims[-1] / 3)


def _triangular_solve(computation: Computation, instruction: Instruction) -> Arithmetic:
    return Arithmetic(
        float(shapes.elements(instruction.shape)) * _input(computation, instruction, 0).dims[-1]
    )


_COST_ESTIMATE = re.compile(r'"cost_estimate":\s*\{([^}]*)\}')
_ESTIMATE_FIELD = re.compile(r'"(\w+)":\s*"?(-?\d+)')


def cost_estimate(instruction: Instruction) -> dict[str, float]:
    """What the author of a Pallas kernel says it costs (``pl.CostEstimate``), or nothing."""
    found = _COST_ESTIMATE.search(instruction.backend_config)
    fields = _ESTIMATE_FIELD.findall(found[1]) if found else []
    return {key: float(value) for key, value in fields if int(value) >= 0}


def _custom_call(computation: Computation, instruction: Instruction) -> Arithmetic:
    said = cost_estimate(instruction)
    return Arithmetic(said.get("flops", 0.0), said.get("transcendentals", 0.0))


_SPECIAL: dict[str, Callable[[Computation, Instruction], Arithmetic]] = {
    "fft": _fft,
    "cholesky": _cholesky,
    "triangular-solve": _triangular_solve,
    "custom-call": _custom_call,
}
