"""Programs compiled for a topology, handed to whoever is collecting them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from tpu_compile.collecting import Collection
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


_programs = Collection[Planned]("planned")
add = _programs.add
collect = _programs.collect
