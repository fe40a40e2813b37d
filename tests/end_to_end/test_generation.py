"""Transformers' ``generate`` with a compiled forward: tokens as eager's, few compiles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from compiled import compile_tpu
from small_models import MODELS
from torch import nn

import tpu_compile

NEW_TOKENS = 8


def generate(model: nn.Module, ids: torch.Tensor, **settings: Any) -> torch.Tensor:
    """Greedy tokens; compiling is left to the test."""
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        pad_token_id=0,
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        disable_compile=True,
        **settings,
    )


def build(name: str) -> nn.Module:
    """A language model with random weights and no end token."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    built, _ = MODELS[name]()
    built.generation_config.eos_token_id = None
    return built.eval()


def frames() -> list[tpu_compile.compile_log.Compile]:
    """What Dynamo traced, not counting new shapes of the same trace."""
    return [c for c in tpu_compile.recompiles() if c.graph == "frame"]


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_static_cache(name: str) -> None:
    model = build(name)
    ids = torch.randint(3, 199, (2, 5))
    wanted = generate(model, ids, cache_implementation="static")
    model.forward = compile_tpu(model.forward)
    assert torch.equal(generate(model, ids, cache_implementation="static"), wanted)
    compiles = len(tpu_compile.recompiles())
    assert len(frames()) <= 3  # the prompt, its first token, all others
    assert torch.equal(generate(model, ids, cache_implementation="static"), wanted)
    assert len(tpu_compile.recompiles()) == compiles


def test_growing_cache_is_traced_once() -> None:
    model = build("llama")
    ids = torch.randint(3, 199, (2, 5))
    wanted = generate(model, ids)
    model.forward = compile_tpu(model.forward)
    assert torch.equal(generate(model, ids), wanted)
    assert len(frames()) <= 3  # the prompt, its first token, all others


def test_sampling_repeats_under_a_seed() -> None:
    model = build("llama")
    ids = torch.randint(3, 199, (1, 5))
    model.forward = compile_tpu(model.forward)
    config = transformers.GenerationConfig(
        do_sample=True, max_new_tokens=NEW_TOKENS, pad_token_id=0, cache_implementation="static"
    )
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        settings = {"generation_config": config, "disable_compile": True}
        runs.append(model.generate(ids, attention_mask=torch.ones_like(ids), **settings))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
