"""Llama in plain torch, with a static cache for decoding, in the sizes that benchmarks use.

Parameters are called as in Hugging Face's checkpoints, without the leading ``model.``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes of a model."""

    vocab: int
    width: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    rope_theta: float = 500_000.0
    norm_eps: float = 1e-5
    tied: bool = False

    @property
    def head_width(self) -> int:
        """The width of one attention head."""
        return self.width // self.heads


CONFIGS = {
    "tiny": LlamaConfig(1024, 256, 688, 4, 8, 4),
    "100m": LlamaConfig(32_000, 768, 2048, 12, 12, 4, tied=True),
    "1b": LlamaConfig(128_256, 2048, 8192, 16, 32, 8, tied=True),
    "8b": LlamaConfig(128_256, 4096, 14_336, 32, 32, 8),
    "70b": LlamaConfig(128_256, 8192, 28_672, 80, 64, 8),
}
"""Sizes by name: the last three are Llama 3's (without its scaling of long contexts)."""


class StaticCache:
    """Keys and values of all layers for a fixed greatest length, written in place."""

    def __init__(
        self,
        config: LlamaConfig,
        batch: int,
        length: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (config.layers, batch, config.kv_heads, length, config.head_width)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)

    def update(self, layer: int, positions: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Writes at the positions and returns the layer's whole keys and values."""
        self.keys[layer].index_copy_(2, positions, k)
        self.values[layer].index_copy_(2, positions, v)
        return self.keys[layer], self.values[layer]


class RMSNorm(nn.Module):
    """Divides by the root mean square, in float32 whatever the input, and scales."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * y.to(x.dtype)


class Rotary(nn.Module):
    """Cosines and sines of positions, computed in float32."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        exponents = torch.arange(0, config.head_width, 2).float() / config.head_width
        self.register_buffer("frequencies", config.rope_theta**-exponents, persistent=False)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        angles = positions[:, None].float() * self.get_buffer("frequencies").float()
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns each pair (i, i + half) of the last dimension by its position's angle."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    """Causal grouped-query attention, over the cache if there is one."""

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_width = config.head_width
        kv_width = config.kv_heads * config.head_width
        self.q_proj = nn.Linear(config.width, config.width, bias=False)
        self.k_proj = nn.Linear(config.width, kv_width, bias=False)
        self.v_proj = nn.Linear(config.width, kv_width, bias=False)
        self.o_proj = nn.Linear(config.width, config.width, bias=False)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
        cache: StaticCache | None,
    ) -> Tensor:
        batch, length, width = x.shape

        def heads(y: Tensor) -> Tensor:
            return y.view(batch, length, -1, self.head_width).transpose(1, 2)

        q = rotate(heads(self.q_proj(x)), cos, sin)
        k = rotate(heads(self.k_proj(x)), cos, sin)
        v = heads(self.v_proj(x))
        mask = None
        if cache is not None:
            k, v = cache.update(self.layer, positions, k, v)
            mask = torch.arange(k.shape[2], device=x.device) <= positions[:, None]
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, width))


class FeedForward(nn.Module):
    """The gated feed-forward block: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.width, config.hidden, bias=False)
        self.up_proj = nn.Linear(config.width, config.hidden, bias=False)
        self.down_proj = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and feed-forward, each on a normalised input and added to it."""

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.width, config.norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.width, config.norm_eps)
        self.mlp = FeedForward(config)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
        cache: StaticCache | None,
    ) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, positions, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Token ids [batch, length] to logits [batch, length, vocab]."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab, config.width)
        self.rotary = Rotary(config)
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.layers))
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.lm_head = nn.Linear(config.width, config.vocab, bias=False)
        self.apply(_initialise)
        if config.tied:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(
        self, tokens: Tensor, positions: Tensor | None = None, cache: StaticCache | None = None
    ) -> Tensor:
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embed_tokens(tokens)
        cos, sin = self.rotary(positions, x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin, positions, cache)
        return self.lm_head(self.norm(x))


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """The cross-entropy of each token given those before it, in float32."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
