"""Mutation of inputs, of views of them, of attributes and buffers; order of reads and writes."""

import pytest
import torch
from compiled import check, compile_tpu
from torch import nn


def test_input_in_place() -> None:
    check(lambda x: x.add_(1), torch.randn(3, 4))


def test_input_mutated_and_unrelated_result() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x.sin() + y

    check(f, torch.randn(3, 4), torch.randn(4))


def test_slice_of_input() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x[1:3].mul_(3)
        x[:, 0] = 7
        return x + 1

    check(f, torch.randn(4, 5))


def test_view_chain_of_input() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.t()[1].view(2, 2).fill_(5)
        return x.sum()

    check(f, torch.randn(4, 3))


def test_read_after_write_order() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = x + 0
        x.add_(1)
        b = x + 0
        x[0] = 0
        c = x * 1
        return a, b, c

    check(f, torch.randn(3, 3))


def test_two_inputs_that_share_a_base() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        y.mul_(2)
        return x.sum() + y.sum()

    for views in (lambda b: (b[:6], b[3:]), lambda b: (b.view(2, 5), b)):
        torch._dynamo.reset()
        check(f, *views(torch.randn(10)))


def test_same_tensor_twice() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    x = torch.randn(4)
    check(f, x, x)


def test_mutation_of_non_contiguous_input() -> None:
    check(lambda x: x.exp_(), torch.randn(4, 6).t())
    check(lambda x: x.exp_(), torch.randn(4, 6)[:, ::2])
    check(lambda x: x[:, 1].exp_(), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))


def test_plain_attribute() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.total = torch.zeros(3)
            self.steps = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total = self.total + x
            self.last = x * 2
            return self.total * 2

    eager, mine = Counter(), Counter()
    compiled = compile_tpu(mine)
    for _ in range(3):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x), eager(x))
        torch.testing.assert_close(mine.total, eager.total)
        torch.testing.assert_close(mine.last, eager.last)


@pytest.mark.parametrize("train", [True, False])
def test_batch_norm_statistics(train: bool) -> None:
    eager = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).train(train)
    mine = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).train(train)
    mine.load_state_dict(eager.state_dict())
    compiled = compile_tpu(mine)
    for _ in range(3):
        x = torch.randn(2, 3, 8, 8)
        torch.testing.assert_close(compiled(x), eager(x), rtol=1e-4, atol=1e-5)
    for (name, a), (_, e) in zip(mine.named_buffers(), eager.named_buffers(), strict=True):
        torch.testing.assert_close(a, e, msg=name)


def test_key_value_cache() -> None:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("keys", torch.zeros(2, 8, 4))

        def forward(self, k: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
            self.keys.index_copy_(1, pos, k)
            return self.keys.sum(1)

    eager, mine = Cache(), Cache()
    compiled = compile_tpu(mine)
    with torch.no_grad():
        for i in range(4):
            k, pos = torch.randn(2, 1, 4), torch.tensor([i])
            torch.testing.assert_close(compiled(k, pos), eager(k, pos))
            torch.testing.assert_close(mine.keys, eager.keys)


def test_index_put_and_masked_fill_in_place() -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x[i] = 1.5
        x.masked_fill_(x > 1, -1)
        return x

    check(f, torch.randn(5, 2), torch.tensor([0, 3, 3]))


def test_copy_between_inputs() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> None:
        y.copy_(x)
        x.zero_()

    check(f, torch.randn(3), torch.randn(3))


def test_mutation_under_grad() -> None:
    def f(x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        buffer.add_(x.detach())
        return (x * buffer).sum()

    check(f, torch.randn(4, requires_grad=True), torch.randn(4), grad=True)
