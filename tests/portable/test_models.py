"""Models through a file, compared with eager torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tpu_compile.demo_llama import Llama, LlamaConfig

Check = Callable[..., Any]


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4), nn.Softmax(-1))


def test_mlp(check: Check) -> None:
    loaded = check(mlp(), torch.randn(3, 8))
    assert list(loaded.state_dict()) == list(mlp().state_dict())


@pytest.mark.parametrize("tied", [False, True])
def test_llama(check: Check, tied: bool) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(vocab=64, width=32, hidden=48, layers=2, heads=4, kv_heads=2, tied=tied)
    tokens = torch.randint(64, (2, 8))
    loaded = check(Llama(config).eval(), tokens, torch.randint(64, (2, 8)), rtol=1e-4, atol=1e-5)
    one = loaded.weights["lm_head.weight"] is loaded.weights["embed_tokens.weight"]
    assert one == tied


@pytest.mark.parametrize("train", [True, False])
def test_batch_norm_and_its_statistics(check: Check, train: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    loaded = check(model.train(train), torch.randn(2, 3, 6, 6), calls=3, rtol=1e-4, atol=1e-5)
    assert loaded.weights["1.num_batches_tracked"].item() == (3 if train else 0)
    assert loaded.manifest.weights["1.running_mean"].mutated == train


class Mixed(nn.Module):
    def forward(self, i: Tensor, d: Tensor, h: Tensor, flag: Tensor, c: Tensor) -> tuple[Any, ...]:
        return (
            i * 3 - 2**40,
            d.sin() / 3,
            h * h + h,
            ~flag,
            c * 1j,
            (h + d).sum(),
            h.float() @ h.T.float(),
        )


def test_dtypes(check: Check) -> None:
    torch.manual_seed(0)
    check(
        Mixed(),
        torch.arange(4) + 2**41,
        torch.randn(3, 4, dtype=torch.float64),
        torch.randn(3, 4, dtype=torch.bfloat16),
        torch.tensor([True, False]),
        torch.randn(2, dtype=torch.complex128),
    )


def test_dropout_draws_new_masks_that_the_seed_governs(round_trip: Check) -> None:
    model = nn.Sequential(nn.Dropout(0.5)).train()
    x = torch.ones(64, 64)
    loaded = round_trip(model, (x,))
    torch.manual_seed(1)
    first, second = loaded(x), loaded(x)
    torch.manual_seed(1)
    again = loaded(x)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert set(first.unique().tolist()) == {0.0, 2.0}
    assert 0.45 < (first == 0).float().mean() < 0.55


def test_empty_tensors_and_scalars(check: Check) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("none", torch.zeros(0, 4))
            self.scale = nn.Parameter(torch.tensor(3.0))

        def forward(self, x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
            return torch.cat([x, self.none]) * self.scale, x.sum(), s + 1, x.new_zeros(2, 0)

    check(Odd(), torch.randn(0, 4), torch.tensor(2))
    check(Odd(), torch.randn(2, 4), torch.tensor(2))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers(check: Check, kind: Any) -> None:
    torch.manual_seed(0)
    check(kind(4, 5, 2, bidirectional=True), torch.randn(3, 2, 4), rtol=1e-4, atol=1e-5)


def test_control_flow(check: Check) -> None:
    def f(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    check(f, torch.ones(3))
    check(f, -torch.ones(3))


def test_grad_modes_and_autocast(check: Check) -> None:
    layer = nn.Linear(4, 4)

    class Modes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                y = self.layer(x)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                z = self.layer(y)
            return F.relu(y), z

    check(Modes(), torch.randn(2, 4), rtol=2e-2, atol=2e-2)


def test_exported_programs_and_compiled_modules(round_trip: Check) -> None:
    x = torch.randn(3, 8)
    expected = mlp()(x).detach()
    program = torch.export.export(mlp(), (x,))
    decomposed = program.run_decompositions()
    compiled = torch.compile(mlp(), backend="tpu")
    for model in (program, decomposed, compiled):
        loaded = round_trip(model, (x,))
        torch.testing.assert_close(loaded(x), expected)
        assert loaded.manifest.parameters[0].name == "input"
