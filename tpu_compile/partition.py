"""Splits a graph into compiled and eager stages in linear time.

Every node gets the number of its stage: odd ones compiled, even ones eager. A node comes no earlier
than what it reads, so the stages form no cycle; two walks are all it takes.
"""

from __future__ import annotations

import operator
import warnings
from collections import Counter
from collections.abc import Container

import torch
from torch import fx
from torch.fx.passes.split_module import split_module

from tpu_compile.errors import FallbackWarning, user_frame
from tpu_compile.lowering import registry, scalars

_warned: set[tuple[str, str]] = set()
_counts: Counter[str] = Counter()


def has_rule(node: fx.Node) -> bool:
    """Whether a node can be lowered, as far as its op tells."""
    return (
        node.op != "call_function"
        or node.target is operator.getitem
        or scalars.is_scalar_op(node.target)
        or registry.find(node.target) is not None
    )


def unsupported(gm: fx.GraphModule) -> dict[fx.Node, fx.Node]:
    """The nodes of a graph that can't be lowered, each with the node at fault.

    That is the node itself, or one in the body of the control flow that it is.
    """
    found: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if not has_rule(node):
            found[node] = node
            continue
        for body in (n for n in node.all_input_nodes if n.op == "get_attr"):
            module = getattr(gm, str(body.target), None)
            inner = unsupported(module) if isinstance(module, fx.GraphModule) else {}
            if inner:
                found[node] = next(iter(inner.values()))
    return found


def split(gm: fx.GraphModule, eager: Container[fx.Node]) -> tuple[fx.GraphModule, set[str]]:
    """Splits a graph so that ``eager`` nodes are apart from the rest.

    Returns:
        A graph of ``call_module`` nodes, and the names of the modules that are to be compiled.
    """
    stages = _stages(gm, eager)
    parts = split_module(gm, gm, lambda n: stages[n], keep_original_order=True)
    compiled = {name for name, _ in parts.named_children() if int(name.removeprefix("submod_")) % 2}
    return parts, compiled


def _stages(gm: fx.GraphModule, eager: Container[fx.Node]) -> dict[fx.Node, int]:
    stages: dict[fx.Node, int] = {}
    last_ordered = 0  # random ops run in program order
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        if node.op == "get_attr":
            stages[node] = 0
            continue
        if node.target is operator.getitem:
            stages[node] = stages[node.args[0]]
            continue
        base = max((stages[i] for i in node.all_input_nodes if i in stages), default=0)
        want = int(node not in eager)
        stage = base if base % 2 == want else base + 1
        if _is_random(node):
            stage = stage if stage >= last_ordered else last_ordered + (last_ordered % 2 != want)
            last_ordered = stage
        stages[node] = stage
    for node in gm.graph.nodes:
        if node.op == "get_attr" and node.users:
            stages[node] = min(stages[u] for u in node.users if u in stages)
    return stages


def _is_random(node: fx.Node) -> bool:
    op = node.target
    return isinstance(op, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in op.tags


def report(node: fx.Node, why: str) -> None:
    """Counts an op that will run eagerly, and warns once per op and line of the user's."""
    op, frame = str(node.target), user_frame(node) or ""
    _counts[op] += 1
    if (op, frame) in _warned:
        return
    _warned.add((op, frame))
    where = f"\nfrom your code:\n{frame}" if frame else ""
    warnings.warn(f"{op} runs eagerly on the CPU: {why}{where}", FallbackWarning, stacklevel=2)


def fallbacks() -> dict[str, int]:
    """How many nodes of each op were compiled as eager fallbacks in this process."""
    return dict(_counts)


def reset() -> None:
    """Forgets counts and what was warned of."""
    _warned.clear()
    _counts.clear()
