"""no_grad, inference_mode, autocast, functional transforms, checkpointing, optimizers."""

import copy

import pytest
import torch
from compiled import STRICT, check, compile_tpu
from torch import nn
from torch.utils.checkpoint import checkpoint


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.SiLU(), nn.LayerNorm(16), nn.Linear(16, 3))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_grad_modes(mode: type) -> None:
    model, x = mlp(), torch.randn(4, 6)
    f = compile_tpu(model)
    with mode():
        out, ref = f(x), model(x)
    torch.testing.assert_close(out, ref)
    assert out.requires_grad == ref.requires_grad
    assert out.is_inference() == ref.is_inference()


@pytest.mark.parametrize("inside", [True, False])
def test_autocast_bf16(inside: bool) -> None:
    model = mlp()

    def f(x: torch.Tensor) -> torch.Tensor:
        if not inside:
            return model(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x)

    g, x = compile_tpu(f), torch.randn(4, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not inside):
        out, ref = g(x), f(x)
    assert out.dtype == ref.dtype == torch.bfloat16
    torch.testing.assert_close(out, ref, rtol=0.02, atol=0.02)
    out.float().sum().backward()
    got = [p.grad for p in model.parameters()]
    model.zero_grad()
    ref.float().sum().backward()
    for a, p in zip(got, model.parameters(), strict=True):
        assert a.dtype == p.dtype
        torch.testing.assert_close(a, p.grad, rtol=0.05, atol=0.05)


def test_functional_transforms() -> None:
    w = torch.randn(3, 3)
    check(lambda x: torch.func.grad(lambda x: (x @ w).sin().sum())(x), torch.randn(3))
    check(lambda x: torch.func.vmap(lambda r: (w @ r).tanh())(x), torch.randn(5, 3))
    check(lambda x, t: torch.func.jvp(lambda x: x.exp() * x, (x,), (t,)), *torch.randn(2, 4))
    check(lambda x: torch.func.hessian(lambda x: (x**3).sum())(x), torch.randn(3))
    check(lambda x: torch.func.jacrev(lambda x: x.sin() @ w)(x), torch.randn(3))


def test_activation_checkpointing() -> None:
    model = mlp()
    f = lambda x: checkpoint(model, x, use_reentrant=False)  # noqa: E731
    check(f, torch.randn(4, 6, requires_grad=True), grad=True)


class Checkpointed(nn.Sequential):
    """Layers that the backward runs again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.InstanceNorm1d])
@pytest.mark.parametrize("train", [True, False])
def test_checkpointed_running_statistics(norm: type, train: bool) -> None:
    layers = (nn.Conv1d(3, 4, 1, bias=False), norm(4, track_running_stats=True), nn.ReLU())
    model = nn.Sequential(nn.Conv1d(2, 3, 1, bias=False), Checkpointed(*layers), nn.Conv1d(4, 2, 1))
    model.train(train)  # a bias before a norm would have a gradient of nothing but rounding
    outcomes = []
    # torch's own compile is the reference: recomputing, eager updates the statistics twice
    for backend in ("aot_eager", "tpu"):
        mine = copy.deepcopy(model)
        f = torch.compile(mine, backend=backend, fullgraph=True)
        for seed in (1, 2):
            torch.manual_seed(seed)
            f(torch.randn(5, 2, 7)).square().sum().backward()
        outcomes.append([*(p.grad for p in mine.parameters()), *mine.buffers()])
        torch._dynamo.reset()
    torch.testing.assert_close(*outcomes, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.AdamW(p, lr=1e-2),
        lambda p: torch.optim.Adagrad(p, lr=1e-2),
    ],
    ids=["sgd", "adamw", "adagrad"],
)
def test_training_equals_eager(make: object) -> None:
    torch._dynamo.reset()
    eager, mine = mlp(), mlp()
    f = compile_tpu(mine)
    optimizers = make(eager.parameters()), make(mine.parameters())
    for step in range(5):
        torch.manual_seed(step)
        x, y = torch.randn(8, 6), torch.randn(8, 3)
        for model, opt in ((eager, optimizers[0]), (f, optimizers[1])):
            opt.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
    for a, e in zip(mine.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5)


def test_compiled_optimizer_step_does_not_recompile() -> None:
    torch._dynamo.reset()
    eager, mine = mlp(), mlp()
    a = torch.optim.AdamW(eager.parameters(), lr=torch.tensor(1e-2))
    b = torch.optim.AdamW(mine.parameters(), lr=torch.tensor(1e-2))
    step = torch.compile(b.step, backend="tpu", options=STRICT)
    import tpu_compile

    counts = []
    for _ in range(5):
        for p, q in zip(eager.parameters(), mine.parameters(), strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        a.step()
        step()
        counts.append(len(tpu_compile.recompiles()))
    assert counts[2] == counts[-1]
    for p, q in zip(eager.parameters(), mine.parameters(), strict=True):
        torch.testing.assert_close(q, p, rtol=1e-4, atol=1e-6)


def test_gradient_accumulation_and_double_use() -> None:
    check(lambda x: x.sin() * x + x, torch.randn(3, requires_grad=True), grad=True)
    model, x = mlp(), torch.randn(2, 6)
    f = compile_tpu(model)
    (f(x).sum() + f(x * 2).sum()).backward()
    got = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    (model(x).sum() + model(x * 2).sum()).backward()
    for a, p in zip(got, model.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad)


def test_graph_breaks_leave_the_rest_compiled() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos() + 1

    check(f, torch.randn(4, requires_grad=True), grad=True, fullgraph=False)


def test_deepcopy_and_state_dict_of_a_compiled_module() -> None:
    model = mlp()
    f = compile_tpu(model)
    x = torch.randn(2, 6)
    before = f(x)
    other = copy.deepcopy(f)
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    torch.testing.assert_close(f(x), before)
    assert other(x).abs().sum() == 0


def test_set_stance_and_disable() -> None:
    f = compile_tpu(lambda x: x * 2)
    with torch.compiler.set_stance("force_eager"):
        torch.testing.assert_close(f(torch.ones(2)), torch.full((2,), 2.0))


def test_other_backends_are_unchanged() -> None:
    torch._dynamo.reset()
    assert "tpu" in torch._dynamo.list_backends()
    assert torch._C._get_privateuse1_backend_name() == "privateuseone"
    f = torch.compile(lambda x: x * 2, backend="eager")
    torch.testing.assert_close(f(torch.ones(2)), torch.full((2,), 2.0))
