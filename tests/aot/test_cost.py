"""Costs of whole programs: loops against unrolled loops, kernels, branches, reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hlo_programs as programs
import jax
import jax.numpy as jnp
from hlo_programs import TARGET, TPU, array, close, cost_of
from jax import Array, lax
from jax.experimental import pallas as pl


@TARGET
def test_a_loop_of_layers_costs_what_the_layers_cost(target: str) -> None:
    shapes = array(256, 512), array(4, 512, 512)
    rolled = cost_of(target, programs.scanned, *shapes)
    flat = cost_of(target, programs.unrolled, *shapes)
    assert rolled.unknown_trips == ()
    assert rolled.flops == close(flat.flops)
    assert rolled.transcendentals == close(flat.transcendentals)
    assert rolled.bytes == close(flat.bytes)
    products = sum(op.flops for op in rolled.ops if op.category == "matmul")
    assert products >= 4 * 2 * 256 * 512 * 512


@TARGET
def test_a_loop_of_training_layers_costs_what_the_layers_cost(target: str) -> None:
    shapes = array(256, 512), array(4, 512, 512)
    rolled = cost_of(target, programs.loss_of(programs.scanned), *shapes)
    flat = cost_of(target, programs.loss_of(programs.unrolled), *shapes)
    assert rolled.unknown_trips == ()
    assert rolled.flops == close(flat.flops)
    assert rolled.flops > 3 * 4 * 2 * 256 * 512 * 512


@TARGET
def test_the_dearest_branch_counts(target: str) -> None:
    def fn(p: Array, x: Array, w: Array) -> Array:
        return lax.cond(p, lambda x: jnp.tanh(x @ w @ w), lambda x: x + 1, x)

    cost = cost_of(target, fn, array(dtype=jnp.bool_), array(64, 256), array(256, 256))
    assert sum(sum(op.products.values()) for op in cost.ops) == 2 * 2 * 64 * 256 * 256
    (branch,) = cost.branches
    assert "of 2" in branch


def doubling(cost_estimate: pl.CostEstimate | None = None) -> Callable[[Array], Array]:
    """A Pallas kernel."""

    def double(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    def fn(x: Array) -> Array:
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        spec = pl.BlockSpec((512, 1024), lambda i: (i, 0))
        grid = (x.shape[0] // 512,)
        kernel = pl.pallas_call(
            double, out, grid=grid, in_specs=[spec], out_specs=spec,
            cost_estimate=cost_estimate, name="doubling",
        )  # fmt: skip
        return jnp.sin(kernel(x))

    return fn


def test_a_pallas_kernel_has_bytes_but_no_cycles() -> None:
    cost = cost_of(TPU, doubling(), array(65536, 1024))
    (kernel,) = (op for op in cost.ops if op.category == "kernel")
    assert kernel.kernel == "doubling"
    assert kernel.bytes == 2 * 65536 * 1024 * 4
    assert kernel.cycles is None
    assert kernel in cost.ops_without_cycles
    assert kernel in cost.ops_without_flops
    assert cost.cycles is not None
    others = [op for op in cost.ops if op.category != "kernel"]
    assert cost.cycles == sum(op.cycles for op in others if op.cycles is not None)


def test_a_pallas_kernel_costs_what_its_author_says() -> None:
    said = pl.CostEstimate(flops=12345, transcendentals=77, bytes_accessed=4242)
    cost = cost_of(TPU, doubling(said), array(65536, 1024))
    (kernel,) = (op for op in cost.ops if op.category == "kernel")
    assert (kernel.flops, kernel.transcendentals, kernel.bytes) == (12345, 77, 4242)
    assert kernel not in cost.ops_without_flops


def test_cycles_are_times_trips() -> None:
    shapes = array(256, 512), array(4, 512, 512)
    rolled = cost_of(TPU, programs.scanned, *shapes)
    flat = cost_of(TPU, programs.unrolled, *shapes)
    assert rolled.cycles is not None
    assert flat.cycles is not None
    assert rolled.cycles == close(flat.cycles, 0.5)
    assert cost_of("cpu", programs.scanned, *shapes).cycles is None


def test_top_ops() -> None:
    cost = cost_of("cpu", programs.unrolled, array(256, 512), array(4, 512, 512))
    for by in ("bytes", "flops"):
        top = cost.top_ops(by, 3)
        values = [getattr(op, by) for op in top]
        assert len(top) == 3
        assert values == sorted(values, reverse=True)
        assert values[0] == max(getattr(op, by) for op in cost.ops)
