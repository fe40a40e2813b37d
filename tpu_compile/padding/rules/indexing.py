"""Ops that read and write at indices: indices in padding point to the front, and write nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from tpu_compile.padding.graph import PaddedGraph, sizes_of
from tpu_compile.padding.layout import ONE, Dim, Layout, plain, whole
from tpu_compile.padding.rules.registry import (
    argument,
    at_end,
    join,
    join_dims,
    normal,
    pads,
    unpadded,
)

aten = torch.ops.aten


def _harmless(g: PaddedGraph, node: fx.Node, place: int) -> Layout:
    """Points the indices in padding at the front; returns their layout."""
    index: Any = node.args[place]
    node.update_arg(place, g.filled(node, index, 0))
    return g.layout(index)


@pads(aten.embedding.default)
def embedding(g: PaddedGraph, node: fx.Node) -> Layout:
    """A row of a table for each index."""
    weight = g.layout(node.args[0])  # type: ignore[arg-type]
    unpadded(g, node, weight, [0], "a table of a padded size")
    return plain((*_harmless(g, node, 1), *weight[1:]))


@pads(aten.embedding_dense_backward.default)
def embedding_backward(g: PaddedGraph, node: fx.Node) -> Layout:
    """Adds gradients up by index: zeros for those in padding."""
    grad: Any = node.args[0]
    if node.args[4]:
        g.refuse(node, "it counts its indices")
    index: Any = node.args[1]
    rows = join(g, node, [g.layout(grad)[:-1], g.layout(index)])
    node.update_arg(0, g.filled(node, grad, 0, range(len(rows)), rows))
    node.update_arg(1, g.filled(node, index, 0, layout=rows))
    return tuple(map(whole, sizes_of(node.meta["val"])))


@pads(aten.index_select.default)
def index_select(g: PaddedGraph, node: fx.Node) -> Layout:
    """Slices along a dimension."""
    layout = g.layout(node.args[0])  # type: ignore[arg-type]
    dim = normal(node.args[1], len(layout))  # type: ignore[arg-type]
    at_end(g, node, layout[dim])
    (index,) = _harmless(g, node, 2) or (ONE,)
    return plain((*layout[:dim], index, *layout[dim + 1 :]))


@pads(aten.index_add.default)
def index_add(g: PaddedGraph, node: fx.Node) -> Layout:
    """Adds slices along a dimension: zeros for the indices in padding."""
    layout, src = (g.layout(node.args[i]) for i in (0, 3))  # type: ignore[arg-type]
    dim = normal(node.args[1], len(layout))  # type: ignore[arg-type]
    index: Any = node.args[2]
    values: Any = node.args[3]
    others = join(g, node, [(*v[:dim], ONE, *v[dim + 1 :]) for v in (layout, src)])
    rows = join_dims(g, node, [src[dim], *g.layout(index)])
    node.update_arg(2, g.filled(node, index, 0, layout=(rows,)))
    joined = (*others[:dim], rows, *others[dim + 1 :])
    node.update_arg(3, g.filled(node, values, 0, [dim], joined))
    return plain((*others[:dim], at_end(g, node, layout[dim]), *others[dim + 1 :]))


@pads(aten.gather.default)
def gather(g: PaddedGraph, node: fx.Node) -> Layout:
    """An element along a dimension for each index."""
    layout = g.layout(node.args[0])  # type: ignore[arg-type]
    dim = normal(node.args[1], len(layout))  # type: ignore[arg-type]
    index: Any = node.args[2]
    at = g.layout(index)
    if not layout:
        return at
    at_end(g, node, layout[dim])
    out = _beside(g, node, at, [layout], dim)
    node.update_arg(2, g.filled(node, index, 0, layout=out))
    return plain(out)


def _beside(
    g: PaddedGraph, node: fx.Node, at: Layout, others: Sequence[Layout], dim: int
) -> Layout:
    """An index's layout where all but one dimension must be padded as the others' or not at all."""
    out = list(at)
    for d, mine in enumerate(at):
        all_of = [mine, *(v[d] for v in others)]
        if d != dim and any(map(g.is_padded, all_of)):
            out[d] = join_dims(g, node, all_of)
    return tuple(out)


@pads(aten.scatter.value, aten.scatter.src, aten.scatter_add.default)
def scatter(g: PaddedGraph, node: fx.Node) -> Layout:
    """Writes or adds along a dimension; what padding writes lies in padding or is zero."""
    layout = g.layout(node.args[0])  # type: ignore[arg-type]
    dim = normal(node.args[1], len(layout))  # type: ignore[arg-type]
    index: Any = node.args[2]
    src: Any = node.args[3]
    if not layout:
        return layout
    tensor = isinstance(src, fx.Node) and src in g.layouts
    others = [layout, g.layout(src)] if tensor else [layout]
    at = _beside(g, node, g.layout(index), others, dim)
    if tensor:
        mine = join_dims(g, node, [at[dim], g.layout(src)[dim]])
        at = (*at[:dim], mine, *at[dim + 1 :])
    if g.is_padded(at[dim]):
        if node.target is not aten.scatter_add.default:
            g.refuse(node, "it writes along a dimension of padded length")
        node.update_arg(3, g.filled(node, src, 0, [dim], at))
    node.update_arg(2, g.filled(node, index, 0, layout=at))
    rows = at_end(g, node, layout[dim])
    return plain(
        tuple(rows if d == dim else (at[d] if g.is_padded(v) else v) for d, v in enumerate(layout))
    )


@pads(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(g: PaddedGraph, node: fx.Node) -> Layout:
    """``x[i, :, j]``: the indices' broadcast, in place of the dimensions they index."""
    layout = g.layout(node.args[0])  # type: ignore[arg-type]
    at, which, front = _indices(g, node, layout)
    rest = [v for d, v in enumerate(layout) if d not in which]
    return plain((*rest[:front], *at, *rest[front:]))


def _indices(g: PaddedGraph, node: fx.Node, x: Layout) -> tuple[Layout, list[int], int]:
    """Makes a node's indices harmless in padding, where they become 0.

    Returns:
        The layout of their broadcast, the dimensions they index, and where it stands in the result.
    """
    given: Any = node.args[1]
    indices = list(given)
    which = [d for d, i in enumerate(indices) if i is not None]
    at = join(g, node, [g.layout(indices[d]) for d in which])
    for d in which:
        if indices[d].meta["val"].dtype in (torch.bool, torch.uint8):
            g.refuse(node, "a mask as index")
        mine = g.layout(indices[d])
        joined = at[len(at) - len(mine) :]
        joined = tuple(j if m.factors else m for j, m in zip(joined, mine, strict=True))
        counted = _from_true_end(g, node, indices[d], x[d])
        indices[d] = g.filled(node, counted, 0, layout=joined)
    node.update_arg(1, indices)
    together = which == list(range(which[0], which[-1] + 1))
    return at, which, which[0] if together else 0


def _from_true_end(g: PaddedGraph, node: fx.Node, index: fx.Node, dim: Dim) -> fx.Node:
    """Indices that count from the true end where they are negative."""
    if not g.is_padded(at_end(g, node, dim)):
        return index
    layout, dtype = g.layout(index), index.meta["val"].dtype
    size = g.value(dim.size)
    below = g.insert(node, aten.lt.Scalar, index, 0, layout=layout, dtype=torch.bool)
    moved = g.insert(node, aten.add.Tensor, index, size, layout=layout, dtype=dtype)
    return g.insert(node, aten.where.self, below, moved, index, layout=layout, dtype=dtype)


@pads(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(g: PaddedGraph, node: fx.Node) -> Layout:
    """Adds values at indices: zeros for those in padding. Writing them would leave a trace."""
    layout = g.layout(node.args[0])  # type: ignore[arg-type]
    at, which, front = _indices(g, node, layout)
    values: Any = node.args[2]
    mine = g.layout(values)
    rest = [v for d, v in enumerate(layout) if d not in which]
    out = join(g, node, [(*rest[:front], *at, *rest[front:]), mine])
    if any(map(g.is_padded, at)):
        if not argument(node, 3, "accumulate", False):
            g.refuse(node, "it writes at indices of padded length")
        if len(mine) != len(out) or any(
            g.is_padded(o) and not v.factors for o, v in zip(out, mine, strict=True)
        ):
            g.refuse(node, "one value for indices of padded length")
        node.update_arg(2, g.filled(node, values, 0, layout=out))
    others = iter((*out[:front], *out[front + len(at) :]))
    rows = [at_end(g, node, v) if d in which else next(others) for d, v in enumerate(layout)]
    return plain(tuple(rows))
