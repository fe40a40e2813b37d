"""Trains a small network on a made-up task through the compiler: the loss has to fall."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)


@torch.compile(backend="tpu")
def loss_of(x: Tensor, y: Tensor) -> Tensor:
    """The mean squared error of a batch."""
    return F.mse_loss(model(x), y)


losses = []
for step in range(200):
    x = torch.randn(128, 8)
    y = x[:, 0:1].sin() + x[:, 1:2] * x[:, 2:3]
    loss = loss_of(x, y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    if step % 40 == 0:
        print(f"step {step:3d}  loss {losses[-1]:.4f}")

first, last = sum(losses[:10]) / 10, sum(losses[-10:]) / 10
print(f"mean loss: first 10 steps {first:.4f}, last 10 steps {last:.4f}")
if not last < 0.5 * first:
    raise SystemExit("the loss did not fall")
