"""What a compiled program needs of a device's memory, by the TPU compiler's own account."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Memory:
    """Bytes of HBM on one device, as the compiler laid the program out, tiles' padding included.

    Attributes:
        arguments: of what the program takes: parameters, inputs, and in a backward what was saved.
        outputs: of what it returns.
        aliased: of outputs that are in an argument's place.
        temporaries: of everything in between, at the peak.
        code: of the program itself.
        held: of what stays alive beside it: in a backward, the forward's other arguments.
        capacity: what the compiler lets programs use of the device's HBM.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    code: int
    held: int = 0
    capacity: int = 0

    @classmethod
    def of(cls, compiled: Any, *, held: int, capacity: int) -> Memory:
        """Reads JAX's memory analysis of a compiled program."""
        stats = compiled.memory_analysis()
        return cls(
            stats.argument_size_in_bytes,
            stats.output_size_in_bytes,
            stats.alias_size_in_bytes,
            stats.temp_size_in_bytes,
            stats.generated_code_size_in_bytes,
            held,
            capacity,
        )

    @property
    def program(self) -> int:
        """All that the program itself needs while it runs."""
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code

    @property
    def total(self) -> int:
        """What is taken while it runs, with what stays alive beside it."""
        return self.program + self.held

    @property
    def fits(self) -> bool:
        """Whether the total is within the capacity."""
        return self.total <= self.capacity


def readable(count: float) -> str:
    """Bytes as text: ``1.50 GiB``, ``12.0 MiB``, ``3.1 KiB``."""
    for unit, size, digits in (("GiB", 2**30, 2), ("MiB", 2**20, 1), ("KiB", 2**10, 1)):
        if count >= size:
            return f"{count / size:.{digits}f} {unit}"
    return f"{count:.0f} B"
