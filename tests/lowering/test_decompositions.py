"""What torch takes apart for us, and what it must not."""

from __future__ import annotations

import contextlib

import helpers
import pytest
import torch
import torch.nn.functional as F

from tpu_compile.executable import compile_graph
from tpu_compile.lowering import decompositions
from tpu_compile.lowering.interpreter import Settings

aten = torch.ops.aten


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_rules_come_before_torchs_python_kernels(mode: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 2, 7, 9)

    def run(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=(1.7, 0.4), mode=mode)

    for context, whole in ((decompositions.rules_first, True), (contextlib.nullcontext, False)):
        with context():
            gm = helpers.capture(run, [x])
        assert ("upsample" in gm.code) == whole
        (actual,) = compile_graph(gm, Settings())([x])
        torch.testing.assert_close(actual, run(x), rtol=1e-4, atol=1e-5)


def test_torchs_python_kernels_are_put_back() -> None:
    op = aten.upsample_bilinear2d.default
    before = dict(op.py_kernels)
    with decompositions.rules_first():
        assert op.py_kernels != before
    assert op.py_kernels == before
