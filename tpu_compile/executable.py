"""A concrete ATen graph as one XLA program that takes and returns torch CPU tensors."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import torch
from jax.sharding import Sharding, SingleDeviceSharding
from torch import fx
from torch.utils import _pytree as pytree

from tpu_compile import (
    buffers,
    caches,
    calling,
    compile_log,
    errors,
    jax_internals,
    liveness,
    meshes,
    topologies,
    torch_internals,
)
from tpu_compile.lowering import primitive, registry
from tpu_compile.lowering.checks import Checks
from tpu_compile.lowering.context import types_of
from tpu_compile.lowering.interpreter import Settings
from tpu_compile.options import XLA_OPTIONS


@dataclass
class Executable:
    """One compiled program and its calling convention.

    Call it with the graph's flat arguments (tensors, scalars, and integers that are ignored); it
    returns the graph's flat outputs: tensors with the sizes, strides and dtypes of the graph's
    metadata, numbers, and None.
    """

    compiled: Any
    arguments: calling.Arguments
    results: calling.Results
    device: jax.Device | None = None  # where it is not the CPU, whose memory tensors are in
    checks: Checks | None = None
    stablehlo: str = ""
    lowered: Any = None  # what JAX lowered, kept where someone will look at it
    topology: str | None = None  # what it is compiled for, where that is not here to run it

    def __post_init__(self) -> None:
        self._launch: jax_internals.Launch | None = None
        if self.compiled is not None and self.topology is None:
            self._launch = jax_internals.launcher(self.compiled)
            if self.device is not None:
                self._launch = _there_and_back(self._launch, self.device)
        self._as_they_are = self.results.as_they_are

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Runs the program and waits for it."""
        if self._launch is None:
            return self._not_run(args)
        try:
            # The inputs are the user's own memory, so the program must have read it on return: it
            # has, as ``to_torch`` waits for its results.
            tensors = buffers.to_torch(self._launch(self.arguments.arrays(args)))
        except jax.errors.JaxRuntimeError as err:
            raise self._runtime_error(err) from err
        if self.checks is not None:
            self.checks.raise_failure(int(tensors.pop()))
        return tensors if self._as_they_are else self._outputs(tensors, args)

    def output_specs(self) -> list[meshes.Spec | None]:
        """How the compiler laid each of the graph's outputs over the mesh.

        Returns:
            None for what is no result of the program itself.
        """
        shardings = self.compiled.output_shardings if self.compiled is not None else []
        specs: list[meshes.Spec | None] = []
        orders = [order for _, order in self.results.values.values()]
        for make in self.results.outputs:
            n = getattr(make, "number", None)
            specs.append(None if n is None else meshes.logical(shardings[n], orders[n]))
        return specs

    def _outputs(self, tensors: list[torch.Tensor], args: Sequence[Any]) -> list[Any]:
        return [make(tensors, args) for make in self.results.outputs]

    def _not_run(self, args: Sequence[Any]) -> list[Any]:
        return self._outputs([], args) if self.topology is None else self._shapes_only(args)

    def _shapes_only(self, args: Sequence[Any]) -> list[Any]:
        if not torch_internals.shapes_only(args):
            raise errors.CompiledOnly(topology=self.topology)
        types = [
            (types_of(node.meta["val"])[0], order)
            for node, (_, order) in self.results.values.items()
        ]
        tensors = [torch.empty([t.shape[d] for d in order], dtype=t.dtype) for t, order in types]
        return self._outputs(tensors, args)

    def _runtime_error(self, err: Exception) -> errors.TpuCompileError:
        if "RESOURCE_EXHAUSTED" not in str(err) and "Out of memory" not in str(err):
            return errors.ExecutionFailed(why=str(err))
        memory = self.compiled.memory_analysis()
        mib = lambda n: f"{n / 2**20:.0f} MiB"  # noqa: E731
        return errors.OutOfMemory(
            arguments=mib(memory.argument_size_in_bytes),
            outputs=mib(memory.output_size_in_bytes),
            temporaries=mib(memory.temp_size_in_bytes),
            why=str(err),
        )


def _there_and_back(launch: jax_internals.Launch, device: jax.Device) -> jax_internals.Launch:
    """Takes arrays on the CPU to a device and brings the results back."""

    def run(arrays: Sequence[jax.Array]) -> list[jax.Array]:
        results = launch(jax.device_put(arrays, device))
        return jax.device_put(results, buffers.device("cpu"))

    return run


def compile_graph(
    gm: fx.GraphModule,
    settings: Settings,
    *,
    name: str = "graph",
    compiler_options: dict[str, Any] | None = None,
    keep_text: bool = False,
    cache: bool = True,
) -> Executable:
    """Lowers a graph and compiles it by XLA.

    Args:
        gm: functional, with concrete shapes in each ``meta["val"]``.
        settings: target and precision.
        name: shown in profiles and XLA's dumps.
        compiler_options: passed on to XLA.
        keep_text: whether to keep the StableHLO text, locations included.
        cache: whether the program may come from, and go to, the cache on disk.

    Raises:
        MissingLowering, UnsupportedCase, UnsupportedDtype: from lowering.
        CompileFailed: when XLA refuses the program.
    """
    arguments, results = calling.plan_arguments(gm), calling.plan_results(gm)
    checked = settings.checks and any(registry.is_checked(n.target) for n in gm.graph.nodes)
    checks = Checks() if checked else None
    if not results.values and checks is None:
        return Executable(None, arguments, results)
    start = time.perf_counter()
    graph = primitive.Graph(gm, settings, tuple(results.values), checks)
    with jax.enable_x64(True), primitive.registered(graph) as token:
        fn = _program(token, arguments, results)
        fn.__name__ = fn.__qualname__ = name
        device = _device(settings)
        shardings = _shardings(gm, settings, device, arguments, results)
        types = [
            primitive.shape_dtype(t, s) for t, s in zip(arguments.types, shardings[0], strict=True)
        ]
        lowered = jax.jit(fn, keep_unused=True, out_shardings=shardings[1]).lower(*types)
        text = lowered.as_text(debug_info=True) if keep_text else ""
        middle = time.perf_counter()
        try:
            with caches.xla_cache(wanted=cache):
                compiled = lowered.compile({**XLA_OPTIONS, **(compiler_options or {})})
        except jax.errors.JaxRuntimeError as err:
            target = settings.topology or settings.target
            if settings.topology and "RESOURCE_EXHAUSTED" in str(err):
                raise _does_not_fit(gm, name, settings, err) from err
            raise errors.CompileFailed(target=target, why=str(err)) from err
    compile_log.add_stage("lowering", middle - start)
    compile_log.add_stage("xla", time.perf_counter() - middle)
    return Executable(
        compiled,
        arguments,
        results,
        None if settings.target == "cpu" else device,
        checks,
        text,
        lowered if settings.topology else None,
        settings.topology,
    )


def _does_not_fit(
    gm: fx.GraphModule, name: str, settings: Settings, err: Exception
) -> errors.DoesNotFit:
    peak = liveness.peak(gm, meshes.Mesh(settings.mesh))
    why = str(err).strip().splitlines()[0]
    return errors.DoesNotFit(
        program=name, topology=settings.topology, why=why, estimate=liveness.text(peak), peak=peak
    )


def _device(settings: Settings) -> jax.Device:
    if settings.topology is None:
        return buffers.device(settings.target)
    return topologies.devices(topologies.parse(settings.topology))[0]


def _shardings(
    gm: fx.GraphModule,
    settings: Settings,
    device: jax.Device,
    arguments: calling.Arguments,
    results: calling.Results,
) -> tuple[list[Sharding | None], Any]:
    """Where the program's arguments and results are: on one device, or over the mesh.

    Returns:
        One for each argument, and those of the results; None where XLA decides.
    """
    if not settings.mesh:
        one = SingleDeviceSharding(device)
        return [one] * len(arguments.types), one
    assert settings.topology is not None
    mesh, topology = meshes.Mesh(settings.mesh), topologies.parse(settings.topology)

    def over_mesh(spec: meshes.Spec | None, order: calling.Order) -> Sharding | None:
        if spec is None:
            return None
        return meshes.named_sharding(mesh, topology, meshes.in_order(spec, order))

    nodes = gm.graph.find_nodes(op="placeholder")
    indices = [s.index for s in arguments.slots] + [i for i, _ in arguments.scalars]
    taken = [
        over_mesh(nodes[i].meta.get("sharding"), order)
        for i, order in zip(indices, arguments.inputs, strict=True)
    ]
    output = gm.graph.output_node()
    leaves = pytree.tree_leaves(output.args[0], is_leaf=lambda x: x is None)
    specs = output.meta.get("shardings", ())
    asked = {n: spec for n, spec in zip(leaves, specs, strict=False) if spec is not None}
    given = [over_mesh(asked.get(node), order) for node, (_, order) in results.values.items()]
    return taken, given


def _program(
    token: int, arguments: calling.Arguments, results: calling.Results
) -> Callable[..., list[jax.Array]]:
    """The JAX function to compile: arrays in the order of memory in and out."""

    def program(*arrays: jax.Array) -> list[jax.Array]:
        logical = [
            a.transpose(calling.inverse(order))
            for a, order in zip(arrays, arguments.inputs, strict=True)
        ]
        values = primitive.graph_p.bind(*(logical[i] for i in arguments.positions), token=token)
        orders = [order for _, order in results.values.values()]
        moved = [v.transpose(order) for v, order in zip(values, orders, strict=False)]
        return moved + values[len(orders) :]  # the last may be the number of a failed check

    return program
