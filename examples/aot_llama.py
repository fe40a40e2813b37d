"""Does it fit, and how long does it take at least? Asked of the TPU compiler, with no TPU.

Run it, or ask on the command line: ``tpu-compile aot examples/aot_llama.py:llama --topology v6e``.
"""

from __future__ import annotations

from typing import Any

import torch

import tpu_compile
from tpu_compile.demo_llama import Llama, LlamaConfig


def llama() -> tuple[torch.nn.Module, tuple[Any, ...]]:
    """A model and its arguments; with the second argument it returns a loss, too."""
    model = Llama(LlamaConfig(layers=1))
    tokens = torch.randint(model.config.vocab, (2, 128))
    return model, (tokens, tokens)


if __name__ == "__main__":
    model, args = llama()
    for topology in ("v5e", "v6e"):
        result = tpu_compile.aot_compile(model, *args, topology=topology, train=True, effort="fit")
        print(result)
    assert result.fits
    print("dearest op:", result.top_ops("flops", 1)[0].source)
