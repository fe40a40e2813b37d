"""XLA's own serialised executables, and every private API of JAX here; seen in jaxlib 0.10.2.

JAX's public way wraps the same bytes in a pickle; these are the bytes alone.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
from jax._src import config
from jax._src.lib import xla_client

from tpu_compile import versions
from tpu_compile.portable.manifest import SavedExecutable
from tpu_compile.verdict import YES, Verdict

# What reads the bytes: they are of no stable format.
_READERS = {"cpu": ("jaxlib",), "tpu": ("jaxlib", "libtpu")}


def without_call_stacks() -> AbstractContextManager[None]:
    """Keeps the exporting process's files and lines out of what is lowered within."""
    return config.traceback_in_locations_limit(0)


def serialize(compiled: Any) -> bytes:
    """The executable of a program that JAX compiled, for an attached device or a topology."""
    unloaded = getattr(compiled._executable, "_unloaded_executable", None)
    executable = compiled.runtime_executable() if unloaded is None else unloaded.xla_executable
    if hasattr(executable, "serialize"):
        return bytes(executable.serialize())
    return bytes(executable.client.serialize_executable(executable))


def deserialize(data: bytes, device: jax.Device) -> Callable[[Sequence[jax.Array]], list[Any]]:
    """A function of the program's arguments on a device, each an array of one device."""
    devices = xla_client.DeviceList((device,))
    loaded = device.client.deserialize_executable(data, executable_devices=devices)

    return lambda arrays: loaded.execute(list(arrays))


def describe(file: str, target: str, device: jax.Device) -> SavedExecutable:
    """What an executable for a device has to be met with at loading."""
    found = {name: versions.installed(name) or "" for name in _READERS[device.platform]}
    return SavedExecutable(file, device.platform, target, _kind(device), found)


def usable(saved: SavedExecutable, device: jax.Device) -> Verdict:
    """Whether an executable can be used on a device, with what is installed here."""
    if saved.platform != device.platform:
        return Verdict(f"it is for {saved.target} and this device is a {device.platform}")
    if saved.device != _kind(device):
        return Verdict(f"it is for a {saved.device} and this device is a {_kind(device)}")
    for name in _READERS[saved.platform]:
        here, there = versions.installed(name), saved.versions.get(name)
        if here != there:
            return Verdict(f"it was made with {name} {there} and {name} {here} is installed")
    return YES


def _kind(device: jax.Device) -> str:
    if device.platform != "cpu":
        return device.device_kind
    # XLA compiles for the instructions that the CPU at hand has.
    return f"{platform.machine()} CPU {_cpu_features()}"


def _cpu_features() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else [platform.processor()]
    features = next((s for s in lines if s.startswith(("flags", "Features"))), lines[0])
    return hashlib.sha256(features.encode()).hexdigest()[:12]
