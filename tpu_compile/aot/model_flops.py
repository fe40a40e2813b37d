"""The FLOPs that a model needs, counted from its graph: what utilisation is measured against."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

aten = torch.ops.aten
hop = torch.ops.higher_order


def model_flops(gm: fx.GraphModule) -> int:
    """FLOPs of a graph's matrix products, convolutions and attention, by torch's own formulas.

    A multiplication and its addition are two. Causal attention counts as if it were full, as torch
    and most papers count it. What the compiler computes twice, and elementwise ops, don't count. A
    ``scan``'s body counts once per step, a ``while_loop``'s once, of a ``cond`` the dearer branch.
    """
    return sum(_node(gm, node) for node in gm.graph.nodes if node.op == "call_function")


def _node(gm: fx.GraphModule, node: fx.Node) -> int:
    if node.target in _BODIES:
        bodies = [getattr(gm, str(n.target)) for n in node.all_input_nodes if n.op == "get_attr"]
        counts = [model_flops(b) for b in bodies if isinstance(b, fx.GraphModule)]
        return max(counts, default=0) * _steps(node)
    if not isinstance(node.target, torch._ops.OpOverload):
        return 0
    packet = node.target.overloadpacket
    args: Any = fx.map_arg(node.args, lambda n: n.meta["val"])
    kwargs: Any = fx.map_arg(node.kwargs, lambda n: n.meta["val"])
    if packet is aten._scaled_dot_product_flash_attention_for_cpu:
        return int(sdpa_flop_count(*(a.shape for a in args[:3])))
    if packet is aten._scaled_dot_product_flash_attention_for_cpu_backward:
        return int(sdpa_backward_flop_count(*(a.shape for a in args[:4])))
    formula = flop_registry.get(packet)
    return int(formula(*args, **kwargs, out_val=node.meta["val"])) if formula else 0


_BODIES = (hop.cond, hop.while_loop, hop.scan, hop.map_impl)


def _steps(node: fx.Node) -> int:
    if node.target not in (hop.scan, hop.map_impl):
        return 1
    place = 2 if node.target is hop.scan else 1
    over: list[Any] = pytree.tree_leaves(node.args[place])
    return int(over[0].meta["val"].shape[0]) if over else 1
