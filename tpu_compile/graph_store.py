"""FX graphs as plain data that pickles: ops by name, types and sizes instead of fake tensors."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tpu_compile.specialize import Number, Spec


@dataclass(frozen=True)
class Ref:
    """Stands for a node in a stored argument."""

    name: str


@dataclass(frozen=True)
class StoredNode:
    """One node: what an ``fx.Node`` is made of, with its value's type and the user's stack."""

    op: str
    name: str
    target: str
    args: Any
    kwargs: Any
    val: Any
    trace: str | None


@dataclass(frozen=True)
class StoredGraph:
    """A graph, and the tensors and subgraphs that it names."""

    nodes: list[StoredNode]
    attributes: dict[str, Any]


def store(gm: fx.GraphModule) -> StoredGraph:
    """A graph module as plain data.

    Raises:
        TypeError: for an argument or op that can't be stored by name.
    """
    nodes, attributes = [], {}
    for node in gm.graph.nodes:
        target = node.target if isinstance(node.target, str) else name_of(node.target)
        if node.op == "get_attr":
            value = getattr(gm, target)
            attributes[target] = store(value) if isinstance(value, fx.GraphModule) else value
        nodes.append(
            StoredNode(
                node.op,
                node.name,
                target,
                fx.map_arg(node.args, _ref),
                fx.map_arg(node.kwargs, _ref),
                _plain(node.meta.get("val")),
                node.meta.get("stack_trace"),
            )
        )
    return StoredGraph(nodes, attributes)


def _ref(node: fx.Node) -> Any:
    return Ref(node.name)


def restore(stored: StoredGraph) -> fx.GraphModule:
    """The graph module again; its values' types are specs and meta tensors."""
    graph = fx.Graph()
    env: dict[str, fx.Node] = {}
    for n in stored.nodes:
        args, kwargs = (_refs_to_nodes(a, env) for a in (n.args, n.kwargs))
        target = find(n.target) if n.op == "call_function" else n.target
        node = graph.create_node(n.op, target, args, kwargs, n.name)
        node.meta = {"stack_trace": n.trace}
        if n.val is not None:
            node.meta["val"] = _live(n.val)
        env[n.name] = node
    root = {
        k: restore(v) if isinstance(v, StoredGraph) else v for k, v in stored.attributes.items()
    }
    return fx.GraphModule(root, graph)


def name_of(target: Any) -> str:
    """The name that ``find`` finds an op or function by."""
    if isinstance(target, torch._ops.OpOverload):
        return f"op:{target}"
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"hop:{target.name()}"
    name = f"fn:{target.__module__}:{target.__qualname__}"
    if find(name) is not target:
        raise TypeError(f"{target} can't be stored by name")
    return name


def find(name: str) -> Any:
    """The op or function of a name."""
    kind, rest = name.split(":", 1)
    if kind == "op":
        namespace, op, overload = rest.split(".")
        return getattr(getattr(getattr(torch.ops, namespace), op), overload)
    if kind == "hop":
        return getattr(torch.ops.higher_order, rest)
    module, qualname = rest.split(":")
    return getattr(importlib.import_module(module), qualname)


def _refs_to_nodes(tree: Any, env: dict[str, fx.Node]) -> Any:
    if isinstance(tree, Ref):
        return env[tree.name]
    if isinstance(tree, list | tuple):
        return type(tree)(_refs_to_nodes(v, env) for v in tree)
    if isinstance(tree, dict):
        return {k: _refs_to_nodes(v, env) for k, v in tree.items()}
    if isinstance(tree, slice):
        return slice(*(_refs_to_nodes(v, env) for v in (tree.start, tree.stop, tree.step)))
    return tree


def _plain(val: Any) -> Any:
    """Tensors as specs; a meta tensor would pickle, and slowly."""
    return pytree.tree_map(lambda v: Spec.of(v) if isinstance(v, torch.Tensor) else v, val)


def _live(val: Any) -> Any:
    """Concrete specs as the meta tensors that rules read; symbolic ones stay."""

    def one(v: Any) -> Any:
        return v.tensor() if isinstance(v, Spec) and not v.symbolic else v

    return pytree.tree_map(one, val, is_leaf=lambda v: isinstance(v, Spec | Number))
