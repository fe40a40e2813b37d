"""What torch takes apart for us, and what it must not."""

from __future__ import annotations

import helpers
import pytest
import torch
import torch.nn.functional as F
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from tpu_compile.lowering import decompositions

aten = torch.ops.aten


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_rules_come_before_torchs_python_kernels(mode: str) -> None:
    x = torch.randn(1, 2, 7, 9)

    def traced() -> str:
        with FakeTensorMode(shape_env=ShapeEnv()) as fake, enable_python_dispatcher():
            run = lambda x: F.interpolate(x, scale_factor=(1.7, 0.4), mode=mode)  # noqa: E731
            return make_fx(run, decompositions.table())(fake.from_tensor(x)).code

    assert "upsample" not in traced()
    with decompositions.rules_first():
        assert "upsample" in traced()


def test_checks_of_factorizations_are_no_effects() -> None:
    a = torch.randn(3, 3)
    gm = helpers.capture(torch.linalg.inv, [a])
    assert "with_effects" not in gm.code
    torch.testing.assert_close(helpers.run_lowered(torch.linalg.inv, [a])[0], torch.linalg.inv(a))


def test_torchs_python_kernels_are_put_back() -> None:
    op = aten.upsample_bilinear2d.default
    before = dict(op.py_kernels)
    with decompositions.rules_first():
        assert op.py_kernels != before
    assert op.py_kernels == before
