"""Bounds of programs whose bound is known by hand."""

from __future__ import annotations

import hlo_programs as programs
import jax
import jax.numpy as jnp
import pytest
from hlo_programs import array, cost_of
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec

from tpu_compile.aot.chip_specs import find
from tpu_compile.aot.roofline import roofline

TPU = "v6e:2x2"
DEVICE = find(TPU).per_device


def test_a_large_product_waits_for_the_mxu() -> None:
    n = 2048
    shape = array(n, n, dtype=jnp.bfloat16)
    line = roofline(cost_of(TPU, jnp.matmul, shape, shape), DEVICE)
    assert line.bound == "compute"
    assert line.seconds == pytest.approx(2 * n**3 / 918e12, rel=0.01)
    assert line.memory == pytest.approx(3 * n * n * 2 / 1638e9, rel=0.5)
    assert line.top(1)[0].bound == "compute"


def test_float32_products_take_passes() -> None:
    def fn(x: Array, w: Array) -> Array:
        return jnp.matmul(x, w, precision="high")

    n = 512
    line = roofline(cost_of(TPU, fn, array(n, n), array(n, n)), DEVICE)
    assert line.compute == pytest.approx(3 * 2 * n**3 / 918e12, rel=0.01)


def test_elementwise_work_waits_for_memory() -> None:
    line = roofline(cost_of(TPU, jnp.tanh, array(16384, 8192)), DEVICE)
    assert line.bound == "memory"
    assert line.seconds == pytest.approx(2 * 16384 * 8192 * 4 / 1638e9, rel=0.01)


def test_collectives_wait_for_the_network() -> None:
    mesh = programs.mesh("d", TPU)
    spec = PartitionSpec("d")
    fn = jax.shard_map(lambda x: lax.psum(x, "d"), mesh=mesh, in_specs=spec, out_specs=spec)
    x = jax.ShapeDtypeStruct((4 * 4096, 1024), jnp.float32, sharding=NamedSharding(mesh, spec))
    line = roofline(programs.measured(jax.jit(fn).lower(x).compile()), DEVICE)
    assert line.bound == "network"
    assert line.network == pytest.approx(1.5 * 4096 * 1024 * 4 / 400e9, rel=0.01)


def test_the_whole_is_less_than_its_ops_one_by_one() -> None:
    def fn(x: Array, w: Array) -> Array:
        return jnp.tanh(x @ w)[:, ::-1] @ w

    shape = array(512, 512)
    line = roofline(cost_of(TPU, fn, shape, shape), DEVICE)
    assert line.seconds == max(line.compute, line.memory, line.network)
    assert line.seconds <= line.serial_seconds <= line.compute + line.memory + line.network
    assert line.serial_seconds == pytest.approx(sum(op.seconds for op in line.ops))
