"""The network in JAX is the one in torch."""

from __future__ import annotations

import sys
from pathlib import Path

import jax.numpy as jnp
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "models"))

import llama
import llama_jax


def test_jax_and_torch_give_the_same_logits() -> None:
    torch.manual_seed(0)
    config = llama.CONFIGS["tiny"]
    model = llama.Llama(config).eval()
    tokens = torch.randint(config.vocab, (2, 40))
    with torch.no_grad():
        expected = model(tokens)
    weights = {k: jnp.asarray(p.detach().numpy()) for k, p in model.named_parameters()}
    actual = torch.from_dlpack(llama_jax.forward(config, weights, jnp.asarray(tokens.numpy())))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
