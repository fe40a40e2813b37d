"""Which ops torch decomposes for us: everything it can, but what has a rule of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import _core_aten_decompositions_post_autograd, decomposition_table

from tpu_compile.lowering import registry

aten = torch.ops.aten

# Decompositions of our own, by overload, where torch has none or one that is wrong or slow.
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {}


@functools.cache
def table(keep: frozenset[Any] = frozenset()) -> dict[Any, Callable[..., Any]]:
    """The decompositions to trace with, by overload.

    Args:
        keep: overloads to leave whole although they have no rule, for a pass that rewrites them.
    """
    merged = {**decomposition_table, **_core_aten_decompositions_post_autograd(), **DECOMPOSITIONS}
    whole = {*registry.rules(), *keep} - set(DECOMPOSITIONS)
    return {op: fn for op, fn in merged.items() if op not in whole}
