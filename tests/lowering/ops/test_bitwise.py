"""Shifts by amounts that C leaves undefined, and logic of every integer type."""

from __future__ import annotations

import pytest
import torch
from helpers import compare

DTYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_shifts(dtype: torch.dtype) -> None:
    bits = 8 * dtype.itemsize
    amounts = torch.tensor([0, 1, bits - 1, bits, bits + 1, 100]).to(dtype)
    if dtype.is_signed:
        amounts = torch.cat([amounts, torch.tensor([-1, -100]).to(dtype)])
    values = torch.tensor([0, 1, 5, 127, torch.iinfo(dtype).max, torch.iinfo(dtype).min])
    x, y = torch.cartesian_prod(values.to(dtype), amounts).T
    compare(lambda x, y: (x << y, x >> y), x, y)
    compare(lambda x: (x << 2, x >> 2), x)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool])
def test_logic(dtype: torch.dtype) -> None:
    x, y = torch.cartesian_prod(*[torch.tensor([0, 1, 6, 255]).to(dtype)] * 2).T
    compare(lambda x, y: (x & y, x | y, x ^ y, ~x), x, y)
    compare(lambda x: (x & 3, x | 4, x ^ 1), x)
