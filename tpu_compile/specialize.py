"""A graph with symbolic shapes made concrete for one call's arguments, with no retrace.

Every size, stride and offset in the graph's metadata is an expression over the symbols that the
placeholders bind; putting numbers in for them gives the concrete graph. No guard is added: Dynamo's
own guards decide when the symbolic graph holds.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils import _pytree as pytree

from tpu_compile import torch_internals
from tpu_compile.errors import UnsupportedCase
from tpu_compile.lowering.types import RuntimeScalar

Symbolic = torch.SymInt | torch.SymFloat | torch.SymBool


@dataclass(frozen=True)
class Number:
    """A symbolic number: an expression over the symbols that a graph's placeholders bind."""

    kind: type  # int, float or bool
    expr: sympy.Expr

    @classmethod
    def of(cls, v: Any) -> Any:
        """A torch symbolic number as a Number; anything else as it is."""
        if not isinstance(v, Symbolic):
            return v
        if v.node.expr.is_number:
            return _python(v)(v.node.expr)
        return cls(_python(v), v.node.expr)


def _python(v: Any) -> type:
    return {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(v)]


@dataclass(frozen=True)
class Spec:
    """A tensor's type and layout, with numbers that may be symbolic."""

    dtype: torch.dtype
    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any

    @classmethod
    def of(cls, t: torch.Tensor) -> Spec:
        """The spec of a fake, meta or real tensor."""
        numbers = [Number.of(v) for v in (*t.shape, *t.stride(), t.storage_offset())]
        return cls(t.dtype, tuple(numbers[: t.dim()]), tuple(numbers[t.dim() : -1]), numbers[-1])

    @property
    def numbers(self) -> tuple[Any, ...]:
        """Sizes, strides and offset."""
        return (*self.shape, *self.stride, self.offset)

    @property
    def symbolic(self) -> bool:
        """Whether any of the numbers is."""
        return any(isinstance(v, Number) for v in self.numbers)

    def tensor(self) -> torch.Tensor:
        """A meta tensor of a concrete spec: what rules and the calling convention read."""
        base = torch.empty((), dtype=self.dtype, device="meta")
        return base.as_strided(self.shape, self.stride, self.offset)


def abstract(gm: fx.GraphModule) -> bool:
    """Puts specs and numbers in the place of symbolic values, in place, bodies included.

    What is left needs neither torch's shape environment nor its fake tensors.

    Returns:
        Whether there was any symbolic value.
    """
    found = False
    for node in gm.graph.nodes:
        if node.op == "get_attr" and isinstance(
            body := getattr(gm, node.target, None), fx.GraphModule
        ):
            found |= abstract(body)
        if "val" in node.meta:
            node.meta["val"] = pytree.tree_map(_abstract, node.meta["val"])
            leaves = pytree.tree_leaves(node.meta["val"], is_leaf=_is_abstract)
            found |= any(_is_abstract(v) for v in leaves)
    return found


def _abstract(v: Any) -> Any:
    if isinstance(v, torch.Tensor):
        spec = Spec.of(v)
        return spec if spec.symbolic else v
    return Number.of(v)


def _is_abstract(v: Any) -> bool:
    return isinstance(v, Spec | Number)


def runtime_scalars(gm: fx.GraphModule) -> set[fx.Node]:
    """The scalar placeholders that never reach a shape: they stay inputs of the compiled program.

    A learning rate or a step count that changes at each call then costs no compile.
    """
    in_shapes = {
        s for n in gm.graph.nodes for t in _specs(n) for v in t.numbers for s in _symbols(v)
    }
    found: set[fx.Node] = set()
    for p in gm.graph.find_nodes(op="placeholder"):
        val = p.meta["val"]
        if not isinstance(val, Number):
            continue
        free = _symbols(val)
        if not free & in_shapes and _only_as_value(p, set()):
            found.add(p)
    # A symbol that one placeholder needs as a number is a number for all of them.
    fixed = {
        s
        for p in gm.graph.find_nodes(op="placeholder")
        if isinstance(p.meta["val"], Number) and p not in found
        for s in _symbols(p.meta["val"])
    }
    return {p for p in found if not _symbols(p.meta["val"]) & fixed}


def _specs(node: fx.Node) -> list[Spec]:
    leaves = pytree.tree_leaves(node.meta.get("val"), is_leaf=_is_abstract)
    return [v for v in leaves if isinstance(v, Spec)]


def _symbols(v: Any) -> set[sympy.Symbol]:
    return set(v.expr.free_symbols) if isinstance(v, Number) else set()


def _only_as_value(node: fx.Node, seen: set[fx.Node]) -> bool:
    """Whether a scalar node is read only where an op's schema takes a number as a value."""
    if node in seen:
        return True
    seen.add(node)
    for user in node.users:
        if user.op == "output":
            continue
        if isinstance(user.meta.get("val"), Number):
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
    return bool(uses) and not nested and all(str(a.type) in VALUES for a in uses)


# Argument types of a schema that take a number as a value; a Tensor is one for ops like add.
VALUES = ("number", "Optional[number]", "Tensor", "Optional[Tensor]")


def bind(gm: fx.GraphModule, args: Sequence[Any]) -> dict[sympy.Symbol, Any]:
    """What each symbol of the placeholders is in a call's arguments."""
    bound: dict[sympy.Symbol, Any] = {}
    for node, arg in zip(gm.graph.find_nodes(op="placeholder"), args, strict=True):
        val = node.meta["val"]
        if isinstance(val, Spec):
            actual = (*arg.shape, *arg.stride(), arg.storage_offset())
            for sym, number in zip(val.numbers, actual, strict=True):
                _bind(bound, sym, number)
        else:
            _bind(bound, val, arg)
    return bound


def _bind(bound: dict[sympy.Symbol, Any], sym: Any, number: Any) -> None:
    if isinstance(sym, Number) and isinstance(sym.expr, sympy.Symbol):
        bound.setdefault(sym.expr, number)


def specialize(gm: fx.GraphModule, args: Sequence[Any], runtime: set[fx.Node]) -> fx.GraphModule:
    """A copy of a symbolic graph with concrete metadata and integers.

    Args:
        gm: the symbolic graph.
        args: one call's flat arguments.
        runtime: placeholders that stay inputs (``runtime_scalars``).
    """
    bound = bind(gm, args)
    for p in runtime:
        for s in _symbols(p.meta["val"]):
            bound.pop(s, None)
    return with_sizes(gm, bound)


def with_sizes(gm: fx.GraphModule, bound: Mapping[sympy.Symbol, Any]) -> fx.GraphModule:
    """A copy of a symbolic graph with numbers for its symbols; those left out stay inputs."""
    new = copy_graph(gm)
    for node in list(new.graph.nodes):
        val = node.meta.get("val")
        if node.op == "get_attr" and isinstance(getattr(gm, node.target, None), fx.GraphModule):
            # a control flow body: its sizes are made of the same symbols
            setattr(new, node.target, with_sizes(getattr(gm, node.target), bound))
        if node.op != "output" and val is not None:
            _refuse_unknown_sizes(node, bound)
            node.meta["val"] = pytree.tree_map(
                lambda v: _concrete(v, bound), val, is_leaf=_is_abstract
            )
        _fold(node)
    new.graph.eliminate_dead_code()
    return new


def _refuse_unknown_sizes(node: fx.Node, bound: Mapping[sympy.Symbol, Any]) -> None:
    for spec in _specs(node):
        if any(_symbols(v) - bound.keys() for v in spec.numbers):
            raise UnsupportedCase(op=node.target, why="its size depends on data", node=node)


def copy_graph(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy whose nodes' metadata can be changed; tensors and bodies are shared."""
    graph = fx.Graph()
    mapping: dict[fx.Node, fx.Node] = {}
    out = graph.graph_copy(gm.graph, mapping)
    for old, node in mapping.items():
        node.meta = copy.copy(old.meta)
    graph.output(out).meta = copy.copy(gm.graph.output_node().meta)
    return torch_internals.graph_module(gm, graph)


def _concrete(v: Any, bound: Mapping[sympy.Symbol, Any]) -> Any:
    if isinstance(v, Spec):
        numbers = [_number(n, bound) for n in v.numbers]
        rank = len(v.shape)
        return Spec(v.dtype, tuple(numbers[:rank]), tuple(numbers[rank:-1]), numbers[-1]).tensor()
    return _number(v, bound)


def _number(v: Any, bound: Mapping[sympy.Symbol, Any]) -> Any:
    if not isinstance(v, Number):
        return v
    value = sympy.sympify(v.expr.xreplace(dict(bound)))
    # what is left depends on a scalar that stays an input
    return RuntimeScalar(v.kind) if value.free_symbols else v.kind(value)


def _fold(node: fx.Node) -> None:
    """Puts a scalar node's number in its users' place."""
    if node.op != "call_function" and node.op != "placeholder":
        return
    val = node.meta.get("val")
    if isinstance(val, bool | int | float):
        for user in list(node.users):
            user.args = fx.map_arg(user.args, lambda n: val if n is node else n)
            user.kwargs = fx.map_arg(user.kwargs, lambda n: val if n is node else n)
