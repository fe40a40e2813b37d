"""Which dynamic dimensions are rounded up, and to what: the option ``buckets``."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tpu_compile.errors import InvalidOption

# Names of dimensions of every input.
NAMED = {"batch": 0, "seq": 1}

Rules = tuple[tuple[str, int, tuple[int, ...]], ...]  # (pattern of names, dimension, sizes)

_VALID = (
    "Valid: {'seq': [128, 256, 512]}, with ascending positive sizes; names are 'batch' (dimension "
    "0 of every input), 'seq' (dimension 1), or 'NAME.DIM' with a pattern of input names and a "
    "non-negative dimension, as 'pixel_values.2' or '*keys*.2'."
)


def read(given: Any) -> Rules:
    """Checks a user's buckets.

    Raises:
        InvalidOption: for a name or sizes of another form.
    """
    if not isinstance(given, Mapping):
        raise InvalidOption(name="buckets", value=given, valid=_VALID)
    return tuple((*_place(name), _sizes(name, sizes)) for name, sizes in given.items())


def _place(name: Any) -> tuple[str, int]:
    if name in NAMED:
        return "*", NAMED[name]
    match = re.fullmatch(r"(.+)\.(\d+)", str(name))
    if match is None:
        raise InvalidOption(name="buckets", value=name, valid=_VALID)
    return match[1], int(match[2])


def _sizes(name: Any, sizes: Any) -> tuple[int, ...]:
    ok = isinstance(sizes, Sequence) and not isinstance(sizes, str) and len(sizes) > 0
    ok = ok and all(type(n) is int and n > 0 for n in sizes)
    if not ok or list(sizes) != sorted(set(sizes)):
        raise InvalidOption(name=f"buckets[{name!r}]", value=sizes, valid=_VALID)
    return tuple(sizes)


def assign(
    rules: Rules, inputs: Sequence[tuple[str, Sequence[str | None]]]
) -> dict[str, tuple[int, ...]]:
    """The sizes to round each symbol up to.

    Args:
        rules: the user's; the first that names a dimension counts.
        inputs: names of a graph's inputs, and for each dimension the name of its symbol, or None
            where it is no symbol alone.

    Returns:
        By the symbols' names, in the order of the dimensions that they are: as they nest where a
        view merges dimensions.
    """
    found: dict[str, tuple[int, tuple[int, ...]]] = {}
    for pattern, dim, sizes in rules:
        for name, symbols in inputs:
            if not fnmatch.fnmatchcase(name, pattern) or dim >= len(symbols):
                continue
            if (symbol := symbols[dim]) is not None:
                found.setdefault(symbol, (dim, sizes))
    ordered = sorted(found.items(), key=lambda item: item[1][0])
    return {symbol: sizes for symbol, (_, sizes) in ordered}
