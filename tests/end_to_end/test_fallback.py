"""Ops without a rule: eager stages, one warning per op and line, or a refusal."""

import time
import warnings

import pytest
import torch
from compiled import check, compile_tpu

from tpu_compile import partition
from tpu_compile.errors import FallbackWarning


@torch.library.custom_op("tpu_compile_test::plus_one", mutates_args=())
def plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@plus_one.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


plus_one.register_autograd(lambda ctx, g: g)


def mixed(x: torch.Tensor) -> torch.Tensor:
    y = plus_one(x * 2)
    return plus_one(y.sin()) * x


def test_supported_parts_are_compiled_and_the_rest_runs_eagerly() -> None:
    torch._dynamo.reset()
    partition.reset()
    with pytest.warns(FallbackWarning, match=r"plus_one.*runs eagerly") as caught:
        check(mixed, torch.randn(5), options={"fallback": "warn"})
    lines = {str(w.message).split("line ")[1].split(",")[0] for w in caught}
    assert len(caught) == 2, "one per op and line"
    assert len(lines) == 2
    assert "return plus_one(y.sin()) * x" in "".join(str(w.message) for w in caught)
    assert partition.fallbacks()["tpu_compile_test.plus_one.default"] == 2


def test_gradients_through_a_fallback() -> None:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        check(mixed, torch.randn(5, requires_grad=True), grad=True, options={"fallback": "warn"})


def test_error_names_the_op_and_the_users_line() -> None:
    torch._dynamo.reset()
    with pytest.raises(
        Exception, match=r"no TPU lowering for tpu_compile_test\.plus_one"
    ) as caught:
        compile_tpu(mixed)(torch.randn(3))
    assert "test_fallback.py" in str(caught.value)
    assert "y = plus_one(x * 2)" in str(caught.value)


def test_partition_is_linear() -> None:
    torch._dynamo.reset()

    def build(n: int) -> torch.fx.GraphModule:
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        x.meta["val"] = torch.empty(4, device="meta")
        for i in range(n):
            op = plus_one._opoverload if i % 40 == 0 else torch.ops.aten.sin.default
            x = graph.call_function(op, (x,))
            x.meta["val"] = torch.empty(4, device="meta")
        graph.output((x,))
        return torch.fx.GraphModule({}, graph)

    def seconds(n: int) -> float:
        gm = build(n)
        start = time.perf_counter()
        parts, compiled = partition.split(gm, partition.unsupported(gm))
        assert len(compiled) == n // 40
        assert len(list(parts.children())) == 2 * (n // 40)
        return time.perf_counter() - start

    seconds(400)
    # 4 times the nodes: 4 times the time, and far from 16
    assert min(seconds(4000) for _ in range(2)) < 9 * min(seconds(1000) for _ in range(2))


def test_random_ops_keep_their_order_across_stages() -> None:
    torch._dynamo.reset()

    def f(x: torch.Tensor) -> torch.Tensor:
        return plus_one(torch.rand(4)) + plus_one(torch.rand(4) + x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        g = compile_tpu(f, options={"fallback": "warn"})
        torch.manual_seed(0)
        a = g(torch.zeros(4))
        torch.manual_seed(0)
        assert torch.equal(a, g(torch.zeros(4)))


def test_data_dependent_graph_break_is_reported() -> None:
    torch._dynamo.reset()

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        i = torch.nonzero(y > 0)
        return y[i[:, 0]] + 1

    with pytest.warns(FallbackWarning, match=r"data-dependent op") as caught:
        torch.compile(f, backend="tpu")(torch.randn(6))
    assert "torch.nonzero(y > 0)" in str(caught[0].message)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="data-dependent"):
        torch.compile(f, backend="tpu", options={"fallback": "error"})(torch.randn(6))
