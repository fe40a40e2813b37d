"""Ops that only look at elements in another order or at some of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from tpu_compile.padding.graph import PaddedGraph, sizes_of
from tpu_compile.padding.layout import ONE, Dim, Layout, constant, expr_of, viewed, whole
from tpu_compile.padding.layout import dim as dim_of
from tpu_compile.padding.rules.registry import argument, at_end, normal, pads, show

aten, tpu = torch.ops.aten, torch.ops.tpu


def _input(g: PaddedGraph, node: fx.Node) -> tuple[fx.Node, Layout]:
    x: Any = node.args[0]
    return x, g.layout(x)


@pads(
    aten._reshape_copy.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.view.default,
    aten.view_copy.default,
    sizes=("size", "shape"),
)
def view(g: PaddedGraph, node: fx.Node) -> Layout:
    """Merges and splits dimensions."""
    _, layout = _input(g, node)
    out = viewed(layout, sizes_of(node.meta["val"]), g.symbols)
    if out is None:
        g.refuse(node, f"it splits a padded size: {', '.join(map(show, layout))}")
    return out


@pads(aten.expand.default, aten.expand_copy.default, sizes=("size",))
def expand(g: PaddedGraph, node: fx.Node) -> Layout:
    """Repeats along dimensions of size 1."""
    _, layout = _input(g, node)
    sizes = sizes_of(node.meta["val"])
    lead = len(sizes) - len(layout)
    out = []
    for d, size in enumerate(sizes):
        old = layout[d - lead] if d >= lead else ONE
        out.append(old if old.factors else constant(size, g.symbols))
    return tuple(out)


@pads(aten.permute.default, aten.permute_copy.default)
def permute(g: PaddedGraph, node: fx.Node) -> Layout:
    """Reorders dimensions."""
    _, layout = _input(g, node)
    dims: Any = node.args[1]
    return tuple(layout[d] for d in dims)


@pads(aten.transpose.int)
def transpose(g: PaddedGraph, node: fx.Node) -> Layout:
    """Exchanges two dimensions."""
    _, layout = _input(g, node)
    a: Any = node.args[1]
    b: Any = node.args[2]
    out = list(layout)
    if out:
        out[a], out[b] = out[b], out[a]
    return tuple(out)


@pads(aten.t.default)
def t(g: PaddedGraph, node: fx.Node) -> Layout:
    """Transposes a matrix."""
    return _input(g, node)[1][::-1]


@pads(aten.unsqueeze.default)
def unsqueeze(g: PaddedGraph, node: fx.Node) -> Layout:
    """Inserts a dimension of size 1."""
    _, layout = _input(g, node)
    dim: Any = node.args[1]
    at = normal(dim, len(layout) + 1)
    return (*layout[:at], ONE, *layout[at:])


@pads(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def squeeze(g: PaddedGraph, node: fx.Node) -> Layout:
    """Drops dimensions of size 1."""
    _, layout = _input(g, node)
    given: Any = argument(node, 1, "dim", range(len(layout)))
    dims = {normal(d, len(layout)) for d in ([given] if isinstance(given, int) else given)}
    return tuple(d for i, d in enumerate(layout) if i not in dims or d.factors)


@pads(aten.flip.default)
def flip(g: PaddedGraph, node: fx.Node) -> Layout:
    """Reverses dimensions; what padding that moves to the front pushed back is read from there."""
    x, layout = _input(g, node)
    given: Any = node.args[1]
    dims = [normal(d, len(layout)) for d in given]
    out = tuple(at_end(g, node, v) if d in dims else v for d, v in enumerate(layout))
    padded = [d for d in dims if g.is_padded(out[d])]
    if not padded:
        return out
    dtype = x.meta["val"].dtype
    new = g.insert(node, aten.flip.default, x, dims, layout=out, dtype=dtype)
    for d in padded:
        size = g.concrete(out[d].size)
        twice = (*out[:d], whole(2 * out[d].size), *out[d + 1 :])
        behind = [0, 0] * (len(out) - 1 - d) + [0, size]
        op = aten.constant_pad_nd.default
        new = g.insert(node, op, new, behind, layout=twice, dtype=dtype)
        args = (new, d, g.value(size - out[d].size), size)
        new = g.insert(node, tpu.slice_at.default, *args, layout=out, dtype=dtype)
    node.replace_all_uses_with(new)
    return out


@pads(aten.repeat.default, sizes=("repeats",))
def repeat(g: PaddedGraph, node: fx.Node) -> Layout:
    """Copies one after another: each with its padding."""
    _, layout = _input(g, node)
    times: Any = node.args[1]
    if any(isinstance(n, fx.Node) and g.depends(n.meta["val"]) for n in times):
        g.refuse(node, "it repeats as often as a padded length says")
    sizes = sizes_of(node.meta["val"])
    lead = len(sizes) - len(layout)
    out = []
    for d, (size, n) in enumerate(zip(sizes, times, strict=True)):
        old = layout[d - lead] if d >= lead else ONE
        copies = expr_of(n.meta["val"] if isinstance(n, fx.Node) else n)
        padded = g.is_padded(old)
        out.append(dim_of([copies, *old.factors], g.symbols) if padded else whole(size))
    return tuple(out)


@pads(aten.select.int, sizes=("index",))
def select(g: PaddedGraph, node: fx.Node) -> Layout:
    """One position, counted from the true end where it is negative."""
    x, layout = _input(g, node)
    given: Any = node.args[1]
    index: Any = node.args[2]
    dim = normal(given, len(layout))
    rest = (*layout[:dim], *layout[dim + 1 :])
    if not g.is_padded(layout[dim]):
        return rest
    size = at_end(g, node, layout[dim]).size
    start = _start(g, index, size)
    if start is None:
        return rest
    kept = (*layout[:dim], ONE, *layout[dim + 1 :])
    dtype = x.meta["val"].dtype
    args = (x, dim, g.value(start), 1)
    part = g.insert(node, tpu.slice_at.default, *args, layout=kept, dtype=dtype)
    new = g.insert(node, aten.squeeze.dim, part, dim, layout=rest, dtype=dtype)
    node.replace_all_uses_with(new)
    return rest


def _start(g: PaddedGraph, index: Any, size: Any) -> Any:
    """Where an index stands as an expression over true sizes; None where that is a constant."""
    if isinstance(index, fx.Node):
        val = index.meta["val"]
        return expr_of(val) if g.depends(val) else None
    return size + index if index < 0 else None


@pads(aten.slice.Tensor, sizes=("start", "end"))
def slice_(g: PaddedGraph, node: fx.Node) -> Layout:
    """A range from the front, or one whose place depends on the true length."""
    x, layout = _input(g, node)
    dim = normal(argument(node, 1, "dim", 0), len(layout))
    if not g.is_padded(layout[dim]):
        size = sizes_of(node.meta["val"])[dim]
        return (*layout[:dim], whole(size), *layout[dim + 1 :])
    old = at_end(g, node, layout[dim])
    size = sizes_of(node.meta["val"])[dim]
    new = (*layout[:dim], Dim(whole(size).factors, layout[dim].constant), *layout[dim + 1 :])
    start = _start(g, argument(node, 2, "start") or 0, old.size)
    if start is None or layout[dim].constant:
        return new
    if argument(node, 4, "step", 1) != 1 or g.concrete(start + size) > g.concrete(old.size):
        g.refuse(
            node, "it takes a part that does not begin at the front in steps, or to no known end"
        )
    args = (x, dim, g.value(start), g.concrete(size))
    dtype = x.meta["val"].dtype
    node.replace_all_uses_with(g.insert(node, tpu.slice_at.default, *args, layout=new, dtype=dtype))
    return new


@pads(aten.split_with_sizes.default, aten.unbind.int, aten.split.Tensor)
def split(g: PaddedGraph, node: fx.Node) -> tuple[Layout, ...]:
    """Parts along a dimension without padding."""
    _, layout = _input(g, node)
    place = 1 if node.target is aten.unbind.int else 2
    dim = normal(argument(node, place, "dim", 0), len(layout))
    if g.is_padded(layout[dim]):
        g.refuse(node, "it splits a padded dimension")
    outs = []
    for val in node.meta["val"]:
        middle = () if node.target is aten.unbind.int else (whole(sizes_of(val)[dim]),)
        outs.append((*layout[:dim], *middle, *layout[dim + 1 :]))
    return tuple(outs)
