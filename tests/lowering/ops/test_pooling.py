"""Pooling against eager torch: geometry, ties, NaN, places of maxima, gradients."""

from __future__ import annotations

import helpers
import pytest
import torch
import torch.nn.functional as F
from gradients import check, leaf

aten = torch.ops.aten


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [(3, 2, 1, 1), (2, 2, 0, 1), (3, 1, 1, 2), (2, 3, 1, 2), ((3, 2), (2, 1), (1, 0), (1, 2))],
)
def test_max_pool2d(kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> None:
    window = kernel, stride, padding, dilation, ceil_mode
    check(lambda x: F.max_pool2d(x, *window, return_indices=True), leaf(2, 3, 9, 10))


def test_max_pool_in_other_ranks() -> None:
    check(lambda x: F.max_pool1d(x, 3, 2, 1), leaf(2, 3, 9))
    check(lambda x: F.max_pool3d(x, 3, 2, 1, return_indices=True), leaf(2, 3, 7, 6, 8))
    check(lambda x: F.max_pool2d(x, 3, return_indices=True), leaf(3, 9, 9))


def test_max_pool_of_large_windows() -> None:
    x = torch.randint(0, 9, (2, 3, 20, 21)).float()
    x[0, 0, 3, 4] = x[0, 0, 5, 1] = torch.nan
    for window in ((9, 4, 2), ((20, 21), 1, 0)):
        check(lambda x, w=window: F.max_pool2d(x, *w, return_indices=True), x.requires_grad_())


def test_max_pool_of_ties_nan_and_minus_infinity() -> None:
    x = torch.randint(0, 2, (2, 3, 8, 8)).float()
    x[0, 0, 1, 1] = x[0, 0, 1, 2] = x[1, 1, 7, 7] = torch.nan
    x[1, 2] = -torch.inf
    for window in ((3, 2, 1), (2, 1, 0), (3, 1, 1, 2)):
        helpers.compare(lambda x, w=window: F.max_pool2d(x, *w, return_indices=True), x)
    helpers.compare(lambda x: F.adaptive_max_pool2d(x, 3, return_indices=True), x)


def test_max_pool_of_integers() -> None:
    x = torch.randint(-9, 9, (2, 3, 8, 8))
    helpers.compare(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 2, 1), ((2, 3), (3, 1), (1, 0))])
def test_avg_pool2d(kernel: int, stride: int, padding: int, ceil_mode: bool, include: bool) -> None:
    window = kernel, stride, padding, ceil_mode, include
    check(lambda x: F.avg_pool2d(x, *window), leaf(2, 3, 9, 10))


def test_avg_pool_in_other_ranks() -> None:
    check(lambda x: F.avg_pool1d(x, 3, 2, 1, count_include_pad=False), leaf(2, 3, 9))
    check(lambda x: F.avg_pool3d(x, 3, 2, 1, ceil_mode=True), leaf(2, 3, 7, 6, 8))
    check(lambda x: F.avg_pool2d(x, 3, divisor_override=4), leaf(3, 9, 9))


@pytest.mark.parametrize("out", [(1, 1), (3, 5), (4, 2), (12, 7)])
def test_adaptive_pools(out: tuple[int, int]) -> None:
    x = leaf(2, 3, 8, 10)
    check(lambda x: F.adaptive_avg_pool2d(x, out), x)
    check(lambda x: F.adaptive_max_pool2d(x, out, return_indices=True), x)


def test_adaptive_pools_in_other_ranks() -> None:
    check(lambda x: F.adaptive_avg_pool1d(x, 4), leaf(2, 3, 9))
    check(lambda x: F.adaptive_avg_pool3d(x, (2, 3, 5)), leaf(2, 3, 7, 6, 8))
    check(lambda x: F.adaptive_max_pool3d(x, (2, 3, 5), return_indices=True), leaf(2, 3, 7, 6, 8))


def test_adaptive_average_keeps_infinity_apart() -> None:
    x = torch.randn(1, 1, 7)
    x[0, 0, 0] = torch.inf
    helpers.compare(lambda x: F.adaptive_avg_pool1d(x, 3), x)


@pytest.mark.parametrize("rank", [2, 3])
def test_fractional_max_pool(rank: int) -> None:
    pool = F.fractional_max_pool2d if rank == 2 else F.fractional_max_pool3d
    x, samples = leaf(2, 3, *[9, 8, 10][:rank]), torch.rand(2, 3, rank)
    sizes = {"output_size": (4, 5, 3)[:rank], "return_indices": True}
    check(lambda x, s: pool(x, 2, _random_samples=s, **sizes), x, samples)


def test_max_unpool() -> None:
    values, places = F.max_pool2d(torch.randn(2, 3, 8, 8), 2, return_indices=True)
    check(lambda v, p: F.max_unpool2d(v, p, 2), values.requires_grad_(), places)


def test_empty_batches() -> None:
    for pool in (F.max_pool2d, F.avg_pool2d):
        check(lambda x, p=pool: p(x, 2), leaf(0, 3, 8, 8))
    check(lambda x: F.adaptive_avg_pool2d(x, 3), leaf(0, 3, 8, 8))


def test_bfloat16_averages_round_once() -> None:
    x = torch.randn(2, 3, 8, 8).bfloat16()
    for pool in (lambda x: F.avg_pool2d(x, 8), lambda x: F.adaptive_avg_pool2d(x, 3)):
        (actual,) = helpers.run_lowered(pool, [x])
        torch.testing.assert_close(actual, pool(x.double()).bfloat16(), rtol=2**-7, atol=1e-5)
