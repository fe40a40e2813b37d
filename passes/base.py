"""What a pass is: a name, a function that rewrites a graph in place, and what must precede it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch.fx import GraphModule


@dataclass(frozen=True)
class Pass:
    """A graph rewrite.

    Attributes:
        name: verb first, as in ``"fuse-silu-mul"``; shown in dumps, logs and errors.
        run: rewrites a graph in place and returns how many places it changed. What it makes has
            ``meta["val"]`` and the ``stack_trace`` of what it replaces.
        after: names of passes that must have run before; checked, never sorted by.
    """

    name: str
    run: Callable[[GraphModule], int]
    after: tuple[str, ...] = ()
