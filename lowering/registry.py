"""The one registry: an ATen overload to its rule."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from torch._ops import HigherOrderOperator, OpOverload

from tpu_compile.errors import InvalidRule

if __name__ != "tpu_compile.lowering.registry":
    raise ImportError(f"import tpu_compile.lowering.registry, not {__name__}: two registries")

Op = OpOverload | HigherOrderOperator
Rule = Callable[..., Any]

_rules: dict[Op, Rule] = {}
_named: dict[str, Rule] = {}  # other libraries' ops, until they are met
_bridged: set[Rule] = set()
_checked: set[Rule] = set()
_loaded = False


def lowers(*ops: Op, bridged: bool = False, checked: bool = False) -> Callable[[Rule], Rule]:
    """Registers a function as the rule of one or more overloads.

    Args:
        ops: the overloads. Their schemas must fit the rule's parameters.
        bridged: True for a rule that traces a JAX function instead of emitting ops itself.
        checked: True for a rule that may require something of values (lowering/checks.py).
    """

    def register(rule: Rule) -> Rule:
        for op in ops:
            _add(op, rule)
        _describe(rule, bridged=bridged, checked=checked)
        return rule

    return register


def lowers_named(
    *names: str, bridged: bool = False, checked: bool = False
) -> Callable[[Rule], Rule]:
    """Registers a rule for another library's ops, which exist only once it is imported.

    Args:
        names: of the overloads, as ``transformers.grouped_mm_fallback.default``.
        bridged: as in ``lowers``.
        checked: as in ``lowers``.
    """

    def register(rule: Rule) -> Rule:
        for name in names:
            if name in _named:
                raise InvalidRule(rule=rule.__name__, op=name, why="the op has a rule already")
            _named[name] = rule
        _describe(rule, bridged=bridged, checked=checked)
        return rule

    return register


def _add(op: Op, rule: Rule) -> None:
    if op in _rules:
        raise InvalidRule(rule=rule.__name__, op=op, why="the op has a rule already")
    if why := signature_mismatch(rule, op):
        raise InvalidRule(rule=rule.__name__, op=op, why=why)
    _rules[op] = rule


def _describe(rule: Rule, *, bridged: bool, checked: bool) -> None:
    if bridged:
        _bridged.add(rule)
    if checked:
        _checked.add(rule)


def find(op: Any) -> Rule | None:
    """The rule of an overload, or None.

    Raises:
        InvalidRule: where another library's op is not as the rule for its name expects.
    """
    load()
    rule = _rules.get(op)
    if rule is None and isinstance(op, OpOverload) and (named := _named.get(str(op))):
        _add(op, named)
        return named
    return rule


def rules() -> MappingProxyType[Op, Rule]:
    """All rules, by overload."""
    load()
    return MappingProxyType(_rules)


def is_bridged(rule: Rule) -> bool:
    """Whether a rule goes through JAX tracing instead of emitting StableHLO itself."""
    return rule in _bridged


def is_checked(op: Any) -> bool:
    """Whether an overload's rule may require something of values that only a run knows."""
    return find(op) in _checked


def load() -> None:
    """Imports every family of rules, once."""
    global _loaded
    if not _loaded:
        importlib.import_module("tpu_compile.lowering.ops")
        _loaded = True  # only now: after a failed import the next caller sees the error too


def signature_mismatch(rule: Rule, op: Op) -> str | None:
    """Says how a rule's parameters differ from its op's schema, or None where they fit.

    A rule has the context first, then the schema's parameters in order with the same names
    (``self`` is ``x``) and the same defaults. A rule that serves several overloads may name a
    parameter as one of them does; trailing parameters that only some overloads have need a default.
    """
    if not isinstance(op, OpOverload):
        return None
    params = list(inspect.signature(rule).parameters.values())[1:]
    if any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in params):
        return "*args and **kwargs are not allowed"
    names = {p.name: p for p in params}
    schema = op._schema.arguments
    for i, arg in enumerate(schema):
        name = "x" if arg.name == "self" else arg.name
        if not arg.kwarg_only and i < len(params) and params[i].name != name:
            return f"parameter {i} is {params[i].name!r}, the schema says {arg.name!r}"
        if name not in names:
            return f"no parameter {name!r}"
        if arg.has_default_value() and names[name].default is inspect.Parameter.empty:
            return f"parameter {name!r} needs the default {arg.default_value!r}"
        if arg.has_default_value() and names[name].default != arg.default_value:
            return f"{name!r} defaults to {names[name].default!r}, not {arg.default_value!r}"
    known = {"x" if a.name == "self" else a.name for a in schema}
    for p in params:
        if p.name not in known and p.default is inspect.Parameter.empty:
            return f"parameter {p.name!r} is not in the schema and has no default"
    return None
