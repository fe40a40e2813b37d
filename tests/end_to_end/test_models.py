"""Real models: forward equal to eager, five AdamW steps, whole graphs, no fallback."""

from __future__ import annotations

import model_checks as checks
import pytest
import torch
from small_models import MODELS

# benchmarks/models_table.py runs all models in all settings; here are some of each kind.
KINDS = ("qwen3_moe", "t5", "resnet50", "dlrm")
TRAINED = ("llama", "qwen3_moe", "gpt2", "bert", "t5", "vit", "resnet50", "dlrm", "mingpt")


@pytest.mark.parametrize("name", MODELS)
def test_forward_equals_eager(name: str) -> None:
    assert checks.forward_error(name) < 1e-4


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in TRAINED else [pytest.mark.slow]) for n in MODELS]
)
def test_five_adamw_steps_equal_eager(name: str) -> None:
    wanted, theirs = checks.losses(name, checks.eager)
    got, mine = checks.losses(name, checks.compile_strictly)
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=0)
    assert got[-1] < got[0]
    checks.buffers_equal(mine, theirs)


@pytest.mark.parametrize("name", KINDS)
def test_autocast(name: str) -> None:
    ours, eagers = checks.low_precision_errors(name, cast=True)
    assert ours < 1.1 * eagers  # XLA sums in another order
    ours, eagers = checks.autocast_loss_errors(name)
    assert ours <= max(1e-3, eagers)


@pytest.mark.parametrize("name", KINDS)
def test_bfloat16(name: str) -> None:
    ours, eagers = checks.low_precision_errors(name, cast=False)
    assert ours < 1.1 * eagers


@pytest.mark.parametrize("name", ["llama", "bert", "unet", "mingpt"])
def test_gradient_checkpointing(name: str) -> None:
    assert checks.loss_error(name, recompute=True) < 1e-3
