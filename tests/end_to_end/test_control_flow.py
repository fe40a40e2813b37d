"""cond, while_loop, scan, associative_scan and map as StableHLO control flow."""

import torch
from compiled import STRICT, check, compile_tpu
from torch._higher_order_ops import associative_scan, map, scan, while_loop


def test_cond_forward_and_backward() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos() * 2, (x,))

    for x in (torch.ones(3), -torch.ones(3)):
        check(f, x.requires_grad_(), grad=True)


def test_while_loop() -> None:
    def f(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return while_loop(
            lambda i, x: i < n, lambda i, x: (i + 1, x * 1.5), (torch.zeros_like(n), x)
        )

    check(f, torch.randn(4), torch.tensor(5))
    check(f, torch.randn(4), torch.tensor(0))


def test_scan_forward_and_backward() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return scan(lambda c, y: (torch.tanh(c @ w + y), c * 2), x[0], x)

    check(
        f, torch.randn(5, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True), grad=True
    )
    check(lambda x: scan(lambda c, y: (c + y, c - y), x[0], x, reverse=True), torch.randn(4, 2))


def test_associative_scan() -> None:
    f = lambda x: associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic")  # noqa: E731
    check(f, torch.rand(7, 3, requires_grad=True), grad=True)


def test_map_forward_and_backward() -> None:
    check(lambda x, y: map(lambda a, y: a.exp() * y, x, y), torch.randn(4, 3), torch.randn(3))
    x = torch.randn(4, 3, requires_grad=True)
    check(lambda x: map(lambda a: a.sin() * a, x), x, grad=True)


def test_loop_is_rolled_in_the_program() -> None:
    import tempfile
    from pathlib import Path

    torch._dynamo.reset()
    with tempfile.TemporaryDirectory() as folder:
        f = compile_tpu(
            lambda x: scan(lambda c, y: (c + y, c * y), x[0], x),
            options={**STRICT, "dump_dir": folder},
        )
        f(torch.randn(50, 3))
        (text,) = [p.read_text() for p in Path(folder).rglob("*.mlir")]
    assert "stablehlo.while" in text
    assert text.count("stablehlo.multiply") < 5


def test_control_flow_with_dynamic_shapes() -> None:
    torch._dynamo.reset()

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + x.shape[0], lambda x: x * 2, (x,))

    g = compile_tpu(f, dynamic=True)
    for n in (3, 5):
        torch.testing.assert_close(g(torch.ones(n)), f(torch.ones(n)))
