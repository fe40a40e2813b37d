"""The table of padding rules, and what most of them need: layouts that must agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from tpu_compile.padding.graph import PaddedGraph
from tpu_compile.padding.layout import ONE, Dim, Layout, equal, whole

Function = Callable[[PaddedGraph, fx.Node], Any]


@dataclass(frozen=True)
class Rule:
    """What an op does to padding.

    Attributes:
        run: a function of (graph, node) that returns the layout of the node's result, or a tuple of
            layouts where it has several. It may put other nodes in the place of the node's
            arguments, and of the node itself.
        sizes: names of the op's arguments that say how large its result is, or where in it
            something stands: they may be computed from padded sizes. A number elsewhere is a
            value, and must be that of the true sizes.
    """

    run: Function
    sizes: tuple[str, ...] = ()


_RULES: dict[Any, Rule] = {}


def pads(*targets: Any, sizes: tuple[str, ...] = ()) -> Callable[[Function], Function]:
    """Registers a function as the rule of ops: see :class:`Rule`."""

    def register(run: Function) -> Function:
        for target in targets:
            if target in _RULES:
                raise ValueError(f"{target} has a padding rule")
            _RULES[target] = Rule(run, sizes)
        return run

    return register


def find(target: Any) -> Rule | None:
    """The rule of an op, or None."""
    return _RULES.get(target)


def argument(node: fx.Node, i: int, name: str, default: Any = None) -> Any:
    """An argument by its place in the op's schema or its name."""
    return node.args[i] if len(node.args) > i else node.kwargs.get(name, default)


def join(g: PaddedGraph, node: fx.Node, layouts: Sequence[Layout]) -> Layout:
    """The layout of a broadcast, whose operands must have their padding in the same places."""
    rank = max(map(len, layouts), default=0)
    out = []
    for d in range(-rank, 0):
        out.append(join_dims(g, node, [layout[d] for layout in layouts if len(layout) >= -d]))
    return tuple(out)


def join_dims(g: PaddedGraph, node: fx.Node, dims: Sequence[Dim]) -> Dim:
    """One dimension of ``join``."""
    dims = [d for d in dims if d.factors]  # the others have one element
    if not dims:
        return ONE
    fixed = [d for d in dims if not d.constant]
    for d in fixed[1:] if any(map(g.is_padded, dims)) else ():
        if not equal(d, fixed[0]):
            g.refuse(node, f"it joins sizes padded in other places: {show(d)} and {show(fixed[0])}")
    return (fixed or dims)[0]


def show(dim: Dim) -> str:
    """A dimension as text."""
    return " * ".join(f"({f})" if f.is_Add else str(f) for f in dim.factors) or "1"


def unpadded(g: PaddedGraph, node: fx.Node, layout: Layout, dims: Sequence[int], why: str) -> None:
    """Refuses a node where one of the dimensions has padding."""
    if any(g.is_padded(layout[d]) for d in dims):
        g.refuse(node, why)


def at_end(g: PaddedGraph, node: fx.Node, dim: Dim) -> Dim:
    """A dimension whose padding lies at its end; refuses the node where it lies between."""
    if dim.constant or not g.is_padded(dim):
        return whole(dim.size)
    if len(dim.factors) != 1:
        g.refuse(node, f"it runs along a dimension padded in between: {show(dim)}")
    return dim


def normal(d: int, rank: int) -> int:
    """A dimension counted from the front."""
    return d + rank if d < 0 else d
