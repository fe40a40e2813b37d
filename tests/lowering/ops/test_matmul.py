"""Matrix products: transposed operands are folded, small floats accumulate in float32."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers import compare, lower


def text_of(fn: Callable[..., object], *args: torch.Tensor) -> str:
    return lower(fn, args, keep_text=True).stablehlo


@pytest.mark.parametrize(
    ("fn", "numbers"),
    [
        (lambda x, w: x @ w.t(), "contracting_dims = [1] x [1]"),
        (lambda x, w: torch.nn.functional.linear(x, w, x[0, :2]), "contracting_dims = [1] x [1]"),
        (lambda x, w: w @ x.t(), "contracting_dims = [1] x [1]"),
        (lambda x, w: x.t() @ x, "contracting_dims = [0] x [0]"),
    ],
)
def test_a_transposed_operand_is_not_materialised(fn: Callable[..., object], numbers: str) -> None:
    x, w = torch.randn(3, 4), torch.randn(2, 4)
    assert numbers in text_of(fn, x, w)
    compare(fn, x, w)


def test_batched_transposes() -> None:
    x, y = torch.randn(5, 3, 4), torch.randn(5, 2, 4)
    assert "contracting_dims = [2] x [2]" in text_of(lambda x, y: torch.bmm(x, y.mT), x, y)
    compare(lambda x, y: torch.bmm(x, y.mT), x, y)
    heads = torch.randn(5, 7, 2, 4)
    compare(lambda q: q.transpose(1, 2) @ q.permute(0, 2, 3, 1), heads)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_floats_accumulate_in_float32(dtype: torch.dtype) -> None:
    x, y = torch.ones(2, 4096).to(dtype), torch.ones(4096, 2).to(dtype)
    compare(lambda x, y: (x @ y, torch.mv(x, y[:, 0]), torch.dot(x[0], y[:, 0])), x, y)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.uint8])
def test_ints_keep_their_dtype(dtype: torch.dtype) -> None:
    x = torch.arange(12).reshape(3, 4).to(dtype) * 11
    compare(lambda x: (x @ x.t(), torch.mv(x, x[0])), x)


def test_int_mm_gives_int32() -> None:
    x = torch.randint(-128, 128, (32, 64), dtype=torch.int8)
    compare(lambda x: torch._int_mm(x, x.t().contiguous()), x)


def test_addmm_scales() -> None:
    x, y, bias = torch.randn(3, 4), torch.randn(4, 2), torch.randn(2)
    compare(lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2), bias, x, y)
    compare(lambda b, x, y: torch.addmm(b, x, y, beta=0), torch.full((2,), torch.nan), x, y)
    ints = [t.mul(10).long() for t in (bias, x, y)]
    compare(lambda b, x, y: torch.addmm(b, x, y, beta=3, alpha=2), *ints)


def test_empty_contraction() -> None:
    compare(lambda x, y: x @ y, torch.empty(2, 0), torch.empty(0, 3))
    compare(lambda x, y: x @ y, torch.empty(0, 2), torch.empty(2, 3))
