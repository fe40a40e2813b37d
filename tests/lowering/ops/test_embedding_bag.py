"""Embedding bags in every mode, with empty bags, padding and weights, and their gradients."""

from __future__ import annotations

import pytest
import torch
from helpers import compare, run_with_gradients

INDICES = torch.tensor([0, 4, 2, 2, 1, 3, 4])
OFFSETS = torch.tensor([0, 3, 3, 6])


@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags(mode: str, padding: int | None) -> None:
    def bag(w: torch.Tensor, i: torch.Tensor, o: torch.Tensor) -> list[torch.Tensor]:
        return [torch.nn.functional.embedding_bag(i, w, o, mode=mode, padding_idx=padding)]

    weight = torch.randn(5, 3)
    compare(bag, weight, INDICES, OFFSETS)
    compare(bag, weight.bfloat16(), INDICES, OFFSETS)
    expected, actual = run_with_gradients(bag, [weight.requires_grad_(), INDICES, OFFSETS])
    torch.testing.assert_close(actual[:2], expected[:2])


# scale_grad_by_freq is not compared: eager on the CPU divides by another row's count.
def test_weights_per_sample_and_last_offset() -> None:
    def bag(
        w: torch.Tensor, s: torch.Tensor, i: torch.Tensor, o: torch.Tensor
    ) -> list[torch.Tensor]:
        out = torch.nn.functional.embedding_bag(
            i,
            w,
            o,
            mode="sum",
            per_sample_weights=s,
            include_last_offset=True,
        )
        return [out]

    offsets = torch.tensor([0, 3, 3, 7])
    args = [torch.randn(5, 3).requires_grad_(), torch.randn(7).requires_grad_(), INDICES, offsets]
    expected, actual = run_with_gradients(bag, args)
    torch.testing.assert_close(actual[:3], expected[:3])
