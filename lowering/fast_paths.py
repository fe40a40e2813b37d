"""Decompositions of the fused layers that torch's transformer modules take for inference."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten

QUERY_KEY, PADDING = 0, 1  # what a mask is of: [query, key], [batch, key]; else all dimensions


def _attention(
    qkv: tuple[Tensor, ...],
    num_heads: int,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None,
    mask_type: int | None,
) -> tuple[Tensor, Tensor]:
    """Attention of [batch, time, width] projections, and its weights by head."""
    q, k, v = (t.unflatten(-1, (num_heads, -1)).transpose(1, 2) for t in qkv)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        hidden = mask.to(torch.bool)
        if mask_type == PADDING:
            hidden = hidden[:, None, None, :]
        scores = scores.masked_fill(hidden, -math.inf)
    weights = scores.softmax(-1)
    mixed = (weights @ v).transpose(1, 2).flatten(-2)
    return F.linear(mixed, proj_weight, proj_bias), weights


def _native_multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor]:
    weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
    qkv = tuple(map(F.linear, (query, key, value), weights, biases))
    out, shares = _attention(qkv, num_head, proj_weight, proj_bias, mask, mask_type)
    if not need_weights:
        return out, query.new_empty(0)
    return out, shares.mean(1) if average_attn_weights else shares


def _transformer_encoder_layer_fwd(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    def attend(x: Tensor) -> Tensor:
        qkv = F.linear(x, qkv_weight, qkv_bias).chunk(3, -1)
        return _attention(qkv, num_heads, proj_weight, proj_bias, mask, mask_type)[0]

    def feed(x: Tensor) -> Tensor:
        x = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(x) if use_gelu else F.relu(x), ffn_weight_2, ffn_bias_2)

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), weight, bias, eps)

    if norm_first:
        x = src + attend(norm(src, norm_weight_1, norm_bias_1))
        return x + feed(norm(x, norm_weight_2, norm_bias_2))
    x = norm(src + attend(src), norm_weight_1, norm_bias_1)
    return norm(x + feed(x), norm_weight_2, norm_bias_2)


DECOMPOSITIONS: dict[Any, Any] = {
    aten._native_multi_head_attention.default: _native_multi_head_attention,
    aten._transformer_encoder_layer_fwd.default: _transformer_encoder_layer_fwd,
}
