"""Inference graphs whose calls go straight to the program, and those whose calls must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiled import STRICT, check, compile_tpu
from torch import nn
from torch.utils import _pytree as pytree

from tpu_compile import backend
from tpu_compile.errors import FallbackWarning

Direct = list[bool]


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> Direct:
    """For each compile whether its calls go straight to the program."""
    seen: Direct = []
    shortest = backend._shortest

    def watched(compiled: Callable[..., Any], programs: Any) -> Callable[..., Any]:
        found = shortest(compiled, programs)
        seen.append(found is not compiled)
        return found

    monkeypatch.setattr(backend, "_shortest", watched)
    return seen


def mutates(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x + 1


PLAIN: dict[str, Callable[..., Any]] = {
    "one": lambda x: x * 2 + 1,
    "several": lambda x: {"a": x.sin(), "b": [x.sum(), x.t() @ x]},
    "strides": lambda x: (x * 2).t(),
    "number": lambda x: (x + 1, 3),
    "input": lambda x: (x, x + 1),  # Dynamo returns the input itself
    "views of one result": lambda x: ((y := x + 1), y.t()),
}
NOT: dict[str, Callable[..., Any]] = {
    "mutates": mutates,
    "view of input": lambda x: x.t(),
    "random": lambda x: x + torch.rand_like(x) * 0,
}


@pytest.mark.parametrize("name", PLAIN)
def test_straight_to_the_program(name: str, direct: Direct) -> None:
    check(PLAIN[name], torch.randn(3, 4))
    assert direct == [True]


@pytest.mark.parametrize("name", NOT)
def test_through_aotautograd(name: str, direct: Direct) -> None:
    check(NOT[name], torch.randn(3, 4))
    assert direct == [False]


def test_the_same_tensor_twice(direct: Direct) -> None:
    x = torch.randn(3, 4)
    check(lambda x, y: x @ y.t() + 1, x, x)
    check(lambda x, y: x @ y.t() + 1, x, x.clone())
    assert direct


def test_grad_mode_and_autocast_are_as_before_and_results_need_no_grad(direct: Direct) -> None:
    model = nn.Linear(4, 4)
    x = torch.randn(3, 4)
    compiled = compile_tpu(model)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        out = compiled(x)
        assert not torch.is_grad_enabled()
        assert torch.is_autocast_enabled("cpu")
    assert direct == [True]
    assert out.dtype == torch.bfloat16
    assert not out.requires_grad
    out = compiled(x)  # with grad: another graph
    assert direct == [True, False]
    out.sum().backward()
    assert model.weight.grad is not None


def test_in_grad_mode_where_nothing_needs_grad(direct: Direct) -> None:
    out = compile_tpu(lambda x: x.sin())(torch.randn(3))
    assert direct == [True]
    assert torch.is_grad_enabled()
    assert out.is_leaf
    assert not out.requires_grad


@torch.library.custom_op("tpu_compile_test::seen_grad_mode", mutates_args=())
def seen_grad_mode(x: torch.Tensor) -> torch.Tensor:
    return x + float(torch.is_grad_enabled())


@seen_grad_mode.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_an_op_that_runs_eagerly_keeps_its_surroundings(direct: Direct) -> None:
    with pytest.warns(FallbackWarning, match="seen_grad_mode"):
        out = compile_tpu(lambda x: seen_grad_mode(x) * 2, options={})(torch.ones(2, 2))
    assert direct == [False]
    assert torch.equal(out, torch.full((2, 2), 2.0))  # within AOTAutograd's call there is no grad


def test_from_the_cache_too(direct: Direct) -> None:
    x = torch.randn(5, 3)

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.exp() / 3

    first = compile_tpu(f)(x)
    torch._dynamo.reset()
    assert torch.equal(compile_tpu(f)(x), first)
    assert direct == [True, True]


def test_nested_results_and_inputs(direct: Direct) -> None:
    def f(batch: dict[str, Any]) -> Any:
        return {"y": (batch["x"] + batch["more"][0], [batch["x"].sum()])}

    batch = {"x": torch.randn(3), "more": [torch.randn(3)]}
    got, want = torch.compile(f, backend="tpu", options=STRICT)(batch), f(batch)
    assert pytree.tree_structure(got) == pytree.tree_structure(want)
    for a, b in zip(pytree.tree_leaves(got), pytree.tree_leaves(want), strict=True):
        torch.testing.assert_close(a, b)
    assert direct == [True]
