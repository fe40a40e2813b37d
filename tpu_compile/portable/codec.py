"""Frozen dataclasses from JSON, checked against their annotations: nothing else is ever made."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any


class Malformed(ValueError):
    """JSON that is not of the annotated type; the text says where."""


def encode(value: Any) -> Any:
    """A tree of dataclasses, tuples and dicts as JSON values; fields left at their default go."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = [(f, getattr(value, f.name)) for f in dataclasses.fields(value)]
        return {f.name: encode(v) for f, v in given if v != f.default or type(v) is bool}
    if isinstance(value, tuple | list):
        return [encode(v) for v in value]
    if isinstance(value, dict):
        return {k: encode(v) for k, v in value.items()}
    return value


def decode(kind: Any, value: Any, where: str) -> Any:
    """JSON values as the annotated type.

    Args:
        kind: a dataclass, ``tuple[X, ...]``, ``dict[str, X]``, a union, Literal, a plain type, Any.
        value: what ``json.loads`` gave.
        where: the value's place in the file, for errors.

    Raises:
        Malformed: where a value has another type than its annotation.
    """
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(kind, value, where)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (tuple, dict):
        return _container(origin, args, value, where)
    if origin in (types.UnionType, typing.Union):
        return _union(args, value, where)
    known = value in args if origin is typing.Literal else _is(value, kind)
    if not known:
        raise Malformed(f"{where} is {value!r}")
    return value


def _is(value: Any, kind: Any) -> bool:
    if kind is Any:
        return True
    if kind is types.NoneType:
        return value is None
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _dataclass(kind: type, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise Malformed(f"{where} is {value!r}")
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    if missing := [
        name
        for name, f in fields.items()
        if name not in value
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]:
        raise Malformed(f"{where} lacks {missing[0]!r}")
    # what a later minor version may add is not ours to judge
    known = {k: v for k, v in value.items() if k in fields}
    return kind(**{k: decode(hints[k], v, f"{where}.{k}") for k, v in known.items()})


def _container(origin: type, args: tuple[Any, ...], value: Any, where: str) -> Any:
    if origin is dict:
        if not isinstance(value, dict):
            raise Malformed(f"{where} is {value!r}")
        return {k: decode(args[1], v, f"{where}[{k!r}]") for k, v in value.items()}
    if not isinstance(value, list):
        raise Malformed(f"{where} is {value!r}")
    return tuple(decode(args[0], v, f"{where}[{i}]") for i, v in enumerate(value))


def _union(args: tuple[Any, ...], value: Any, where: str) -> Any:
    for kind in args:
        try:
            return decode(kind, value, where)
        except Malformed:
            # one alternative to None: its own error says more
            if set(args) == {kind, types.NoneType} and value is not None:
                raise
    raise Malformed(f"{where} is {value!r}")
