"""Ops that compute each element from the elements at its place: padding stays where it is."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from tpu_compile.padding.graph import PaddedGraph, is_tensor
from tpu_compile.padding.layout import Layout
from tpu_compile.padding.rules.registry import at_end, join, normal, pads

aten, prims = torch.ops.aten, torch.ops.prims

# Elementwise, though their tags don't say so.
_UNTAGGED = (
    aten._to_copy.default,
    aten.alias.default,
    aten.complex.default,
    aten.copy.default,
    aten.detach.default,
    aten.fill.Scalar,
    aten.fill.Tensor,
    aten.floor_divide.default,
    aten.frexp.Tensor,
    aten.lift_fresh_copy.default,
    aten.view.dtype,
    prims.where.default,
)


def is_elementwise(target: Any) -> bool:
    """Whether an op's tags say that it is."""
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags


@pads(*_UNTAGGED)
def elementwise(g: PaddedGraph, node: fx.Node) -> Any:
    """Operands of any number, broadcast."""
    if node.target is aten.view.dtype and _width(node) != _width(node.args[0]):
        g.refuse(node, "it changes the number of elements")
    operands = [n for n in node.all_input_nodes if is_tensor(n.meta.get("val"))]
    layout = join(g, node, [g.layout(n) for n in operands])
    val = node.meta["val"]
    return tuple(layout for _ in val) if isinstance(val, tuple | list) else layout


def _width(node: Any) -> int:
    width: int = node.meta["val"].dtype.itemsize
    return width


@pads(aten.tril.default, aten.triu.default)
def triangle(g: PaddedGraph, node: fx.Node) -> Layout:
    """Elements kept by their row and column: the same in a larger matrix."""
    layout = g.layout(node.args[0])  # type: ignore[arg-type]
    return (*layout[:-2], at_end(g, node, layout[-2]), at_end(g, node, layout[-1]))


@pads(aten.cumsum.default, aten.cumprod.default, aten.logcumsumexp.default)
def running(g: PaddedGraph, node: fx.Node) -> Layout:
    """Each element from those before it, never from the padding behind."""
    layout = g.layout(node.args[0])  # type: ignore[arg-type]
    given: Any = node.args[1]
    dim = normal(given, len(layout))
    return tuple(at_end(g, node, v) if d == dim else v for d, v in enumerate(layout))


@pads(aten.cummax.default, aten.cummin.default)
def running_pairs(g: PaddedGraph, node: fx.Node) -> tuple[Layout, Layout]:
    """``running`` with a value and its position."""
    layout = running(g, node)
    return layout, layout
