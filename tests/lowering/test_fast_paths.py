"""Transformer modules in inference, where torch fuses a whole layer, against eager torch."""

from __future__ import annotations

import pytest
import torch
from compiled import compile_tpu
from torch import Tensor, nn

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("masked", ["nothing", "keys", "pairs"])
def test_encoder_layer(norm_first: bool, masked: str) -> None:
    layer = nn.TransformerEncoderLayer(
        16, 4, 32, activation="gelu", batch_first=True, norm_first=norm_first
    ).eval()
    x = torch.randn(2, 5, 16)
    masks: dict[str, Tensor] = {}
    if masked == "keys":
        masks["src_key_padding_mask"] = torch.arange(5).expand(2, 5) > 2
    elif masked == "pairs":
        masks["src_mask"] = torch.ones(5, 5, dtype=torch.bool).triu(1)
    with torch.no_grad():
        torch.testing.assert_close(compile_tpu(layer)(x, **masks), layer(x, **masks), **CLOSE)


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
def test_multi_head_attention(average: bool, need_weights: bool) -> None:
    attention = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    options = {"need_weights": need_weights, "average_attn_weights": average}
    run = lambda x: attention(x, x, x, **options)  # noqa: E731
    with torch.no_grad():
        (out, weights), (expected, shares) = compile_tpu(run)(x), run(x)
    torch.testing.assert_close(out, expected, **CLOSE)
    if need_weights:
        torch.testing.assert_close(weights, shares, **CLOSE)
    else:
        assert weights is None
        assert shares is None
