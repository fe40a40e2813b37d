"""Convolutions and their gradients against eager torch."""

from __future__ import annotations

import helpers
import pytest
import torch
import torch.nn.functional as F
from gradients import check, leaf

CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"), [(2, 1, 1, 2), (1, 2, 2, 1), (3, 1, 2, 4)]
)
def test_geometry(rank: int, stride: int, padding: int, dilation: int, groups: int) -> None:
    conv = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    transposed = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    x, bias = leaf(2, 4, *[9, 8, 7][:rank]), leaf(8)
    kernel = [3, 2, 3][:rank]
    check(
        lambda x, w, b: conv(x, w, b, stride, padding, dilation, groups),
        x,
        leaf(8, 4 // groups, *kernel),
        bias,
        **CLOSE,
    )
    extra = min(stride, dilation + 1) - 1
    check(
        lambda x, w, b: transposed(x, w, b, stride, padding, extra, groups, dilation),
        x,
        leaf(4, 8 // groups, *kernel),
        bias,
        **CLOSE,
    )


@pytest.mark.parametrize("stride", [1, 2])
def test_a_1x1_kernel(stride: int) -> None:
    x = leaf(2, 4, 5, 5)
    check(lambda x, w, b: F.conv2d(x, w, b, stride=stride), x, leaf(8, 4, 1, 1), leaf(8), **CLOSE)
    check(lambda x, w: F.conv_transpose2d(x, w, stride=stride), x, leaf(4, 8, 1, 1))


def test_a_stride_beyond_the_kernel() -> None:
    check(lambda x, w: F.conv2d(x, w, stride=4), leaf(2, 4, 7, 6), leaf(8, 4, 3, 2), **CLOSE)


def test_depthwise() -> None:
    check(
        lambda x, w: F.conv2d(x, w, padding=1, groups=4),
        leaf(2, 4, 5, 5),
        leaf(4, 1, 3, 3),
        **CLOSE,
    )


def test_an_empty_batch() -> None:
    check(lambda x, w, b: F.conv2d(x, w, b), leaf(0, 4, 5, 5), leaf(8, 4, 3, 3), leaf(8), **CLOSE)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_padding_by_name_without_a_batch() -> None:
    check(lambda x, w: F.conv2d(x, w, padding="same"), leaf(4, 5, 5), leaf(8, 4, 3, 2), **CLOSE)


def test_integers() -> None:
    x, weight = torch.randint(-9, 9, (2, 4, 5, 5)), torch.randint(-9, 9, (8, 4, 3, 3))
    helpers.compare(lambda x, w: F.conv2d(x, w, padding=1), x, weight)


def test_complex() -> None:
    x, weight = (leaf(2, 4, *s, dtype=torch.complex64) for s in ((5, 5), (3, 3)))
    check(lambda x, w: F.conv2d(x, w, padding=1), x, weight, **CLOSE)


def test_bfloat16_rounds_once() -> None:
    x, weight = torch.randn(2, 16, 6, 6).bfloat16(), torch.randn(8, 16, 3, 3).bfloat16()
    bias = torch.randn(8).bfloat16()
    (actual,) = helpers.run_lowered(F.conv2d, [x, weight, bias])
    exact = F.conv2d(x.double(), weight.double(), bias.double())
    torch.testing.assert_close(actual, exact.bfloat16(), rtol=2**-7, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2])
def test_gradients_of_weights_over_many_places(groups: int) -> None:
    x = leaf(2, 4, 25, 24)
    check(
        lambda x, w: F.conv2d(x, w, padding=1, groups=groups),
        x,
        leaf(6, 4 // groups, 3, 3),
        **CLOSE,
    )
    check(
        lambda x, w: F.conv_transpose2d(x, w, stride=2, groups=groups),
        x,
        leaf(4, 6 // groups, 2, 3),
        **CLOSE,
    )


def test_a_kernel_of_many_places() -> None:
    check(lambda x, w: F.conv1d(x, w, stride=3), leaf(2, 3, 150), leaf(4, 3, 80), **CLOSE)
