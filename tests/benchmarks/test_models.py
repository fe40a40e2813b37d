"""The benchmarks' models are what they say: compared with Transformers and with known sizes."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from tpu_compile import demo_llama

ROOT = Path(__file__).parents[2]


@pytest.fixture
def llama(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import models.llama

    return models.llama


@pytest.fixture
def resnet50(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import models.resnet50

    return models.resnet50


@pytest.fixture
def tokens() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randint(1024, (2, 12))


def test_llama_equals_transformers(llama: ModuleType, tokens: torch.Tensor) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = llama.CONFIGS["tiny"]
    theirs = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab,
            hidden_size=config.width,
            intermediate_size=config.hidden,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        )
    ).eval()
    ours = llama.Llama(config)
    ours.load_state_dict({k.removeprefix("model."): v for k, v in theirs.state_dict().items()})
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits)


def test_llama_equals_the_demo_model(llama: ModuleType, tokens: torch.Tensor) -> None:
    demo = demo_llama.Llama(demo_llama.LlamaConfig(rope_theta=500_000.0))
    ours = llama.Llama(llama.CONFIGS["tiny"])
    ours.load_state_dict(demo.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), demo(tokens)[0])


def test_decoding_with_the_cache_equals_the_whole_sequence(
    llama: ModuleType, tokens: torch.Tensor
) -> None:
    model = llama.Llama(llama.CONFIGS["tiny"])
    cache = llama.StaticCache(model.config, batch=2, length=16)
    with torch.no_grad():
        whole = model(tokens)
        parts = [model(tokens[:, :8], torch.arange(8), cache)]
        for position in range(8, tokens.shape[1]):
            step = slice(position, position + 1)
            parts.append(model(tokens[:, step], torch.arange(position, position + 1), cache))
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


@pytest.mark.parametrize(("name", "billions"), [("1b", 1.236), ("8b", 8.030), ("70b", 70.554)])
def test_llama_sizes(llama: ModuleType, name: str, billions: float) -> None:
    with torch.device("meta"):
        model = llama.Llama(llama.CONFIGS[name])
    assert sum(p.numel() for p in model.parameters()) / 1e9 == pytest.approx(billions, abs=5e-4)


def test_resnet50(resnet50: ModuleType) -> None:
    model = resnet50.ResNet50()
    assert sum(p.numel() for p in model.parameters()) == 25_557_032
    loss = model(torch.randn(2, 3, 64, 64)).square().mean()
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())
