"""What a saved XLA executable has to be met with, where it is used."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import jax

from tpu_compile import versions
from tpu_compile.portable.manifest import SavedExecutable
from tpu_compile.verdict import YES, Verdict

# What reads the bytes: they are of no stable format.
_READERS = {"cpu": ("jaxlib",), "tpu": ("jaxlib", "libtpu")}


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
