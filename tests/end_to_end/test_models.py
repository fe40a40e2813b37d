"""Real models: forward equal to eager, five AdamW steps, whole graphs, no fallback."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from compiled import compile_tpu
from small_models import MODELS, Case
from torch import nn


@pytest.fixture(params=MODELS)
def case(request: pytest.FixtureRequest) -> Case:
    """A model with random weights, and one batch."""
    torch.manual_seed(0)
    build: Callable[[], Case] = MODELS[request.param]
    model, inputs = build()
    return model.eval(), inputs


def test_forward_equals_eager(case: Case) -> None:
    model, inputs = case
    with torch.no_grad():
        expected = model(**inputs).logits
        actual = compile_tpu(model)(**inputs).logits
    assert (actual - expected).abs().max() < 1e-4 * expected.abs().max()


def test_five_adamw_steps_equal_eager(case: Case) -> None:
    # Dropout is off, so that eager is a reference; BatchNorm trains with its batch's statistics.
    mine, inputs = case
    for module in mine.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.train()
    theirs = copy.deepcopy(mine)
    losses = []
    for model, f in ((mine, compile_tpu(mine)), (theirs, theirs)):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        for _ in range(5):
            optimizer.zero_grad()
            loss = f(**inputs).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    torch.testing.assert_close(torch.stack(losses[:5]), torch.stack(losses[5:]), rtol=1e-3, atol=0)
    assert losses[4] < losses[0]
    for (name, a), (_, e) in zip(mine.named_buffers(), theirs.named_buffers(), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-3, atol=1e-4, msg=name)
