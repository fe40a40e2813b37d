"""Results that torch does not define in full: another one than its own may be right."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

_SUM = 0
# Values and their places; equal values may come in any order.
_ORDERS = frozenset({aten.sort.default, aten.sort.stable, aten.topk.default})
# The sizes of bags are for the backward, which needs none for sums; torch may leave them 0.
_BAGS = frozenset({aten._embedding_bag.default, aten._embedding_bag_forward_only.default})
_SIZES = (2, 3)

# A program's results are as good as torch's here: where they are used further, its own are taken on
# both sides.
LEFT_OPEN = _ORDERS | _BAGS


def as_torch_has_it(
    node: fx.Node, inputs: dict[fx.Node, Any], torchs: Any, number: int, got: Any
) -> Any:
    """Torch's result in the stead of one that is right in another way, else that one.

    Args:
        node: of one of ``LEFT_OPEN``.
        inputs: the values of what it reads.
        torchs: torch's results.
        number: of the result.
        got: a program's.
    """
    if node.target in _BAGS:
        free = number in _SIZES and _argument(node, "mode") == _SUM
        return torchs[number] if free and got.shape == torchs[number].shape else got
    if number != 1:
        return got
    x, dim = inputs[node.args[0]], _argument(node, "dim")  # type: ignore[index]
    same = got.shape == torchs[1].shape and (got.dim() == 0 or _distinct(got, x, dim))
    if not same or not torch.equal(x.gather(dim, got).nan_to_num(), torchs[0].nan_to_num()):
        return got
    return torchs[1]


def _distinct(places: torch.Tensor, x: torch.Tensor, dim: int) -> bool:
    within = bool(((places >= 0) & (places < x.shape[dim])).all())
    return within and bool(places.sort(dim).values.diff(dim=dim).ne(0).all())


def _argument(node: fx.Node, name: str) -> Any:
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    i, argument = next((i, a) for i, a in enumerate(schema) if a.name == name)
    return node.args[i] if i < len(node.args) else node.kwargs.get(name, argument.default_value)
