"""Special functions at their poles and limits."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from helpers import compare

X = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 30.0, 1e-20])
NAMES = "exp expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tanh erf erfc atan asinh"


@pytest.mark.parametrize("name", [*NAMES.split(), "erfinv", "acosh", "atanh", "lgamma", "exp2"])
def test_limits(name: str) -> None:
    compare(getattr(torch, name), X)


@pytest.mark.parametrize("fn", [torch.hypot, torch.atan2, torch.copysign, torch.logaddexp])
def test_limits_of_pairs(fn: Callable[..., torch.Tensor]) -> None:
    x, y = torch.cartesian_prod(X[1:], X[1:]).T
    compare(fn, x, y)


@pytest.mark.parametrize("name", ["sin", "exp", "sqrt", "erf", "sigmoid"])
def test_ints_and_bools_give_floats(name: str) -> None:
    compare(getattr(torch, name), torch.tensor([0, 1, 3]))
    compare(getattr(torch, name), torch.tensor([True, False]))


def test_logarithms_of_powers_are_whole() -> None:
    compare(torch.log2, 2.0 ** torch.arange(20), rtol=1e-7, atol=0)
    compare(torch.log10, 10.0 ** torch.arange(10), rtol=1e-7, atol=0)
