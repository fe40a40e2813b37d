"""What ``aot_compile`` found: the compiled programs, what they need and what they cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tpu_compile import __version__, topologies
from tpu_compile.aot import chip_specs, cost
from tpu_compile.aot.cost import HloCost, OpCost, Quantity
from tpu_compile.aot.hlo import Module, parse
from tpu_compile.aot.memory import Memory
from tpu_compile.aot.roofline import Roofline, roofline
from tpu_compile.liveness import Peak

if TYPE_CHECKING:
    from rich.console import Group


class Texts(Protocol):
    """Where a program's texts come from: the compiler, or a file."""

    @property
    def stablehlo(self) -> str:
        """What was compiled, located at the user's lines."""

    @property
    def hlo(self) -> str:
        """What the TPU compiler made of it."""

    @property
    def executable(self) -> bytes:
        """The program in the TPU compiler's own form, for its own version only."""


@dataclass(frozen=True)
class KernelUse:
    """A Pallas kernel in a program: its name and in how many places."""

    name: str
    places: int


@dataclass(frozen=True)
class AotProgram:
    """One compiled graph: a whole inference, or a training step's forward or backward.

    Attributes:
        name: "inference", "forward" or "backward".
        topology: what it is compiled for.
        memory: on one device.
        model_flops: what the graph needs on all devices together, by torch's formulas.
        estimate: of the largest buffers at its peak, from the graph and not from the compiler.
        texts: StableHLO, HLO and the executable.
        shardings: of the arguments that are split over the mesh, by their names.
    """

    name: str
    topology: str
    memory: Memory
    model_flops: int
    estimate: Peak
    texts: Texts
    shardings: dict[str, str] = field(default_factory=dict)

    @property
    def stablehlo(self) -> str:
        """What was compiled: StableHLO located at the user's lines."""
        return self.texts.stablehlo

    @property
    def hlo(self) -> str:
        """What the TPU compiler made of it: optimized HLO of one device."""
        return self.texts.hlo

    @cached_property
    def module(self) -> Module:
        """The HLO, parsed."""
        return parse(self.hlo)

    @cached_property
    def cost(self) -> HloCost:
        """What one run costs one device, counted over the HLO with loops times their trips."""
        return cost.measure(self.module)

    @cached_property
    def roofline(self) -> Roofline:
        """The least time that the chip's published peaks allow."""
        return roofline(self.cost, chip_specs.find(self.topology).per_device)

    @property
    def kernels(self) -> tuple[KernelUse, ...]:
        """The Pallas kernels in it."""
        return _kernels(self.cost)

    def top_ops(self, by: Quantity = "bytes", n: int = 10) -> list[OpCost]:
        """The dearest ops, each with the user's line."""
        return self.cost.top_ops(by, n)


@dataclass(frozen=True)
class AotResult:
    """All programs of one ``aot_compile``.

    Attributes:
        topology: as ``v6e:2x2``.
        effort: "fit" or "full".
        programs: in the order in which they run.
        seconds: per compile stage.
        versions: of tpu_compile, torch, jax, jaxlib and libtpu.
        mesh: names and sizes of its axes; empty where the programs are a single device's.
    """

    topology: str
    effort: str
    programs: tuple[AotProgram, ...]
    seconds: dict[str, float]
    versions: dict[str, str]
    mesh: dict[str, int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> AotProgram:
        for program in self.programs:
            if program.name == name:
                return program
        raise KeyError(f"no program {name!r}: there are {[p.name for p in self.programs]}")

    @property
    def memory(self) -> Memory:
        """Of the program that needs most, with what stays alive beside it."""
        return max((p.memory for p in self.programs), key=lambda m: m.total)

    @property
    def fits(self) -> bool:
        """Whether every program fits one device."""
        return all(p.memory.fits for p in self.programs)

    @cached_property
    def cost(self) -> HloCost:
        """Of all programs, one after the other."""
        costs = [p.cost for p in self.programs]
        return HloCost(
            tuple(op for c in costs for op in c.ops),
            tuple(t for c in costs for t in c.unknown_trips),
            tuple(b for c in costs for b in c.branches),
        )

    @cached_property
    def roofline(self) -> Roofline:
        """The least time of all programs, one after the other."""
        return roofline(self.cost, chip_specs.find(self.topology).per_device)

    @property
    def model_flops(self) -> int:
        """What the model needs, by torch's formulas."""
        return sum(p.model_flops for p in self.programs)

    @property
    def kernels(self) -> tuple[KernelUse, ...]:
        """The Pallas kernels in all programs."""
        return _kernels(self.cost)

    @property
    def stablehlo(self) -> str:
        """The StableHLO of all programs."""
        return "\n".join(f"// {p.name}\n{p.stablehlo}" for p in self.programs)

    @property
    def hlo(self) -> str:
        """The HLO of all programs."""
        return "\n".join(f"// {p.name}\n{p.hlo}" for p in self.programs)

    def top_ops(self, by: Quantity = "bytes", n: int = 10) -> list[OpCost]:
        """The dearest ops of all programs, each with the user's line."""
        return self.cost.top_ops(by, n)

    def report(self) -> Group:
        """Tables for rich's console: memory, cost, the dearest lines, kernels."""
        from tpu_compile.aot import report

        return report.tables(self)

    def to_json(self) -> dict[str, Any]:
        """All figures as plain data. Bytes and FLOPs of one device, seconds of time."""
        return {
            "tpu_compile": __version__,
            "topology": self.topology,
            "devices": topologies.parse(self.topology).devices,
            "mesh": self.mesh,
            "effort": self.effort,
            "fits": self.fits,
            "compile_seconds": self.seconds,
            "versions": self.versions,
            "programs": [_json(p) for p in self.programs],
        }

    def save(self, path: str | Path) -> None:
        """Writes everything to one file, which ``load`` reads; the file appears whole."""
        from tpu_compile.aot import store

        store.save(self, Path(path))

    @staticmethod
    def load(path: str | Path) -> AotResult:
        """Reads a saved result.

        Raises:
            NotAnAotFile: for another or a damaged file.
        """
        from tpu_compile.aot import store

        return store.load(Path(path))

    def __str__(self) -> str:
        from tpu_compile.aot import report

        return report.text(self)


def _kernels(c: HloCost) -> tuple[KernelUse, ...]:
    places = Counter(op.kernel for op in c.ops if op.kernel)
    return tuple(KernelUse(name, n) for name, n in sorted(places.items()))


def _json(p: AotProgram) -> dict[str, Any]:
    c, bound = p.cost, p.roofline
    return {
        "name": p.name,
        "memory": {**asdict(p.memory), "total": p.memory.total},
        "cost": {
            "flops": c.flops,
            "model_flops": p.model_flops,
            "transcendentals": c.transcendentals,
            "hbm_bytes": c.bytes,
            "collective_bytes": c.collective_bytes,
            "estimated_cycles": c.cycles,
            "ops_without_cycles": len(c.ops_without_cycles),
            "loops_of_unknown_trips": list(c.unknown_trips),
            "roofline_seconds": bound.seconds,
            "roofline_bound": bound.bound,
        },
        "kernels": {k.name: k.places for k in p.kernels},
        "shardings": p.shardings,
        "estimate": asdict(p.estimate),
    }
