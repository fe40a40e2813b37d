"""Ops on lists of tensors, and optimizers that use them, against eager torch."""

from __future__ import annotations

import copy
from typing import Any

import compiled
import helpers
import pytest
import torch

LISTS = [torch.randn(3, 4), torch.randn(5)]


def test_foreach_ops() -> None:
    torch.manual_seed(0)
    first = [torch.rand(3, 4) + 0.5, torch.rand(5) + 0.5]
    second = [torch.rand(3, 4) + 0.5, torch.rand(5) + 0.5]

    def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> list[Any]:
        x, y = [a, b], [c, d]
        return [
            torch._foreach_add(x, 2),
            torch._foreach_add(x, y, alpha=0.3),
            torch._foreach_add(x, [1.0, 2.0]),
            torch._foreach_mul(x, c[0, 0]),
            torch._foreach_div(x, y),
            torch._foreach_sqrt(x),
            torch._foreach_addcdiv(x, y, y, 0.1),
            torch._foreach_addcmul(x, y, y, [0.1, 0.2]),
            torch._foreach_lerp(x, y, 0.4),
            torch._foreach_pow(x, [2, 3]),
            torch._foreach_pow(2.0, x),
            torch._foreach_maximum(x, y),
            torch._foreach_clamp_max(x, 0.7),
            torch._foreach_norm(x),
            torch._foreach_norm(x, 1),
            torch._foreach_max(x),
        ]

    helpers.compare(run, *first, *second)


def test_clipping_of_gradients() -> None:
    compiled.check(lambda a, b: torch.nn.utils.get_total_norm([a, b]), *LISTS)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", ["_fused_adam_", "_fused_adamw_"])
def test_fused_adam(name: str, scaled: bool) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.2, "beta1": 0.9, "beta2": 0.99}
    options |= {"eps": 1e-6, "amsgrad": True, "maximize": False}

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        *state, steps, scale, found = (t.clone() for t in tensors)
        lists = [[t] for t in (*state, steps)]
        if scaled:
            options.update(grad_scale=scale, found_inf=found)
        getattr(torch, name)(*lists, **options)
        return state

    values = [torch.rand(5) for _ in range(5)]
    for found in (0.0, 1.0):
        extra = [torch.tensor(3.0), torch.tensor([2.0]), torch.tensor([found])]
        helpers.compare(run, *values, *extra)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_optimizers(kind: type) -> None:
    torch.manual_seed(0)
    mine = [torch.nn.Parameter(t.clone()) for t in LISTS]
    theirs = copy.deepcopy(mine)
    steps = [kind(p, lr=0.01, weight_decay=0.1, foreach=True).step for p in (mine, theirs)]
    steps[0] = compiled.compile_tpu(steps[0], fullgraph=False)
    for _ in range(3):
        for params, step in zip((mine, theirs), steps, strict=True):
            for p in params:
                p.grad = p.detach().sin()
            step()
    for a, e in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, e)
