"""Names of TPU topologies, and the devices JAX describes them by, with no TPU attached."""

from __future__ import annotations

import difflib
import functools
import importlib.util
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpu_compile import errors

if TYPE_CHECKING:
    import jax

ONE_CHIP = 1


@dataclass(frozen=True)
class Generation:
    """A generation of chips, and the slices it comes in.

    Attributes:
        name: as in a topology's name.
        rank: dimensions of a slice: 2 or 3.
        most: the largest slice's shape, each dimension.
        usual: some shapes that are offered, for texts.
        devices_per_chip: how many devices JAX makes of a chip.
    """

    name: str
    rank: int
    most: tuple[int, ...]
    usual: tuple[str, ...]
    devices_per_chip: int

    def has(self, shape: tuple[int, ...]) -> bool:
        """Whether a slice of that shape exists: one chip, or whole hosts of 2x2 chips."""
        if len(shape) != self.rank:
            return False
        if math.prod(shape) == ONE_CHIP:
            return True
        whole = shape[0] % 2 == 0 and shape[1] % 2 == 0
        return whole and all(1 <= n <= m for n, m in zip(shape, self.most, strict=True))


_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("1x1x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "8x8x8", "16x16x16")

GENERATIONS = {
    g.name: g
    for g in (
        Generation("v4", 3, (16, 16, 16), _CUBES, 2),
        Generation("v5e", 2, (16, 16), _FLAT, 1),
        Generation("v5p", 3, (16, 20, 28), _CUBES, 1),
        Generation("v6e", 2, (16, 16), _FLAT, 1),
        Generation("tpu7x", 3, (16, 24, 24), _CUBES, 2),
    )
}


@dataclass(frozen=True)
class Topology:
    """One slice of TPUs, such as ``v6e:2x2``.

    Attributes:
        generation: the chips.
        shape: chips along each dimension.
    """

    generation: Generation
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """The whole name, as ``v6e:2x2``."""
        return f"{self.generation.name}:{'x'.join(map(str, self.shape))}"

    @property
    def chips(self) -> int:
        """How many chips."""
        return math.prod(self.shape)

    @property
    def devices(self) -> int:
        """How many devices, as JAX counts them."""
        return self.chips * self.generation.devices_per_chip


def is_name(text: object) -> bool:
    """Whether a target looks like a topology's name rather than "auto", "cpu" or "tpu"."""
    if not isinstance(text, str):
        return False
    return ":" in text or text in GENERATIONS


def parse(text: str) -> Topology:
    """Reads a name such as ``v6e:2x2``; a generation alone stands for one of its chips.

    Raises:
        UnknownTopology: for a name that stands for none; lists what is valid, the nearest first.
    """
    kind, _, size = text.strip().partition(":")
    generation = GENERATIONS.get(kind)
    if generation is not None:
        if not size and ":" not in text:
            return Topology(generation, (1,) * generation.rank)
        parts = size.split("x")
        if all(p.isdecimal() for p in parts):
            shape = tuple(map(int, parts))
            if generation.has(shape):
                return Topology(generation, shape)
    raise errors.UnknownTopology(name=text, nearest=_nearest(text), valid=_valid(generation))


def _nearest(text: str) -> str:
    names = [f"{g.name}:{s}" for g in GENERATIONS.values() for s in g.usual]
    near = difflib.get_close_matches(text, names, 1, cutoff=0.5)
    return f"Did you mean {near[0]!r}? " if near else ""


def _valid(generation: Generation | None) -> str:
    chosen = [generation] if generation else list(GENERATIONS.values())
    return "; ".join(
        f"{g.name}:{{{', '.join(g.usual)}}} and other whole hosts up to "
        + "x".join(map(str, g.most))
        for g in chosen
    )


@functools.lru_cache(maxsize=8)
def devices(topology: Topology) -> tuple[jax.Device, ...]:
    """The topology's devices: what a program can be compiled for, and none of which can run it.

    Raises:
        MissingTpuCompiler: when libtpu is not installed, or does not know the topology.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise errors.MissingTpuCompiler(why="libtpu is not installed")
    from jax.experimental import topologies

    from tpu_compile import process_state

    process_state.without_tpu()
    one = {"chips_per_host_bounds": [1, 1, 1]} if topology.chips == ONE_CHIP else {}
    try:
        described = topologies.get_topology_desc(topology.name, "tpu", **one)
    except Exception as err:  # libtpu's errors have no class of their own
        why = f"libtpu does not know {topology.name}: {err}"
        raise errors.MissingTpuCompiler(why=why) from err
    return tuple(described.devices)
