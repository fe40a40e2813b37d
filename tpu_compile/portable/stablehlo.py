"""A planned graph to portable StableHLO, for the CPU or for TPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
from jax import export as jax_export

from tpu_compile import backend, calling, jax_internals
from tpu_compile.lowering import primitive
from tpu_compile.lowering.interpreter import Settings
from tpu_compile.lowering.types import TensorType, numpy_dtype
from tpu_compile.portable.compiling import in_memory
from tpu_compile.portable.errors import NotExportable
from tpu_compile.portable.planning import Plan

PLATFORMS = ("cpu", "tpu")
_ANY_TPU = "v6e:1x1"  # rules differ between the CPU and TPUs, not between TPUs


def lower(plan: Plan, platform: str) -> bytes:
    """The StableHLO of a plan for a platform, versioned so that later releases can read it.

    Raises:
        MissingLowering, UnsupportedCase: where a rule is missing or declines.
        NotExportable: where the program calls what JAX does not promise to keep.
    """
    graph = primitive.Graph(plan.gm, _settings(platform), plan.results)
    types = [jax.ShapeDtypeStruct(t.shape, numpy_dtype(t.dtype)) for t in _types(plan)]
    with (
        jax.enable_x64(True),
        jax_internals.without_call_stacks(),
        primitive.registered(graph) as token,
    ):
        jitted = jax.jit(_program(plan, token), keep_unused=True)
        try:
            exported = jax_export.export(jitted, platforms=[platform])(*types)
        except ValueError as err:
            what = f"model {plan.manifest.model}"
            raise NotExportable(what=what, why=str(err)) from err
    return bytes(exported.serialize())


def _settings(platform: str) -> Settings:
    target = platform if platform == "cpu" else _ANY_TPU
    settings = backend.settings_for(backend.read_options({"target": target, "checks": "off"}))
    return dataclasses.replace(settings, topology=None)


def _types(plan: Plan) -> list[TensorType]:
    return [in_memory(a.array) for a in plan.manifest.arguments]


def _program(plan: Plan, token: int) -> Callable[..., list[jax.Array]]:
    inputs = [calling.inverse(a.array.order) for a in plan.manifest.arguments]
    orders = [r.array.order for r in plan.manifest.results]

    def program(*arrays: jax.Array) -> list[jax.Array]:
        logical = [a.transpose(order) for a, order in zip(arrays, inputs, strict=True)]
        values = primitive.graph_p.bind(*logical, token=token)
        return [v.transpose(order) for v, order in zip(values, orders, strict=True)]

    program.__name__ = program.__qualname__ = plan.manifest.model
    return program
