"""Small JAX programs compiled for the CPU and, by topology, by the real TPU compiler."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, ShapeDtypeStruct
from jax.sharding import Mesh, SingleDeviceSharding

from tpu_compile import topologies
from tpu_compile.aot import hlo
from tpu_compile.aot.cost import HloCost, measure


def devices(topology: str) -> tuple[Any, ...]:
    """Devices to compile for; skips the test where there is no TPU compiler."""
    pytest.importorskip("libtpu")
    return topologies.devices(topologies.parse(topology))


def mesh(axis: str, topology: str) -> Mesh:
    """All devices of a topology in a row."""
    return Mesh(np.array(devices(topology)), (axis,))


@functools.cache
def compile_for(target: str, fn: Callable[..., Any], *shapes: Any) -> Any:
    """Compiles ``fn`` for ``"cpu"``, or for the first device of a topology."""
    if target == "cpu":
        sharding = SingleDeviceSharding(jax.devices("cpu")[0])
    else:
        sharding = SingleDeviceSharding(devices(target)[0])
    placed = jax.tree.map(
        lambda s: ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), tuple(shapes)
    )
    return jax.jit(fn).lower(*placed).compile()


def module_of(target: str, fn: Callable[..., Any], *shapes: Any) -> hlo.Module:
    """The parsed module of a compiled program."""
    return hlo.parse(compile_for(target, fn, *shapes).as_text())


def measured(compiled: Any) -> HloCost:
    """What a compiled program costs."""
    return measure(hlo.parse(compiled.as_text()))


def cost_of(target: str, fn: Callable[..., Any], *shapes: Any) -> HloCost:
    """What a function costs, compiled."""
    return measured(compile_for(target, fn, *shapes))


def array(*dims: int, dtype: Any = jnp.float32) -> ShapeDtypeStruct:
    """An argument's shape and type."""
    return ShapeDtypeStruct(dims, dtype)


def layer(x: Array, w: Array) -> Array:
    """One layer of a network: keeps the shape."""
    return jnp.tanh(x @ w) * 0.5 + x


def scanned(x: Array, ws: Array) -> Array:
    """Layers in a loop."""
    return jax.lax.scan(lambda x, w: (layer(x, w), None), x, ws)[0]


def unrolled(x: Array, ws: Array) -> Array:
    """The same layers one after the other."""
    for i in range(ws.shape[0]):
        x = layer(x, ws[i])
    return x


def loss_of(network: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Any]:
    """A network's loss and its gradients."""
    return jax.value_and_grad(lambda x, ws: (network(x, ws) ** 2).sum(), argnums=(0, 1))


TPU = "v6e:2x2"
TARGET = pytest.mark.parametrize("target", ["cpu", TPU])


def close(value: float, rel: float = 0.05) -> Any:
    """Equal but for what two compilations differ in."""
    return pytest.approx(value, rel=rel)
