"""The least time that a chip's published peaks allow for a program.

A lower bound, from peaks that no program reaches: what a device really takes is longer. Matrix
products bound by the MXU's peak for their types, HBM traffic by its bandwidth, and what a device
sends by all its links together. Elementwise arithmetic has no published peak and bounds nothing
here (such ops wait for HBM nearly always), nor does a Pallas kernel's, unless its
``cost_estimate`` says how many FLOPs it does: these are taken for bfloat16 products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from tpu_compile.aot.chip_specs import DeviceSpec
from tpu_compile.aot.cost import HloCost, OpCost

Bound = Literal["compute", "memory", "network"]


@dataclass(frozen=True)
class OpBound:
    """The least seconds of one op, all its executions, by what could hold it up.

    Args:
        op: the op.
        compute: seconds of its matrix products at the MXU's peak.
        memory: seconds of its HBM bytes.
        network: seconds of the bytes it sends.
    """

    op: OpCost
    compute: float
    memory: float
    network: float

    @property
    def seconds(self) -> float:
        """The longest of the three, for the op can do them at once."""
        return max(self.compute, self.memory, self.network)

    @property
    def bound(self) -> Bound:
        """Which of the three it is."""
        return _longest(self.compute, self.memory, self.network)


@dataclass(frozen=True)
class Roofline:
    """Lower bounds of a program's time on one device."""

    device: DeviceSpec
    ops: tuple[OpBound, ...]

    @cached_property
    def compute(self) -> float:
        """Seconds of all matrix products at the MXU's peak."""
        return sum(op.compute for op in self.ops)

    @cached_property
    def memory(self) -> float:
        """Seconds of all HBM bytes."""
        return sum(op.memory for op in self.ops)

    @cached_property
    def network(self) -> float:
        """Seconds of all bytes sent."""
        return sum(op.network for op in self.ops)

    @property
    def seconds(self) -> float:
        """The bound of the whole: ops may overlap as they like."""
        return max(self.compute, self.memory, self.network)

    @property
    def bound(self) -> Bound:
        """What the whole waits for."""
        return _longest(self.compute, self.memory, self.network)

    @cached_property
    def serial_seconds(self) -> float:
        """The bound of ops one after the other, each the longest of its three.

        Nearer to the truth than ``seconds``, but a lower bound only of what doesn't overlap:
        asynchronous copies and collectives run beside other ops.
        """
        return sum(op.seconds for op in self.ops)

    def top(self, n: int = 10) -> list[OpBound]:
        """The ``n`` ops with the longest bounds."""
        return sorted(self.ops, key=lambda op: op.seconds, reverse=True)[:n]


def roofline(cost: HloCost, device: DeviceSpec) -> Roofline:
    """Bounds the time of what was measured on one device of a chip (``ChipSpec.per_device``)."""
    return Roofline(
        device,
        tuple(
            OpBound(
                op,
                _product_seconds(op, device.peak),
                op.bytes / device.hbm_bandwidth,
                op.collective_bytes / device.ici_bandwidth,
            )
            for op in cost.ops
        ),
    )


def _product_seconds(op: OpCost, peak: Callable[[str], float]) -> float:
    if op.category == "kernel":
        return op.flops / peak("bf16")
    return sum(done * kind.passes / peak(kind.dtype) for kind, done in op.products.items())


def _longest(compute: float, memory: float, network: float) -> Bound:
    bounds: dict[Bound, float] = {"compute": compute, "memory": memory, "network": network}
    return max(bounds, key=lambda bound: bounds[bound])
