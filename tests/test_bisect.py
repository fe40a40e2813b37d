"""bisect: names the op, pass or program that is off, and changes nothing of the caller's."""

from __future__ import annotations

import functools
import gc
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_models import llama
from torch import nn

from tpu_compile import partition
from tpu_compile.accuracy.bisection import bisect
from tpu_compile.accuracy.tolerance import Difference, Tolerance, compare, compare_all
from tpu_compile.errors import FallbackWarning, InvalidOption
from tpu_compile.lowering import builder, registry
from tpu_compile.lowering.mlir import hlo, ir
from tpu_compile.passes.base import Pass

aten = torch.ops.aten
HERE = Path(__file__)


def line(text: str) -> str:
    """Where a text first stands in this file, as bisect gives it."""
    lines = HERE.read_text().splitlines()
    return f"{HERE.name}:{1 + next(i for i, at in enumerate(lines) if text in at)}"


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(6, 8), nn.Linear(8, 4), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.up(x))  # line of tanh
        h = self.norm(h)  # line of norm
        left, right = h.chunk(2, -1)  # line of chunk
        h = torch.cat([left.exp(), right], -1)  # line of exp
        return self.down(h).softmax(-1)


Change = Callable[[Any], Any]


def break_rule(
    monkeypatch: pytest.MonkeyPatch,
    op: Any,
    change: Change,
    when: Callable[[Any], bool] = lambda x: True,
) -> None:
    """Makes a rule give something else, where its first operand is such."""
    rule = registry.find(op)
    assert rule is not None

    @functools.wraps(rule)
    def wrong(ctx: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        out = rule(ctx, x, *args, **kwargs)
        return change(out) if when(x) else out

    monkeypatch.setitem(registry._rules, op, wrong)


def shifted(v: Any) -> Any:
    return hlo.add(v, builder.full_like(v, 1e-3))


def reversed_last(v: Any) -> Any:
    return hlo.reverse(v, [len(ir.RankedTensorType(v.type).shape) - 1])


def computed(x: Any) -> bool:
    """Whether a value is a result of the program's own, not one of its arguments."""
    return not isinstance(x.owner, ir.Block)


# ---------------------------------------------------------------- what is right, what is off


def test_a_right_model_has_nothing() -> None:
    found = bisect(Mlp(), torch.randn(3, 6), train=True)
    assert found.where == "nothing", found
    assert not found.departed
    assert {op.status for op in found.ops} == {"right"}
    assert {op.graph for op in found.ops} == {"0 forward", "1 backward"}
    assert line("# line of tanh") in {op.line for op in found.ops}
    worst = [op.difference.excess for op in found.worst(3) if op.difference]
    assert worst == sorted(worst, reverse=True)
    assert 0 < worst[0] < 1
    assert "nothing departs" in str(found)
    assert json.loads(found.to_json())["where"] == "nothing"


def test_a_wrong_op_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    break_rule(monkeypatch, aten.tanh.default, shifted)
    found = bisect(Mlp(), torch.randn(3, 6))
    assert (found.where, found.name, found.line) == ("op", "aten.tanh.default", line("of tanh"))
    assert found.source.startswith("h = torch.tanh(self.up(x))")
    assert [op.op for op in found.departed] == ["aten.tanh.default"]
    (error,) = found.errors
    assert math.isclose(error.max_abs, 1e-3, rel_tol=1e-2)
    assert math.isclose(error.got - error.expected, 1e-3, rel_tol=1e-2)
    assert error.shape == (3, 8)
    mine, torchs = error.from_exact or (0, 0)
    assert mine > 100 * torchs
    text = str(found)
    assert "the rule of aten.tanh.default departs from torch" in text
    assert found.line in text
    with pytest.raises(AssertionError, match="not close"):
        exec(found.repro, {})


def test_a_wrong_view_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    op = aten.split_with_sizes.default

    def swapped(parts: Any) -> Any:
        return parts[::-1]

    break_rule(monkeypatch, op, swapped)
    found = bisect(Mlp(), torch.randn(3, 6))
    assert (found.where, found.name, found.line) == ("op", str(op), line("of chunk"))
    assert [d.what for d in found.errors] == ["result 0", "result 1"]
    with pytest.raises(AssertionError, match="not close"):
        exec(found.repro, {})


def test_llama(monkeypatch: pytest.MonkeyPatch) -> None:
    break_rule(monkeypatch, aten.slice.Tensor, reversed_last)
    model, inputs = llama()
    with torch.no_grad():
        found = bisect(model.eval(), **inputs)
    assert (found.where, found.name) == ("op", "aten.slice.Tensor")
    assert {op.op for op in found.departed} == {"aten.slice.Tensor"}
    assert found.line.startswith("modeling_llama.py")
    assert len(found.ops) > 150


def test_a_wrong_backward_op_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    op = aten.native_layer_norm_backward.default
    break_rule(monkeypatch, op, lambda outs: (shifted(outs[0]), *outs[1:]))
    x = torch.randn(3, 6)
    assert bisect(Mlp(), x).where == "nothing"
    found = bisect(Mlp(), x, train=True)
    assert (found.where, found.name, found.graph) == ("op", str(op), "1 backward")
    assert found.line == line("# line of norm")
    assert [d.what for d in found.errors] == ["result 0"]


def test_a_wrong_capture_is_not_blamed_on_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    from tpu_compile.lowering import decompositions

    table = decompositions.table

    def wrong(keep: frozenset[Any] = frozenset()) -> dict[Any, Any]:
        return {**table(keep), aten.hardswish.default: lambda x: x * 1.01}

    monkeypatch.setattr(decompositions, "table", wrong)
    monkeypatch.delitem(registry._rules, aten.hardswish.default, raising=False)
    found = bisect(lambda x: {"y": F.hardswish(x)}, torch.randn(5))
    assert (found.where, found.name, found.line) == ("capture", "", "")
    assert [d.what for d in found.errors] == ["output['y']"]
    assert "Capture or a decomposition is at fault" in str(found)


# ---------------------------------------------------------------- passes


def _halve(gm: torch.fx.GraphModule) -> int:
    changes = 0
    for node in gm.graph.find_nodes(op="call_function", target=aten.mul.Tensor):
        node.args = (node.args[0], 0.5)
        changes += 1
    return changes


def _raise(gm: torch.fx.GraphModule) -> int:
    raise ZeroDivisionError("no such thing")


def scaled(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 2).cos()


def test_a_wrong_pass_is_named() -> None:
    plugin = Pass("halve", _halve)
    found = bisect(scaled, torch.randn(5), options={"passes_after": {"remove-no-ops": [plugin]}})
    assert (found.where, found.name, found.graph) == ("pass", "halve", "0 inference")
    assert found.passes == ("halve (0 inference)",)
    assert found.errors[0].departs
    assert "pass 'halve' departs" in str(found)


def _drop_the_output(gm: torch.fx.GraphModule) -> int:
    gm.graph.output_node().args = ((),)
    return 1


def _flatten(gm: torch.fx.GraphModule) -> int:
    (node,) = gm.graph.find_nodes(op="call_function", target=aten.sin.default)
    node.target, node.args = aten.view.default, (*node.args, [2])
    return 1


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (_raise, "ZeroDivisionError: no such thing"),
        (_flatten, "RuntimeError: shape '[2]' is invalid for input of size 5"),
        (_drop_the_output, "0 results where torch has 1"),
    ],
)
def test_a_pass_that_breaks_the_graph_is_named(run: Callable[..., int], why: str) -> None:
    plugin = Pass("broken", run)
    found = bisect(scaled, torch.randn(5), options={"passes_after": {"remove-no-ops": [plugin]}})
    assert (found.where, found.name) == ("pass", "broken")
    assert why in str(found)


# ---------------------------------------------------------------- whole programs


def chain(x: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        x = (x * 1.5).sin()
    x = x.expm1()
    for _ in range(6):
        x = x.cos() + 1
    return x


def test_a_program_that_is_wrong_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    break_rule(monkeypatch, aten.expm1.default, shifted, computed)
    found = bisect(chain, torch.randn(4, 5))
    assert (found.where, found.name) == ("program", "aten.expm1.default")
    assert found.line == line("x = x.expm1()")
    assert not found.departed
    assert "every op is right alone" in str(found)


def test_a_program_that_fails_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(v: Any) -> Any:
        raise ArithmeticError("never together")

    break_rule(monkeypatch, aten.expm1.default, fail, computed)
    found = bisect(chain, torch.randn(4, 5))
    assert (found.where, found.name) == ("program", "aten.expm1.default")
    assert "ArithmeticError: never together" in found.why


# ---------------------------------------------------------------- what can't be compiled


@torch.library.custom_op("tpu_compile_bisect_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def with_twice(x: torch.Tensor) -> torch.Tensor:
    return twice(x.sin()).cos()


def test_an_op_without_a_rule_is_listed() -> None:
    partition.reset()
    with pytest.warns(FallbackWarning, match="twice"):
        found = bisect(with_twice, torch.randn(5))
    assert found.where == "nothing"
    (op,) = [op for op in found.ops if op.status == "eager"]
    assert op.op == "tpu_compile_bisect_test.twice.default"
    assert op.line == line("return twice(x.sin())")
    assert "runs by torch's own kernel: tpu_compile_bisect_test.twice" in str(found)


def test_an_op_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = bisect(with_twice, torch.randn(5), options={"fallback": "error"})
    assert (found.where, found.name) == ("op", "tpu_compile_bisect_test.twice.default")
    assert "no TPU lowering" in found.why
    assert found.line == line("return twice(x.sin())")

    def fail(v: Any) -> Any:
        raise ArithmeticError("a bug")

    break_rule(monkeypatch, aten.cos.default, fail)
    found = bisect(scaled, torch.randn(5))
    assert (found.where, found.name) == ("op", "aten.cos.default")
    assert "ArithmeticError: a bug" in found.why
    assert found.departed[0].status == "failed"


# ---------------------------------------------------------------- nothing is changed


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.bn, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.calls = 0

    def forward(self, x: torch.Tensor, cache: list[torch.Tensor]) -> torch.Tensor:
        self.calls += 1
        self.seen += 1
        cache[0].add_(x)
        return self.drop(self.bn(self.fc(x)))


def everything(model: nn.Module, *tensors: torch.Tensor) -> list[Any]:
    held = [*model.parameters(), *model.buffers(), *tensors]
    state = np.random.get_state()[1].tolist()
    values = [v for t in held for v in (t.tolist(), t._version, None if t.grad is None else t.grad)]
    return [values, torch.get_rng_state().tolist(), random.getstate(), state]


def test_nothing_of_the_callers_changes() -> None:
    model = Stateful()
    x, cache = torch.randn(5, 4, requires_grad=True), torch.zeros(5, 4)
    model(x, [cache.clone()]).sum().backward()
    before = everything(model, x, cache)
    found = bisect(model, x, [cache], train=True)
    assert found.where == "nothing", found
    assert everything(model, x, cache) == before
    assert model.calls == 1


NET = nn.Linear(3, 3)


def test_what_a_function_holds_is_not_changed() -> None:
    norm = nn.BatchNorm1d(3)
    optimizer = torch.optim.SGD([*NET.parameters(), *norm.parameters()], lr=0.1)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return norm(NET(x))

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = forward(x).square().sum() * 0.5
        loss.backward()
        optimizer.step()
        return loss.detach()

    x = torch.randn(6, 3)
    before = everything(norm, *NET.parameters())
    found = bisect(step, x)
    assert found.where == "nothing", found
    assert {op.graph.split()[1] for op in found.ops} >= {"forward", "backward"}
    assert everything(norm, *NET.parameters()) == before


class Rare(nn.Linear):
    pass


RARE = Rare(3, 3)


def test_no_copy_is_kept() -> None:
    bisect(lambda x: RARE(x).sin(), torch.randn(2, 3), train=True)
    bisect(RARE, torch.randn(2, 3), train=True)
    gc.collect()
    assert [o for o in gc.get_objects() if type(o) is Rare] == [RARE]


def test_hooks_are_copied_with_their_module() -> None:
    inner, scale = nn.Linear(3, 3), nn.BatchNorm1d(3)
    inner.register_forward_hook(lambda module, args, out: scale(out))
    model = nn.Sequential(inner, nn.Tanh())
    x = torch.randn(6, 3)
    before = everything(model, *scale.parameters(), *scale.buffers())
    found = bisect(model, x, train=True)
    assert found.where == "nothing", found
    assert everything(model, *scale.parameters(), *scale.buffers()) == before


def test_what_the_model_writes_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(x: torch.Tensor, seen: dict[str, torch.Tensor]) -> torch.Tensor:
        seen["n"].add_(x.sinh())
        return x.cos()

    break_rule(monkeypatch, aten.sinh.default, shifted)
    seen = {"n": torch.zeros(3)}
    found = bisect(count, torch.randn(3), seen)
    assert (found.where, found.name) == ("op", "aten.sinh.default")
    assert seen["n"].tolist() == [0, 0, 0]


# ---------------------------------------------------------------- kinds of values


def test_integers_bools_nan_and_infinities(monkeypatch: pytest.MonkeyPatch) -> None:
    def mixed(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x / 0, (x / 0).isinf(), n * 3 // 2, (n > 1) & (n < 3), x.sqrt(), n.to(torch.uint8)

    x, n = torch.tensor([-1.0, 0.0, 2.0]), torch.arange(3)
    found = bisect(mixed, x, n)
    assert found.where == "nothing", found
    break_rule(monkeypatch, aten.bitwise_and.Tensor, hlo.not_)
    found = bisect(mixed, x, n)
    assert (found.where, found.name) == ("op", "aten.bitwise_and.Tensor")
    (error,) = found.errors
    assert (error.got, error.expected, error.excess) == (True, False, math.inf)


def test_equal_values_may_come_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def ranked(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, places = x.sort(-1)
        return values, places, places.float().cos(), x.topk(3, 0).indices

    x = torch.randint(0, 3, (5, 40))
    found = bisect(ranked, x)
    assert found.where == "nothing", found
    for change in (reversed_last, lambda v: builder.full_like(v, 1)):
        with monkeypatch.context() as patch:
            break_rule(patch, aten.sort.default, lambda outs, c=change: (outs[0], c(outs[1])))
            found = bisect(ranked, x)
        assert (found.where, found.name) == ("op", "aten.sort.default")
        assert [d.what for d in found.errors] == ["result 1"]


def test_sizes_of_bags_are_for_the_backward() -> None:
    bags = nn.EmbeddingBag(9, 4, mode="sum")
    found = bisect(bags, torch.randint(0, 9, (3, 5)), train=True)
    assert found.where == "nothing", found
    assert "aten._embedding_bag.default" in {op.op for op in found.ops}


def test_inference_mode() -> None:
    with torch.inference_mode():
        assert bisect(scaled, torch.randn(5)).where == "nothing"


def test_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.4).sin()

    found = bisect(noisy, torch.randn(50))
    assert found.where == "nothing", found
    assert [op.op for op in found.ops if op.status == "skipped"] == ["tpu.uniform.default"]
    assert any("random numbers" in note for note in found.notes)
    break_rule(monkeypatch, aten.sin.default, shifted)
    found = bisect(noisy, torch.randn(50))
    assert (found.where, found.name) == ("op", "aten.sin.default")


def test_dynamic_shapes_graph_breaks_and_repeated_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() * x.shape[0]
        torch._dynamo.graph_break()
        return y.expand(2, *y.shape).cos()

    x = torch.randn(7, 3)
    torch._dynamo.mark_dynamic(x, 0)
    found = bisect(broken, x)
    assert found.where == "nothing", found
    assert {op.graph for op in found.ops} == {"0 inference", "1 inference"}
    break_rule(monkeypatch, aten.cos.default, shifted)
    found = bisect(broken, x)
    assert (found.where, found.name, found.graph) == ("op", "aten.cos.default", "1 inference")


# ---------------------------------------------------------------- tolerances and requests


def test_tolerances_that_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    break_rule(monkeypatch, aten.tanh.default, shifted)
    found = bisect(Mlp(), torch.randn(3, 6), atol=1e-2)
    assert found.where == "nothing"
    assert "atol 0.01" in str(found)


def test_rounding_is_told_from_what_is_wrong() -> None:
    big, small = torch.tensor([1e4, -1e4]), torch.tensor([1e4, -1e4 + 2e-3])
    truth = torch.tensor([1e4, -1e4 + 1e-3], dtype=torch.float64)

    def judged(got: torch.Tensor, truth: torch.Tensor, **limits: float) -> Difference:
        tolerance = Tolerance(**{"rtol": None, "atol": None, **limits})
        return compare_all([got], [small * 1.0001], [""], tolerance, lambda: [truth])[0]

    assert judged(big, truth).rounding
    assert not judged(big, truth).departs
    assert judged(big, truth, rtol=1e-6).departs
    assert judged(big, small.double() * 1.0001).departs


@pytest.mark.parametrize(
    ("got", "expected", "departs"),
    [
        (torch.tensor([math.nan, math.inf]), torch.tensor([math.nan, math.inf]), False),
        (torch.tensor(math.inf), torch.tensor(-math.inf), True),
        (torch.tensor(1.0), torch.tensor(math.inf), True),
        (torch.tensor(math.nan), torch.tensor(1.0), True),
        (torch.tensor(1.0), torch.tensor(1.0 + 1e-6), False),
        (torch.tensor([2**62 + 1]), torch.tensor([2**62]), True),
        (torch.tensor([True]), torch.tensor([False]), True),
        (torch.tensor(3, dtype=torch.uint16), torch.tensor(3, dtype=torch.uint16), False),
        (
            torch.tensor([1.0]).to(torch.float8_e5m2),
            torch.tensor([1.0]).to(torch.float8_e5m2),
            False,
        ),
        (torch.tensor([1 + 1j]), torch.tensor([1 + 1.1j]), True),
        (torch.zeros(0), torch.zeros(0), False),
        (torch.zeros(2), torch.zeros(3), True),
        (torch.zeros(2), torch.zeros(2).double(), True),
        (2.5, 2.5, False),
        (2, 3, True),
        (None, None, False),
        (None, torch.zeros(2), True),
    ],
)
def test_comparison(got: Any, expected: Any, departs: bool) -> None:
    found = compare(got, expected, Tolerance())
    assert found.departs is departs
    assert str(found)


def test_wrong_requests() -> None:
    with pytest.raises(InvalidOption, match="bisect runs what it compiles"):
        bisect(scaled, torch.randn(3), options={"target": "v6e:1x1"})
    with pytest.raises(InvalidOption, match="no output of the model requires grad"):
        bisect(scaled, torch.randn(3), train=True)
