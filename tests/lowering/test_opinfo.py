"""Every op's rules against eager torch on the CPU, on torch's own OpInfo samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import helpers
import opinfo
import pytest
import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

# Compiling takes most of the time, and the rules are the same at every level.
FAST = {"xla_backend_optimization_level": 0}


@dataclass
class Call:
    """One sample as a function of its tensors alone."""

    op: OpInfo
    sample: SampleInput
    first_only: bool = False

    def __post_init__(self) -> None:
        self.mutates = opinfo.EXPECT.get(self.op.full_name, opinfo.Expect()).mutates
        tree = (self.sample.input, self.sample.args, self.sample.kwargs)
        self.leaves, self.spec = pytree.tree_flatten(tree)
        self.tensors = [
            t.detach().requires_grad_(t.requires_grad)
            for t in self.leaves
            if isinstance(t, torch.Tensor)
        ]

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        feed = iter(t.clone() for t in tensors) if self.mutates else iter(tensors)
        leaves = [next(feed) if isinstance(v, torch.Tensor) else v for v in self.leaves]
        x, args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        out = self.sample.output_process_fn_grad(self.op.op(x, *args, **kwargs))
        outs = [t.clone() for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]
        return outs[:1] if self.first_only else outs


def batch(calls: Sequence[Call]) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """Several calls as one function of all of their tensors."""
    counts = [len(c.tensors) for c in calls]

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        feed = iter(tensors)
        return [
            t
            for c, n in zip(calls, counts, strict=True)
            for t in c(*(next(feed) for _ in range(n)))
        ]

    return run, [t for c in calls for t in c.tensors]


def check(calls: Sequence[Call], expect: opinfo.Expect, dtype: torch.dtype) -> None:
    """Compares results, and gradients where any input wants one, of calls run as one program."""
    run, tensors = batch(calls)
    if any(t.requires_grad for t in tensors):
        expected, actual = helpers.run_with_gradients(run, tensors, **FAST)
    else:
        expected, actual = run(*tensors), helpers.run_lowered(run, tensors, **FAST)
    assert len(actual) == len(expected)
    rtol, atol = expect.tolerance(dtype)
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        if e is None:
            continue
        loose = {"rtol": rtol, "atol": atol} if e.dtype.is_floating_point or e.is_complex() else {}
        torch.testing.assert_close(
            a, e, **loose, equal_nan=True, msg=lambda m, i=i: f"result {i}: {m}"
        )


@pytest.mark.parametrize(
    ("name", "dtype"),
    [pytest.param(n, d, id=f"{n}-{str(d).removeprefix('torch.')}") for n, d in opinfo.cases()],
)
def test_opinfo(name: str, dtype: torch.dtype, request: pytest.FixtureRequest) -> None:
    op = opinfo.by_name()[name]
    expect = opinfo.EXPECT.get(name, opinfo.Expect())
    if reason := expect.why_xfail(dtype):
        request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))
    grad = dtype == torch.float32 and op.supports_autograd and not expect.forward_only
    first_only = bool(expect.values_only)
    calls = [Call(op, s, first_only) for s in opinfo.samples(op, dtype, requires_grad=grad)]
    try:
        check(calls, expect, dtype)
    except Exception:
        for i, call in enumerate(calls):
            try:
                check([call], expect, dtype)
            except Exception as err:
                err.add_note(f"sample {i}: {call.sample.summary()}")
                raise
        raise
