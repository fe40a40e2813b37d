"""Programs compiled for a topology, handed to whoever is collecting them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from torch import fx

from tpu_compile.executable import Executable


@dataclass(frozen=True)
class Planned:
    """One compiled graph that is not run.

    Attributes:
        name: "forward", "backward" or "inference"; with a number where fallbacks split it.
        gm: the graph that was lowered, with concrete shapes.
        executable: what the TPU compiler made of it.
    """

    name: str
    gm: fx.GraphModule
    executable: Executable


_collecting: ContextVar[list[Planned] | None] = ContextVar("collecting", default=None)


def add(program: Planned) -> None:
    """Hands a program to the innermost ``collect``; it is dropped where there is none."""
    found = _collecting.get()
    if found is not None:
        found.append(program)


@contextmanager
def collect() -> Iterator[list[Planned]]:
    """Collects what is compiled for a topology within, in the order of compiling."""
    found: list[Planned] = []
    token = _collecting.set(found)
    try:
        yield found
    finally:
        _collecting.reset(token)
