"""Scaled dot product attention: a padded key gets no weight."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from tpu_compile.padding.graph import PaddedGraph
from tpu_compile.padding.layout import ONE, Dim, Layout, equal, plain, whole
from tpu_compile.padding.rules.registry import argument, at_end, join, join_dims, pads, unpadded

aten = torch.ops.aten

_MASK = "attn_mask"


def _mask_keys(g: PaddedGraph, node: fx.Node, q: Layout, keys: Dim, *, causal: bool) -> None:
    """Puts -inf where a query would look at a padded key."""
    dtype = node.args[0].meta["val"].dtype  # type: ignore[union-attr]
    mask: Any = node.kwargs.get(_MASK)
    if not g.is_padded(keys):
        return
    keys = at_end(g, node, keys)
    if causal:
        if not equal(q[2], keys):
            g.refuse(node, "causal attention of queries to keys of another padded length")
        return  # the padding comes after every valid query
    columns: Layout = (ONE, ONE, ONE, whole(keys.size))
    if mask is None:
        shape = [1, 1, 1, g.concrete(keys.size)]
        mask = g.insert(
            node,
            aten.full.default,
            shape,
            0.0,
            layout=columns,
            dtype=dtype,
            kwargs={"dtype": dtype},
        )
    layout = g.layout(mask)
    if not layout or not layout[-1].factors:
        g.refuse(node, "its mask is the same for all keys, of a padded length")
    fill: Any = False if mask.meta["val"].dtype == torch.bool else -math.inf
    node.update_kwarg(_MASK, g.filled(node, mask, fill, [len(layout) - 1]))


def _check(g: PaddedGraph, node: fx.Node, q: Layout, k: Layout, v: Layout) -> tuple[Dim, Dim]:
    """Refuses what is padded in different places.

    Returns:
        The batch and the keys.
    """
    for layout in (q, k, v):
        unpadded(g, node, layout, [3], "heads of a padded size")
    if any(g.is_padded(layout[1]) for layout in (q, k, v)):  # else groups of them may share a key
        join_dims(g, node, [q[1], k[1], v[1]])
    batch = join_dims(g, node, [q[0], k[0], v[0]])
    keys = join_dims(g, node, [k[2], v[2]])
    mask: Any = node.kwargs.get(_MASK)
    if mask is not None:
        join(g, node, [(batch, q[1], q[2], keys), g.layout(mask)])
    return batch, keys


@pads(aten._scaled_dot_product_flash_attention_for_cpu.default)
def attention(g: PaddedGraph, node: fx.Node) -> tuple[Layout, Layout]:
    """Queries [b, h, q, d] to keys and values [b, h, k, d]: results and the log of the sums."""
    query: Any = node.args[0]
    key: Any = node.args[1]
    value: Any = node.args[2]
    q, k, v = g.layout(query), g.layout(key), g.layout(value)
    batch, keys = _check(g, node, q, k, v)
    _mask_keys(g, node, q, keys, causal=bool(argument(node, 4, "is_causal", False)))
    for i, n, layout in ((1, key, k), (2, value, v)):
        # no weight times what is no number would be none
        node.update_arg(i, g.filled(node, n, 0, [2], (*layout[:2], keys)))
    return (batch, q[1], q[2], v[3]), (batch, q[1], q[2])


@pads(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def attention_backward(g: PaddedGraph, node: fx.Node) -> tuple[Layout, Layout, Layout]:
    """Gradients of keys and values add up over queries: those in padding have none."""
    nodes: list[Any] = list(node.args[:6])
    layouts = [g.layout(n) for n in nodes]
    q, k, v = layouts[1:4]
    batch, keys = _check(g, node, q, k, v)
    queries = join_dims(g, node, [layouts[i][2] for i in (0, 1, 4, 5)])
    mask: Any = node.kwargs.get(_MASK)
    if mask is not None and len(g.layout(mask)) > 1 and g.is_padded(g.layout(mask)[-2]):
        node.update_kwarg(_MASK, g.filled(node, mask, 0, [len(g.layout(mask)) - 2]))
    causal = bool(argument(node, 7, "is_causal", False))
    _mask_keys(g, node, (batch, q[1], queries), keys, causal=causal)
    for i, n in enumerate(nodes):
        joined = (*layouts[i][:2], keys if i in (2, 3) else queries)
        node.update_arg(i, g.filled(node, n, 0, [2], joined))
    return (
        plain((batch, q[1], queries, q[3])),
        plain((batch, k[1], keys, k[3])),
        plain((batch, v[1], keys, v[3])),
    )
