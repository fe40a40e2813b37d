"""New tensors: the same everywhere, random, or counted from the front."""

from __future__ import annotations

import torch
from torch import fx

from tpu_compile import random_ops  # noqa: F401  (defines torch.ops.tpu.uniform and friends)
from tpu_compile.padding import layout as lay
from tpu_compile.padding.graph import PaddedGraph, sizes_of
from tpu_compile.padding.layout import Layout, expr_of, whole
from tpu_compile.padding.rules.registry import argument, pads

aten, tpu = torch.ops.aten, torch.ops.tpu


@pads(
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_strided.default,
    aten.full.default,
    aten.full_like.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
    aten.new_full.default,
    aten.new_ones.default,
    aten.new_zeros.default,
    aten.ones.default,
    aten.ones_like.default,
    aten.scalar_tensor.default,
    aten.zeros.default,
    aten.zeros_like.default,
    sizes=("size", "stride"),
)
def constant(g: PaddedGraph, node: fx.Node) -> Layout:
    """Any position holds what any other may hold."""
    return tuple(lay.constant(size, g.symbols) for size in sizes_of(node.meta["val"]))


@pads(tpu.normal.default, tpu.randint.default, tpu.uniform.default, sizes=("size",))
def random(g: PaddedGraph, node: fx.Node) -> Layout:
    """Elements that differ: what the forward used must be what the backward is given."""
    return tuple(lay.of_argument(size, g.symbols) for size in sizes_of(node.meta["val"]))


@pads(aten.arange.start_step, sizes=("start", "end"))
def arange(g: PaddedGraph, node: fx.Node) -> Layout:
    """Counts from the front, or from a length that is no size: that is added."""
    size = sizes_of(node.meta["val"])[0]
    start, step = node.args[0], argument(node, 2, "step", 1)
    val = start.meta.get("val") if isinstance(start, fx.Node) else None
    dtype = node.meta["val"].dtype
    if isinstance(step, fx.Node):
        g.refuse(node, "it counts in steps of a padded length")
    if not g.depends(val):
        return (whole(size),)
    if not isinstance(step, int) or dtype.is_floating_point:
        g.refuse(node, "it counts from a padded length in steps that are no integers")
    length = g.concrete(expr_of(size))
    layout = (whole(size),)
    kwargs = {k: v for k, v in node.kwargs.items() if k != "step"}
    op = aten.arange.start_step
    count = g.insert(node, op, 0, length * step, step, layout=layout, dtype=dtype, kwargs=kwargs)
    moved = (count, g.true_number(start))
    node.replace_all_uses_with(g.insert(node, aten.add.Tensor, *moved, layout=layout, dtype=dtype))
    return layout
