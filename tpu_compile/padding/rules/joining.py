"""Ops that put tensors together along a dimension, or write one into another."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch import fx

from tpu_compile.padding.graph import PaddedGraph, sizes_of
from tpu_compile.padding.layout import ONE, Layout, expr_of, same, varies, whole
from tpu_compile.padding.rules.registry import argument, at_end, join, normal, pads

aten, tpu = torch.ops.aten, torch.ops.tpu


@pads(aten.cat.default)
def cat(g: PaddedGraph, node: fx.Node) -> Layout:
    """Tensors one behind another: what follows a padded one is written at its true end."""
    given: Any = node.args[0]
    parts = [p for p in given if sizes_of(p.meta["val"]) != (0,)]
    layouts = [g.layout(p) for p in parts]
    rank = len(layouts[0])
    dim = normal(argument(node, 1, "dim", 0), rank)
    sizes = [at_end(g, node, layout[dim]).size for layout in layouts]
    total = whole(sympy.Add(*sizes))
    others = join(g, node, [(*layout[:dim], ONE, *layout[dim + 1 :]) for layout in layouts])
    out = (*others[:dim], total, *others[dim + 1 :])
    padded = [g.is_padded(layout[dim]) for layout in layouts]
    if not any(padded[:-1]):
        return out
    dtype = node.meta["val"].dtype
    # the right sizes at least; then each again where the true end of those before it is
    at = g.insert(node, aten.cat.default, list(parts), dim, layout=out, dtype=dtype)
    end: Any = sympy.Integer(0)
    for part, size in zip(parts, sizes, strict=True):
        if varies(end, g.symbols):
            args = (at, part, dim, g.value(end))
            at = g.insert(node, tpu.write_at.default, *args, layout=out, dtype=dtype)
        end += size
    node.replace_all_uses_with(at)
    return out


@pads(aten.stack.default)
def stack(g: PaddedGraph, node: fx.Node) -> Layout:
    """Tensors of one shape along a new dimension."""
    parts: Any = node.args[0]
    layout = join(g, node, [g.layout(p) for p in parts])
    dim = normal(argument(node, 1, "dim", 0), len(layout) + 1)
    return (*layout[:dim], whole(sympy.Integer(len(parts))), *layout[dim:])


@pads(aten.constant_pad_nd.default, sizes=("pad",))
def constant_pad(g: PaddedGraph, node: fx.Node) -> Layout:
    """Padding of the user's: its value goes where ours is, too."""
    x: Any = node.args[0]
    amounts: Any = node.args[1]
    layout = g.layout(x)
    if any(isinstance(n, fx.Node) and g.depends(n.meta["val"]) for n in amounts):
        g.refuse(node, "it pads by a padded length")
    value: Any = argument(node, 2, "value", 0)
    out, fill = list(layout), []
    for i in range(0, len(amounts), 2):
        dim = len(layout) - 1 - i // 2
        low, high = amounts[i], amounts[i + 1]
        if (low, high) == (0, 0):
            continue
        size = sizes_of(node.meta["val"])[dim]
        if g.is_padded(layout[dim]):
            at_end(g, node, layout[dim])
            fill.append(dim)
        out[dim] = whole(size)
    if fill:
        if isinstance(value, fx.Node):
            g.refuse(node, "it pads with a number that is computed from a length")
        node.update_arg(0, g.filled(node, x, value, fill))
    return tuple(out)


@pads(aten.slice_scatter.default, sizes=("start", "end"))
def slice_scatter(g: PaddedGraph, node: fx.Node) -> Layout:
    """Writes a range; where that is padded what was there before stays under its padding."""
    x: Any = node.args[0]
    src: Any = node.args[1]
    layout, part = g.layout(x), g.layout(src)
    dim = normal(argument(node, 2, "dim", 0), len(layout))
    others = join(g, node, [(*v[:dim], ONE, *v[dim + 1 :]) for v in (layout, part)])
    mine, new = at_end(g, node, layout[dim]), at_end(g, node, part[dim])
    out = (*others[:dim], mine, *others[dim + 1 :])
    if not g.is_padded(mine) and not g.is_padded(new):
        return out
    if argument(node, 5, "step", 1) != 1 or not g.is_padded(mine):
        g.refuse(node, "it writes a padded length into a tensor without padding, or in steps")
    given = argument(node, 3, "start") or 0
    start = expr_of(given.meta["val"] if isinstance(given, fx.Node) else given)
    if start.is_negative:
        start += mine.size
    if g.concrete(start + new.size) > g.concrete(mine.size):
        g.refuse(node, "it writes a part to no known end")
    moves = varies(start, g.symbols)
    if not moves and (not g.is_padded(new) or same(start + new.size, mine.size)):
        return out
    dtype = x.meta["val"].dtype
    at = g.value(start) if moves else g.concrete(start)
    if g.is_padded(new):
        inside = (*others[:dim], new, *others[dim + 1 :])
        size = g.concrete(new.size)
        shape = [g.concrete(d.size) for d in inside]
        read = (x, dim, at, size)
        old = g.insert(node, tpu.slice_at.default, *read, layout=inside, dtype=dtype)
        full, kind = aten.full.default, torch.bool
        kwargs = {"dtype": kind}
        yes = g.insert(node, full, shape, True, layout=inside, dtype=kind, kwargs=kwargs)
        valid = g.filled(node, yes, False, [dim])
        src = g.insert(node, aten.where.self, valid, src, old, layout=inside, dtype=dtype)
    args = (x, src, dim, at)
    node.replace_all_uses_with(g.insert(node, tpu.write_at.default, *args, layout=out, dtype=dtype))
    return out


@pads(aten.select_scatter.default, sizes=("index",))
def select_scatter(g: PaddedGraph, node: fx.Node) -> Layout:
    """Writes one position, counted from the true end where it is negative."""
    x: Any = node.args[0]
    src: Any = node.args[1]
    index: Any = node.args[3]
    layout, part = g.layout(x), g.layout(src)
    given: Any = node.args[2]
    dim = normal(given, len(layout))
    part = (*part[:dim], ONE, *part[dim:])
    others = join(g, node, [(*layout[:dim], ONE, *layout[dim + 1 :]), part])
    mine = at_end(g, node, layout[dim])
    out = (*others[:dim], mine, *others[dim + 1 :])
    if not g.is_padded(mine) or (isinstance(index, int) and index >= 0):
        return out
    first = expr_of(index.meta["val"]) if isinstance(index, fx.Node) else mine.size + index
    dtype = x.meta["val"].dtype
    row = g.insert(node, aten.unsqueeze.default, src, dim, layout=part, dtype=dtype)
    args = (x, row, dim, g.value(first))
    node.replace_all_uses_with(g.insert(node, tpu.write_at.default, *args, layout=out, dtype=dtype))
    return out
