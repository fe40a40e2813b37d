"""Ops that fold a dimension: its padding is filled with what folding leaves out."""

from __future__ import annotations

import math
from typing import Any

import sympy
import torch
from torch import fx

from tpu_compile.lowering.builder import highest, lowest
from tpu_compile.lowering.types import math_dtype
from tpu_compile.padding.graph import PaddedGraph
from tpu_compile.padding.layout import ONE, Layout, plain
from tpu_compile.padding.rules.registry import (
    Function,
    argument,
    at_end,
    join,
    normal,
    pads,
    unpadded,
)

aten = torch.ops.aten


def _dims(node: fx.Node, rank: int, place: int = 1) -> list[int]:
    given: Any = argument(node, place, "dim")
    if given is None or given == []:
        return list(range(rank))
    return [normal(d, rank) for d in ([given] if isinstance(given, int) else given)] if rank else []


def _reduced(layout: Layout, dims: list[int], node: fx.Node) -> Layout:
    """The layout of a result, whose rank tells whether the dimensions are kept."""
    if _keeps(layout, node):
        return tuple(ONE if d in dims else v for d, v in enumerate(layout))
    return tuple(v for d, v in enumerate(layout) if d not in dims)


def _keeps(layout: Layout, node: fx.Node) -> bool:
    val = node.meta["val"]
    first = val[0] if isinstance(val, tuple | list) else val
    return len(first.shape) == len(layout)


def _fold(fill: Any, place: int = 1) -> Function:
    def rule(g: PaddedGraph, node: fx.Node) -> Layout:
        x: Any = node.args[0]
        layout = g.layout(x)
        dims = _dims(node, len(layout), place)
        if any(g.is_padded(layout[d]) for d in dims):
            node.update_arg(0, g.filled(node, x, fill, dims))
        return _reduced(layout, dims, node)

    return rule


pads(aten.sum.default, aten.sum.dim_IntList, aten.any.default, aten.any.dim, aten.any.dims)(
    _fold(0)
)
pads(aten.all.default, aten.all.dim, aten.all.dims)(_fold(True))
pads(aten.prod.default, aten.prod.dim_int)(_fold(1))
pads(aten.amax.default, aten.logsumexp.default, aten.max.default)(_fold(lowest))
pads(aten.amin.default, aten.min.default)(_fold(highest))


@pads(aten.linalg_vector_norm.default)
def vector_norm(g: PaddedGraph, node: fx.Node) -> Layout:
    """A norm to which zeros add nothing."""
    order: Any = argument(node, 1, "ord", 2)
    if not isinstance(order, int | float) or order <= 0:
        g.refuse(node, "zeros would change a norm of this order")
    return _fold(0, place=2)(g, node)


@pads(aten.var.correction, aten.std.correction, aten.var_mean.correction)
def variance(g: PaddedGraph, node: fx.Node) -> Any:
    """Over dimensions without padding."""
    layout = g.layout(node.args[0])  # type: ignore[arg-type]
    dims = _dims(node, len(layout))
    unpadded(g, node, layout, dims, "a variance over a padded size")
    out = _reduced(layout, dims, node)
    return (out, out) if isinstance(node.meta["val"], tuple | list) else out


def _position(fill: Any) -> Function:
    def rule(g: PaddedGraph, node: fx.Node) -> Any:
        x: Any = node.args[0]
        layout = g.layout(x)
        given: Any = argument(node, 1, "dim")
        if given is None and len(layout) > 1 and any(map(g.is_padded, layout)):
            g.refuse(node, "a position among all elements changes with padding between them")
        dims = _dims(node, len(layout))
        for d in dims:
            at_end(g, node, layout[d])
        if any(g.is_padded(layout[d]) for d in dims):
            node.update_arg(0, g.filled(node, x, fill, dims))
        out = _reduced(layout, dims, node)
        return (out, out) if isinstance(node.meta["val"], tuple | list) else out

    return rule


pads(aten.argmax.default, aten.max.dim)(_position(lowest))
pads(aten.argmin.default, aten.min.dim)(_position(highest))


@pads(aten.mean.default, aten.mean.dim)
def mean(g: PaddedGraph, node: fx.Node) -> Layout:
    """The sum of the valid elements over their number, in the dtype torch adds up in."""
    x: Any = node.args[0]
    layout = g.layout(x)
    dims = [] if node.target is aten.mean.default else _dims(node, len(layout))
    dims = dims or list(range(len(layout)))
    out = _reduced(layout, dims, node)
    if not any(g.is_padded(layout[d]) for d in dims):
        return out
    dtype = node.meta["val"].dtype
    wide = math_dtype(dtype)
    filled = g.filled(node, x, 0, dims)
    total = (filled, dims, _keeps(layout, node))
    op: Any = aten.sum.dim_IntList
    new = g.insert(node, op, *total, layout=out, dtype=wide, kwargs={"dtype": wide})
    count = g.value(sympy.Mul(*(layout[d].size for d in dims)))
    new = g.insert(node, aten.div.Tensor, new, count, layout=out, dtype=wide)
    if wide != dtype:
        new = g.insert(
            node, aten._to_copy.default, new, layout=out, dtype=dtype, kwargs={"dtype": dtype}
        )
    node.replace_all_uses_with(new)
    return out


@pads(aten._softmax.default, aten._log_softmax.default)
def softmax(g: PaddedGraph, node: fx.Node) -> Layout:
    """Padding weighs nothing."""
    x: Any = node.args[0]
    dim: Any = node.args[1]
    layout = g.layout(x)
    if layout and g.is_padded(layout[dim]):
        node.update_arg(0, g.filled(node, x, -math.inf, [normal(dim, len(layout))]))
    return plain(layout)


@pads(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
def softmax_backward(g: PaddedGraph, node: fx.Node) -> Layout:
    """Sums the gradients along the dimension: there are none in padding."""
    operands: list[Any] = list(node.args[:2])
    layout = join(g, node, [g.layout(n) for n in operands])
    dim: Any = node.args[2]
    if layout and g.is_padded(layout[dim]):
        for i, x in enumerate(operands):
            node.update_arg(i, g.filled(node, x, 0, [normal(dim, len(layout))], layout))
    return plain(layout)
