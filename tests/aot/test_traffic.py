"""HBM bytes of programs that are known by hand."""

from __future__ import annotations

import hlo_programs as programs
import jax
import jax.numpy as jnp
from hlo_programs import TARGET, array, close, cost_of
from jax import Array, lax


@TARGET
def test_slices_in_a_loop_count_as_slices(target: str) -> None:
    """A stack of arrays that each trip takes one of and puts one into is read and written once."""

    def fn(xs: Array) -> Array:
        return lax.scan(lambda c, x: (c, jnp.tanh(x) + c), jnp.float32(1), xs)[1]

    xs = array(64, 512, 1024)
    cost = cost_of(target, fn, xs)
    assert cost.unknown_trips == ()
    size = 64 * 512 * 1024 * 4
    assert cost.transcendentals == 64 * 512 * 1024
    passes = 3 if target == "cpu" else 2  # XLA:CPU fills the results with zeros first
    assert cost.bytes == close(passes * size, 0.01)


@TARGET
def test_bytes_of_an_elementwise_chain_are_inputs_and_outputs(target: str) -> None:
    def fn(x: Array, y: Array) -> Array:
        return jnp.tanh(x * 2 + y) - y

    # larger than VMEM, so that it stays in HBM
    cost = cost_of(target, fn, array(8192, 8192), array(8192, 8192))
    assert cost.bytes == 3 * 8192 * 8192 * 4


@TARGET
def test_bytes_of_an_update_in_place(target: str) -> None:
    def fn(cache: Array, new: Array, at: Array) -> Array:
        return lax.dynamic_update_slice(cache, jnp.tanh(new), (at, 0))

    compiled = jax.jit(fn, donate_argnums=0)
    device = jax.devices("cpu")[0] if target == "cpu" else programs.devices(target)[0]
    sharding = jax.sharding.SingleDeviceSharding(device)
    shapes = array(65536, 1024), array(8, 1024), array(dtype=jnp.int32)
    placed = [jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding) for s in shapes]
    cost = programs.measured(compiled.lower(*placed).compile())
    assert 8 * 1024 * 4 <= cost.bytes <= 5 * 8 * 1024 * 4


@TARGET
def test_bytes_of_an_embedding(target: str) -> None:
    def fn(table: Array, ids: Array) -> Array:
        return table[ids]

    cost = cost_of(target, fn, array(50_000, 512), array(64, dtype=jnp.int32))
    assert cost.bytes <= 4 * 64 * 512 * 4


def test_bytes_are_those_of_xla_where_it_counts_the_same() -> None:
    """XLA:CPU has one memory, and without loops its analysis counts each op once."""
    shapes = array(256, 512), array(4, 512, 512)
    compiled = programs.compile_for("cpu", programs.loss_of(programs.unrolled), *shapes)
    cost = programs.measured(compiled)
    assert cost.bytes == close(compiled.cost_analysis()["bytes accessed"], 0.01)
    assert cost.flops == close(compiled.cost_analysis()["flops"], 0.01)
