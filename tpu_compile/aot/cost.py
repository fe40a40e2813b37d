"""What an HLO module costs to run: FLOPs, HBM bytes, bytes sent and the compiler's cycles, by op.

Everything is counted for one device, from the text of the optimized module alone, with loop
bodies times their trips. What is counted is what this program executes, not what a model needs:
an op that the compiler computes twice counts twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from tpu_compile.aot import collectives, flops, traffic
from tpu_compile.aot.hlo import Computation, Module
from tpu_compile.aot.instruction import Instruction
from tpu_compile.aot.products import MATMUL_OPCODES, Product
from tpu_compile.aot.source_lines import SourceLine, SourceLines
from tpu_compile.aot.trip_counts import Bound, TripCounts

Quantity = Literal["bytes", "flops", "cycles"]
_COUNTER_BYTES = 32  # the most that an op on scalars moves
PALLAS_TARGET = "tpu_custom_call"
# For choosing the dearest branch only: FLOPs that all chips do in the time of one HBM byte.
_FLOPS_PER_BYTE = 200


@dataclass(frozen=True)
class OpCost:
    """One executed op: an instruction of the entry, of a called computation or of a loop's body.

    Args:
        name: the instruction's.
        opcode: HLO's, such as ``fusion``.
        category: ``matmul``, ``kernel`` (Pallas), ``collective``, ``reduction``, ``indexing``,
            ``elementwise``, ``custom-call`` or ``data movement``; a fusion's is the first of
            these that is in it.
        source: the user's line, or None; of a copy that the compiler adds, its reader's or maker's.
        trips: how often it is executed; all figures below are of all executions.
        flops: see ``flops.Arithmetic``. Of a Pallas kernel, what its ``cost_estimate`` says.
        transcendentals: likewise.
        products: the part of ``flops`` that matrix products are, by kind.
        bytes: read from and written to HBM, see ``traffic``, without tiles' padding.
        collective_bytes: sent by one device, at least, see ``collectives``.
        cycles: the TPU compiler's ``estimated_cycles``, or None where it gives none: for Pallas
            kernels, asynchronous copies, collectives, and everything on a CPU.
        kernel: name of a Pallas kernel, else None.
    """

    name: str
    opcode: str
    category: str
    source: SourceLine | None
    trips: int
    flops: float
    transcendentals: float
    products: dict[Product, float]
    bytes: float
    collective_bytes: float
    cycles: float | None
    kernel: str | None = None

    @property
    def costs(self) -> bool:
        """Whether it does more than a loop's counter does."""
        work = max(self.flops, self.transcendentals, self.bytes / _COUNTER_BYTES)
        return work > self.trips or self.collective_bytes > 0


@dataclass(frozen=True)
class LineCost:
    """All ops of one line of the user's code, and how many; None is for ops without a line."""

    source: SourceLine | None
    ops: int
    flops: float
    bytes: float
    collective_bytes: float
    cycles: float


@dataclass(frozen=True)
class HloCost:
    """What a module costs.

    Args:
        ops: every executed op that costs anything, in the order of the text.
        unknown_trips: loops whose trips could not be found; their bodies are counted once.
        branches: for each conditional, which branch was counted: the dearest.
    """

    ops: tuple[OpCost, ...]
    unknown_trips: tuple[str, ...] = ()
    branches: tuple[str, ...] = ()

    @cached_property
    def flops(self) -> float:
        """FLOPs executed, those of Pallas kernels as their authors say."""
        return sum(op.flops for op in self.ops)

    @cached_property
    def transcendentals(self) -> float:
        """Elements of transcendental functions, which are not in ``flops``."""
        return sum(op.transcendentals for op in self.ops)

    @cached_property
    def bytes(self) -> float:
        """HBM bytes read and written. Of a program of the CPU, bytes of memory."""
        return sum(op.bytes for op in self.ops)

    @cached_property
    def collective_bytes(self) -> float:
        """Bytes that one device sends over its links, at least."""
        return sum(op.collective_bytes for op in self.ops)

    @cached_property
    def cycles(self) -> float | None:
        """The TPU compiler's estimates added up, or None if there are none.

        Not a time: ops may overlap, and ``ops_without_cycles`` are missing from it.
        """
        known = [op.cycles for op in self.ops if op.cycles is not None]
        return sum(known) if known else None

    @cached_property
    def ops_without_cycles(self) -> tuple[OpCost, ...]:
        """Ops that cost something and that the compiler estimates no cycles for."""
        return tuple(op for op in self.ops if op.cycles is None and op.costs)

    @cached_property
    def ops_without_flops(self) -> tuple[OpCost, ...]:
        """Kernels and library calls whose arithmetic nobody declares, so that it counts as 0."""
        opaque = ("kernel", "custom-call")
        return tuple(op for op in self.ops if op.category in opaque and op.costs and not op.flops)

    def top_ops(self, by: Quantity = "bytes", n: int = 10) -> list[OpCost]:
        """The ``n`` dearest ops."""
        return sorted(self.ops, key=lambda op: getattr(op, by) or 0.0, reverse=True)[:n]

    def by_line(self, by: Quantity = "bytes") -> list[LineCost]:
        """Costs added up by the user's line, dearest first."""
        lines: dict[SourceLine | None, list[OpCost]] = {}
        for op in self.ops:
            lines.setdefault(op.source, []).append(op)
        costs = [_line_cost(source, ops) for source, ops in lines.items()]
        return sorted(costs, key=lambda line: getattr(line, by), reverse=True)


def _line_cost(source: SourceLine | None, ops: list[OpCost]) -> LineCost:
    return LineCost(
        source,
        len(ops),
        sum(op.flops for op in ops),
        sum(op.bytes for op in ops),
        sum(op.collective_bytes for op in ops),
        sum(op.cycles or 0.0 for op in ops),
    )


def measure(module: Module) -> HloCost:
    """Counts what one run of a module costs one device."""
    walk = _Walk(module)
    walk.computation(module.entry, 1, {})
    return HloCost(tuple(walk.ops), tuple(walk.unknown_trips), tuple(walk.branches))


@dataclass
class _Walk:
    """Goes through the executed instructions."""

    module: Module
    ops: list[OpCost] = field(default_factory=list)
    unknown_trips: list[str] = field(default_factory=list)
    branches: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._arithmetic = flops.ArithmeticOf(self.module)
        self._traffic = traffic.TrafficOf(self.module)
        self._sent = collectives.CollectiveBytesOf(self.module)
        self._lines = SourceLines(self.module)
        self._trips = TripCounts(self.module)
        self._kinds: dict[str, frozenset[str]] = {}

    def computation(self, name: str, times: int, bound: Bound) -> None:
        """Adds all ops of a computation that is executed so many times."""
        computation = self.module.computations[name]
        for instruction in computation.instructions:
            if instruction.opcode == "while":
                self._while(computation, instruction, times, bound)
            elif instruction.opcode == "conditional":
                self._conditional(instruction, times)
            elif instruction.opcode == "call":
                passed = self._trips.passed(computation, instruction, bound)
                self.computation(instruction.called[0], times, passed)
            elif instruction.opcode not in traffic.FREE:
                self._op(computation, instruction, times)

    def _while(self, computation: Computation, loop: Instruction, times: int, bound: Bound) -> None:
        trips = self._trips.of(computation, loop, bound)
        if trips is None:
            self.unknown_trips.append(loop.name)
            trips = 1
        inside = self._trips.body_bound(computation, loop, bound)
        if trips:
            self.computation(loop.computation("body"), times * trips, inside)
        self.computation(loop.computation("condition"), times * (trips + 1), inside)

    def _conditional(self, conditional: Instruction, times: int) -> None:
        tried = []
        for name in conditional.branches:
            branch = _Walk(self.module)
            branch.computation(name, times, {})
            tried.append((_dearness(branch.ops), name, branch))
        if not tried:
            return
        index, (_, name, dearest) = max(enumerate(tried), key=lambda item: item[1][0])
        self.ops += dearest.ops
        self.unknown_trips += dearest.unknown_trips
        self.branches.append(f"{conditional.name}: branch {index} of {len(tried)}, {name}")
        self.branches += dearest.branches

    def _op(self, computation: Computation, instruction: Instruction, times: int) -> None:
        work = self._arithmetic.instruction(computation, instruction)
        cycles = instruction.estimated_cycles
        op = OpCost(
            instruction.name,
            instruction.opcode,
            self._category(instruction),
            self._lines.of(instruction) or self._lines.of_neighbour(computation, instruction),
            times,
            work.flops * times,
            work.transcendentals * times,
            {kind: done * times for kind, done in work.products.items()},
            self._traffic.instruction(computation, instruction) * times,
            self._sent.instruction(computation, instruction) * times,
            None if cycles is None else float(cycles) * times,
            _kernel(instruction),
        )
        if op.flops or op.transcendentals or op.bytes or op.collective_bytes or op.cycles:
            self.ops.append(op)

    def _category(self, instruction: Instruction) -> str:
        if instruction.custom_call_target:
            return "kernel" if instruction.custom_call_target == PALLAS_TARGET else "custom-call"
        kinds = self._opcodes(instruction)
        for category, members in _CATEGORIES.items():
            if kinds & members:
                return category
        return "data movement"

    def _opcodes(self, instruction: Instruction) -> frozenset[str]:
        """The opcodes of an instruction and of what it runs."""
        kinds = {instruction.opcode.removesuffix("-start")}
        for name in instruction.called:
            if name not in self._kinds:
                computation = self.module.computations.get(name)
                inner = computation.instructions if computation else ()
                self._kinds[name] = frozenset().union(*map(self._opcodes, inner))
            kinds |= self._kinds[name]
        return frozenset(kinds)


_CATEGORIES: dict[str, frozenset[str]] = {
    "matmul": frozenset(MATMUL_OPCODES),
    "collective": collectives.OPCODES,
    "reduction": frozenset(("reduce", "reduce-window", "select-and-scatter", "sort")),
    "indexing": frozenset(("gather", "scatter", "dynamic-slice", "dynamic-update-slice")),
    "elementwise": flops.ELEMENTWISE | flops.TRANSCENDENTAL,
}


def _dearness(ops: Iterable[OpCost]) -> float:
    return sum(op.flops / _FLOPS_PER_BYTE + op.bytes + op.collective_bytes for op in ops)


_COPY_SUFFIX = re.compile(r"(?:\.(?:\d+|clone|cloned|remat\d*))+$")


def _kernel(instruction: Instruction) -> str | None:
    """A Pallas kernel's name, which is its instruction's but for what XLA adds to tell copies."""
    if instruction.custom_call_target != PALLAS_TARGET:
        return None
    return _COPY_SUFFIX.sub("", instruction.name)
