"""Trips of loops of all kinds, and of those that cannot be known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hlo_programs as programs
import jax.numpy as jnp
import pytest
from hlo_programs import TARGET, array, close, cost_of
from jax import Array, lax

from tpu_compile.aot import hlo
from tpu_compile.aot.cost import measure


@TARGET
def test_nested_loops_multiply(target: str) -> None:
    def fn(x: Array, w: Array) -> Array:
        inner = lambda _, x: jnp.tanh(x @ w)  # noqa: E731
        return lax.fori_loop(0, 5, lambda _, x: lax.fori_loop(2, 9, inner, x) + 1, x)

    cost = cost_of(target, fn, array(64, 256), array(256, 256))
    assert cost.unknown_trips == ()
    product = max(cost.ops, key=lambda op: op.flops)
    assert product.trips == 35
    assert product.flops == close(35 * 2 * 64 * 256 * 256)


@TARGET
def test_unknown_trips_are_counted_once_and_said(target: str) -> None:
    def fn(x: Array, w: Array) -> Array:
        return lax.while_loop(lambda x: x.sum() < 1e3, lambda x: jnp.tanh(x @ w) + x, x)

    cost = cost_of(target, fn, array(64, 256), array(256, 256))
    assert len(cost.unknown_trips) == 1
    assert max(op.flops for op in cost.ops) == close(2 * 64 * 256 * 256)


@TARGET
@pytest.mark.parametrize(
    ("first", "step", "test", "trips"),
    [
        (0, 1, lambda i, n: i < n, 10),
        (0, 3, lambda i, n: i < n, 4),
        (0, 3, lambda i, n: n > i, 4),
        (1, 1, lambda i, n: i <= n, 10),
        (30, -4, lambda i, n: i > n, 5),
        (30, -4, lambda i, n: i >= n, 6),
        (0, 2, lambda i, n: i != n, 5),
    ],
)
def test_trips_of_all_comparisons(
    target: str, first: int, step: int, test: Callable[[Any, int], Any], trips: int
) -> None:
    def fn(x: Array, w: Array) -> Array:
        start = (jnp.int32(first), x)
        return lax.while_loop(
            lambda s: test(s[0], 10), lambda s: (s[0] + step, jnp.tanh(s[1] @ w)), start
        )[1]

    cost = cost_of(target, fn, array(8, 128), array(128, 128))
    assert cost.unknown_trips == ()
    assert max(cost.ops, key=lambda op: op.flops).trips == trips


def test_what_is_found_is_what_the_compiler_knows() -> None:
    compiled = programs.compile_for(
        "cpu", programs.loss_of(programs.scanned), array(16, 128), array(6, 128, 128)
    )
    text = compiled.as_text()
    assert '"known_trip_count":{"n":"6"}' in text
    told = measure(hlo.parse(text))
    found = measure(hlo.parse(text.replace("known_trip_count", "nothing")))
    assert told == found
    assert found.unknown_trips == ()


def test_constants_that_outer_loops_hand_on() -> None:
    text = """HloModule m

%inner_cond (s: (s32[], s32[], f32[8])) -> pred[] {
  %s = (s32[], s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] get-tuple-element(%s), index=1
  ROOT %lt = pred[] fusion(%n, %i), kind=kLoop, calls=%compared
}

%compared (n: s32[], i: s32[]) -> pred[] {
  %n.1 = s32[] parameter(0)
  %i.1 = s32[] parameter(1)
  ROOT %gt = pred[] compare(%n.1, %i.1), direction=GT
}

%inner_body (s: (s32[], s32[], f32[8])) -> (s32[], s32[], f32[8]) {
  %s.1 = (s32[], s32[], f32[8]{0}) parameter(0)
  %i.2 = s32[] get-tuple-element(%s.1), index=0
  %n.2 = s32[] get-tuple-element(%s.1), index=1
  %x.2 = f32[8]{0} get-tuple-element(%s.1), index=2
  %two = s32[] constant(2)
  %next = s32[] add(%i.2, %two)
  %y = f32[8]{0} negate(%x.2)
  ROOT %t = (s32[], s32[], f32[8]{0}) tuple(%next, %n.2, %y)
}

%outer_cond (s: (s32[], s32[], f32[8])) -> pred[] {
  %s.2 = (s32[], s32[], f32[8]{0}) parameter(0)
  %i.3 = s32[] get-tuple-element(%s.2), index=0
  %three = s32[] constant(3)
  ROOT %ge = pred[] compare(%i.3, %three), direction=LT
}

%outer_body (s: (s32[], s32[], f32[8])) -> (s32[], s32[], f32[8]) {
  %s.3 = (s32[], s32[], f32[8]{0}) parameter(0)
  %i.4 = s32[] get-tuple-element(%s.3), index=0
  %n.4 = s32[] get-tuple-element(%s.3), index=1
  %x.4 = f32[8]{0} get-tuple-element(%s.3), index=2
  %zero = s32[] constant(0)
  %init = (s32[], s32[], f32[8]{0}) tuple(%zero, %n.4, %x.4)
  %w.1 = (s32[], s32[], f32[8]{0}) while(%init), condition=%inner_cond, body=%inner_body
  %n.5 = s32[] get-tuple-element(%w.1), index=1
  %x.5 = f32[8]{0} get-tuple-element(%w.1), index=2
  %one = s32[] constant(1)
  %next.1 = s32[] add(%i.4, %one)
  ROOT %t.1 = (s32[], s32[], f32[8]{0}) tuple(%next.1, %n.5, %x.5)
}

ENTRY %main (x: f32[8]) -> (s32[], s32[], f32[8]) {
  %x = f32[8]{0} parameter(0)
  %zero.1 = s32[] constant(0)
  %seven = s32[] constant(7)
  %init.1 = (s32[], s32[], f32[8]{0}) tuple(%zero.1, %seven, %x)
  ROOT %w = (s32[], s32[], f32[8]{0}) while(%init.1), condition=%outer_cond, body=%outer_body
}
"""
    cost = measure(hlo.parse(text))
    assert cost.unknown_trips == ()
    (negate,) = (op for op in cost.ops if op.name == "y")
    assert negate.trips == 3 * 4
    assert negate.flops == 12 * 8
    assert negate.bytes == 12 * 64
