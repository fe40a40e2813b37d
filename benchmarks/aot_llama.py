"""A Llama's forward through the TPU compiler: memory and HBM bytes beside hand-written JAX.

Prints one JSON line per program: what ``aot_compile`` says of the torch model, and what the same
count says of the same network in JAX, compiled by the same compiler with the same options. No
weights are made. ``python benchmarks/aot_llama.py --config 8b --topology v6e --effort fit``
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "models"))


def torch_program(config: Any, chosen: argparse.Namespace) -> dict[str, Any]:
    """Figures of the torch model."""
    import torch
    from llama import Llama

    import tpu_compile

    start = time.perf_counter()
    with torch.device("meta"):
        model = Llama(config).bfloat16().eval()
        tokens = torch.zeros(chosen.batch, chosen.length, dtype=torch.int64)
    result = tpu_compile.aot_compile(model, tokens, topology=chosen.topology, effort=chosen.effort)
    seconds = time.perf_counter() - start
    (program,) = result.programs
    if chosen.save:
        result.save(chosen.save)
    return {
        "peer": "tpu_compile",
        "seconds": round(seconds, 1),
        "stages": {k: round(v, 1) for k, v in result.seconds.items()},
        **_figures(program.memory, program.cost),
        "model_flops": program.model_flops,
        "roofline_ms": round(program.roofline.seconds * 1e3, 2),
        "bound": program.roofline.bound,
        "fits": result.fits,
    }


def jax_program(config: Any, chosen: argparse.Namespace) -> dict[str, Any]:
    """Figures of the same network in JAX."""
    import jax
    import jax.numpy as jnp
    import llama_jax
    import torch
    from llama import Llama

    from tpu_compile import topologies
    from tpu_compile.aot import cost, hlo
    from tpu_compile.aot.compiling import EFFORTS
    from tpu_compile.aot.memory import Memory

    with torch.device("meta"):
        names = {k: tuple(p.shape) for k, p in Llama(config).named_parameters()}
    device = topologies.devices(topologies.parse(chosen.topology))[0]
    place = jax.sharding.SingleDeviceSharding(device)
    weights = {k: jax.ShapeDtypeStruct(s, jnp.bfloat16, sharding=place) for k, s in names.items()}
    tokens = jax.ShapeDtypeStruct((chosen.batch, chosen.length), jnp.int32, sharding=place)
    start = time.perf_counter()
    lowered = jax.jit(functools.partial(llama_jax.forward, config)).lower(weights, tokens)
    compiled = lowered.compile(EFFORTS[chosen.effort])
    seconds = time.perf_counter() - start
    counted = cost.measure(hlo.parse(compiled.as_text() or ""))
    memory = Memory.of(compiled, held=0, capacity=0)
    return {"peer": "jax", "seconds": round(seconds, 1), **_figures(memory, counted)}


def _figures(memory: Any, counted: Any) -> dict[str, Any]:
    return {
        "hbm_bytes": counted.bytes,
        "flops": counted.flops,
        "cycles": counted.cycles,
        "ops_without_cycles": len(counted.ops_without_cycles),
        "temporaries": memory.temporaries,
        "arguments": memory.arguments,
        "outputs": memory.outputs,
        "total": memory.total,
    }


def main() -> None:
    """Reads the arguments, compiles, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="100m")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--topology", default="v6e")
    parser.add_argument("--effort", default="full", choices=("fit", "full"))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--peers", nargs="+", default=["tpu_compile", "jax"])
    parser.add_argument("--save", type=Path)
    chosen = parser.parse_args()
    from llama import CONFIGS

    from tpu_compile import process_state

    process_state.without_tpu()
    config = CONFIGS[chosen.config]
    if chosen.layers:
        config = dataclasses.replace(config, layers=chosen.layers)
    run = {"tpu_compile": torch_program, "jax": jax_program}
    for peer in chosen.peers:
        figures = run[peer](config, chosen)
        what = {"config": chosen.config, "topology": chosen.topology, "effort": chosen.effort}
        print(json.dumps({**what, "layers": config.layers, **figures}), flush=True)


if __name__ == "__main__":
    main()
