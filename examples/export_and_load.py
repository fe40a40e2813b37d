"""Exports a small Llama to a file, and runs it in a process that has none of its code."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import tpu_compile
from tpu_compile.demo_llama import Llama, LlamaConfig

torch.manual_seed(0)
model = Llama(LlamaConfig(layers=2)).eval()
tokens = torch.randint(model.config.vocab, (2, 64))

LOAD = """
import sys
import torch
import tpu_compile

model = tpu_compile.load(sys.argv[1])
print(model)
logits, loss = model(torch.load(sys.argv[2]))
torch.save(logits, sys.argv[3])
"""

with tempfile.TemporaryDirectory() as folder:
    path, given, result = (Path(folder) / name for name in ("llama.tpuc", "tokens", "logits"))
    manifest = tpu_compile.export(model, (tokens,), path)
    print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB, for {' and '.join(manifest.programs)}")
    torch.save(tokens, given)
    subprocess.run([sys.executable, "-c", LOAD, path, given, result], check=True)
    logits = torch.load(result)

with torch.no_grad():
    expected, _ = model(tokens)
torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
print("logits", tuple(logits.shape), "equal to eager within 1e-4")
