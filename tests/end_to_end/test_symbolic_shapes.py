"""Dynamic shapes: one Dynamo trace, and a compile of ours per new shape."""

import torch
from compiled import STRICT, check, compile_tpu
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import tpu_compile


def frames() -> int:
    return sum(c.graph == "frame" for c in tpu_compile.recompiles())


def test_dynamic_true_traces_once() -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    f = compile_tpu(model, dynamic=True)
    before = frames()
    for n in (4, 7, 12, 3, 7):
        x = torch.randn(n, 8)
        torch.testing.assert_close(f(x), model(x), rtol=1e-5, atol=1e-5)
    assert frames() - before == 1


def test_automatic_dynamic_and_mark_dynamic() -> None:
    torch._dynamo.reset()

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x * 2]).reshape(-1, x.shape[1] // 2).sum(1) + x.shape[0]

    g = compile_tpu(f)
    before = frames()
    for n in (3, 5, 6, 11):
        torch.testing.assert_close(g(torch.ones(n, 4)), f(torch.ones(n, 4)))
    assert frames() - before == 2

    torch._dynamo.reset()
    g = compile_tpu(f)
    before = frames()
    for n in (3, 5, 6):
        x = torch.randn(n, 4)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(g(x), f(x))
    assert frames() - before == 1


def test_training_with_dynamic_batch() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 2))
    f = compile_tpu(model, dynamic=True)
    for n in (4, 6, 10):
        x = torch.randn(n, 6, requires_grad=True)
        f(x).square().sum().backward()
        got = [p.grad.clone() for p in (x, *model.parameters())]
        for p in (x, *model.parameters()):
            p.grad = None
        model(x).square().sum().backward()
        for a, p in zip(got, (x, *model.parameters()), strict=True):
            torch.testing.assert_close(a, p.grad, rtol=1e-4, atol=1e-5)
            p.grad = None


def test_outputs_that_are_sizes_and_views() -> None:
    check(lambda x: (x.shape[0] * 2, x[1:], x.t() + 1, x.numel()), torch.randn(4, 3), dynamic=True)


def test_new_shape_is_logged_with_its_shape() -> None:
    torch._dynamo.reset()
    f = compile_tpu(lambda x: x * 2, dynamic=True)
    f(torch.ones(5))
    f(torch.ones(9))
    last = tpu_compile.recompiles()[-1]
    assert last.recompile
    assert "[9]" in last.reason
    assert "test_symbolic_shapes.py" in last.where


def test_dynamo_agrees_on_the_count() -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("tpu")
    f = torch.compile(lambda x: x.sin() + x.shape[0], backend=counter, dynamic=True)
    for n in (4, 5, 6):
        f(torch.ones(n))
    assert counter.frame_count == 1


def test_random_with_dynamic_shapes() -> None:
    torch._dynamo.reset()
    f = compile_tpu(lambda x: nn.functional.dropout(x, 0.5), dynamic=True, options=STRICT)
    for n in (100, 200):
        x = torch.ones(n, requires_grad=True)
        out = f(x)
        out.sum().backward()
        torch.testing.assert_close(x.grad, out.detach())
