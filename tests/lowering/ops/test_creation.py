"""Ranges and fills: ends, halves and truncation as torch has them."""

from __future__ import annotations

import pytest
import torch
from helpers import compare


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32, torch.float64])
@pytest.mark.parametrize("end", [0, 50, -7])
def test_linspace(end: int, dtype: torch.dtype) -> None:
    x = torch.tensor([50.0, 4.7, -4.3, 0.5])
    for steps in (0, 1, 2, 7, 50):
        compare(lambda x, n=steps: [torch.linspace(s, end, n, dtype=dtype) for s in x.unbind()], x)
        compare(lambda x, n=steps: torch.linspace(1, end, n, dtype=dtype) + x[0].to(dtype), x)


@pytest.mark.parametrize("args", [(5,), (2, 9, 3), (9, 2, -3), (0.5, 3, 0.3), (-1.5, 1.5, 0.5)])
def test_arange(args: tuple[float, ...]) -> None:
    compare(lambda x: torch.arange(*args) + x, torch.zeros(()))
    compare(lambda x: torch.arange(*args, dtype=torch.float64) + x, torch.zeros(()))


def test_fills_round_and_wrap() -> None:
    x = torch.zeros(2)
    compare(lambda x: (x.new_full((2,), 0.1, dtype=torch.bfloat16), torch.full_like(x, 2.7)), x)
    compare(lambda x: (torch.full((2,), 2.7, dtype=torch.int32), x.new_ones(3), x.new_zeros(0)), x)
    compare(
        lambda x: (torch.full((), True), torch.full((2,), 3), torch.fill(x, 7), torch.eye(3, 2)), x
    )
    compare(lambda x: (torch.tril(x + 1), torch.triu(x + 1, -1)), torch.zeros(4, 3))
