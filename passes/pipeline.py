"""The order of the passes on a forward, backward or inference graph, and the check after each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import fx

from tpu_compile.errors import BrokenGraph, InvalidPass, PassFailed
from tpu_compile.passes.base import Pass
from tpu_compile.passes.functional_random import functional_random
from tpu_compile.passes.recompute_batch_norm import recompute_batch_norm
from tpu_compile.passes.remove_no_ops import remove_no_ops

JOINT: tuple[Pass, ...] = (functional_random, recompute_batch_norm)
"""On the joint graph, before it is split into forward and backward."""

DEFAULT: tuple[Pass, ...] = (remove_no_ops,)
"""On each graph after that."""


def compose(extra: Mapping[str, tuple[Pass, ...]] | None = None) -> tuple[Pass, ...]:
    """The default passes with a plug-in's put after the ones they name.

    Raises:
        InvalidPass: for an unknown name, a name used twice, or an order that ``after`` forbids.
    """
    extra = dict(extra or {})
    known = {p.name for p in DEFAULT}
    for name in extra:
        if name not in known:
            raise InvalidPass(name=name, why=f"there is no such pass; there are {sorted(known)}")
    order = tuple(p for d in DEFAULT for p in (d, *extra.get(d.name, ())))
    seen: set[str] = set()
    for p in order:
        if p.name in seen:
            raise InvalidPass(name=p.name, why="the name is taken")
        if missing := [a for a in p.after if a not in seen]:
            raise InvalidPass(name=p.name, why=f"it must come after {missing}")
        seen.add(p.name)
    return order


def run(
    gm: fx.GraphModule,
    passes: tuple[Pass, ...],
    observe: Callable[[str, fx.GraphModule, int], None] | None = None,
) -> None:
    """Runs passes over a graph in place, and verifies it after each one that changed it.

    Args:
        gm: a functional ATen graph with ``meta["val"]`` on each node.
        passes: in this order.
        observe: called with a pass's name, the graph and the count of changes, after each pass.

    Raises:
        PassFailed: when a pass raises.
        BrokenGraph: when a pass leaves an invalid graph.
    """
    for p in passes:
        try:
            changes = p.run(gm)
        except Exception as err:
            raise PassFailed(name=p.name, error=f"{type(err).__name__}: {err}") from err
        if changes:
            gm.recompile()
            verify(gm, p.name)
        if observe is not None:
            observe(p.name, gm, changes)


def verify(gm: fx.GraphModule, name: str) -> None:
    """Checks that a graph is well formed and each of its values has its type.

    Raises:
        BrokenGraph: naming the pass and the node.
    """
    try:
        gm.graph.lint()
    except Exception as err:
        raise BrokenGraph(name=name, why=str(err)) from err
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.users and "val" not in node.meta:
            raise BrokenGraph(name=name, why=f"{node.name} has no meta['val']", node=node)
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            raise BrokenGraph(name=name, why=f"{node.name} mutates its arguments", node=node)
