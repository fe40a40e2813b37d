"""Which outputs are which memory, with which strides and offsets."""

import torch
from compiled import check, compile_tpu


def test_output_is_input() -> None:
    check(lambda x: x, torch.randn(3))
    check(lambda x: (x, x + 1), torch.randn(3))


def test_output_is_view_of_input() -> None:
    check(lambda x: (x.t(), x[1:], x.view(-1), x[:, 1]), torch.randn(4, 4))
    check(lambda x: x.expand(3, 4), torch.randn(1, 4))


def test_view_of_input_at_changing_offset() -> None:
    compiled = compile_tpu(lambda x, i: x.narrow(0, i, 1))
    x = torch.arange(12.0).view(4, 3)
    for i in (0, 1, 3, 2):
        out = compiled(x, i)
        torch.testing.assert_close(out, x.narrow(0, i, 1))
        assert out.storage_offset() == 3 * i


def test_outputs_alias_each_other() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y, y.t(), y[0]

    check(f, torch.randn(3, 3))


def test_one_object_returned_twice() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + 1
        return y, y

    a, b = compile_tpu(f)(torch.randn(3))
    assert a is b


def test_loss_and_its_detached_self() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        loss = (x * x).sum()
        return loss, loss.detach()

    check(f, torch.randn(3, requires_grad=True), grad=True)


def test_fresh_output_is_writable_and_private() -> None:
    compiled = compile_tpu(lambda x: x + 1)
    x = torch.zeros(5)
    first = compiled(x)
    first.add_(10)
    torch.testing.assert_close(compiled(x), torch.ones(5))
    torch.testing.assert_close(first, torch.full((5,), 11.0))


def test_strides_of_outputs() -> None:
    check(lambda x: x * 2, torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))
    check(lambda x: x.t() + 1, torch.randn(3, 4))
    check(lambda x: (x + 1).t(), torch.randn(3, 4))
    check(lambda x: (x + 1).expand(5, 3, 4), torch.randn(3, 4))
    check(lambda x: (x + 1)[:, ::2], torch.randn(3, 6))
    check(lambda x: (x + 1).as_strided((2, 2), (1, 1)), torch.randn(4))


def test_non_contiguous_inputs() -> None:
    x = torch.randn(6, 8)
    for view in (x.t(), x[::2], x[:, 1:5], x[1:].t(), x[:1].expand(3, 8)):
        check(lambda v: v * 2 + 1, view)


def test_misaligned_input() -> None:
    x = torch.randn(17)
    check(lambda v: v * 2, x[1:])
    check(lambda v: v.mul_(2), x[3:10])


def test_conjugate_and_negative_views() -> None:
    z = torch.randn(3, dtype=torch.complex64)
    check(lambda v: v * 2, z.conj())
    check(lambda v: v + 1, z.conj().imag)


def test_user_writes_output_of_intermediate_base() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.cos()
        return y.view(-1), y.t()

    a, b = compile_tpu(f)(torch.randn(2, 3))
    a.zero_()
    assert b.abs().sum() == 0
