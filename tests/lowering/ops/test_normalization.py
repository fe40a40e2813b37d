"""Normalization against eager torch: auxiliary outputs, running statistics, gradients."""

from __future__ import annotations

import helpers
import pytest
import torch
import torch.nn.functional as F
from gradients import check, leaf

aten = torch.ops.aten

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.mark.parametrize("shape", [(4, 6, 8), (8,), (2, 3, 6, 8)])
def test_layer_norm(shape: tuple[int, ...]) -> None:
    args = leaf(*shape), leaf(shape[-1]), leaf(shape[-1])
    check(lambda x, w, b: F.layer_norm(x, [shape[-1]], w, b), *args, **CLOSE)
    check(lambda x: F.layer_norm(x, shape), args[0], **CLOSE)


def test_layer_norm_of_a_large_mean() -> None:
    x = (torch.randn(4, 64) + 1e3).requires_grad_()
    check(lambda x: F.layer_norm(x, [64]), x, rtol=1e-3, atol=1e-3)


def test_layer_norm_saves_its_statistics_as_eager_does() -> None:
    args = [torch.randn(s, dtype=torch.bfloat16) for s in ((4, 8), (8,), (8,))]
    op = aten.native_layer_norm.default
    helpers.compare(lambda x, w, b: op(x, [8], w, b, 1e-5), *args)


def test_layer_norm_of_bfloat16_by_float32_weights() -> None:
    x, w, b = torch.randn(4, 8).bfloat16(), torch.randn(8), torch.randn(8)
    op = aten.native_layer_norm.default
    helpers.compare(lambda x, w, b: op(x, [8], w, b, 1e-5)[0], x, w, b)


def test_group_norm() -> None:
    args = leaf(2, 6, 5, 4), leaf(6), leaf(6)
    check(lambda x, w, b: F.group_norm(x, 3, w, b), *args, **CLOSE)
    check(lambda x: F.group_norm(x, 1), args[0], **CLOSE)
    op = aten.native_group_norm.default
    helpers.compare(
        lambda x, w, b: op(x, w, b, 2, 6, 20, 3, 1e-5), *(a.detach() for a in args), **CLOSE
    )


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 3), (2, 6, 3, 4)])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(shape: tuple[int, ...], training: bool) -> None:
    args = leaf(*shape), leaf(6), leaf(6)
    mean, var = torch.randn(6), torch.rand(6) + 0.5

    def run(*xs: torch.Tensor) -> torch.Tensor:
        x, w, b, m, v = xs
        return F.batch_norm(x, m.clone(), v.clone(), w, b, training=training)

    check(run, *args, mean, var, **CLOSE)


def test_batch_norm_moves_its_running_statistics() -> None:
    x, w, b = torch.randn(4, 6, 3), torch.randn(6), torch.randn(6)
    op = aten._native_batch_norm_legit_functional.default
    mean, var = torch.randn(6), torch.rand(6)
    for training in (True, False):
        helpers.compare(lambda *xs, t=training: op(*xs, t, 0.3, 1e-5), x, w, b, mean, var, **CLOSE)


def test_batch_norm_without_weight_or_running_statistics() -> None:
    check(lambda x: F.batch_norm(x, None, None, training=True), leaf(4, 6, 3), **CLOSE)


def test_batch_norm_with_update_and_without_decompose() -> None:
    x, w, b = torch.randn(4, 6, 3), torch.randn(6), torch.randn(6)
    mean, var = torch.randn(6), torch.rand(6)
    update = aten._batch_norm_with_update_functional.default
    helpers.compare(lambda *xs: update(*xs, 0.3, 1e-5)[:3], x, w, b, mean, var, **CLOSE)
    keep = aten._batch_norm_no_update.default
    helpers.compare(lambda *xs: keep(*xs, 0.3, 1e-5)[0], x, w, b, mean, var, **CLOSE)


def test_instance_norm() -> None:
    args = leaf(2, 6, 5), leaf(6), leaf(6)
    check(lambda x, w, b: F.instance_norm(x, weight=w, bias=b), *args, **CLOSE)


def test_rms_norm() -> None:
    check(lambda x, w: F.rms_norm(x, [8], w), leaf(3, 8), leaf(8), **CLOSE)
    op = aten._fused_rms_norm.default
    helpers.compare(lambda x, w: op(x, [8], w, 1e-6), torch.randn(3, 8), torch.randn(8), **CLOSE)
