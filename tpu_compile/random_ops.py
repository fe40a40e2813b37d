"""``torch.ops.tpu``'s random ops: a seed drawn by the host, and samples that are pure in it.

``seed`` draws 64 bits from torch's default CPU generator, so ``torch.manual_seed``, ``fork_rng``
and ``set_rng_state`` govern compiled code. The others are functions of (seed, number of the op in
its graph, position), the same wherever they run: Threefry-2x32 as JAX's generator uses it.
"""

from __future__ import annotations

import torch

LIB = torch.library.Library("tpu", "DEF")
LIB.define("seed() -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
LIB.define("uniform(Tensor seed, int number, SymInt[] size, ScalarType dtype) -> Tensor")
LIB.define("normal(Tensor seed, int number, SymInt[] size, ScalarType dtype) -> Tensor")
LIB.define(
    "randint(Tensor seed, int number, SymInt low, SymInt high, SymInt[] size, ScalarType dtype)"
    " -> Tensor"
)


def draw_seed() -> torch.Tensor:
    """64 random bits from torch's default generator, as an int64 tensor of rank 0."""
    return torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64, device="cpu")


def _seed() -> torch.Tensor:
    return draw_seed()


def _sample(seed: torch.Tensor, number: int, size: list[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device=seed.device)


def _sample_between(
    seed: torch.Tensor, number: int, low: int, high: int, size: list[int], dtype: torch.dtype
) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device=seed.device)


def _seed_meta() -> torch.Tensor:
    return torch.empty((), dtype=torch.int64, device="cpu")


LIB.impl("seed", _seed, "CompositeExplicitAutograd")
torch.library.register_fake("tpu::seed", _seed_meta, lib=LIB)
for _name, _fake in (("uniform", _sample), ("normal", _sample), ("randint", _sample_between)):
    torch.library.register_fake(f"tpu::{_name}", _fake, lib=LIB)
