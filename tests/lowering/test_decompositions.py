"""What torch takes apart for us, and what it must not."""

from __future__ import annotations

import helpers
import pytest
import torch
import torch.nn.functional as F
from gradients import check, leaf
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


CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def test_multilabel_margin_loss_stops_at_minus_one() -> None:
    torch.manual_seed(0)
    target = torch.tensor([[1, 0, -1, 2], [2, -1, 0, 0]])
    for reduction in ("none", "mean", "sum"):
        check(
            lambda x, t, r=reduction: F.multilabel_margin_loss(x, t, reduction=r),
            leaf(2, 4),
            target,
        )
    check(F.multilabel_margin_loss, leaf(4), target[0])


def test_bilinear_and_weight_norm() -> None:
    torch.manual_seed(0)
    check(F.bilinear, leaf(4, 3), leaf(4, 5), leaf(6, 3, 5), leaf(6), **CLOSE)
    check(lambda v, g: torch._weight_norm(v, g, 0), leaf(4, 3), leaf(4, 1), **CLOSE)


def test_what_depends_on_the_data_but_for_its_size() -> None:
    mask = torch.tensor([True, False, True, True])
    check(lambda x, m, s: x.masked_scatter(m, s), leaf(2, 4), mask, leaf(7))
    helpers.compare(
        lambda x, r: torch.repeat_interleave(x, r, 0, output_size=6),
        torch.randn(3, 2),
        torch.tensor([1, 2, 3]),
    )


def test_recurrent_layers() -> None:
    torch.manual_seed(0)
    state = torch.randn(1, 2, 4)
    for run, rows in ((torch.gru, 12), (torch.rnn_tanh, 4)):
        check(
            lambda x, h, *p, f=run: f(x, h, p, True, 1, 0.0, False, False, False)[0],
            *(leaf(5, 2, 3), state, leaf(rows, 3), leaf(rows, 4), leaf(rows), leaf(rows)),
            **CLOSE,
        )
    check(
        lambda x, h, *p: torch.lstm(x, (h, h), p, True, 1, 0.0, False, False, False)[0],
        *(leaf(5, 2, 3), state, leaf(16, 3), leaf(16, 4), leaf(16), leaf(16)),
        **CLOSE,
    )
