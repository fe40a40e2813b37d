"""A model's tensors by name: stored once however they share memory, and sharing it when loaded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from tpu_compile import buffers
from tpu_compile.portable import safetensors_file
from tpu_compile.portable.codec import Malformed
from tpu_compile.portable.errors import NotExportable
from tpu_compile.portable.manifest import Array, Weight, dtype_name

Kind = Literal["parameter", "buffer", "constant"]


@dataclass(frozen=True)
class _Place:
    """Where a tensor is in its storage, counted in elements."""

    name: str
    tensor: torch.Tensor

    @property
    def start(self) -> int:
        return int(self.tensor.storage_offset())

    @property
    def end(self) -> int:
        t = self.tensor
        return self.start + 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))

    @property
    def layout(self) -> tuple[object, ...]:
        t = self.tensor
        return (t.storage_offset(), t.shape, t.stride(), t.is_conj(), t.is_neg())


def plan(
    state: Mapping[str, torch.Tensor], kinds: Mapping[str, Kind], mutated: frozenset[str]
) -> tuple[dict[str, Weight], dict[str, torch.Tensor]]:
    """Decides how tensors are stored.

    Tensors that are one and the same are stored once. Tensors that are different views of one
    memory are stored as that memory, so that they are views of one when loaded. Any other is
    stored by itself, C-contiguous.

    Args:
        state: the tensors by name.
        kinds: what each is.
        mutated: names of those that calls change.

    Returns:
        What the manifest says of each name, and what to store.

    Raises:
        NotExportable: for a tensor without data, or of a layout or dtype that can't be stored.
    """
    weights: dict[str, Weight] = {}
    stored: dict[str, torch.Tensor] = {}
    for places in _sharing(state):
        first = places[0].name
        low = min(p.start for p in places)
        alone = len({p.layout for p in places}) == 1
        stored[first] = _storable(places[0].tensor if alone else _memory(places, low))
        for p in places:
            size, stride = tuple(p.tensor.shape), tuple(p.tensor.stride())
            order = None if alone else buffers.dense_permutation(size, stride)
            array = Array(dtype_name(p.tensor.dtype), size, order or tuple(range(len(size))))
            kind, written = kinds[p.name], p.name in mutated
            if alone:
                weights[p.name] = Weight(kind, array, first, mutated=written)
            else:
                weights[p.name] = Weight(kind, array, first, stride, p.start - low, written)
    return {name: weights[name] for name in state}, stored


def _sharing(state: Mapping[str, torch.Tensor]) -> list[list[_Place]]:
    """Groups of tensors whose places in memory overlap."""
    by_storage: dict[object, list[_Place]] = defaultdict(list)
    for name, t in state.items():
        _refuse(name, t)
        t = t.detach()
        key: object = (t.untyped_storage()._cdata, t.device, t.dtype) if t.numel() else name
        by_storage[key].append(_Place(name, t))
    groups: list[list[_Place]] = []
    for places in by_storage.values():
        if not places[0].tensor.numel():
            groups.append(places)
            continue
        end = -1
        for p in sorted(places, key=lambda p: p.start):
            if p.start >= end:
                groups.append([])
            groups[-1].append(p)
            end = max(end, p.end)
    return groups


def _refuse(name: str, t: torch.Tensor) -> None:
    what = f"weight {name!r}"
    if t.is_meta:
        raise NotExportable(what=what, why="it is on the meta device and has no values")
    if t.layout != torch.strided or t.is_quantized:
        raise NotExportable(what=what, why=f"its layout is {t.layout} and only plain tensors are")
    if type(t) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        why = f"it is a {type(t).__name__}, and only plain tensors are. Convert it first"
        raise NotExportable(what=what, why=why)


def _memory(places: Sequence[_Place], low: int) -> torch.Tensor:
    """The stretch of memory that overlapping tensors are in, as one dimension."""
    high = max(p.end for p in places)
    t = places[0].tensor
    if t.is_conj() or t.is_neg():
        why = "it shares memory with others as their conjugate or negative. Clone it first"
        raise NotExportable(what=f"weight {places[0].name!r}", why=why)
    return t.as_strided((high - low,), (1,), low)


def _storable(t: torch.Tensor) -> torch.Tensor:
    """A C-contiguous CPU tensor of a dtype that the file format knows; bytes where it has none."""
    t = buffers.physical(t.cpu())
    return t if safetensors_file.has_name(t.dtype) else t.flatten().view(torch.uint8)


def unpack(
    weights: Mapping[str, Weight], stored: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The tensors by name again, sharing memory as they did.

    Raises:
        Malformed: where what is stored does not fit what the manifest says.
    """
    made: dict[object, torch.Tensor] = {}
    found: dict[str, torch.Tensor] = {}
    for name, w in weights.items():
        key = (w.stored, w.array, w.stride, w.offset)
        if key not in made:
            if w.stored not in stored:
                raise Malformed(f"weight {name!r} is not stored")
            try:
                t = _view(stored[w.stored], w)
            except RuntimeError as err:
                raise Malformed(f"weight {name!r} does not fit what is stored: {err}") from err
            made[key] = _marked(t, w.kind)
        found[name] = made[key]
    return found


def _view(stored: torch.Tensor, w: Weight) -> torch.Tensor:
    dtype = w.array.torch_dtype
    if stored.dtype != dtype:
        if stored.dtype != torch.uint8:
            raise RuntimeError(f"it is stored as {stored.dtype}")
        stored = stored.flatten().view(dtype)
    if w.stride is None:
        return stored.reshape(w.array.shape)
    return stored.as_strided(w.array.shape, w.stride, w.offset)


def _marked(t: torch.Tensor, kind: Kind) -> torch.Tensor:
    """The tensor as a parameter or buffer, whose JAX arrays are kept between calls."""
    if kind == "parameter":
        return torch.nn.Parameter(t, requires_grad=False)
    return torch.nn.Buffer(t)
