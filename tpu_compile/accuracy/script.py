"""A script of one op: compiled and eager on the same arguments, compared."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tpu_compile.accuracy.tolerance import Tolerance
from tpu_compile.calling import VIEWS

LITERAL = 64  # elements, at most, that are written out

_SCRIPT = """\
import torch{names}
{seed}

def op({parameters}):
    return {call}


args = [{args}]
actual, expected = torch.compile(op, backend="tpu")(*args), op(*args)
torch.testing.assert_close(actual, expected, rtol={rtol}, atol={atol}, equal_nan=True)
"""
_SEED = "\ntorch.manual_seed(0)  # values of the same types as the model's, and not these\n"


def script_of(node: fx.Node, inputs: dict[fx.Node, Any], tolerance: Tolerance) -> str:
    """The text of a script for a node, or "" where its arguments can't be written simply."""
    dtype = _result_dtype(node)
    if dtype is None or not all(map(_is_simple, inputs.values())):
        return ""
    short = {n: _Name(f"x{i}") for i, n in enumerate(inputs)}
    args, kwargs = fx.map_arg((node.args, node.kwargs), short.__getitem__)
    given = ", ".join([*map(repr, args), *(f"{k}={v!r}" for k, v in kwargs.items())])
    call = f"torch.ops.{node.target}({given})"
    if node.target in VIEWS:  # torch itself makes a view of an argument, and no rule is run
        call = f"torch.utils._pytree.tree_map(torch.clone, {call})"
    tensors = list(inputs.values())
    literal = sum(t.numel() for t in tensors) <= LITERAL and all(t.is_contiguous() for t in tensors)
    shown = ", ".join(map(_literal if literal else _random, tensors))
    names = [n for n in ("device", "inf", "nan") if re.search(rf"\b{n}\b", f"{call} {shown}")]
    rtol, atol = tolerance.of(dtype)
    return _SCRIPT.format(
        names=f"\nfrom torch import {', '.join(names)}" if names else "",
        seed="" if literal else _SEED,
        parameters=", ".join(short.values()),
        call=call,
        args=shown,
        rtol=rtol,
        atol=atol,
    )


def _result_dtype(node: fx.Node) -> torch.dtype | None:
    tensors = [v for v in pytree.tree_leaves(node.meta["val"]) if isinstance(v, torch.Tensor)]
    return tensors[0].dtype if tensors and isinstance(node.target, torch._ops.OpOverload) else None


class _Name(str):
    """A string that is written without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _is_simple(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return False
    small_float = value.dtype.is_floating_point and value.dtype.itemsize == 1
    return not small_float and (value.is_contiguous() or 0 not in value.stride())


def _literal(t: torch.Tensor) -> str:
    return f"torch.tensor({t.tolist()!r}, dtype={t.dtype})"


def _random(t: torch.Tensor) -> str:
    size, normal = tuple(t.shape), t.dtype.is_floating_point or t.dtype.is_complex
    if not t.is_contiguous():
        fill = "normal_" if normal else "zero_"
        return f"torch.empty_strided({size}, {t.stride()}, dtype={t.dtype}).{fill}()"
    return f"torch.{'randn' if normal else 'zeros'}({size}, dtype={t.dtype})"
