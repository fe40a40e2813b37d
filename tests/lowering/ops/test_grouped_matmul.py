"""Grouped products: rows, columns and summands in groups, empty groups, gradients, custom ops."""

from __future__ import annotations

import pytest
import torch
from compiled import check
from torch import Tensor
from transformers.integrations import moe

GROUPS = 4
OFFSETS = {"even": [10, 20, 30, 40], "empty": [0, 17, 17, 40], "first": [40, 40, 40, 40]}


@pytest.fixture(params=OFFSETS)
def offs(request: pytest.FixtureRequest) -> Tensor:
    """Where each group ends."""
    return torch.tensor(OFFSETS[request.param], dtype=torch.int32)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("x", "y"), [((40, 32), (4, 32, 24)), ((4, 16, 32), (32, 40)), ((16, 40), (40, 24))]
)
def test_forms(x: tuple[int, ...], y: tuple[int, ...], offs: Tensor) -> None:
    check(lambda x, y, o: torch._grouped_mm(x, y, offs=o), randn(*x), randn(*y), offs)


def test_without_groups_it_is_a_batched_product() -> None:
    check(torch._grouped_mm, randn(4, 16, 32), randn(4, 32, 8))


def test_gradients(offs: Tensor) -> None:
    x, y = randn(40, 32).requires_grad_(), randn(4, 32, 24).requires_grad_()
    check(lambda x, y, o: torch._grouped_mm(x, y, offs=o), x, y, offs, grad=True)


@pytest.mark.parametrize("ends", [[3, 9, 9, 20], [0, 0, 5, 15]])  # rows past the last group
def test_the_fallback_of_transformers(ends: list[int]) -> None:
    assert moe  # defines the op
    x = torch.randn(20, 8, requires_grad=True)
    y = torch.randn(GROUPS, 8, 6, requires_grad=True)
    offs = torch.tensor(ends, dtype=torch.int32)
    check(torch.ops.transformers.grouped_mm_fallback, x, y, offs, grad=True, rtol=1e-5, atol=1e-5)
