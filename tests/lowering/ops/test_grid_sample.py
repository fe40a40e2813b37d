"""Sampling by a grid against eager torch, with gradients of input and grid."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from gradients import check, leaf

PADDINGS = ("zeros", "border", "reflection")
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("align_corners", [False, True])
def test_two_dimensions(mode: str, align_corners: bool) -> None:
    grid = (torch.rand(2, 5, 6, 2) * 3 - 1.5).requires_grad_()
    check(
        lambda x, g: [F.grid_sample(x, g, mode, p, align_corners) for p in PADDINGS],
        leaf(2, 3, 4, 7),
        grid,
        **CLOSE,
    )


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_three_dimensions(mode: str) -> None:
    grid = (torch.rand(2, 3, 5, 2, 3) * 3 - 1.5).requires_grad_()
    check(
        lambda x, g: [F.grid_sample(x, g, mode, p, align_corners=False) for p in PADDINGS],
        leaf(2, 3, 4, 7, 3),
        grid,
        **CLOSE,
    )


def test_only_the_input_wants_a_gradient() -> None:
    grid = torch.rand(2, 5, 6, 2)
    check(lambda x, g: F.grid_sample(x, g, align_corners=False), leaf(2, 3, 4, 7), grid, **CLOSE)


@pytest.mark.parametrize("align_corners", [False, True])
def test_affine_grid_decomposes(align_corners: bool) -> None:
    theta = leaf(2, 2, 3)
    check(lambda t: F.affine_grid(t, [2, 3, 4, 5], align_corners), theta, **CLOSE)
    x = leaf(2, 3, 6, 6)
    check(
        lambda x, t: F.grid_sample(
            x, F.affine_grid(t, [2, 3, 4, 5], align_corners), align_corners=align_corners
        ),
        x,
        theta,
        **CLOSE,
    )


def test_unfold_and_fold_decompose() -> None:
    x = leaf(2, 3, 6, 7)
    check(lambda x: F.unfold(x, (2, 3), dilation=2, padding=1, stride=2), x, **CLOSE)
    columns = leaf(2, 12, 30)
    check(lambda x: F.fold(x, (6, 7), 2), columns, **CLOSE)
