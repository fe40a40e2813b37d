"""Conversions: truncation, wrapping, truth, and reinterpreted bits."""

from __future__ import annotations

import pytest
import torch
from helpers import compare

ALL = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex64,
]


@pytest.mark.parametrize("source", ALL)
def test_every_pair_of_dtypes(source: torch.dtype) -> None:
    x = torch.tensor([0.0, 1.0, -1.0, 2.7, -2.7, 100.5, 300.0, -200.0]).to(source)
    compare(lambda x: tuple(x.to(d) for d in ALL), x)


@pytest.mark.parametrize("target", [torch.uint8, torch.int32, torch.bfloat16, torch.float64])
def test_view_of_bits(target: torch.dtype) -> None:
    x = torch.randn(3, 4)
    compare(lambda x: x.clone().view(target).clone(), x)
    compare(lambda x: x.clone().view(target).view(torch.float32).clone(), x)


def test_complex_parts() -> None:
    z = torch.randn(3, 4, dtype=torch.complex64)
    compare(lambda z: (z.real + 1, z.imag + 1, z.conj() * 2, torch.view_as_real(z) * 2), z)
    compare(lambda x: torch.view_as_complex(x) * 2j, torch.randn(3, 2))
    compare(lambda x, y: torch.complex(x, y), *torch.randn(2, 5))
    compare(lambda z: (z.abs(), z.angle(), z.sgn()), z)
