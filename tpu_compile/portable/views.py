"""The ops that only look at memory, by the names that a manifest has for them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from tpu_compile.calling import VIEWS

aten = torch.ops.aten


@dataclass(frozen=True)
class View:
    """A view of a tensor.

    Attributes:
        op: the torch op, by name.
        args: of the op, after the tensor.
    """

    op: str
    args: tuple[Any, ...]


# What ``as_strided`` shows depends on the strides of the tensor at hand: it is none of them.
NAMES: dict[Any, str] = {
    op: "getitem" if op is operator.getitem else str(op) for op in VIEWS - {aten.as_strided.default}
}
_OPS: dict[str, Callable[..., Any]] = {name: op for op, name in NAMES.items()}
# The tensor at hand may have strides with which its shape can't be changed in place.
_OPS[NAMES[aten.view.default]] = aten.reshape.default


def is_known(name: str) -> bool:
    """Whether a name stands for an op."""
    return name in _OPS


def apply(t: Any, views: Iterable[View]) -> Any:
    """Views of a tensor, one of the other."""
    for view in views:
        t = _OPS[view.op](t, *view.args)
    return t
