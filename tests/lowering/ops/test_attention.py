"""Attention against eager torch: masks, causality, shared key heads, gradients."""

from __future__ import annotations

import helpers
import pytest
import torch
from gradients import check, leaf
from torch.nn.functional import scaled_dot_product_attention as sdpa

aten = torch.ops.aten


def qkv(
    tq: int = 5, tk: int = 7, heads: int = 4, key_heads: int = 4, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    """Tensors of shape [batch, head, time, 8] laid out as [batch, time, head, 8]."""
    torch.manual_seed(0)
    shapes = [(2, tq, heads, 8), (2, tk, key_heads, 8), (2, tk, key_heads, 8)]
    return [torch.randn(s, dtype=dtype).transpose(1, 2).requires_grad_() for s in shapes]


@pytest.mark.parametrize(("tq", "tk"), [(3, 7), (7, 3), (1, 6)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_lengths(tq: int, tk: int, is_causal: bool) -> None:
    check(lambda q, k, v: sdpa(q, k, v, is_causal=is_causal), *qkv(tq, tk))


@pytest.mark.parametrize("shape", [(5, 7), (1, 4, 1, 7), (2, 1, 5, 7)])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks(shape: tuple[int, ...], kind: str) -> None:
    args = qkv()
    mask = torch.randn(shape)
    if kind == "bool":
        mask = mask > -0.5
    check(lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), *args, mask)


def test_a_mask_that_wants_a_gradient_takes_the_math_path() -> None:
    mask = leaf(5, 7)
    check(lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), *qkv(), mask)


def test_a_query_that_sees_nothing_gives_zeros() -> None:
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    args = qkv()
    check(lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), *args, mask)
    (out,) = helpers.run_lowered(
        lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), [*(a.detach() for a in args), mask]
    )
    assert not out[:, :, 2].any()


@pytest.mark.parametrize("key_heads", [1, 2])
def test_shared_key_heads(key_heads: int) -> None:
    args = qkv(key_heads=key_heads)
    check(lambda q, k, v: sdpa(q, k, v, enable_gqa=True, is_causal=True), *args)
    mask = torch.randn(2, 4, 5, 7)
    check(lambda q, k, v, m: sdpa(q, k, v, enable_gqa=True, attn_mask=m), *args, mask)


def test_scale() -> None:
    check(lambda q, k, v: sdpa(q, k, v, scale=0.3), *qkv())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_floats(dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps
    check(lambda q, k, v: sdpa(q, k, v, is_causal=True), *qkv(dtype=dtype), rtol=2 * eps, atol=eps)


def test_float64() -> None:
    check(lambda q, k, v: sdpa(q, k, v), *qkv(dtype=torch.float64))


@pytest.mark.parametrize("is_causal", [False, True])
def test_logsumexp(is_causal: bool) -> None:
    op = aten._scaled_dot_product_flash_attention_for_cpu.default
    helpers.compare(lambda q, k, v: op(q, k, v, 0.0, is_causal), *(a.detach() for a in qkv()))


def test_three_dimensions_decompose() -> None:
    args = [a.detach()[0].requires_grad_() for a in qkv()]
    check(lambda q, k, v: sdpa(q, k, v), *args)


@pytest.mark.parametrize(("tq", "tk"), [(0, 3), (3, 0)])
def test_empty(tq: int, tk: int) -> None:
    args = [a.detach() for a in qkv(tq, tk)]
    op = aten._scaled_dot_product_flash_attention_for_cpu.default
    out, lse = helpers.run_lowered(lambda q, k, v: op(q, k, v), args)
    assert out.shape == (2, 4, tq, 8)
    assert not out.any()
    assert lse.shape == (2, 4, tq)
