"""Distances of rows against eager torch, with gradients."""

from __future__ import annotations

import math

import pytest
import torch
from gradients import check, leaf

CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, math.inf])
def test_cdist_and_pdist(p: float) -> None:
    torch.manual_seed(0)
    x, y = leaf(2, 5, 3), leaf(1, 4, 3)
    y.data[0, 1] = x.data[0, 2]
    check(lambda x, y: torch.cdist(x, y, p), x, y, **CLOSE)
    check(lambda x: torch.pdist(x[0], p), x, **CLOSE)


def test_euclidean_by_a_product() -> None:
    torch.manual_seed(0)
    check(torch.cdist, leaf(30, 4), leaf(6, 4), **CLOSE)


def test_no_rows_or_columns() -> None:
    for x, y in (((0, 3), (4, 3)), ((5, 0), (4, 0))):
        check(torch.cdist, leaf(*x), leaf(*y))
    check(torch.pdist, leaf(1, 3))
