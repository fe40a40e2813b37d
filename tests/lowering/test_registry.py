"""The registry against torch's schemas: signatures, docstrings, and coverage of core ATen."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._ops import OpOverload

from tpu_compile import errors
from tpu_compile.lowering import decompositions, registry

aten = torch.ops.aten

# Core overloads that need neither a rule nor a decomposition, and why.
NOT_LOWERED: dict[str, str] = {
    "aten.nonzero.default": "its result has a size that depends on the data",
    "aten.masked_select.default": "its result has a size that depends on the data",
    "aten.upsample_bilinear2d.vec": "torch traces it as the overload that takes a size",
    "aten.upsample_nearest2d.vec": "torch traces it as the overload that takes a size",
    "aten.resize_.default": "mutates; functionalization removes it",
    "aten.sym_is_contiguous.default": "answers about a shape, which is concrete here",
    "aten.sym_size.int": "answers about a shape, which is concrete here",
    "aten.sym_storage_offset.default": "answers about a shape, which is concrete here",
    "aten.sym_stride.int": "answers about a shape, which is concrete here",
    "aten.sym_numel.default": "answers about a shape, which is concrete here",
    "aten.rand.default": "the pass functional-random replaces it",
    "aten.randn.default": "the pass functional-random replaces it",
    "aten.randperm.default": "the pass functional-random replaces it",
    "aten.native_dropout.default": "the pass functional-random replaces it",
}


def core_overloads() -> Iterator[OpOverload]:
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        if namespace != "aten":
            continue
        packet = getattr(aten, base, None)
        op = getattr(packet, overload or "default", None) if packet else None
        if op is not None and torch.Tag.core in op.tags:
            yield op


def overloads() -> list[Any]:
    return sorted((op for op in registry.rules() if isinstance(op, OpOverload)), key=str)


def test_every_rule_has_its_ops_parameters() -> None:
    wrong = {
        str(op): why
        for op in overloads()
        if (why := registry.signature_mismatch(registry.rules()[op], op))
    }
    assert not wrong


def test_every_rule_has_a_schema_line_of_one_of_its_ops() -> None:
    names: dict[Any, set[str]] = {}
    for op in overloads():
        names.setdefault(registry.rules()[op], set()).add(op._schema.name.split("::")[1])
    bad = [
        f"{rule.__name__}: {rule.__doc__}"
        for rule, bases in names.items()
        if (rule.__doc__ or "").split("(")[0].split(".")[0] not in bases
        or "->" not in (rule.__doc__ or "")
    ]
    assert not bad


def test_every_rule_is_typed() -> None:
    untyped = [
        rule.__name__
        for rule in set(registry.rules().values())
        for p in inspect.signature(rule).parameters.values()
        if p.annotation is inspect.Parameter.empty
    ]
    assert not untyped


def test_core_aten_is_covered() -> None:
    table = decompositions.table()
    missing = [
        str(op)
        for op in core_overloads()
        if registry.find(op) is None and op not in table and str(op) not in NOT_LOWERED
    ]
    assert not missing


def test_what_is_said_not_to_be_lowered_is_not() -> None:
    rules = {str(op) for op in registry.rules()}
    assert not rules & set(NOT_LOWERED)


def test_registering_twice_is_refused() -> None:
    def abs(ctx: Any, x: Any) -> Any:
        """abs(Tensor self) -> Tensor"""

    with pytest.raises(errors.InvalidRule, match="has a rule already"):
        registry.lowers(aten.abs.default)(abs)


def test_a_wrong_signature_is_refused() -> None:
    def nonzero(ctx: Any, tensor: Any) -> Any:
        """nonzero(Tensor self) -> Tensor"""

    with pytest.raises(errors.InvalidRule, match="the schema says 'self'"):
        registry.lowers(aten.nonzero.default)(nonzero)
