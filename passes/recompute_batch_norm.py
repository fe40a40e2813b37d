"""A batch norm that checkpointing recomputes  ->  one that leaves the running statistics alone.

The backward recomputes the batch's own statistics and the result, which do not depend on the
running ones. Those the forward has changed by then, and autograd refuses an argument of the
backward that is one. So what is recomputed takes none, nor does the gradient, which in training
does not read them. The op that updates them stays in the forward, where XLA merges the two.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from tpu_compile.passes.base import Pass

aten = torch.ops.aten

_RECOMPUTED = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


def _run(gm: fx.GraphModule) -> int:
    changes = _gradients(gm)
    op: Any = aten._native_batch_norm_legit_functional.default
    for node in gm.graph.find_nodes(op="call_function", target=op):
        x, weight, bias, _mean, _var, training, momentum, eps = node.args
        if not training or node.meta.get("recompute") not in _RECOMPUTED:
            continue
        with gm.graph.inserting_after(node):
            args = (x, weight, bias, training, momentum, eps)
            new = gm.graph.call_function(aten._native_batch_norm_legit.no_stats, args)
        new.meta = {**node.meta, "val": node.meta["val"][:3]}
        for user in list(node.users):
            if user.target is operator.getitem and user.args[1] in (0, 1, 2):
                user.update_arg(0, new)
        changes += 1
    return changes


def _gradients(gm: fx.GraphModule) -> int:
    changes = 0
    op: Any = aten.native_batch_norm_backward.default
    for node in gm.graph.find_nodes(op="call_function", target=op):
        (*_, mean, var, _save_mean, _save_invstd, training, _eps, _mask) = node.args
        if training and (mean is not None or var is not None):
            node.update_arg(3, None)
            node.update_arg(4, None)
            changes += 1
    return changes


recompute_batch_norm = Pass("recompute-batch-norm", _run)
