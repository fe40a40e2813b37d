"""``aot_compile``: a model through the real TPU compiler, for any topology, with no TPU."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch.utils import _pytree as pytree

from tpu_compile import (
    __version__,
    backend,
    compile_log,
    errors,
    jax_internals,
    liveness,
    meshes,
    placement,
    planned,
    topologies,
    torch_internals,
    versions,
)
from tpu_compile.aot import chip_specs
from tpu_compile.aot.fake import Faker
from tpu_compile.aot.memory import Memory
from tpu_compile.aot.model_flops import model_flops
from tpu_compile.aot.result import AotProgram, AotResult
from tpu_compile.meshes import Mesh
from tpu_compile.options import Options
from tpu_compile.planned import Planned
from tpu_compile.topologies import Topology

Effort = Literal["fit", "full"]

# Of XLA: how hard to try, from -1 to 1.
EFFORTS: dict[str, dict[str, Any]] = {"full": {}, "fit": {"exec_time_optimization_effort": -1.0}}


def aot_compile(
    model: Callable[..., Any] | torch.export.ExportedProgram,
    *args: Any,
    topology: str = "v6e",
    train: bool = False,
    effort: Effort = "full",
    mesh: Mapping[str, int] | None = None,
    shardings: Mapping[str, Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> AotResult:
    """Compiles a model for a TPU topology and tells what it needs and costs. Nothing is run.

    No memory is needed for the model: its tensors are replaced by fake ones, and may be fake or on
    the meta device already. All figures are of one device. Without a mesh the program is a single
    device's: a slice's other devices would do the same. With one, the compiler partitions it.

    Args:
        model: a module, a function, or an ``ExportedProgram``.
        args: its arguments: real, fake or meta tensors, numbers.
        topology: such as "v6e:2x2" or "tpu7x:2x2x1"; a generation alone is one chip of it.
        train: also compile the backward of every output that requires grad.
        effort: "full" compiles as for running. "fit" is several times faster, says nearly the same
            of memory, and leaves optimizations out: no figure of cost is worth much then.
        mesh: names and sizes of axes that all the topology's devices are arranged in, as
            ``{"data": 2, "model": 2}``.
        shardings: for patterns of names of parameters, buffers and inputs, the mesh axes that split
            each dimension, as ``{"layers.*.weight": ("model", None), "x": ("data",)}``. A gradient
            lies as its parameter does. What no pattern matches is whole on each device.
        kwargs: the model's keyword arguments.
        options: of the backend, as for ``torch.compile``.

    Raises:
        UnknownTopology, MeshDoesNotFit, BadSharding, MissingTpuCompiler, InvalidOption: for a wrong
            request.
        MissingLowering, UnsupportedCase: for an op that the TPU can't run, with the user's line.
        DoesNotFit: where the compiler runs out of HBM; names the largest buffers by an estimate.
    """
    place = topologies.parse(topology)
    if effort not in get_args(Effort):
        valid = f"Valid values: {get_args(Effort)}."
        raise errors.InvalidOption(name="effort", value=effort, valid=valid)
    topologies.devices(place)  # is the compiler there, before any work
    before = compile_log.stage_times()
    chosen = {**(options or {}), "target": place.name}
    chosen |= {k: v for k, v in (("mesh", mesh), ("shardings", shardings)) if v is not None}
    read = backend.read_options({"fallback": "error", "cache": False, **chosen})
    found = _capture(model, args, dict(kwargs or {}), train, effort, read)
    seconds = {
        k: t - before.get(k, 0.0)
        for k, t in compile_log.stage_times().items()
        if t > before.get(k, 0.0)
    }
    programs = tuple(_programs(found, place, read.mesh))
    axes = dict(read.mesh.axes) if read.mesh else {}
    return AotResult(place.name, effort, programs, seconds, _versions(), axes)


def _capture(
    model: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    train: bool,
    effort: str,
    options: Options,
) -> list[Planned]:
    if isinstance(model, torch.export.ExportedProgram):
        model = model.module()
    compiler_options = {**EFFORTS[effort], **options.compiler_options}
    chosen = dataclasses.replace(options, compiler_options=compiler_options)
    parameters = _parameters(model)
    faker = Faker(model, args, kwargs)
    fake_model, args, kwargs = (faker.copy(v) for v in (model, args, kwargs))

    def once(gm: Any, inputs: Any) -> Any:
        gm.meta[placement.PARAMETERS] = parameters
        return backend.tpu(gm, inputs, options=chosen)

    # A backend of its own for each call: Dynamo keeps what was compiled, and would compile nothing.
    compiled = torch.compile(fake_model, backend=once, fullgraph=True, dynamic=False)
    with planned.collect() as found, torch_internals.one_more_compile(), faker.mode:
        try:
            with torch.set_grad_enabled(train):
                out = compiled(*args, **kwargs)
        except torch._dynamo.exc.BackendCompilerFailed as err:
            if isinstance(err.inner_exception, errors.TpuCompileError):
                raise err.inner_exception from None
            raise
        if train:
            _backward(out)
    return found


def _parameters(model: Any) -> list[str]:
    """Names of the parameters that a model takes, those that a decorator hides as ``*args`` too."""
    try:
        signature = inspect.signature(getattr(model, "forward", model))
    except (TypeError, ValueError):  # a builtin without one
        return []
    return [p.name for p in signature.parameters.values() if p.kind not in _GATHERED]


_GATHERED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _backward(out: Any) -> None:
    smooth = [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not smooth:
        why = "no output of the model requires grad"
        raise errors.InvalidOption(name="train", value=True, valid=f"But {why}.")
    torch.autograd.backward(smooth, [torch.ones_like(t) for t in smooth])


@dataclass(frozen=True)
class _LiveTexts:
    """A program's texts, made when they are asked for."""

    program: Planned

    @cached_property
    def stablehlo(self) -> str:
        return str(self.program.executable.lowered.as_text(debug_info=True))

    @cached_property
    def hlo(self) -> str:
        return str(self.program.executable.compiled.as_text())

    @property
    def executable(self) -> bytes:
        return jax_internals.serialized(self.program.executable.compiled)


def _programs(found: list[Planned], topology: Topology, mesh: Mesh | None) -> list[AotProgram]:
    capacity = int(chip_specs.find(topology.name).per_device.usable_hbm_bytes)
    forward: dict[str, int] = {}
    programs = []
    for program in found:
        placeholders = program.gm.graph.find_nodes(op="placeholder")
        arguments = {n.name: liveness.share_of(n, mesh) for n in placeholders}
        specs = {n.meta.get("argument", n.name): n.meta.get("sharding") for n in placeholders}
        # A backward's saved parameters and inputs have the names that they have in the forward.
        held = sum(size for name, size in forward.items() if name not in arguments)
        if program.name == "forward":
            forward = arguments
        programs.append(
            AotProgram(
                program.name,
                topology.name,
                Memory.of(program.executable.compiled, held=held, capacity=capacity),
                model_flops(program.gm),
                liveness.peak(program.gm, mesh),
                _LiveTexts(program),
                {name: meshes.text(spec) for name, spec in specs.items() if spec and any(spec)},
            )
        )
    return programs


def _versions() -> dict[str, str]:
    found = {p: versions.installed(p) for p in ("torch", "jax", "jaxlib", "libtpu")}
    return {"tpu_compile": __version__, **{p: v for p, v in found.items() if v}}
