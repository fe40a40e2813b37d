"""How long a first call takes, by stage and by depth: a Llama's forward and backward.

Prints one JSON line per depth. ``python benchmarks/compile_time.py --layers 2 8 --backend tpu``
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "models"))


def measure(layers: int, backend: str) -> dict[str, object]:
    """Compiles a Llama with cold caches, after a small graph has paid for imports."""
    import torch

    import tpu_compile
    from tpu_compile.compile_log import reset
    from tpu_compile.demo_llama import Llama, LlamaConfig

    torch._dynamo.reset()
    torch.compile(lambda x: x + 1, backend=backend)(
        torch.ones(2, requires_grad=True)
    ).sum().backward()
    torch._dynamo.reset()
    reset()
    model = Llama(LlamaConfig(layers=layers))
    ids = torch.randint(0, 1024, (2, 64))
    compiled = torch.compile(model, backend=backend)
    start = time.perf_counter()
    _logits, loss = compiled(ids, ids)
    loss.backward()
    seconds = time.perf_counter() - start
    stages = {k: round(v, 3) for k, v in tpu_compile.stage_times().items()}
    return {"backend": backend, "layers": layers, "seconds": round(seconds, 3), "stages": stages}


def main() -> None:
    """Reads the arguments, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--backend", default="tpu")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TPU_COMPILE_CACHE_DIR"] = folder
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        for layers in chosen.layers:
            print(json.dumps(measure(layers, chosen.backend)), flush=True)


if __name__ == "__main__":
    main()
