"""Which ops torch decomposes for us: everything it can, but what has a rule of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import _core_aten_decompositions_post_autograd, decomposition_table

from tpu_compile.lowering import registry

aten = torch.ops.aten

# Left whole although torch could take them apart: the functional random passes replace them.
RANDOM = (
    aten.native_dropout.default,
    aten.rrelu_with_noise.default,
    aten.rrelu_with_noise_functional.default,
)

# Decompositions of our own, by overload, where torch has none or one that is wrong or slow.
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {}


@functools.cache
def table() -> dict[Any, Callable[..., Any]]:
    """The decompositions to trace with, by overload."""
    merged = {**decomposition_table, **_core_aten_decompositions_post_autograd(), **DECOMPOSITIONS}
    kept = {*registry.rules(), *RANDOM} - set(DECOMPOSITIONS)
    return {op: fn for op, fn in merged.items() if op not in kept}
