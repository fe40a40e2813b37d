"""Nested arguments and results as plain data: which containers, and leaves in order.

A container is a tuple, list, dict or namedtuple. Any other type that torch knows how to flatten,
such as a dataclass or an output class of Transformers, is written as a dict of its fields: no class
is ever looked up by a name that a file gives.
"""

from __future__ import annotations

import collections
import functools
import keyword
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch.utils import _pytree as pytree

from tpu_compile.portable.errors import NotExportable


@dataclass(frozen=True)
class Tree:
    """A container and what is in it, or a leaf.

    Attributes:
        kind: of container. "dict" stands for other classes with named fields, too.
        keys: of a dict; the field names of a namedtuple.
        children: one for each place.
        name: the class's name, for a namedtuple and for other classes.
    """

    kind: Literal["leaf", "tuple", "list", "dict", "namedtuple"] = "leaf"
    keys: tuple[str | int, ...] = ()
    children: tuple[Tree, ...] = ()
    name: str = ""

    def paths(self, path: str = "") -> Iterator[str]:
        """What each leaf is called, in order: ``batch['x'][0]``."""
        if self.kind == "leaf":
            yield path
        for place, child in zip(self._places(), self.children, strict=True):
            yield from child.paths(path + place)

    def _places(self) -> list[str]:
        if self.kind == "namedtuple":
            return [f".{k}" for k in self.keys]
        if self.kind == "dict":
            return [f"[{k!r}]" for k in self.keys]
        return [f"[{i}]" for i in range(len(self.children))]

    def build(self, leaves: Iterator[Any]) -> Any:
        """The containers with the next leaves in them."""
        if self.kind == "leaf":
            return next(leaves)
        values = [child.build(leaves) for child in self.children]
        if self.kind == "dict":
            return dict(zip(self.keys, values, strict=True))
        if self.kind == "namedtuple":
            return _namedtuple(self.name, tuple(map(str, self.keys)))(*values)
        return tuple(values) if self.kind == "tuple" else values

    def take(self, value: Any, path: str, refuse: Callable[[str, str], Exception]) -> Iterator[Any]:
        """The leaves of a value that has to have these containers.

        Args:
            value: an argument of a call.
            path: its name.
            refuse: makes the error for a place and what is wrong there.
        """
        if self.kind == "leaf":
            yield value
            return
        parts = self._parts(value)
        if isinstance(parts, str):
            raise refuse(path, parts)
        for place, child, part in zip(self._places(), self.children, parts, strict=True):
            yield from child.take(part, path + place, refuse)

    def _parts(self, value: Any) -> Sequence[Any] | str:
        count, got = len(self.children), type(value).__name__
        if self.kind == "dict":
            if isinstance(value, Mapping):
                if set(value) != set(self.keys):
                    return f"expected the keys {list(self.keys)}, got {list(value)}"
                return [value[k] for k in self.keys]
            if self.name and all(isinstance(k, str) and hasattr(value, k) for k in self.keys):
                return [getattr(value, str(k)) for k in self.keys]
            return f"expected a dict with the keys {list(self.keys)}, got a {got}"
        if not isinstance(value, tuple | list):
            return f"expected a {self.kind} of {count}, got a {got}"
        if len(value) != count:
            return f"expected a {self.kind} of {count}, got {len(value)}"
        return value


LEAF = Tree()


def of_spec(spec: pytree.TreeSpec, where: str) -> Tree:
    """A torch tree spec as plain data.

    Args:
        spec: of arguments or results.
        where: what it is of, for errors.

    Raises:
        NotExportable: for a dict whose keys are neither strings nor integers.
    """
    if spec.is_leaf():
        return LEAF
    children = tuple(of_spec(c, where) for c in spec.children())
    kind, context = spec.type, spec.context
    if kind is tuple:
        return Tree("tuple", (), children)
    if kind is pytree.namedtuple:
        return Tree("namedtuple", tuple(context._fields), children, context.__name__)
    if isinstance(kind, type) and issubclass(kind, tuple):  # torch.return_types.max and the like
        return Tree("namedtuple", tuple(kind.__match_args__), children, kind.__name__)  # type: ignore[attr-defined]
    if kind in (dict, collections.OrderedDict):
        return Tree("dict", _keys(context, where), children)
    if kind is collections.defaultdict:
        return Tree("dict", _keys(context[1], where), children)
    names = _field_names(context, len(children))
    if names is not None:
        return Tree("dict", names, children, kind.__name__)
    return Tree("list", (), children)


def _keys(keys: Sequence[Any], where: str) -> tuple[str | int, ...]:
    for k in keys:
        if type(k) not in (str, int):
            why = f"it has a dict with the key {k!r}, and keys must be strings or integers"
            raise NotExportable(what=where, why=why)
    return tuple(keys)


def _field_names(context: Any, count: int) -> tuple[str, ...] | None:
    """The names of the fields that a class was flattened to, where its context has them.

    Transformers keeps a list of them; torch's dataclasses a list of two: those, and those that are
    None.
    """
    for names in (context, context[0] if isinstance(context, list | tuple) and context else None):
        if (
            isinstance(names, list | tuple)
            and len(names) == count
            and all(isinstance(n, str) for n in names)
        ):
            return tuple(names)
    return None


@functools.cache
def _namedtuple(name: str, fields: tuple[str, ...]) -> Any:
    usable = name.isidentifier() and not keyword.iskeyword(name)
    return collections.namedtuple(name if usable else "Result", fields, rename=True)
