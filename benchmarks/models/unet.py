"""A diffusion model's U-Net: residual blocks with a time embedding, attention in the middle."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROUPS = 8
"""Of each group normalization."""
LONGEST_PERIOD = 10_000.0
"""Of the sinusoids that a step's number is embedded by."""


def embed_steps(steps: Tensor, width: int) -> Tensor:
    """Step numbers [batch] as sinusoids [batch, width]."""
    half = width // 2
    rates = torch.exp(torch.arange(half, device=steps.device) * (-math.log(LONGEST_PERIOD) / half))
    angles = steps.float()[:, None] * rates
    return torch.cat([angles.cos(), angles.sin()], dim=1)


class Residual(nn.Module):
    """Two 3x3 convolutions around a shift by the time embedding, added to the input."""

    def __init__(self, inputs: int, outputs: int, embedding: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(GROUPS, inputs), nn.GroupNorm(GROUPS, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shift = nn.Linear(embedding, outputs)
        same = inputs == outputs
        self.skip: nn.Module = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.shift(time)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class SpatialAttention(nn.Module):
    """Self-attention over an image's places, added to the input."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(GROUPS, channels)
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        shape = (batch, 3, self.heads, channels // self.heads, height * width)
        q, k, v = self.qkv(self.norm(x)).view(shape).transpose(-1, -2).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2)
        return x + self.out(y.reshape(x.shape))


class UNet(nn.Module):
    """Noisy images [batch, colours, height, width] and steps [batch] to the noise in them.

    Args:
        colours: channels of the image.
        widths: channels at each resolution, each half the one before.
        heads: of attention at the lowest.
    """

    def __init__(
        self, colours: int = 3, widths: Sequence[int] = (32, 64, 128), heads: int = 4
    ) -> None:
        super().__init__()
        first, last = widths[0], widths[-1]
        self.embedding = 4 * first
        self.time = nn.Sequential(
            nn.Linear(self.embedding, self.embedding),
            nn.SiLU(),
            nn.Linear(self.embedding, self.embedding),
        )
        self.entry = nn.Conv2d(colours, first, 3, padding=1)
        steps = list(itertools.pairwise(widths))
        self.down = nn.ModuleList(Residual(w, w, self.embedding) for w, _ in steps)
        self.shrink = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in steps)
        self.middle1 = Residual(last, last, self.embedding)
        self.attention = SpatialAttention(last, heads)
        self.middle2 = Residual(last, last, self.embedding)
        self.up = nn.ModuleList(Residual(a + b, a, self.embedding) for a, b in reversed(steps))
        self.exit_norm = nn.GroupNorm(GROUPS, first)
        self.exit = nn.Conv2d(first, colours, 3, padding=1)

    def forward(self, images: Tensor, steps: Tensor) -> Tensor:
        time = self.time(embed_steps(steps, self.embedding).to(images.dtype))
        x = self.entry(images)
        skips = []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            x = block(x, time)
            skips.append(x)
            x = shrink(x)
        x = self.middle2(self.attention(self.middle1(x, time)), time)
        for block in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, skips.pop()], dim=1), time)
        return self.exit(F.silu(self.exit_norm(x)))
