"""HLO shape text such as ``(s32[], bf16[8,128]{1,0:T(8,128)(2,1)S(1)})`` to shapes with sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeAlias

HBM = 0

_BITS = {
    "pred": 8,
    "token": 0,
    "opaque": 0,
    "bf16": 16,
    "c64": 64,
    "c128": 128,
}
_NUMBERED = re.compile(r"[suf](\d+)(?:e\d+m\d+\w*)?")

_ARRAY = re.compile(r"(\w+)\[([^\]]*)\](?:\{([^}]*)\})?")
_GAP = re.compile(r"(?:\s|/\*index=\d+\*/)*")
_MEMORY_SPACE = re.compile(r"S\((\d+)\)")
_ELEMENT_BITS = re.compile(r"E\((\d+)\)")


class BadShape(ValueError):
    """Text that is no shape, or one of a type that this module has no size for."""


def bits(dtype: str) -> int:
    """Bits of one element of an HLO type: 4 for ``s4``, 8 for ``f8e4m3fn`` and ``pred``."""
    known = _BITS.get(dtype)
    if known is None:
        numbered = _NUMBERED.fullmatch(dtype)
        if numbered is None:
            raise BadShape(f"unknown element type {dtype!r}")
        known = _BITS[dtype] = int(numbered[1])
    return known


@dataclass(frozen=True)
class ArrayShape:
    """One array.

    Args:
        dtype: HLO's name, such as ``bf16``.
        dims: sizes; of a dimension of dynamic size, its bound.
        layout: the text between the braces, such as ``1,0:T(8,128)``.
        memory_space: 0 is HBM (the host's memory, for programs of the CPU). TPU programs
            have VMEM as 1; other numbers are no HBM either.
        element_bits: as stored. Types of less than a byte take a whole one, unless packed.
    """

    dtype: str
    dims: tuple[int, ...]
    layout: str
    memory_space: int
    element_bits: int

    @cached_property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the elements, without what tiling pads them to."""
        return -(-self.elements * self.element_bits // 8)

    @property
    def hbm_bytes(self) -> int:
        """``nbytes``, or 0 for an array outside HBM."""
        return self.nbytes if self.memory_space == HBM else 0


Shape: TypeAlias = "ArrayShape | tuple[Shape, ...]"


def arrays(shape: Shape) -> Iterator[ArrayShape]:
    """The arrays of a shape, tuples of tuples flattened."""
    if isinstance(shape, ArrayShape):
        yield shape
    else:
        for element in shape:
            yield from arrays(element)


def elements(shape: Shape) -> int:
    """Elements of all arrays of a shape."""
    return sum(array.elements for array in arrays(shape))


def hbm_bytes(shape: Shape) -> int:
    """Bytes of those arrays of a shape that are in HBM."""
    return sum(array.hbm_bytes for array in arrays(shape))


def first(shape: Shape) -> ArrayShape:
    """The first array of a shape."""
    for array in arrays(shape):
        return array
    raise BadShape("an empty tuple has no array")


@lru_cache(maxsize=65536)
def _array(dtype: str, dims: str, layout: str | None) -> ArrayShape:
    sizes = []
    for dim in dims.split(",") if dims else []:
        size = dim.strip().removeprefix("<=")
        if not size.isdecimal():
            raise BadShape(f"dimension {dim!r} has no size")
        sizes.append(int(size))
    _, _, properties = (layout or "").partition(":")
    space = _MEMORY_SPACE.search(properties)
    packed = _ELEMENT_BITS.search(properties)
    width = bits(dtype)
    if packed:
        width = int(packed[1])
    elif layout is not None and 0 < width < 8:
        width = 8
    memory = int(space[1]) if space else HBM
    return ArrayShape(dtype, tuple(sizes), layout or "", memory, width)


def parse(text: str, start: int = 0) -> tuple[Shape, int]:
    """The shape at ``start`` of a text, and where it ends.

    Raises:
        BadShape: there is none, or it has no size.
    """
    array = _ARRAY.match(text, start)
    if array:
        return _array(array[1], array[2], array[3]), array.end()
    if not text.startswith("(", start):
        raise BadShape(f"no shape at {text[start : start + 40]!r}")
    return _tuple(text, start)


def _tuple(text: str, start: int) -> tuple[Shape, int]:
    parts: list[Shape] = []
    at = _skip(text, start + 1)
    while not text.startswith(")", at):
        part, at = parse(text, at)
        parts.append(part)
        at = _skip(text, at)
        if text.startswith(",", at):
            at = _skip(text, at + 1)
        elif not text.startswith(")", at):
            raise BadShape(f"no comma or end of tuple at {text[at : at + 40]!r}")
    return tuple(parts), at + 1


def _skip(text: str, at: int) -> int:
    gap = _GAP.match(text, at)
    return gap.end() if gap else at
