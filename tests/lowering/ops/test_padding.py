"""Reflected and repeated padding against eager torch, with gradients."""

from __future__ import annotations

import helpers
import pytest
import torch
import torch.nn.functional as F
from gradients import check, leaf


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize(
    ("shape", "padding"),
    [
        ((2, 3, 5), (2, 4)),
        ((2, 3, 4, 5), (4, 1, 0, 3)),
        ((3, 4, 5), (1, 2, 3, 0)),
        ((2, 3, 4, 3, 5), (4, 1, 0, 2, 3, 1)),
    ],
)
def test_modes(mode: str, shape: tuple[int, ...], padding: tuple[int, ...]) -> None:
    check(lambda x: F.pad(x, padding, mode=mode), leaf(*shape))


def test_repeated_beyond_the_size() -> None:
    check(lambda x: F.pad(x, (20, 3), mode="replicate"), leaf(2, 3, 5))


def test_other_dtypes() -> None:
    for x in (torch.randint(0, 9, (2, 3, 5)), torch.randn(2, 3, 5, dtype=torch.complex64)):
        helpers.compare(lambda x: F.pad(x, (2, 1), mode="replicate"), x)
        helpers.compare(lambda x: F.pad(x, (2, 1), mode="reflect"), x)
    check(lambda x: F.pad(x, (2, 1), mode="reflect"), leaf(2, 3, 5, dtype=torch.complex64))


def test_an_empty_batch() -> None:
    check(lambda x: F.pad(x, (1, 1, 2, 0), mode="reflect"), leaf(0, 3, 4, 5))
