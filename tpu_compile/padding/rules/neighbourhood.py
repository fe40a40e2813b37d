"""Ops that fold or repeat a neighbourhood in space: rows and channels may be padded, space not."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from tpu_compile.padding.graph import PaddedGraph, sizes_of
from tpu_compile.padding.layout import Layout, plain, whole
from tpu_compile.padding.rules.registry import join, pads, unpadded

aten = torch.ops.aten

# The number of dimensions in space of each op's first argument.
_SPACE: dict[Any, int] = {
    aten._adaptive_avg_pool2d.default: 2,
    aten._adaptive_avg_pool3d.default: 3,
    aten.adaptive_max_pool2d.default: 2,
    aten.adaptive_max_pool3d.default: 3,
    aten.avg_pool1d.default: 1,
    aten.avg_pool2d.default: 2,
    aten.avg_pool3d.default: 3,
    aten.max_pool2d_with_indices.default: 2,
    aten.max_pool3d_with_indices.default: 3,
    aten.reflection_pad1d.default: 1,
    aten.reflection_pad2d.default: 2,
    aten.replication_pad1d.default: 1,
    aten.replication_pad2d.default: 2,
    aten.replication_pad3d.default: 3,
}
# Of these the first argument is the gradient of the result, the second the input.
_BACKWARD: dict[Any, int] = {
    aten._adaptive_avg_pool2d_backward.default: 2,
    aten._adaptive_avg_pool3d_backward.default: 3,
    aten.avg_pool2d_backward.default: 2,
    aten.avg_pool3d_backward.default: 3,
    aten.max_pool2d_with_indices_backward.default: 2,
    aten.max_pool3d_with_indices_backward.default: 3,
    aten.reflection_pad1d_backward.default: 1,
    aten.reflection_pad2d_backward.default: 2,
    aten.replication_pad1d_backward.default: 1,
    aten.replication_pad2d_backward.default: 2,
}


def _rows(g: PaddedGraph, node: fx.Node, layout: Layout, space: int) -> Layout:
    lead = len(layout) - space
    unpadded(g, node, layout, range(lead, len(layout)), "its space has a padded size")
    return layout[:lead]


@pads(*_SPACE)
def neighbourhood(g: PaddedGraph, node: fx.Node) -> Any:
    """Each row and channel for itself."""
    space = _SPACE[node.target]
    rows = _rows(g, node, g.layout(node.args[0]), space)  # type: ignore[arg-type]
    val = node.meta["val"]
    outs = [(*rows, *map(whole, sizes_of(v)[-space:])) for v in _each(val)]
    return tuple(outs) if isinstance(val, tuple | list) else outs[0]


def _each(val: Any) -> list[Any]:
    return list(val) if isinstance(val, tuple | list) else [val]


@pads(*_BACKWARD)
def backward(g: PaddedGraph, node: fx.Node) -> Layout:
    """The gradient of each row and channel for itself, too."""
    space = _BACKWARD[node.target]
    operands = [n for n in g.tensors(node.args) if g.layout(n)]
    rows = join(g, node, [_rows(g, node, g.layout(n), space) for n in operands])
    return plain((*rows, *map(whole, sizes_of(node.meta["val"])[-space:])))
