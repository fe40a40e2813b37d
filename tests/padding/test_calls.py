"""Whole models and calls with buckets: one trace, one program a bucket, results as eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rounded import compile_with
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
)

import tpu_compile
from tpu_compile.backend import read_options
from tpu_compile.errors import InvalidOption

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
}


def llama(**settings: Any) -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2, **settings))


def compiles() -> tuple[int, int]:
    """How often Dynamo traced, and how many more programs were made than there were traces."""
    log = tpu_compile.recompiles()
    frames = sum(c.graph == "frame" for c in log)
    return frames, len(log) - frames


def step(model: nn.Module, call: Any, args: dict[str, Tensor]) -> list[Tensor]:
    """Loss, logits and gradients."""
    model.zero_grad()
    out = call(**args)
    out.loss.backward()
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [out.loss.detach(), out.logits.detach(), *grads]


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_training_over_twenty_lengths(kind: str) -> None:
    if kind == "llama":
        model = llama(use_cache=False)
    else:
        dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        model = BertForSequenceClassification(
            BertConfig(**SIZES, **dropout, problem_type="single_label_classification")
        )
    compiled = compile_with(model, {"batch": [4, 8], "seq": [16, 32]}, dynamic=True)
    for n in range(20):
        batch, length = 2 + n % 6, 6 + n
        ids = torch.randint(0, 64, (batch, length))
        args = {"input_ids": ids, "labels": ids}
        if kind == "bert":
            mask = (torch.rand(batch, length) > 0.3).long()
            mask[:, 0] = 1
            labels = torch.randint(0, 2, (batch,))
            args = {"input_ids": ids, "attention_mask": mask, "labels": labels}
        torch.testing.assert_close(step(model, compiled, args), step(model, model, args))
    traces, more = compiles()
    assert traces == 1
    assert more == 2 * 3  # forward and backward of the other three buckets


def test_decoding_with_a_growing_cache() -> None:
    model = llama().eval()
    prompt = torch.randint(0, 64, (2, 5))

    def generate(call: Any) -> tuple[Tensor, Tensor, DynamicCache]:
        cache = DynamicCache(config=model.config)
        token = model(prompt, past_key_values=cache).logits[:, -1:].argmax(-1)
        tokens = [token]
        for _ in range(24):
            logits = call(token, past_key_values=cache).logits
            token = logits[:, -1:].argmax(-1)
            tokens.append(token)
        return torch.cat(tokens, 1), logits, cache

    with torch.no_grad():
        wanted, wanted_logits, wanted_cache = generate(model)
        compiled = compile_with(model, {"*.2": [16, 32]}, dynamic=True)
        tokens, logits, cache = generate(compiled)
    assert torch.equal(tokens, wanted)
    torch.testing.assert_close(logits, wanted_logits)
    for mine, theirs in zip(cache.layers, wanted_cache.layers, strict=True):
        torch.testing.assert_close(mine.keys, theirs.keys)
        torch.testing.assert_close(mine.values, theirs.values)
    assert compiles()[1] == 1  # 29 positions: the second bucket


def test_larger_than_all_buckets_is_compiled_as_it_is() -> None:
    f = compile_with(lambda x: x.softmax(1).sum(0), {"seq": [8]}, dynamic=True)
    for n in (5, 7, 9, 12, 9):
        x = torch.randn(2, n)
        torch.testing.assert_close(f(x), x.softmax(1).sum(0))
    assert compiles() == (1, 2)


def test_recompiles_are_forbidden_by_bucket() -> None:
    options = {"buckets": {"seq": [8, 16]}, "on_recompile": "error"}
    f = torch.compile(lambda x: x.cumsum(1), backend="tpu", dynamic=True, options=options)
    for n in (5, 8, 3):
        assert f(torch.ones(2, n))[0, -1] == n
    with pytest.raises(tpu_compile.errors.Recompiled, match="new shapes"):
        f(torch.ones(2, 9))


def test_dropout_repeats_under_a_seed() -> None:
    f = compile_with(lambda x: nn.functional.dropout(x).mean(1), {"seq": [8]}, dynamic=True)
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(f(torch.ones(64, 7)))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    assert abs(runs[0].mean() - 1) < 0.2


def test_arguments_of_any_strides_and_mutation() -> None:
    def f(x: Tensor) -> Tensor:
        x.mul_(2)
        return x.sum(1)

    g = compile_with(f, {"seq": [8]}, dynamic=True)
    for n in (5, 6):
        base = torch.randn(n, 3)
        mine, theirs = base.clone().t(), base.clone().t()
        torch.testing.assert_close(g(mine), f(theirs))
        assert torch.equal(mine, theirs)
        assert mine.stride() == theirs.stride()


def test_static_shapes_have_no_buckets() -> None:
    f = compile_with(lambda x: x.sort(1).values, {"seq": [8]}, dynamic=False)
    assert torch.equal(f(torch.tensor([[3, 1]])), torch.tensor([[1, 3]]))


@pytest.mark.parametrize(
    "buckets",
    [
        {"seq": []},
        {"seq": [8, 8]},
        {"seq": [16, 8]},
        {"seq": [0, 8]},
        {"seq": "8"},
        {"seq": [8.0]},
        {"length": [8]},
        {"x.-1": [8]},
        {1: [8]},
        [8, 16],
    ],
)
def test_bad_buckets(buckets: Any) -> None:
    with pytest.raises(InvalidOption, match=r"Valid: \{'seq': \[128, 256, 512\]\}"):
        read_options({"buckets": buckets})
