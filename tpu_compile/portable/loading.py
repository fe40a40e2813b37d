"""``tpu_compile.load``: a file that ``tpu_compile.export`` wrote, as a callable object."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import jax

from tpu_compile import buffers, chips, errors, jax_internals, process_state, versions
from tpu_compile.portable import (
    archive,
    codec,
    compiling,
    safetensors_file,
    weights,
    xla_executables,
)
from tpu_compile.portable.errors import DamagedExport, ExecutableRefused, PlatformNotExported
from tpu_compile.portable.loaded import LoadedModel, Program, Run

DEVICES = ("auto", "cpu", "tpu")
EXECUTABLES = ("auto", "require", "ignore")


def load(
    path: str | os.PathLike[str],
    *,
    device: str = "auto",
    executable: Literal["auto", "require", "ignore"] = "auto",
) -> LoadedModel:
    """Loads a model that ``tpu_compile.export`` wrote; its Python code is not needed.

    Nothing in the file is unpickled, imported or evaluated. A saved executable is machine code,
    though: it is only as trustworthy as whoever wrote the file, and ``executable="ignore"`` leaves
    it out.

    Args:
        path: the file.
        device: "auto" is the TPU where one is attached and else the CPU; or "cpu" or "tpu".
        executable: "auto" uses a saved executable where it fits the device and versions, and else
            compiles the StableHLO; "require" raises where it does not fit; "ignore" compiles.

    Raises:
        NotAnExport, DamagedExport, NewerFormat: where the file can't be used.
        PlatformNotExported: where it holds no program for the device.
        ExecutableRefused: where an executable is required and does not fit.
        TargetUnavailable: when a TPU is asked for and none is attached.
    """
    choices = (("device", device, DEVICES), ("executable", executable, EXECUTABLES))
    for name, value, valid in choices:
        if value not in valid:
            raise errors.InvalidOption(name=name, value=value, valid=f"Use one of {valid}.")
    versions.check()
    process_state.without_tpu()
    path = Path(path)
    try:
        with archive.opened(path) as file:
            run = _program(file, _device(device), executable)
            with file.open(archive.WEIGHTS) as stream:
                size = file.manifest.members[archive.WEIGHTS].size
                stored = safetensors_file.read(stream, size)
            state = weights.unpack(file.manifest.weights, stored)
            return LoadedModel(file.manifest, state, run)
    except codec.Malformed as err:
        raise DamagedExport(path=path, why=str(err)) from err


def _device(wanted: str) -> jax.Device:
    # Without a chip there is no need to ask JAX, which would load libtpu and search for a while.
    attached = wanted != "cpu" and bool(chips.attached()) and jax.default_backend() == "tpu"
    if wanted == "tpu" and not attached:
        why = "JAX sees no TPU on this machine. Use device='auto' or 'cpu' to run on the CPU."
        raise errors.TargetUnavailable(target=wanted, why=why)
    return buffers.device("tpu" if attached else "cpu")


def _program(file: archive.Archive, device: jax.Device, executable: str) -> Run | None:
    manifest, platform = file.manifest, device.platform
    if not manifest.results:
        return None
    if executable != "ignore" and (saved := _executable(file, device, executable)):
        return Run(saved, device)
    if platform not in manifest.programs:
        raise PlatformNotExported(
            path=file.path,
            platforms=sorted(manifest.programs),
            wanted=platform,
            instead="tpu" if platform == "cpu" else "cpu",
        )
    artifact = file.read(manifest.programs[platform])
    types = [compiling.in_memory(a.array) for a in manifest.arguments]
    compiled = compiling.compile_stablehlo(artifact, types, device, cache=True)
    return Run(jax_internals.launcher(compiled), device)


def _executable(file: archive.Archive, device: jax.Device, executable: str) -> Program | None:
    why = "it holds none; export it with topology=..."
    for saved in file.manifest.executables:
        verdict = xla_executables.usable(saved, device)
        if not verdict:
            why = verdict.why_not
            continue
        try:
            return jax_internals.deserialized(file.read(saved.file), device)
        except (jax.errors.JaxRuntimeError, ValueError) as err:
            why = f"XLA does not read it: {err}"
    if executable == "require":
        raise ExecutableRefused(path=file.path, why=why)
    return None
