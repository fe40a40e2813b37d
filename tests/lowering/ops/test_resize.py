"""Interpolation against eager torch: scale factors, antialiasing, gradients."""

from __future__ import annotations

from collections.abc import Iterator

import helpers
import pytest
import torch
import torch.nn.functional as F
from gradients import check, leaf

from tpu_compile import errors
from tpu_compile.lowering import decompositions

aten = torch.ops.aten

NEAREST = ("nearest", "nearest-exact")
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


SMOOTH = ("bilinear", "bicubic")


@pytest.fixture(autouse=True)
def _rules_first() -> Iterator[None]:
    with decompositions.rules_first():
        yield


@pytest.mark.parametrize("factor", [2, 3, 1.7, 0.6])
def test_nearest(factor: float) -> None:
    check(
        lambda x: [F.interpolate(x, scale_factor=factor, mode=m) for m in NEAREST],
        leaf(2, 3, 7, 5),
    )


def test_nearest_in_other_ranks_and_of_integers() -> None:
    check(lambda x: [F.interpolate(x, size=5, mode=m) for m in NEAREST], leaf(2, 3, 7))
    x = leaf(2, 3, 5, 4, 6)
    check(lambda x: [F.interpolate(x, size=(3, 9, 4), mode=m) for m in NEAREST], x)
    x = torch.randint(0, 255, (2, 3, 7, 5), dtype=torch.uint8)
    helpers.compare(lambda x: F.interpolate(x, scale_factor=1.5), x)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("size", [(13, 4), (3, 11)])
def test_smooth(align_corners: bool, antialias: bool, size: tuple[int, int]) -> None:
    options = {"size": size, "align_corners": align_corners, "antialias": antialias}
    x = leaf(2, 3, 7, 5)
    check(lambda x: [F.interpolate(x, mode=m, **options) for m in SMOOTH], x, **CLOSE)


@pytest.mark.parametrize("recompute", [False, True])
def test_scale_factors(recompute: bool) -> None:
    options = {"scale_factor": (1.7, 0.4), "recompute_scale_factor": recompute}
    x = leaf(2, 3, 7, 9)
    check(lambda x: [F.interpolate(x, mode=m, **options) for m in SMOOTH], x, **CLOSE)


def test_linear_in_other_ranks() -> None:
    check(lambda x: F.interpolate(x, size=11, mode="linear"), leaf(2, 3, 7), **CLOSE)
    size = {"size": (3, 9, 4), "mode": "trilinear"}
    check(lambda x: F.interpolate(x, **size), leaf(2, 3, 5, 4, 6), **CLOSE)


def test_many_taps() -> None:
    check(lambda x: F.interpolate(x, size=(2, 90), mode="bilinear"), leaf(1, 2, 80, 3), **CLOSE)
    options = {"mode": "bilinear", "antialias": True}
    check(lambda x: F.interpolate(x, size=(2, 3), **options), leaf(1, 2, 80, 50), **CLOSE)


def test_lanczos() -> None:
    op = aten._upsample_lanczos2d_aa.default
    for size in ((3, 4), (11, 13)):
        check(lambda x, s=size: op(x, s, False), leaf(1, 2, 9, 8), **CLOSE)


def test_interpolation_of_integers_is_refused() -> None:
    x = torch.zeros(1, 1, 4, 4, dtype=torch.uint8)
    op = aten._upsample_bilinear2d_aa.default
    with pytest.raises(errors.UnsupportedCase, match="interpolation of"):
        helpers.lower(lambda x: op(x, (8, 8), False), [x])


def test_bfloat16_rounds_once() -> None:
    x = torch.randn(1, 2, 7, 5).bfloat16()
    (actual,) = helpers.run_lowered(lambda x: F.interpolate(x, (9, 4), mode="bilinear"), [x])
    exact = F.interpolate(x.double(), (9, 4), mode="bilinear")
    torch.testing.assert_close(actual, exact.bfloat16(), rtol=2**-7, atol=1e-5)
