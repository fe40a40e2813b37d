"""Handing what is made deep inside to whoever collects it further out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")


class Collection(Generic[T]):
    """One kind of thing that can be collected, in each thread and context for itself."""

    def __init__(self, name: str) -> None:
        self._innermost: ContextVar[list[T] | None] = ContextVar(name, default=None)

    def add(self, item: T) -> None:
        """Hands a thing to the innermost ``collect``; it is dropped where there is none."""
        found = self._innermost.get()
        if found is not None:
            found.append(item)

    @contextmanager
    def collect(self) -> Iterator[list[T]]:
        """Gives what is added within, in its order."""
        found: list[T] = []
        token = self._innermost.set(found)
        try:
            yield found
        finally:
            self._innermost.reset(token)
