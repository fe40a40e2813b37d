"""A graph with symbolic shapes made concrete for one call's arguments, with no retrace.

Every size, stride and offset in the graph's metadata is an expression over the symbols that the
placeholders bind; putting numbers in for them gives the concrete graph. No guard is added: Dynamo's
own guards decide when the symbolic graph holds.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils import _pytree as pytree

Symbolic = torch.SymInt | torch.SymFloat | torch.SymBool


def is_symbolic(gm: fx.GraphModule) -> bool:
    """Whether any value of the graph depends on a symbol."""
    return any(
        isinstance(n.meta.get("val"), Symbolic) or _has_symbols(n.meta.get("val"))
        for n in gm.graph.nodes
    )


def _has_symbols(val: Any) -> bool:
    leaves = pytree.tree_leaves(val)
    return any(isinstance(t, torch.Tensor) and t._has_symbolic_sizes_strides for t in leaves)


def runtime_scalars(gm: fx.GraphModule) -> set[fx.Node]:
    """The scalar placeholders that never reach a shape: they stay inputs of the compiled program.

    A learning rate or a step count that changes at each call then costs no compile.
    """
    in_shapes = {
        s for n in gm.graph.nodes for t in _tensors(n) for v in _numbers(t) for s in _symbols(v)
    }
    found: set[fx.Node] = set()
    for p in gm.graph.find_nodes(op="placeholder"):
        val = p.meta["val"]
        if not isinstance(val, Symbolic):
            continue
        free = _symbols(val)
        if not free & in_shapes and _only_as_value(p, set()):
            found.add(p)
    # A symbol that one placeholder needs as a number is a number for all of them.
    fixed = {
        s
        for p in gm.graph.find_nodes(op="placeholder")
        if isinstance(p.meta["val"], Symbolic) and p not in found
        for s in _symbols(p.meta["val"])
    }
    return {p for p in found if not _symbols(p.meta["val"]) & fixed}


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return [t for t in leaves if isinstance(t, torch.Tensor)]


def _numbers(t: torch.Tensor) -> list[Any]:
    return [*t.shape, *t.stride(), t.storage_offset()]


def _symbols(v: Any) -> set[sympy.Symbol]:
    return set(v.node.expr.free_symbols) if isinstance(v, Symbolic) else set()


def _only_as_value(node: fx.Node, seen: set[fx.Node]) -> bool:
    """Whether a scalar node is read only where an op's schema takes a number as a value."""
    if node in seen:
        return True
    seen.add(node)
    for user in node.users:
        if user.op == "output":
            continue
        if isinstance(user.meta.get("val"), Symbolic):
            if not _only_as_value(user, seen):
                return False
        elif not _takes_value(user, node):
            return False
    return True


def _takes_value(user: fx.Node, scalar: fx.Node) -> bool:
    if not isinstance(user.target, torch._ops.OpOverload):
        return False
    schema = user.target._schema.arguments
    named = {a.name: a for a in schema}
    uses = [a for a, v in zip(schema, user.args, strict=False) if v is scalar]
    uses += [named[k] for k, v in user.kwargs.items() if v is scalar]
    nested = any(
        scalar in pytree.tree_leaves(v)
        for v in (*user.args, *user.kwargs.values())
        if isinstance(v, list | tuple)
    )
    return bool(uses) and not nested and all(str(a.type) in _VALUES for a in uses)


# Argument types of a schema that take a number as a value; a Tensor is one for ops like add.
_VALUES = ("number", "Optional[number]", "Tensor", "Optional[Tensor]")


def bind(gm: fx.GraphModule, args: Sequence[Any]) -> dict[sympy.Symbol, Any]:
    """What each symbol of the placeholders is in a call's arguments."""
    bound: dict[sympy.Symbol, Any] = {}
    for node, arg in zip(gm.graph.find_nodes(op="placeholder"), args, strict=True):
        val = node.meta["val"]
        if isinstance(val, torch.Tensor):
            for sym, number in zip(_numbers(val), _numbers(arg), strict=True):
                _bind(bound, sym, number)
        else:
            _bind(bound, val, arg)
    return bound


def _bind(bound: dict[sympy.Symbol, Any], sym: Any, number: Any) -> None:
    if isinstance(sym, Symbolic) and isinstance(sym.node.expr, sympy.Symbol):
        bound.setdefault(sym.node.expr, number)


def specialize(gm: fx.GraphModule, args: Sequence[Any], runtime: set[fx.Node]) -> fx.GraphModule:
    """A copy of a symbolic graph with concrete metadata and integers.

    Args:
        gm: the symbolic graph.
        args: one call's flat arguments.
        runtime: placeholders that stay inputs (``runtime_scalars``).
    """
    bound = bind(gm, args)
    names = {n.name for n in runtime}
    for p in runtime:
        for s in _symbols(p.meta["val"]):
            bound.pop(s, None)
    return _substitute(gm, bound, names)


def _substitute(
    gm: fx.GraphModule, bound: dict[sympy.Symbol, Any], keep: set[str]
) -> fx.GraphModule:
    new = _copy(gm)
    for node in list(new.graph.nodes):
        val = node.meta.get("val")
        if node.op == "get_attr" and isinstance(getattr(gm, node.target, None), fx.GraphModule):
            # a control flow body: its sizes are made of the same symbols
            setattr(new, node.target, _substitute(getattr(gm, node.target), bound, set()))
        if node.op == "placeholder" and node.name in keep:
            continue
        if node.op != "output" and val is not None:
            node.meta["val"] = pytree.tree_map(lambda v: _concrete(v, bound), val)
        _fold(node)
    new.graph.eliminate_dead_code()
    return new


def _copy(gm: fx.GraphModule) -> fx.GraphModule:
    graph = fx.Graph()
    mapping: dict[fx.Node, fx.Node] = {}
    out = graph.graph_copy(gm.graph, mapping)
    for old, node in mapping.items():
        node.meta = copy.copy(old.meta)
    graph.output(out)
    return fx.GraphModule(gm, graph)


def _concrete(v: Any, bound: dict[sympy.Symbol, Any]) -> Any:
    if isinstance(v, torch.Tensor):
        if not isinstance(v, torch._subclasses.FakeTensor) or not v._has_symbolic_sizes_strides:
            return v
        size = [_number(s, bound) for s in v.shape]
        stride = [_number(s, bound) for s in v.stride()]
        offset = _number(v.storage_offset(), bound)
        return torch.empty((), dtype=v.dtype, device="meta").as_strided(size, stride, offset)
    return _number(v, bound)


def _number(v: Any, bound: dict[sympy.Symbol, Any]) -> Any:
    if not isinstance(v, Symbolic):
        return v
    value = sympy.sympify(v.node.expr.xreplace(bound))
    if value.free_symbols:
        return v  # depends on a runtime scalar
    if isinstance(v, torch.SymInt):
        return int(value)
    return bool(value) if isinstance(v, torch.SymBool) else float(value)


def _fold(node: fx.Node) -> None:
    """Puts a scalar node's number in its users' place."""
    if node.op != "call_function" and node.op != "placeholder":
        return
    val = node.meta.get("val")
    if isinstance(val, bool | int | float):
        for user in list(node.users):
            user.args = fx.map_arg(user.args, lambda n: val if n is node else n)
            user.kwargs = fx.map_arg(user.kwargs, lambda n: val if n is node else n)
