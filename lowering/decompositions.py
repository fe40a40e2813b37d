"""Which ops torch decomposes for us: everything it can, but what has a rule of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    whole = {*registry.rules(), *keep, *filter(_has_ruled_parts, merged)} - set(DECOMPOSITIONS)
    return {op: fn for op, fn in merged.items() if op not in whole}


@contextmanager
def rules_first() -> Iterator[None]:
    """Keeps torch's Python kernels from taking apart, before the table is asked, ops with rules.

    Where symbolic shapes are on, as under Dynamo, most interpolations have such kernels for
    autograd: gathers at computed places, and so scatters in the gradient.
    """
    keys = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
    ops: list[Any] = [op for op in decomposition_table if _has_ruled_parts(op)]
    ops += [default for op in ops if registry.find(default := op._overloadpacket.default)]
    taken = [(op, {k: op.py_kernels.pop(k) for k in keys if k in op.py_kernels}) for op in ops]
    for op in ops:
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, kernels in taken:
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()


def _has_ruled_parts(op: Any) -> bool:
    """Whether an op that is left whole is traced as ops with rules, which torch's table goes past.

    These are the interpolations whose sizes may be given as scale factors.
    """
    return isinstance(op, torch._ops.OpOverload) and op._overloadname == "vec"
