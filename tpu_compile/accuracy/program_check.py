"""A graph's whole program compared with torch; where it is off, the smallest prefix that is."""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from tpu_compile import program, specialize, torch_internals
from tpu_compile.accuracy.reference import (
    UNDEFINED,
    Choices,
    InFloat64,
    Reference,
    in_float64,
    output_names,
)
from tpu_compile.accuracy.tolerance import Difference, Tolerance, compare_all
from tpu_compile.lowering.interpreter import Settings
from tpu_compile.lowering.types import RuntimeScalar
from tpu_compile.options import Options


@dataclass(frozen=True)
class Departure:
    """How a program is off.

    Attributes:
        differences: of its outputs, where they are too large.
        why: the text of the error, where it did not compile or run.
        node: the op at the end of the smallest prefix that is off; None for the whole program.
    """

    differences: tuple[Difference, ...]
    why: str = ""
    node: fx.Node | None = None

    def __bool__(self) -> bool:
        return bool(self.differences or self.why)


@dataclass
class ProgramCheck:
    """Compiles whole graphs as the backend does, and compares what they give."""

    options: Options
    settings: Settings
    tolerance: Tolerance
    choices: Choices

    def whole(self, gm: fx.GraphModule, args: Sequence[Any]) -> Departure:
        """Runs a captured graph's program: the passes, fallbacks and compiler options included."""
        return self._compared(gm, args, self.options)

    def smallest_prefix(
        self, gm: fx.GraphModule, args: Sequence[Any], whole: Departure
    ) -> Departure:
        """Finds the first op of a final graph that is off when compiled with all before it."""
        options = dataclasses.replace(self.options, passes_after={})
        ops, found = ops_of(gm), {}

        def departs(count: int) -> bool:
            found[count] = self._compared(prefix_of(gm, count), args, options)
            return bool(found[count])

        count = smallest(len(ops), departs)
        last = found.get(count) or whole
        return dataclasses.replace(last, node=_culprit(ops, count, last))

    def _compared(self, gm: fx.GraphModule, args: Sequence[Any], options: Options) -> Departure:
        expected = Reference(gm, self.choices).outputs(args)
        try:
            with program.collected():
                run = program.Program.build(
                    specialize.copy_graph(gm), options, self.settings, "bisect"
                )
            got = run(list(args))
        except Exception as err:
            return Departure((), f"{type(err).__name__}: {err}")
        exact = lambda: in_float64(lambda: InFloat64(gm, self.choices).outputs(args))  # noqa: E731
        found = compare_all(got, expected, output_names(gm), self.tolerance, exact)
        return Departure(tuple(d for d in found if d.departs))


def _culprit(ops: Sequence[fx.Node], count: int, departure: Departure) -> fx.Node:
    """The op at the end of a prefix, or, where its own value is right, one whose value is not."""
    names = {d.what for d in departure.differences}
    off = [n for n in ops[:count] if {n.name, *(u.name for u in _parts(n))} & names]
    return ops[count - 1] if not off or ops[count - 1] in off else off[0]


def _parts(node: fx.Node) -> list[fx.Node]:
    return [u for u in node.users if u.target is operator.getitem]


# ---------------------------------------------------------------- prefixes


def ops_of(gm: fx.GraphModule) -> list[fx.Node]:
    """A graph's ops in its order; a part of a result counts as its op."""
    found = gm.graph.nodes
    return [n for n in found if n.op == "call_function" and n.target is not operator.getitem]


def prefix_of(gm: fx.GraphModule, count: int) -> fx.GraphModule:
    """A graph's first ``count`` ops: returns what they compute that is needed after them."""
    later = set(ops_of(gm)[count:])
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if node.op == "output" or node in later or any(n not in made for n in node.all_input_nodes):
            continue
        made[node] = graph.node_copy(node, made.__getitem__)
        made[node].meta = copy.copy(node.meta)
    results = [n for n in made if _is_value(n) and any(u not in made for u in n.users)]
    graph.output(tuple(made[n] for n in results))
    return torch_internals.graph_module(gm, graph)


def _is_value(node: fx.Node) -> bool:
    if node.op != "call_function" or node.target in UNDEFINED:
        return False
    return isinstance(node.meta.get("val"), torch.Tensor | RuntimeScalar)


def smallest(count: int, holds: Callable[[int], bool]) -> int:
    """A number that something holds for and not for the one before.

    It holds for ``count`` and not for 0; neither is asked.
    """
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
