"""A symbolic graph made right for padded arguments: one walk, a padding rule per op."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
from torch import fx
from torch.utils import _pytree as pytree

from tpu_compile.errors import RuleMismatch
from tpu_compile.padding import rules
from tpu_compile.padding.graph import PaddedGraph, is_tensor, sizes_of, spec_of
from tpu_compile.padding.layout import Dim, Layout, of_argument, same, whole
from tpu_compile.padding.rules.elementwise import elementwise, is_elementwise
from tpu_compile.padding.rules.registry import Rule
from tpu_compile.specialize import VALUES, Number, Spec, copy_graph

ELEMENTWISE = Rule(elementwise)


def rewrite(
    gm: fx.GraphModule,
    symbols: Sequence[sympy.Symbol],
    padded: Mapping[sympy.Symbol, Any],
) -> PaddedGraph:
    """Makes what a graph computes in the valid part independent of the padding.

    Args:
        gm: with specs and numbers as metadata; not changed.
        symbols: the sizes that are rounded up, as they nest in a merged dimension, outermost first.
        padded: every symbol's value, these rounded up.

    Returns:
        A copy. Its arguments are contiguous where they are padded, and integers follow them:
        ``PaddedGraph.lengths``.

    Raises:
        PaddingRefused: for an op with no rule, or whose rule declines.
        RuleMismatch: for a rule that is wrong about sizes.
    """
    g = PaddedGraph(copy_graph(gm), tuple(symbols), padded)
    for node in list(g.gm.graph.nodes):
        val = node.meta.get("val")
        if node.op == "placeholder":
            if is_tensor(val):
                layout = tuple(of_argument(size, g.symbols) for size in sizes_of(val))
                g.layouts[node] = layout
                if any(map(g.is_padded, layout)):
                    node.meta["val"] = spec_of(layout, val.dtype)
        elif node.op == "get_attr":
            g.layouts[node] = tuple(map(whole, sizes_of(val))) if is_tensor(val) else ()
        elif node.op == "call_function":
            layouts = _visit(g, node)
            if layouts is not None:
                g.layouts[node] = layouts
    return g


def _visit(g: PaddedGraph, node: fx.Node) -> Any:
    val = node.meta.get("val")
    if isinstance(val, Number | int | float | bool):
        return None  # of sizes: what needs it as a value asks for it
    if node.target is operator.getitem:
        of: Any = node.args[0]
        return g.layouts[of][node.args[1]]
    if not _touched(g, node):
        return _untouched(val)
    rule = rules.find(node.target) or (ELEMENTWISE if is_elementwise(node.target) else None)
    if rule is None:
        g.refuse(node, "it has no rule for padding")
    _settle_numbers(g, node, rule.sizes)
    layouts = rule.run(g, node)
    _check(node, layouts)
    return layouts


def _settle_numbers(g: PaddedGraph, node: fx.Node, sizes: tuple[str, ...]) -> None:
    """Puts numbers of the true sizes where a node takes numbers as values, or refuses it."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]

    def settled(argument: Any, v: Any) -> Any:
        numbers = [n for n in pytree.tree_leaves(v) if isinstance(n, fx.Node)]
        if argument.name in sizes or not any(g.depends(n.meta.get("val")) for n in numbers):
            return v
        if str(argument.type) not in VALUES:
            g.refuse(node, f"its argument {argument.name!r} is computed from a padded length")
        return g.true_number(v)

    named = {a.name: a for a in schema}
    node.args = tuple(settled(a, v) for a, v in zip(schema, node.args, strict=False))
    node.kwargs = {k: settled(named[k], v) for k, v in node.kwargs.items()}


def _check(node: fx.Node, layouts: Any) -> None:
    """Holds a rule's layouts against the sizes that torch inferred.

    Raises:
        RuleMismatch: a bug in the rule.
    """
    vals = node.meta["val"]
    pairs = zip(vals, layouts, strict=True) if isinstance(vals, tuple | list) else [(vals, layouts)]
    for val, layout in pairs:
        if not is_tensor(val):
            continue
        got, expected = [d.size for d in layout], sizes_of(val)
        if len(got) != len(expected) or not all(map(same, got, expected)):
            raise RuleMismatch(op=node.target, got=got, expected=list(expected), node=node)


def _touched(g: PaddedGraph, node: fx.Node) -> bool:
    for n in node.all_input_nodes:
        layouts = g.layouts.get(n)
        if layouts is None:
            if g.depends(n.meta.get("val")):
                return True
        elif any(map(g.is_padded, pytree.tree_leaves(layouts, is_leaf=_is_dim))):
            return True
    leaves = pytree.tree_leaves(node.meta.get("val"), is_leaf=lambda v: isinstance(v, Spec))
    return any(g.depends(n) for v in leaves if isinstance(v, Spec) for n in v.shape)


def _is_dim(v: Any) -> bool:
    return isinstance(v, Dim)


def _untouched(val: Any) -> Any:
    if is_tensor(val):
        return _plain(val)
    if isinstance(val, tuple | list):
        return tuple(_plain(v) if is_tensor(v) else None for v in val)
    return None


def _plain(val: Any) -> Layout:
    return tuple(map(whole, sizes_of(val)))
