"""Random ops: new each call, reproducible by seed, equal in forward, backward and recomputation."""

import torch
import torch.nn.functional as F
from compiled import STRICT, compile_tpu
from torch.utils.checkpoint import checkpoint


def test_new_values_each_call_and_reproducible() -> None:
    f = compile_tpu(lambda: torch.rand(1000))
    torch.manual_seed(3)
    a, b = f(), f()
    torch.manual_seed(3)
    c, d = f(), f()
    assert not torch.equal(a, b)
    assert torch.equal(a, c)
    assert torch.equal(b, d)


def test_state_can_be_saved_and_forked() -> None:
    f = compile_tpu(lambda x: x + torch.randn_like(x))
    x = torch.zeros(50)
    state = torch.get_rng_state()
    a = f(x)
    torch.set_rng_state(state)
    assert torch.equal(f(x), a)
    with torch.random.fork_rng():
        inside = f(x)
    assert torch.equal(f(x), inside)


def test_ops_in_one_graph_differ() -> None:
    a, b = compile_tpu(lambda: (torch.rand(100), torch.rand(100)))()
    assert not torch.equal(a, b)


def test_dropout_forward_and_backward_agree() -> None:
    f = compile_tpu(lambda x: F.dropout(x, 0.3, training=True))
    x = torch.ones(10_000, requires_grad=True)
    out = f(x)
    out.sum().backward()
    kept = out != 0
    assert abs(kept.float().mean().item() - 0.7) < 0.03
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 1 / 0.7))
    torch.testing.assert_close(x.grad, out.detach())


def test_checkpoint_recomputes_the_same_mask() -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(torch.sin(x), 0.5, training=True)

    f = compile_tpu(lambda x: checkpoint(block, x, use_reentrant=False))
    x = torch.rand(2000) + 0.1
    x.requires_grad_()
    out = f(x)
    out.sum().backward()
    torch.testing.assert_close(x.grad, torch.where(out != 0, 2 * x.cos(), 0.0))


def test_no_recompile_when_seed_changes() -> None:
    torch._dynamo.reset()
    f = compile_tpu(lambda x: F.dropout(x, 0.5), options={**STRICT, "on_recompile": "error"})
    for seed in range(4):
        torch.manual_seed(seed)
        f(torch.ones(8))


def test_distributions() -> None:
    torch.manual_seed(0)
    n = 20_000

    def f(p: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.rand(n),
            torch.randn(n),
            torch.randint(-3, 9, (n,)),
            torch.bernoulli(p),
            torch.empty(n).uniform_(2, 5),
            torch.empty(n).normal_(1, 2),
            torch.empty(n).exponential_(4.0),
            torch.randperm(n),
        )

    u, g, i, b, r, m, e, perm = compile_tpu(f)(torch.full((n,), 0.25))
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 0.02
    assert abs(g.mean()) < 0.05
    assert abs(g.std() - 1) < 0.05
    assert i.dtype == torch.int64
    assert sorted(i.unique().tolist()) == list(range(-3, 9))
    assert set(b.unique().tolist()) == {0.0, 1.0}
    assert abs(b.mean() - 0.25) < 0.02
    assert r.min() >= 2
    assert r.max() <= 5
    assert abs(m.mean() - 1) < 0.1
    assert abs(m.std() - 2) < 0.1
    assert abs(e.mean() - 0.25) < 0.02
    assert torch.equal(perm.sort().values, torch.arange(n))


def test_multinomial() -> None:
    p = torch.tensor([0.0, 0.2, 0.3, 0.5])
    f = compile_tpu(lambda p: torch.multinomial(p, 20_000, replacement=True))
    counts = torch.bincount(f(p), minlength=4) / 20_000
    torch.testing.assert_close(counts, p, atol=0.02, rtol=0)
    g = compile_tpu(lambda p: torch.multinomial(p, 3))
    assert sorted(g(p).tolist()) == [1, 2, 3]


def test_dtypes() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        out = compile_tpu(lambda dtype=dtype: torch.rand(2000, dtype=dtype))()
        assert out.dtype == dtype
        assert out.max() < 1
        assert abs(out.double().mean() - 0.5) < 0.05
