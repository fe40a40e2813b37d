"""Reductions: dtypes, identities of small and bool types, empty ranges, NaN and ties."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from helpers import compare

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64])
def test_ints_and_bools(dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 1, 3], [5, 0, 100]]).to(dtype)
    compare(lambda x: (x.sum(), x.sum(1), x.prod(), x.prod(0), x.cumsum(1), x.cumprod(0)), x)
    compare(lambda x: (x.amax(1), x.amin(0), x.max(), x.min(), x.any(), x.all(1)), x)
    compare(lambda x: (*x.max(1), *x.min(0)), x)
    compare(lambda x: (x.sum(dtype=torch.float32), x.sum(1, dtype=torch.int32)), x)
    compare(lambda x: (-x.to(torch.int64)).amax(1), x)


def test_empty() -> None:
    x = torch.empty(0, 3)
    compare(lambda x: (x.sum(), x.sum(0), x.sum(1), x.prod(0), x.mean(0), x.mean()), x)
    compare(lambda x: (x.any(), x.all(), x.any(0), x.all(0), x.var(0), x.amax(1)), x)
    compare(lambda x: (x.cumsum(0), x.softmax(0), x.softmax(1), x.logsumexp(0)), x)


def test_rank_zero() -> None:
    x = torch.tensor(2.5)
    compare(lambda x: (x.sum(), x.sum(0), x.mean(-1), x.amax(0), x.prod(0), x.cumsum(0)), x)
    compare(lambda x: (*x.max(0), x.argmax(), x.argmin(0), x.softmax(0), x.log_softmax(-1)), x)
    compare(lambda x: (*x.cummax(0), x.logcumsumexp(0), x.any(0), x.all()), x)
    compare(lambda x: x.argmax(0, keepdim=True), x)


ROWS = torch.tensor(
    [
        [1.0, 3.0, 3.0, -1.0, -1.0],
        [NAN, 1.0, NAN, 2.0, 0.0],
        [1.0, 2.0, NAN, NAN, 9.0],
        [-INF, -INF, -INF, -INF, -INF],
        [INF, 1.0, INF, -INF, 0.0],
        [0.0, -0.0, 0.0, -0.0, 0.0],
    ]
)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_nan_and_ties(dim: int) -> None:
    compare(lambda x: (*x.max(dim), *x.min(dim), x.argmax(dim), x.argmin(dim)), ROWS)
    compare(lambda x: (x.amax(dim), x.amin(dim), *torch.aminmax(x, dim=dim)), ROWS)
    compare(lambda x: (*x.cummax(dim), *x.cummin(dim)), ROWS)
    compare(lambda x: (x.sum(dim), x.prod(dim), x.nansum(dim), x.var(dim)), ROWS)


def test_nan_and_ties_over_everything() -> None:
    compare(lambda x: (x.max(), x.min(), x.argmax(), x.argmin(), x.argmax(keepdim=True)), ROWS)
    compare(lambda x: (x[3:].argmax(), x[3:].argmin()), ROWS)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.softmax(1),
        lambda x: x.log_softmax(1),
        lambda x: x.logsumexp(1),
        lambda x: x.logcumsumexp(1),
    ],
)
def test_softmax_of_infinities(fn: Callable[..., torch.Tensor]) -> None:
    compare(fn, ROWS)


@pytest.mark.parametrize("correction", [0, 1, 2, 5, 7])
def test_variance_of_few(correction: int) -> None:
    x = torch.randn(3, 5)
    compare(lambda x: torch.var_mean(x, 1, correction=correction), x)
    compare(lambda x: x.std(correction=correction, dim=(0, 1), keepdim=True), x)


def test_bf16_accumulates_in_float32() -> None:
    x = torch.full((4096,), 1.0).bfloat16()
    compare(lambda x: (x.sum(), x.mean(), x.cumsum(0)), x, rtol=0, atol=0)
    y = torch.randn(64, 64).bfloat16()
    compare(lambda x: (x.sum(1), x.mean(1), x.var(1), x.softmax(1)), y, rtol=0, atol=0)


def test_no_dimensions() -> None:
    x = torch.randn(2, 3)
    compare(lambda x: (x.sum([]), x.mean([]), x.amax([]), x.std([])), x)
    compare(lambda x: torch.any(x, dim=[]), x > 0)


def test_float_sums_are_accurate() -> None:
    torch.manual_seed(0)
    x = torch.rand(1 << 20)
    compare(lambda x: (x.sum(), x.mean(), x.var()), x, rtol=1e-5, atol=0)
