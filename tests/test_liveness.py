"""The estimate of what is alive at a graph's peak."""

from __future__ import annotations

from collections.abc import Callable

import torch
from helpers import capture

from tpu_compile import liveness

MIB = 2**20


def peak_of(fn: Callable[..., torch.Tensor], *args: torch.Tensor) -> liveness.Peak:
    return liveness.peak(capture(fn, args))


def test_a_chain_of_matmuls_needs_two_results_at_a_time() -> None:
    x = torch.ones(512, 512)  # 1 MiB

    def chain(x: torch.Tensor) -> torch.Tensor:
        y = x @ x
        for _ in range(5):
            y = y @ y
        return y

    found = peak_of(chain, x)
    assert found.bytes == 3 * MIB  # the argument, an operand and a result
    assert found.arguments == MIB
    assert found.largest[0].shape == (512, 512)
    assert found.largest[0].dtype == "float32"


def test_a_result_read_late_lives_until_then() -> None:
    x = torch.ones(512, 512)

    def skip(x: torch.Tensor) -> torch.Tensor:
        kept = x @ x
        y = kept @ kept
        y = y @ y
        return y @ kept

    assert peak_of(skip, x).bytes == 4 * MIB


def test_views_and_fused_elementwise_ops_cost_nothing() -> None:
    x = torch.ones(512, 512)
    views = peak_of(lambda x: (x.view(-1).unsqueeze(0) + 1).exp().sin().cos(), x)
    assert views.bytes == 2 * MIB


def test_the_peak_names_the_op_and_the_users_line() -> None:
    x = torch.ones(256, 256)

    def wide(x: torch.Tensor) -> torch.Tensor:
        return (x[:, :, None] * x[:, None, :]).sum((1, 2)) @ x

    found = peak_of(wide, x)
    text = liveness.text(found)
    assert found.largest[0].shape == (256, 256, 256)
    assert "float32[256, 256, 256]" in text
    assert "activation checkpointing" in text


def test_advice_for_large_arguments_is_to_shard_them() -> None:
    found = peak_of(lambda w, x: x @ w, torch.ones(1024, 1024), torch.ones(1, 1024))
    assert "sharding them" in liveness.advice(found)
