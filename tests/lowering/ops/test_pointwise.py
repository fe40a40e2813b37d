"""Arithmetic where torch's rules are easy to get wrong: promotion, division, NaN, rounding."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from helpers import compare, run_lowered

NAN, INF = math.nan, math.inf
# Denormals are zeros to XLA:CPU, so there are none here.
EDGES = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -1.0, 3.0, -3.0])
INTS = torch.tensor([0, 1, -1, 2, -2, 7, -7, 2**31, -(2**63), 2**63 - 1])


def pairs(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.cartesian_prod(t, t).T)


def exactly(fn: Callable[..., object], *args: torch.Tensor) -> None:
    compare(fn, *args, rtol=0, atol=0)


@pytest.mark.parametrize(
    "fn",
    [torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, torch.fmax, torch.fmin],
)
def test_edge_values_of_pairs(fn: Callable[..., torch.Tensor]) -> None:
    exactly(fn, *pairs(EDGES))


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
def test_division_of_floats(mode: str | None) -> None:
    x, y = pairs(EDGES)
    compare(lambda x, y: torch.div(x, y, rounding_mode=mode), x, y)
    signs = lambda x, y: torch.div(x, y, rounding_mode=mode).signbit()  # noqa: E731
    keep = ~torch.div(x, y, rounding_mode=mode).isnan()
    exactly(signs, x[keep], y[keep])


@pytest.mark.parametrize("fn", [torch.remainder, torch.fmod])
def test_remainders_of_floats(fn: Callable[..., torch.Tensor]) -> None:
    x, y = pairs(EDGES)
    keep = ~(x.isinf() | y.isinf()) | x.isnan()
    exactly(fn, x[keep], y[keep])


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize(
    "fn",
    [
        torch.remainder,
        torch.fmod,
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    ],
)
def test_division_of_ints(fn: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    x, y = pairs(torch.tensor([1, -1, 2, -2, 7, -7, 100, -100], dtype=torch.int64).to(dtype))
    exactly(fn, x, y)


def test_int_division_by_zero_does_not_crash() -> None:
    # torch raises; a compiled program can't, and must not trap either
    x, y = pairs(INTS)
    for fn in (torch.remainder, torch.fmod):
        run_lowered(fn, (x, y))
    for mode in ("floor", "trunc"):
        run_lowered(lambda x, y, mode=mode: torch.div(x, y, rounding_mode=mode), (x, y))


def test_division_by_a_scalar_rounds_once() -> None:
    x = torch.arange(1.0, 4097)
    for by in (3, 7.0, 49, 0.1, 4):
        exactly(lambda x, by=by: (x / by, (x * by) / by, torch.floor(x / by)), x)
    exactly(lambda x, s: x / s, x, torch.tensor(49.0))
    exactly(lambda x: x[:49].mean(), x)


def test_int_arithmetic_wraps() -> None:
    exactly(lambda x, y: (x + y, x - y, x * y, -x, x.abs()), *pairs(INTS))


def test_int_power() -> None:
    x, y = torch.cartesian_prod(torch.arange(-4, 5), torch.arange(0, 9)).T
    exactly(torch.pow, x, y)
    exactly(lambda x: (x**2, x**3, x**0, x**5), INTS)
    exactly(lambda x: 2**x, torch.arange(0, 9))


def test_float_power() -> None:
    compare(torch.pow, *pairs(EDGES))
    compare(lambda x: (x**2, x**3, x**0, x**0.5, x**-1, x**-2, x**-0.5, x**1), EDGES)


@pytest.mark.parametrize(
    "fn", [torch.sign, torch.sgn, torch.ceil, torch.floor, torch.round, torch.trunc, torch.frac]
)
def test_rounding_edges(fn: Callable[..., torch.Tensor]) -> None:
    exactly(lambda x: (fn(x), fn(x).signbit()), EDGES[1:] if fn is not torch.frac else EDGES[3:])
    exactly(fn, EDGES[:1])


@pytest.mark.parametrize("decimals", [0, 1, 3, -1])
def test_round_decimals(decimals: int) -> None:
    x = torch.tensor([0.25, 0.35, -12.345, 25.0, 35.0, 1234.5678])
    compare(lambda x: torch.round(x, decimals=decimals), x)


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (None, 0.5), (0.5, None), (1.0, 0.0), (NAN, 1.0), (0.0, NAN)]
)
def test_clamp_by_scalars(low: float | None, high: float | None) -> None:
    exactly(lambda x: torch.clamp(x, low, high), EDGES)


def test_clamp_promotes() -> None:
    x = torch.arange(-3, 4)
    exactly(lambda x: (x.clamp(-1, 1), x.clamp(-0.5, 1.5), x.clamp(max=0.5)), x)
    exactly(lambda x, lo: x.clamp(min=lo), x, torch.tensor(0.5))
    exactly(lambda x, lo, hi: x.clamp(lo, hi), *(EDGES[torch.randperm(12)] for _ in range(3)))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.bfloat16])
def test_scalars_and_zero_dim_tensors_promote(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 3]).to(dtype)
    zero_dim = torch.tensor(2.5, dtype=torch.float64)
    exactly(lambda x, s: (x + 1, x * 2.5, 3 + x, x + s, x * s, s * x), x, zero_dim)
    exactly(lambda x: (x / 2, x.float() / 3, 7 - x if x.dtype != torch.bool else x), x)


def test_bool_arithmetic() -> None:
    x, y = pairs(torch.tensor([True, False]))
    exactly(lambda x, y: (x + y, x * y, torch.maximum(x, y), x + True, x.sum()), x, y)
    exactly(lambda x, y: torch.add(x, y, alpha=False), x, y)


def test_where_promotes() -> None:
    mask = torch.tensor([True, False, True])
    ints, half = torch.arange(3), torch.arange(3).bfloat16()
    exactly(lambda m, x, y: (torch.where(m, x, y), torch.where(m, x, 0.5)), mask, ints, half)
    exactly(torch.where, mask, half, torch.tensor(1.0, dtype=torch.float64))


BF16_EXACT: dict[str, Callable[..., torch.Tensor]] = {
    "alpha": lambda x, y: torch.add(x, y, alpha=0.3),
    "add_scalar": lambda x, y: x + 0.1,
    "rsub_scalar": lambda x, y: 0.1 - x,
    "mul_scalar": lambda x, y: x * 0.1,
    "mul_zero_dim": lambda x, y: x * torch.full((), 0.1),
    "add_zero_dim": lambda x, y: x + torch.full((), 0.1),
    "div": lambda x, y: x / y,
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "floor_scalar": lambda x, y: torch.div(x, 0.3, rounding_mode="floor"),
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": lambda x, y: torch.remainder(x, 0.3),
    "fmod": lambda x, y: torch.fmod(x, 0.3),
    "pow_scalar": lambda x, y: x.abs() ** 1.7,
    "scalar_pow": lambda x, y: 1.7**x,
    "cube": lambda x, y: x**3,
    "inverse_square": lambda x, y: x**-2,
    "compare": lambda x, y: x > 0.1,
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.3),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "xlogy": lambda x, y: torch.xlogy(x, y.abs()),
    "chain": lambda x, y: ((x * y + x) * x + y) * y + x,
    "long_chain": lambda x, y: (torch.exp(x) * y).sigmoid() + torch.tanh(y * x) / (y + 3),
}


@pytest.mark.parametrize("name", BF16_EXACT)
def test_bf16_rounds_as_eager_does(name: str) -> None:
    torch.manual_seed(0)
    exactly(BF16_EXACT[name], *torch.randn(2, 1024).bfloat16())
