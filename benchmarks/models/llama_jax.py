"""``llama.Llama``'s forward by hand in JAX: the yardstick for what our compiler makes of the other.

Parameters are a dict by the torch module's names, weights as torch stores them: [out, in].
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array
from llama import LlamaConfig


def forward(config: LlamaConfig, weights: Mapping[str, Array], tokens: Array) -> Array:
    """Token ids [batch, length] to logits [batch, length, vocab]."""
    x = weights["embed_tokens.weight"][tokens]
    cos, sin = _rotary(config, tokens.shape[1], x.dtype)
    for i in range(config.layers):
        layer = f"layers.{i}."
        y = _norm(config, x, weights[f"{layer}input_layernorm.weight"])
        x = x + _attention(config, weights, f"{layer}self_attn.", y, cos, sin)
        y = _norm(config, x, weights[f"{layer}post_attention_layernorm.weight"])
        gate = _linear(y, weights[f"{layer}mlp.gate_proj.weight"])
        up = _linear(y, weights[f"{layer}mlp.up_proj.weight"])
        x = x + _linear(jax.nn.silu(gate) * up, weights[f"{layer}mlp.down_proj.weight"])
    x = _norm(config, x, weights["norm.weight"])
    return _linear(x, weights["embed_tokens.weight" if config.tied else "lm_head.weight"])


def _linear(x: Array, weight: Array) -> Array:
    return jnp.einsum("...i,oi->...o", x, weight)


def _norm(config: LlamaConfig, x: Array, weight: Array) -> Array:
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + config.norm_eps)
    return weight * y.astype(x.dtype)


def _rotary(config: LlamaConfig, length: int, dtype: jnp.dtype) -> tuple[Array, Array]:
    half = jnp.arange(0, config.head_width, 2, dtype=jnp.float32) / config.head_width
    angles = jnp.arange(length, dtype=jnp.float32)[:, None] * config.rope_theta**-half
    angles = jnp.concatenate((angles, angles), axis=-1)
    return jnp.cos(angles).astype(dtype), jnp.sin(angles).astype(dtype)


def _rotate(x: Array, cos: Array, sin: Array) -> Array:
    first, second = jnp.split(x, 2, axis=-1)
    return x * cos + jnp.concatenate((-second, first), axis=-1) * sin


def _attention(
    config: LlamaConfig,
    weights: Mapping[str, Array],
    prefix: str,
    x: Array,
    cos: Array,
    sin: Array,
) -> Array:
    batch, length, width = x.shape

    def heads(name: str) -> Array:
        y = _linear(x, weights[f"{prefix}{name}.weight"])
        return y.reshape(batch, length, -1, config.head_width).swapaxes(1, 2)

    q = _rotate(heads("q_proj"), cos, sin)
    k = _rotate(heads("k_proj"), cos, sin)
    v = heads("v_proj")
    q = q.reshape(batch, config.kv_heads, -1, length, config.head_width)
    scores = jnp.einsum("bkgqd,bksd->bkgqs", q, k, preferred_element_type=jnp.float32)
    scores = scores / math.sqrt(config.head_width)
    past = jnp.arange(length)[:, None] >= jnp.arange(length)
    shares = jax.nn.softmax(jnp.where(past, scores, -jnp.inf), axis=-1).astype(x.dtype)
    out = jnp.einsum("bkgqs,bksd->bkgqd", shares, v)
    out = out.reshape(batch, config.heads, length, config.head_width).swapaxes(1, 2)
    return _linear(out.reshape(batch, length, width), weights[f"{prefix}o_proj.weight"])
