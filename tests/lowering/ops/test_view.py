"""Views and cuts at odd arguments: negative, clamped, empty, overlapping."""

from __future__ import annotations

import pytest
import torch
from helpers import compare

X = torch.arange(24.0).reshape(2, 3, 4)


def test_slices() -> None:
    compare(lambda x: (x[:, 1:], x[:, -2:10], x[:, 2:1], x[..., ::2], x[-1, 0:3:2], x + 1), X)
    compare(lambda x: tuple(v + 1 for v in (x[:, 1:], x[:, 5:], x[..., 1::3])), X)


@pytest.mark.parametrize("offset", [-2, -1, 0, 1, 3, 5])
@pytest.mark.parametrize("dims", [(0, 1), (1, 2), (2, 0), (-1, -2)])
def test_diagonals(offset: int, dims: tuple[int, int]) -> None:
    diagonal = X.diagonal(offset, *dims) if abs(offset) < 6 else None
    compare(lambda x: x.diagonal(offset, *dims) + 1, X)
    compare(lambda x, s: x.diagonal_scatter(s, offset, *dims), X, -diagonal)


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [
        ((2, 3), (12, 4), 1),
        ((4, 6), (6, 1), 0),
        ((3, 2), (1, 3), 2),
        ((5, 4), (4, 1), 3),
        ((4, 3), (2, 1), 0),
        ((3, 3), (0, 2), 5),
        ((), (), 7),
        ((0, 3), (1, 1), 0),
        ((2, 2, 2), (12, 5, 3), 1),
    ],
)
def test_as_strided(size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> None:
    compare(lambda x: x.as_strided(size, stride, offset) + 1, X)
    compare(lambda x: (x * 2).transpose(0, 2).contiguous().as_strided(size, stride, offset) + 1, X)
    if (0 not in stride) and size != (4, 3):
        src = -torch.rand(size)
        compare(lambda x, s: x.as_strided_scatter(s, size, stride, offset), X, src)


def test_as_strided_of_a_transposed_input() -> None:
    compare(lambda x: x.as_strided((4, 3), (1, 4), 2) + 1, X.transpose(0, 2))


def test_pads() -> None:
    pad = torch.nn.functional.pad
    compare(lambda x: (pad(x, (1, 2)), pad(x, (-1, 2, 0, -1), value=3.5), pad(x, (0, 0))), X)
    compare(lambda x: pad(x, (1, 1), value=True), X > 3)


def test_cat_promotes_and_skips_empty() -> None:
    compare(lambda x, y: torch.cat([x, y]), torch.arange(3), torch.rand(2))
    compare(lambda x, y: torch.cat([x, y]), torch.empty(0), torch.rand(2, 3))
    compare(lambda x: torch.cat([x[:0], x[:0]]), torch.rand(2, 3))
    compare(lambda x, y: torch.stack([x, y], -1), torch.arange(3), torch.arange(3))


def test_unfold_repeat_flip_roll() -> None:
    compare(lambda x: (x.unfold(2, 2, 1) + 1, x.unfold(0, 2, 3) + 1, x.repeat(2, 1, 3)), X)
    compare(lambda x: (x.repeat(2, 1, 1, 2), x.flip(0, -1), x.roll((1, -2), (0, 2))), X)
    compare(lambda x: (x.repeat(0, 1, 1), x.flip(()), x.rot90(1, (0, 2))), X)


def test_writes_to_parts() -> None:
    def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[:, 1:] = y[:, 1:]
        x[..., ::2] += 1
        x[0, 1] += 5
        x[-1].fill_(2)
        x.transpose(0, 2)[1:, 0] *= 3
        return x

    compare(write, X, -X)
