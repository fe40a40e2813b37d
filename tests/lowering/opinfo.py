"""Which of torch's OpInfo samples the rules are checked with, and what is known not to agree."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

SAMPLES = 12  # per op and dtype, spread evenly over what torch generates

f32, f64, bf16 = torch.float32, torch.float64, torch.bfloat16
i64, u8, bool_, c64 = torch.int64, torch.uint8, torch.bool, torch.complex64


@dataclass(frozen=True)
class Expect:
    """What one op needs beside the defaults.

    Attributes:
        rtol: relative tolerance of forward and gradient in float32 (default torch's).
        atol: absolute tolerance.
        xfail: why an op fails, by dtype.
        forward_only: why gradients aren't compared.
        drop: a reason and a predicate for samples that are not run.
    """

    rtol: float | None = None
    atol: float | None = None
    xfail: tuple[tuple[torch.dtype, str], ...] = ()
    forward_only: str = ""


MATMUL = ("mm", "bmm", "addmm", "baddbmm", "mv", "dot", "vdot", "addmv", "matmul", "addbmm", "addr")

# A family's OpInfo names and the dtypes all of them are tried with, where torch has them.
FAMILIES: dict[str, tuple[tuple[str, ...], tuple[torch.dtype, ...]]] = {
    "matmul": (MATMUL, (f32, bf16, i64, c64)),
}

EXPECT: dict[str, Expect] = {}


@functools.cache
def by_name() -> dict[str, OpInfo]:
    """torch's OpInfos by full name; the first of equal names."""
    out: dict[str, OpInfo] = {}
    for op in op_db:
        out.setdefault(op.full_name, op)
    return out


def cases() -> Iterator[tuple[str, torch.dtype]]:
    """All (op name, dtype) pairs to run."""
    for names, dtypes in FAMILIES.values():
        for name in names:
            for dtype in dtypes:
                if dtype in by_name()[name].supported_dtypes("cpu"):
                    yield name, dtype


def samples(op: OpInfo, dtype: torch.dtype, *, requires_grad: bool) -> list[SampleInput]:
    """Up to ``SAMPLES`` of an op's samples, the same ones in each run."""
    torch.manual_seed(0)
    every = op.sample_inputs("cpu", dtype, requires_grad=requires_grad)
    every = list(itertools.islice(every, 400))
    step = max(1, len(every) / SAMPLES)
    picks = sorted({int(i * step) for i in range(min(SAMPLES, len(every)))})
    return [every[i] for i in picks]
