"""torch's own samples of ops with one size rounded up: equal to eager, or refused; never wrong.

All differentiable float32 ops are marked slow (half an hour); some of each kind run always.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from opinfo import EXPECT, Call, Expect, by_name
from rounded import compile_with, results
from torch._dynamo import exc
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo

from tpu_compile.padding import bucketed

SOME = (
    *("addmm", "amax", "argmin", "baddbmm", "bmm", "cumsum", "diagonal", "expand_as", "flip"),
    *("frexp", "gather", "index_add", "index_select", "linalg.vector_norm", "log_softmax"),
    *("masked_fill", "mean", "movedim", "nn.functional.avg_pool2d", "nn.functional.conv2d"),
    *("nn.functional.cross_entropy", "nn.functional.embedding", "nn.functional.pad", "permute"),
    *("repeat", "roll", "scatter_add", "select_scatter", "slice_scatter", "softmax", "sort"),
    *("std", "sum", "tril", "unfold", "var_mean", "where"),
)
# Refused in each of these samples, or of a size that Dynamo fixes.
NEVER = ("diagonal", "roll", "sort", "std", "unfold", "var_mean")
RANDOM = ("bernoulli", "dropout", "empty", "multinomial", "normal", "rand", "rrelu", "uniform")
SLACK = 3  # elements of padding
SAMPLES = 2  # per op

# Of LLVM; XLA's own passes run as ever.
FAST = {"xla_backend_optimization_level": 0}


def _all() -> list[Any]:
    names = sorted({op.full_name for op in op_db if torch.float32 in op.supported_dtypes("cpu")})
    names = [n for n in names if not any(r in n for r in RANDOM)]
    return [n if n in SOME else pytest.param(n, marks=pytest.mark.slow) for n in names]


def _calls(op: OpInfo) -> list[Call]:
    samples = op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)
    fit = [s for s in itertools.islice(samples, 40) if _has_sizes(s.input)]
    return [Call(op, s) for s in fit[:: max(1, len(fit) // SAMPLES)][:SAMPLES]]


def _has_sizes(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.numel() > 1


def _rounded(call: Call, size: int) -> tuple[str, list[torch.Tensor]]:
    """Compiles and runs with all dimensions of one size rounded up.

    Returns:
        "refused", "untraced" where Dynamo can't trace the sample, or "ran" with what to compare.
    """
    tensors = [t.detach().clone().requires_grad_(t.requires_grad) for t in call.tensors]
    for t in tensors:
        for d, n in enumerate(t.shape):
            if n == size:
                torch._dynamo.maybe_mark_dynamic(t, d)
    buckets = {f"*.{d}": [size + SLACK] for d in range(8)}
    f = compile_with(lambda *xs: call(*xs), buckets, fallback="warn", compiler_options=FAST)
    try:
        outs, grads = results(f, tensors)
    except Exception as err:
        if "rounded up to buckets" in str(err):
            return "refused", []
        if type(err) in (exc.Unsupported, exc.UserError, exc.TorchRuntimeError):
            return "untraced", []
        if "its size depends on data" in str(err):  # refused without buckets, too
            return "untraced", []
        raise
    return "ran", [*outs, *(g for g in grads if g is not None)]


@pytest.mark.filterwarnings("ignore::tpu_compile.errors.FallbackWarning")
@pytest.mark.parametrize("name", _all())
def test_equal_or_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op = by_name()[name]
    expect = EXPECT.get(name, Expect())
    own = expect.tolerance(torch.float32)  # what the op needs without buckets, for its own reason
    if expect.why_xfail(torch.float32):
        pytest.skip("fails without buckets, too")
    built: list[Any] = []
    build = bucketed.Bucketed._build
    monkeypatch.setattr(bucketed.Bucketed, "_build", lambda *a: built.append(a) or build(*a))
    outcomes = set()
    for call in _calls(op):
        outs, grads = results(call, call.tensors)
        wanted = [*outs, *(g for g in grads if g is not None)]
        for size in sorted({n for n in call.tensors[0].shape if n > 1}):
            torch._dynamo.reset()
            built.clear()
            outcome, got = _rounded(call, size)
            outcomes.add("static" if outcome == "ran" and not built else outcome)
            if outcome == "ran":
                # Another order of sums than eager's; a padded element would be NaN.
                rtol, atol = max(1e-3, own[0] or 0), max(1e-4, own[1] or 0)
                torch.testing.assert_close(got, wanted, rtol=rtol, atol=atol, equal_nan=True)
    if name in SOME and name not in NEVER:
        assert "ran" in outcomes
