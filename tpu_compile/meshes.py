"""A mesh over a topology's devices, and how tensors lie over it: checks, and what JAX takes."""

from __future__ import annotations

import difflib
import fnmatch
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpu_compile import errors, topologies
from tpu_compile.topologies import Topology

if TYPE_CHECKING:
    import jax

# For each dimension of a tensor the mesh axes that split it; dimensions left out are whole.
Spec = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Mesh:
    """Devices as a grid with named axes.

    Attributes:
        axes: names and sizes, the outermost first.
    """

    axes: tuple[tuple[str, int], ...]

    @classmethod
    def read(cls, given: Any) -> Mesh:
        """A user's mapping of axis names to sizes.

        Raises:
            InvalidOption: for anything else.
        """
        valid = "Valid values: a dict of axis names and sizes, such as {'data': 2, 'model': 4}."
        if not isinstance(given, Mapping) or not given:
            raise errors.InvalidOption(name="mesh", value=given, valid=valid)
        for name, size in given.items():
            whole = isinstance(size, int) and not isinstance(size, bool) and size >= 1
            if not isinstance(name, str) or not name.isidentifier() or not whole:
                raise errors.InvalidOption(name="mesh", value=dict(given), valid=valid)
        return cls(tuple(given.items()))

    @property
    def size(self) -> int:
        """How many devices it has."""
        return math.prod(size for _, size in self.axes)

    def parts(self, axes: Sequence[str]) -> int:
        """Into how many parts these axes split a dimension."""
        sizes = dict(self.axes)
        return math.prod(sizes[a] for a in axes)

    def share(self, spec: Spec) -> int:
        """Into how many parts a spec splits a tensor: a device holds one."""
        return self.parts([axis for axes in spec for axis in axes])

    def __str__(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in self.axes)


def check_fit(mesh: Mesh, topology: Topology) -> None:
    """Refuses a mesh that is not exactly a topology's devices.

    Raises:
        MeshDoesNotFit: says how many there are and what would fit.
    """
    if mesh.size == topology.devices:
        return
    raise errors.MeshDoesNotFit(
        mesh=mesh,
        size=mesh.size,
        topology=topology.name,
        devices=topology.devices,
        chips=topology.chips,
        instead=_instead(mesh, topology),
    )


def _instead(mesh: Mesh, topology: Topology) -> str:
    """A mesh that fits, by changing one axis, or else by one axis alone; and a larger slice."""
    found = []
    for i, (name, size) in enumerate(mesh.axes):
        others = mesh.size // size
        if topology.devices % others == 0:
            axes = list(mesh.axes)
            axes[i] = (name, topology.devices // others)
            found.append(f"mesh ({Mesh(tuple(axes))})")
            break
    else:
        found.append(f"mesh ({mesh.axes[0][0]}={topology.devices})")
    generation = topology.generation
    for shape in generation.usual:
        other = topologies.parse(f"{generation.name}:{shape}")
        if other.devices == mesh.size:
            found.append(f"topology {other.name!r}")
            break
    return " or ".join(found)


@functools.lru_cache(maxsize=8)
def jax_mesh(mesh: Mesh, topology: Topology) -> jax.sharding.Mesh:
    """JAX's mesh over a topology's devices, neighbours along an axis near each other."""
    import numpy as np
    from jax.experimental import mesh_utils
    from jax.sharding import Mesh as JaxMesh

    devices = topologies.devices(topology)
    shape = tuple(size for _, size in mesh.axes)
    if topology.generation.name == "v4":  # its two devices a chip are unknown to mesh_utils
        grid = np.array(devices, dtype=object).reshape(shape)
    else:
        grid = mesh_utils.create_device_mesh(shape, devices=devices, allow_split_physical_axes=True)
    return JaxMesh(grid, tuple(name for name, _ in mesh.axes))


# ---------------------------------------------------------------- specs

Rules = tuple[tuple[str, Spec], ...]
NAMES_SHOWN = 5  # in a text


def read_rules(given: Any, mesh: Mesh | None) -> Rules:
    """A user's mapping of name patterns to specs.

    Args:
        given: such as ``{"layers.*.weight": ("model", None), "x": ("data",)}``: for each dimension
            an axis, a tuple of axes, or None.
        mesh: whose axes there are.

    Raises:
        InvalidOption: for something else, or an axis that the mesh lacks.
    """
    if mesh is None:
        raise errors.InvalidOption(
            name="shardings", value=given, valid="They need a mesh: options={'mesh': {'data': 4}}."
        )
    valid = "Valid values: a dict such as {'layers.*.weight': ('model', None), 'x': ('data',)}."
    if not isinstance(given, Mapping):
        raise errors.InvalidOption(name="shardings", value=given, valid=valid)
    return tuple((str(name), _read_spec(str(name), spec, mesh)) for name, spec in given.items())


def _read_spec(name: str, given: Any, mesh: Mesh) -> Spec:
    known = dict(mesh.axes)
    named = f"shardings[{name!r}]"
    if isinstance(given, str) or not isinstance(given, Iterable):
        valid = "Valid values: a tuple with an axis, a tuple of axes, or None for each dimension."
        raise errors.InvalidOption(name=named, value=given, valid=valid)
    spec = tuple(
        () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
        for entry in given
    )
    used = [axis for axes in spec for axis in axes]
    for axis in used:
        if axis not in known:
            near = difflib.get_close_matches(str(axis), known, 1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            valid = f"{hint}The mesh has the axes {', '.join(known)}."
            raise errors.InvalidOption(name=named, value=given, valid=valid)
    if len(set(used)) < len(used):
        valid = "An axis can split one dimension only."
        raise errors.InvalidOption(name=named, value=given, valid=valid)
    return spec


def assign(rules: Rules, mesh: Mesh, tensors: Sequence[tuple[str, tuple[int, ...]]]) -> list[Spec]:
    """The spec of each named tensor: of the first rule whose pattern its name matches, or whole.

    Raises:
        BadSharding: for a spec that does not fit a tensor's shape, or a rule for no tensor.
    """
    unused = {pattern for pattern, _ in rules}
    found: list[Spec] = []
    for name, shape in tensors:
        rule = next((r for r in rules if fnmatch.fnmatchcase(name, r[0])), None)
        if rule is None:
            found.append(())
            continue
        unused.discard(rule[0])
        check_spec(name, shape, rule[1], mesh)
        found.append(rule[1])
    for pattern, _ in rules:
        if pattern in unused:
            names = [name for name, _ in tensors]
            near = difflib.get_close_matches(pattern, names, 3, cutoff=0.3)
            some = [*near, *(n for n in names if n not in near)][:NAMES_SHOWN]
            why = "no parameter, buffer or input has a name like it that no earlier rule took. "
            why += f"Names are such as {', '.join(some)}"
            raise errors.BadSharding(name=pattern, why=why)
    return found


def check_spec(name: str, shape: tuple[int, ...], spec: Spec, mesh: Mesh) -> None:
    """Refuses a spec that a tensor can't be split by evenly.

    Raises:
        BadSharding: names the tensor, the axes, the sizes, and the nearest spec that works.
    """
    if len(spec) > len(shape):
        why = f"it names {len(spec)} dimensions, the tensor is {list(shape)}"
        raise errors.BadSharding(name=name, why=why)
    for d, axes in enumerate(spec):
        if shape[d] % mesh.parts(axes):
            why = (
                f"{' x '.join(axes)} = {mesh.parts(axes)} does not divide dimension {d} of "
                f"{list(shape)}. The nearest that works is {_nearest(shape, spec, mesh)}"
            )
            raise errors.BadSharding(name=name, why=why)


def _nearest(shape: tuple[int, ...], spec: Spec, mesh: Mesh) -> str:
    """The spec with axes that don't fit moved to a whole dimension that they do, or left out."""
    new = [axes if shape[d] % mesh.parts(axes) == 0 else () for d, axes in enumerate(spec)]
    new += [()] * (len(shape) - len(new))
    for d, axes in enumerate(spec):
        if new[d] == axes:
            continue
        free = (e for e, n in enumerate(shape) if not new[e] and n and n % mesh.parts(axes) == 0)
        place = next(free, None)
        if place is not None:
            new[place] = axes
    return text(tuple(new))


def text(spec: Spec) -> str:
    """A spec as a user writes it."""
    entries = [
        "None" if not axes else repr(axes[0]) if len(axes) == 1 else repr(axes) for axes in spec
    ]
    return f"({', '.join(entries)}{',' if len(entries) == 1 else ''})"


def named_sharding(mesh: Mesh, topology: Topology, spec: Spec) -> jax.sharding.NamedSharding:
    """A spec as JAX takes it."""
    from jax.sharding import NamedSharding, PartitionSpec

    entries = (axes or None for axes in spec)
    return NamedSharding(jax_mesh(mesh, topology), PartitionSpec(*entries))


def in_order(spec: Spec, order: Sequence[int]) -> Spec:
    """A tensor's spec for its dimensions in another order, as a program takes them."""
    return tuple(spec[d] if d < len(spec) else () for d in order)


def logical(sharding: jax.sharding.Sharding, order: Sequence[int]) -> Spec:
    """The spec of a tensor whose dimensions a program returns in an order."""
    entries = getattr(sharding, "spec", ())
    spec = {d: e for d, e in zip(order, entries, strict=False) if e is not None}
    return tuple(
        () if d not in spec else (spec[d],) if isinstance(spec[d], str) else tuple(spec[d])
        for d in range(len(order))
    )
