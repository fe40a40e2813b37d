"""Compiles the forward of a small Llama and compares it with eager torch."""

from __future__ import annotations

import torch

from tpu_compile import recompiles
from tpu_compile.demo_llama import Llama, LlamaConfig

torch.manual_seed(0)
model = Llama(LlamaConfig(layers=2)).eval()
tokens = torch.randint(model.config.vocab, (2, 64))
compiled = torch.compile(model, backend="tpu")

with torch.no_grad():
    logits, _ = compiled(tokens)
    expected, _ = model(tokens)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    print("logits", tuple(logits.shape), "equal to eager within 1e-4")

    before = len(recompiles())
    compiled(torch.randint(model.config.vocab, (2, 64)))
    print("compiles caused by a second call:", len(recompiles()) - before)
