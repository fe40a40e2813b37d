"""``tpu_compile.export``: a model to a file that runs without its Python code."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from tpu_compile import __version__, buffers, jax_internals, process_state, topologies, versions
from tpu_compile.portable import (
    archive,
    compiling,
    planning,
    safetensors_file,
    stablehlo,
    xla_executables,
)
from tpu_compile.portable.capture import capture
from tpu_compile.portable.errors import NotExportable
from tpu_compile.portable.manifest import Manifest, SavedExecutable

THIS_CPU = "cpu"


def export(
    model: Callable[..., Any] | ExportedProgram,
    args: tuple[Any, ...],
    path: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any] | None = None,
    platforms: Sequence[str] = stablehlo.PLATFORMS,
    topology: str | None = None,
) -> Manifest:
    """Writes a model as versioned StableHLO with its weights and a manifest.

    The model is captured as it is: in train or eval mode, for arguments of these shapes and dtypes.

    Args:
        model: a module, a function of tensors, or what ``torch.export.export`` returned.
        args: example arguments, as a tuple; not used for an ExportedProgram.
        path: the file to write. It appears whole or not at all.
        kwargs: example arguments by keyword.
        platforms: what it can be loaded on: "cpu", "tpu" or both.
        topology: also compile it for this slice, such as "v6e:1x1", and save the executable, so
            that loading it there compiles nothing. "cpu" is this machine's CPU.

    Returns:
        What the file says of itself.

    Raises:
        NotExportable: where the model, an argument or a platform can't be exported.
        MissingLowering, UnsupportedCase: for an op that has no rule, or whose rule declines.
        UnknownTopology, MissingTpuCompiler, CompileFailed: from compiling for the topology.
    """
    versions.check()
    process_state.without_tpu()
    path = Path(path)
    chosen = _platforms(platforms, topology)
    with torch.no_grad():
        plan = planning.plan(capture(model, args, kwargs), _installed())
    artifacts = {}
    if plan.results:  # else there is nothing to compute
        artifacts = {p: stablehlo.lower(plan, p) for p in chosen}
    executables = []
    if topology is not None and artifacts:
        executables.append(_compiled(plan, artifacts, topology))
    with archive.create(path) as file:
        files = {p: f"program.{p}.stablehlo" for p in artifacts}
        for p, artifact in artifacts.items():
            file.add(files[p], artifact)
        for saved, data in executables:
            file.add(saved.file, data)
        with file.member(archive.WEIGHTS) as stream:
            safetensors_file.write(stream, plan.stored)
        manifest = replace(
            plan.manifest,
            programs=files,
            executables=tuple(saved for saved, _ in executables),
            members=file.members,
        )
        file.finish(manifest)
    return manifest


def _platforms(platforms: Sequence[str], topology: str | None) -> list[str]:
    chosen = [platforms] if isinstance(platforms, str) else list(dict.fromkeys(platforms))
    unknown = [p for p in chosen if p not in stablehlo.PLATFORMS]
    if unknown or not chosen:
        why = f"there is no such platform; give one or both of {stablehlo.PLATFORMS}"
        raise NotExportable(what=f"a program for {unknown or platforms!r}", why=why)
    if topology is not None:
        needed = THIS_CPU if topology == THIS_CPU else "tpu"
        if needed != THIS_CPU:
            topologies.parse(topology)
        if needed not in chosen:
            chosen.append(needed)
    return chosen


def _installed() -> dict[str, str]:
    found = {name: versions.installed(name) for name in ("torch", "jax", "jaxlib", "libtpu")}
    return {"tpu_compile": __version__, **{k: v for k, v in found.items() if v is not None}}


def _compiled(
    plan: planning.Plan, artifacts: Mapping[str, bytes], topology: str
) -> tuple[SavedExecutable, bytes]:
    if topology == THIS_CPU:
        device, name = buffers.device("cpu"), THIS_CPU
    else:
        slice_ = topologies.parse(topology)
        device, name = topologies.devices(slice_)[0], slice_.name
    types = [compiling.in_memory(a.array) for a in plan.manifest.arguments]
    # an executable that came from a cache can't be relied on to be serialised again
    compiled = compiling.compile_stablehlo(artifacts[device.platform], types, device, cache=False)
    file = f"executable.{name.replace(':', '_')}.xla"
    return xla_executables.describe(file, name, device), jax_internals.serialized(compiled)
