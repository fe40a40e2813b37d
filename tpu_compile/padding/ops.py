"""``torch.ops.tpu``'s ops on the valid part of a padded dimension, whose length is a value."""

from __future__ import annotations

import torch
from torch import Tensor

LIB = torch.library.Library("tpu", "FRAGMENT")
LIB.define(
    "fill_padding(Tensor x, int dim, SymInt size, SymInt inner, Scalar length, Scalar fill)"
    " -> Tensor"
)
LIB.define("slice_at(Tensor x, int dim, Scalar start, SymInt size) -> Tensor")
LIB.define("write_at(Tensor x, Tensor part, int dim, Scalar start) -> Tensor")


def _fill_padding(
    x: Tensor, dim: int, size: int, inner: int, length: int, fill: float | bool
) -> Tensor:
    at = torch.arange(x.shape[dim], device=x.device) // inner % size
    valid = (at < length).view(-1, *[1] * (x.dim() - dim - 1))
    return torch.where(valid, x, torch.full((), fill, dtype=x.dtype, device=x.device))


def _slice_at(x: Tensor, dim: int, start: int, size: int) -> Tensor:
    return x.narrow(dim, start, size).clone()


def _write_at(x: Tensor, part: Tensor, dim: int, start: int) -> Tensor:
    return x.slice_scatter(part, dim, start, start + part.shape[dim])


for _name, _eager in (
    ("fill_padding", _fill_padding),
    ("slice_at", _slice_at),
    ("write_at", _write_at),
):
    LIB.impl(_name, _eager, "CompositeExplicitAutograd")
