"""Weights that share memory, and what calls write to: buffers, caches, arguments."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Check = Callable[..., Any]


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        base = torch.randn(6, 4)
        self.whole = nn.Parameter(base)
        self.turned = nn.Parameter(base.t())
        self.register_buffer("rows", base[1:3])
        self.register_buffer("other", torch.randn(5, 6).t()[:, 1:4])
        self.register_buffer("wide", torch.randn(3, 1).expand(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.whole @ self.turned + self.rows.sum() + self.other.sum() * self.wide.mean()


def test_weights_that_are_views_of_one_memory(check: Check) -> None:
    loaded = check(Shared(), torch.randn(2, 6))
    w = loaded.weights
    assert {x.stored for x in loaded.manifest.weights.values()} == {"whole", "other", "wide"}
    w["whole"].zero_()
    assert not w["turned"].any()
    assert not w["rows"].any()
    x = torch.randn(2, 6)
    expected = torch.full((2, 6), (w["other"].sum() * w["wide"].mean()).item())
    torch.testing.assert_close(loaded(x), expected)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("cache", torch.zeros(4, 3), persistent=False)
        self.last: Tensor
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.cache.index_copy_(0, self.count.view(1) % 4, x.view(1, 3))
        self.count += 1
        self.last = x * 2
        return self.cache.sum(0), self.count * 1


def test_buffers_that_calls_change(check: Check) -> None:
    loaded = check(Counter(), torch.tensor([1.0, 2.0, 3.0]), calls=6)
    assert loaded.weights["cache"].eq(torch.tensor([1.0, 2.0, 3.0])).all()
    assert loaded.weights["count"] == 6


def test_results_stay_what_they_were_when_buffers_change(round_trip: Check) -> None:
    class Running(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            before = self.total.clone()
            self.total = self.total + x
            return before, self.total

    loaded = round_trip(Running(), (torch.ones(3),))
    calls = [loaded(torch.ones(3)) for _ in range(3)]
    assert [(int(a[0]), int(b[0])) for a, b in calls] == [(0, 1), (1, 2), (2, 3)]


def test_arguments_that_calls_change(check: Check, round_trip: Check) -> None:
    def write(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(2)
        y[0] = 7
        return x, x[1:].t()

    check(write, torch.randn(3, 2), torch.randn(2, 2))
    x = torch.randn(3, 2)
    out, part = round_trip(write, (x, torch.randn(2, 2)))(x, torch.randn(2, 2))
    assert out is x
    assert part.data_ptr() == x[1:].data_ptr()


def test_constants_and_unused_weights(check: Check) -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Linear(2, 2)
            self.table = torch.arange(100.0)
            self.register_buffer("passed", torch.ones(2))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.table[x] + torch.tensor([1.0, 2.0]), self.passed

    loaded = check(Table(), torch.tensor([3, 99]))
    assert "unused.weight" in loaded.state_dict()
    used = [a.weight for a in loaded.manifest.arguments]
    assert "unused.weight" not in used
    assert "passed" not in used


class Attention(nn.Module):
    """Keeps what it saw in a plain object, as Transformers' caches are, and under a name."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = [torch.zeros(4, 2)]
        self.register_buffer("seen_buffer", self.seen[0], persistent=False)

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        (values,) = self.seen
        values.index_copy_(0, at, x)
        self.seen_buffer.mul_(2)
        start = torch.tensor([0.5, 0.5])
        start += x[0]
        return values.sum(0) + start


def test_state_in_plain_objects(round_trip: Check) -> None:
    model, x = Attention(), torch.randn(1, 2)
    loaded = round_trip(model, (x, torch.tensor([0])))
    assert {w.stored for w in loaded.manifest.weights.values() if w.mutated} == {"seen_buffer"}
    for i in range(4):
        torch.testing.assert_close(loaded(x, torch.tensor([i])), model(x, torch.tensor([i])))
    torch.testing.assert_close(loaded.weights["seen_buffer"].data, model.seen[0])


def test_caches_of_transformers(round_trip: Check) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.integrations.executorch import register_dynamic_cache_export_support

    register_dynamic_cache_export_support()
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=32, num_attention_heads=2, num_key_value_heads=1, **sizes)
    model, ids = LlamaForCausalLM(config).eval(), torch.randint(32, (2, 5))
    prefill = round_trip(model, (), kwargs={"input_ids": ids})
    with torch.no_grad():
        want = model(input_ids=ids)
    got = prefill(input_ids=ids)
    torch.testing.assert_close(got["logits"], want.logits, rtol=1e-4, atol=1e-5)
    (name,) = set(got) - {"logits"}
    cache = copy.deepcopy(want[name])

    following = torch.randint(32, (2, 1))
    decode = round_trip(model, (), kwargs={"input_ids": following, "past_key_values": cache})
    with torch.no_grad():
        want = model(input_ids=following, past_key_values=want[name])
    got = decode(input_ids=following, past_key_values=got[name])
    torch.testing.assert_close(got["logits"], want.logits, rtol=1e-4, atol=1e-5)


def test_decomposed_programs_write_what_they_did(round_trip: Check) -> None:
    def write(x: Tensor) -> Tensor:
        x.mul_(2)
        return x + 1

    class Write(Counter):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return super().forward(write(x))

    x = torch.ones(3)
    model = Write()
    loaded = round_trip(torch.export.export(model, (x,)).run_decompositions())
    for _ in range(3):
        mine, theirs = torch.ones(3), torch.ones(3)
        assert torch.equal(loaded(mine)[0], model(theirs)[0])
        assert torch.equal(mine, theirs)
    assert loaded.weights["count"] == 3


def test_weights_can_be_changed(round_trip: Check) -> None:
    x, model = torch.randn(3, 8), nn.Sequential(nn.Linear(8, 4), nn.GELU(), nn.Linear(4, 2))
    loaded = round_trip(model, (x,))
    loaded(x)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.mul_(0.5)
            loaded.weights[name].copy_(p)
    torch.testing.assert_close(loaded(x), model(x).detach())
