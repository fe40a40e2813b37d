"""x.expand(x.shape), x.view(x.shape), x[:], x.alias()  ->  x."""

from __future__ import annotations

import torch
from torch import fx

from tpu_compile.passes.base import Pass

aten = torch.ops.aten

# Ops whose result is the argument itself when nothing of its type changes.
_IDENTITIES = (
    aten.alias.default,
    aten.detach.default,
    aten.expand.default,
    aten.view.default,
    aten.slice.Tensor,
    aten.permute.default,
)


def _run(gm: fx.GraphModule) -> int:
    changes = 0
    outputs = set(gm.graph.output_node().all_input_nodes)
    for op in _IDENTITIES:
        for node in gm.graph.find_nodes(op="call_function", target=op):
            (x, *_) = node.args
            # An output keeps its node: it may be an alias that the caller makes for itself.
            if node in outputs or not _same(node.meta["val"], x.meta["val"]):
                continue
            if op is aten.permute.default and list(node.args[1]) != list(range(len(node.args[1]))):
                continue
            node.replace_all_uses_with(x)
            gm.graph.erase_node(node)
            changes += 1
    return changes


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype or a.dim() != b.dim():
        return False
    pairs = [
        (a.storage_offset(), b.storage_offset()),
        *zip(a.shape, b.shape, strict=True),
        *zip(a.stride(), b.stride(), strict=True),
    ]
    return all(_equal(x, y) for x, y in pairs)


def _equal(x: int | torch.SymInt, y: int | torch.SymInt) -> bool:
    if isinstance(x, torch.SymInt) and isinstance(y, torch.SymInt):
        return x.node.expr == y.node.expr  # no guard is added
    return isinstance(x, int) and isinstance(y, int) and x == y


remove_no_ops = Pass("remove-no-ops", _run)
