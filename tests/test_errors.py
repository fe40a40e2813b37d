"""Errors that no user's code provokes through today's rules, raised where they are made."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from compiled import compile_tpu
from helpers import capture

from tpu_compile import errors
from tpu_compile.executable import compile_graph
from tpu_compile.lowering import builder, registry
from tpu_compile.lowering.interpreter import Settings

aten = torch.ops.aten


def test_rule_that_returns_the_wrong_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(ctx: Any, x: Any) -> Any:
        return builder.reshape(x, (1, 3))

    gm = capture(torch.sin, (torch.ones(3),))
    find = registry.find
    monkeypatch.setattr(registry, "find", lambda op: wrong if op is aten.sin.default else find(op))
    with pytest.raises(errors.RuleMismatch, match=r"returned float32\[1, 3\]"):
        compile_graph(gm, Settings())


def test_rules_that_do_not_fit_their_schema() -> None:
    def taken(ctx: Any, x: Any) -> Any: ...

    def renamed(ctx: Any, y: Any) -> Any: ...

    def open_ended(ctx: Any, **kwargs: Any) -> Any: ...

    with pytest.raises(errors.InvalidRule, match="has a rule already"):
        registry.lowers(aten.sin.default)(taken)
    for rule, why in ((renamed, "the schema says 'self'"), (open_ended, "not allowed")):
        with pytest.raises(errors.InvalidRule, match=why):
            registry.lowers(aten.matrix_exp.default)(rule)


def test_out_of_memory_says_how_much() -> None:
    f = compile_tpu(lambda x: x.expand(10**8, 10**6) * 2)
    with pytest.raises(errors.OutOfMemory, match=r"MiB of outputs.*Reduce the batch"):
        f(torch.ones(1))


def test_every_error_fills_its_text() -> None:
    names = re.findall(
        r"{(\w+)", "".join(str(getattr(c, "text", "")) for c in vars(errors).values())
    )
    fields = dict.fromkeys(names, "?")
    for cls in vars(errors).values():
        if isinstance(cls, type) and issubclass(cls, errors.TpuCompileError):
            assert "{" not in str(cls(**fields)).replace("{'", "")
