"""Every op's rules against eager torch on the CPU, on torch's own OpInfo samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import helpers
import opinfo
import pytest
import torch
from opinfo import Call

# Compiling takes most of the time, and the rules are the same at every level.
FAST = {"xla_backend_optimization_level": 0}


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
