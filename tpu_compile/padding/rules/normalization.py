"""Normalizations over dimensions without padding."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch import fx

from tpu_compile.padding.graph import PaddedGraph, sizes_of
from tpu_compile.padding.layout import ONE, Dim, Layout, plain
from tpu_compile.padding.rules.registry import join, join_dims, pads, unpadded

aten = torch.ops.aten


def _over(g: PaddedGraph, node: fx.Node, layout: Layout, shape: Any) -> Layout:
    """The layout of the statistics."""
    lead = len(layout) - len(shape)
    unpadded(g, node, layout, range(lead, len(layout)), "it normalizes over a padded size")
    return (*layout[:lead], *[ONE] * len(shape))


@pads(aten.native_layer_norm.default)
def layer_norm(g: PaddedGraph, node: fx.Node) -> tuple[Layout, Layout, Layout]:
    """Over the last dimensions."""
    layout = g.layout(node.args[0])  # type: ignore[arg-type]
    statistics = _over(g, node, layout, node.args[1])
    return layout, statistics, statistics


@pads(aten.native_layer_norm_backward.default)
def layer_norm_backward(g: PaddedGraph, node: fx.Node) -> tuple[Layout | None, ...]:
    """Gradients of weight and bias add up over all rows: padding has none."""
    args: list[Any] = list(node.args)
    layout = g.layout(args[0])
    _over(g, node, layout, args[2])
    lead = len(layout) - len(args[2])
    rows = join(g, node, [g.layout(args[i])[:lead] for i in (0, 1, 3, 4)])
    for i in (0, 1, 3, 4):
        node.update_arg(i, g.filled(node, args[i], 0, range(lead), rows))
    weights = plain(layout[lead:])
    return plain((*rows, *layout[lead:])), weights, weights


@pads(aten._native_batch_norm_legit_no_training.default)
def batch_norm(g: PaddedGraph, node: fx.Node) -> tuple[Layout, Layout, Layout]:
    """By statistics that are given, so one element at a time."""
    layout = g.layout(node.args[0])  # type: ignore[arg-type]
    unpadded(g, node, layout, [1], "channels of a padded size")
    none: Layout = (Dim((sympy.Integer(0),)),)
    return layout, none, none


@pads(aten.native_group_norm.default, sizes=("N", "C", "HxW"))
def group_norm(g: PaddedGraph, node: fx.Node) -> tuple[Layout, Layout, Layout]:
    """Over channels and space of each row: only rows may be padded."""
    layout = g.layout(node.args[0])  # type: ignore[arg-type]
    unpadded(g, node, layout, range(1, len(layout)), "it normalizes over a padded size")
    val: Any = node.meta["val"]
    groups = (layout[0], Dim(tuple(e for e in sizes_of(val[1])[1:] if e != 1)))
    return layout, groups, groups


@pads(aten.native_group_norm_backward.default, sizes=("N", "C", "HxW"))
def group_norm_backward(g: PaddedGraph, node: fx.Node) -> tuple[Layout | None, ...]:
    """As for layer norm."""
    args: list[Any] = list(node.args)
    layout = g.layout(args[0])
    unpadded(g, node, layout, range(1, len(layout)), "it normalizes over a padded size")
    rows = join_dims(g, node, [g.layout(args[i])[0] for i in range(4)])
    for i in range(4):
        node.update_arg(i, g.filled(node, args[i], 0, [0], (rows,)))
    return plain((rows, *layout[1:])), plain((layout[1],)), plain((layout[1],))
