"""Products of matrices and convolutions: what they sum over has zeros in its padding."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from tpu_compile.padding.graph import PaddedGraph, sizes_of
from tpu_compile.padding.layout import Layout, plain, whole
from tpu_compile.padding.rules.registry import at_end, join, join_dims, pads

aten = torch.ops.aten


def _contract(g: PaddedGraph, node: fx.Node, i: int, left: int, right: int) -> Layout:
    """The layout of a product of arguments i and i + 1 over the given dimensions of them."""
    x: Any = node.args[i]
    y: Any = node.args[i + 1]
    a, b = g.layout(x), g.layout(y)
    inner = join_dims(g, node, [a[left], b[right]])
    if g.is_padded(inner):
        for at, n, layout, d in ((i, x, a, left % len(a)), (i + 1, y, b, right % len(b))):
            joined = (*layout[:d], inner, *layout[d + 1 :])
            node.update_arg(at, g.filled(node, n, 0, [d], joined))
    batch = [join_dims(g, node, [a[0], b[0]])] if len(a) == 3 else []
    rows = [a[-2]] if len(a) > 1 else []
    columns = [b[-1]] if len(b) > 1 else []
    return (*batch, *rows, *columns)


@pads(aten.mm.default, aten.bmm.default)
def mm(g: PaddedGraph, node: fx.Node) -> Layout:
    """[.., m, k] times [.., k, n]."""
    return _contract(g, node, 0, -1, -2)


@pads(aten.mv.default, aten.dot.default)
def mv(g: PaddedGraph, node: fx.Node) -> Layout:
    """[.., k] times [k]."""
    return _contract(g, node, 0, -1, -1)


@pads(aten.addmm.default, aten.baddbmm.default)
def addmm(g: PaddedGraph, node: fx.Node) -> Layout:
    """``mm`` and a summand that is broadcast."""
    x: Any = node.args[0]
    return join(g, node, [g.layout(x), _contract(g, node, 1, -1, -2)])


@pads(aten.addmv.default)
def addmv(g: PaddedGraph, node: fx.Node) -> Layout:
    """``mv`` and a summand that is broadcast."""
    x: Any = node.args[0]
    return join(g, node, [g.layout(x), _contract(g, node, 1, -1, -1)])


@pads(aten.convolution.default)
def convolution(g: PaddedGraph, node: fx.Node) -> Layout:
    """The padding continues the zeros around the input."""
    x: Any = node.args[0]
    w: Any = node.args[1]
    layout = g.layout(x)
    transposed = bool(node.args[6])
    _only_batch_and_space(g, node, layout, g.layout(w))
    spatial = [d for d in range(2, len(layout)) if g.is_padded(layout[d])]
    for d in spatial:
        at_end(g, node, layout[d])
    if spatial and transposed:
        g.refuse(node, "a transposed convolution along a padded dimension")
    if spatial:
        node.update_arg(0, g.filled(node, x, 0, spatial))
    sizes = sizes_of(node.meta["val"])
    return (layout[0], *(whole(s) for s in sizes[1:]))


def _only_batch_and_space(g: PaddedGraph, node: fx.Node, x: Layout, w: Layout) -> None:
    if g.is_padded(x[1]) or any(map(g.is_padded, w)):
        g.refuse(node, "channels or weights of a padded size")


@pads(aten.convolution_backward.default)
def convolution_backward(g: PaddedGraph, node: fx.Node) -> tuple[Layout | None, ...]:
    """Gradients of padding are zero, and so is what they meet."""
    grad: Any = node.args[0]
    x: Any = node.args[1]
    w: Any = node.args[2]
    layout = g.layout(x)
    _only_batch_and_space(g, node, layout, g.layout(w))
    for d in range(2, len(layout)):
        at_end(g, node, layout[d])
        if g.is_padded(layout[d]) and node.args[7]:
            g.refuse(node, "a transposed convolution along a padded dimension")
    rows = join_dims(g, node, [layout[0], g.layout(grad)[0]])
    for i, n in ((0, grad), (1, x)):
        joined = (rows, *map(whole, sizes_of(n.meta["val"])[1:]))
        node.update_arg(i, g.filled(node, n, 0, layout=joined))
    bias = (whole(sizes_of(w.meta["val"])[0]),)
    return plain((rows, *layout[1:])), plain(g.layout(w)), bias
