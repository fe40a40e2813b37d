"""Sorting with ties and NaN, and searching in sorted sequences."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import compare

NAN, INF = math.nan, math.inf
ROWS = torch.tensor(
    [[3.0, 1.0, 3.0, 1.0, 2.0], [NAN, 1.0, NAN, -INF, INF], [0.0, -0.0, 0.0, 1.0, -1.0]]
)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_sort(dim: int, descending: bool) -> None:
    compare(lambda x: x.sort(dim=dim, descending=descending, stable=True), ROWS)
    compare(lambda x: x.sort(dim=dim, descending=descending)[0], ROWS)
    ints = torch.tensor([[3, -1, 3, 250], [0, 0, 7, 1]])
    for dtype in (torch.int64, torch.uint8, torch.bool, torch.bfloat16):
        compare(lambda x: x.sort(dim=dim, descending=descending, stable=True), ints.to(dtype))


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("k", [0, 1, 3, 5])
def test_topk(k: int, largest: bool) -> None:
    compare(lambda x: x.topk(k, largest=largest)[0], ROWS)
    distinct = torch.randperm(20).reshape(4, 5)
    compare(lambda x: x.topk(k, largest=largest), distinct)
    compare(lambda x: x.topk(k - 1 if k > 4 else k, 0, largest), distinct)


def test_median_and_kthvalue() -> None:
    distinct = torch.randperm(21).reshape(3, 7).float()
    compare(lambda x: (*x.median(1), *x.kthvalue(3, 1), x.median(), x.nanmedian()), distinct)
    compare(lambda x: (x.median(1)[0], x.nanmedian(1)[0], x.median()), ROWS)


def test_searchsorted() -> None:
    edges = torch.tensor([1.0, 3.0, 3.0, 7.0])
    values = torch.tensor([[0.0, 1.0, 3.0], [7.0, 8.0, INF]])
    for right in (False, True):
        compare(lambda e, v, r=right: torch.searchsorted(e, v, right=r), edges, values)
        compare(lambda e, v, r=right: torch.bucketize(v, e, right=r, out_int32=True), edges, values)
    rows = torch.tensor([[1, 4, 9], [2, 2, 2]])
    compare(lambda e, v: torch.searchsorted(e, v), rows, torch.tensor([[4, 5], [2, 3]]))


def test_rank_zero() -> None:
    x = torch.tensor(3.0)
    compare(lambda x: (*x.sort(), *x.topk(1), *x.kthvalue(1), x.median(), *x.median(0)), x)
