"""Executables saved with a model: used where they fit, refused with the reason where they don't."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tpu_compile import buffers
from tpu_compile.portable import compiling, xla_executables
from tpu_compile.portable.errors import ExecutableRefused
from tpu_compile.portable.loading import load
from tpu_compile.portable.saving import export


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    export(model(), (torch.ones(3, 4),), tmp_path / "f", platforms=["cpu"], topology="cpu")
    return tmp_path / "f"


def edit(
    path: Path, change: Callable[[dict[str, Any]], None], executable: bytes | None = None
) -> None:
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    manifest = json.loads(members["manifest.json"])
    saved = manifest["executables"][0]
    change(saved)
    if executable is not None:
        members[saved["file"]] = executable
        digest = hashlib.sha256(executable).hexdigest()
        manifest["members"][saved["file"]] = {"size": len(executable), "sha256": digest}
    members["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)


def test_executable_equals_the_compiled_program(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(3, 4)
    compiled = load(path, executable="ignore")(x)
    monkeypatch.setattr(compiling, "compile_stablehlo", None)  # nothing is compiled
    assert torch.equal(load(path, executable="require")(x), compiled)
    assert torch.equal(load(path)(x), compiled)
    torch.testing.assert_close(compiled, model()(x).detach())


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"versions": {"jaxlib": "0.1"}}, r"made with jaxlib 0\.1 and jaxlib \S+ is installed"),
        ({"device": "TPU v6 lite"}, "it is for a TPU v6 lite and this device is a .* CPU"),
        ({"platform": "tpu", "target": "v6e:1x1"}, "it is for v6e:1x1 and this device is a cpu"),
    ],
)
def test_executable_that_does_not_fit(path: Path, fields: dict[str, Any], why: str) -> None:
    edit(path, lambda saved: saved.update(fields))
    with pytest.raises(ExecutableRefused, match=why):
        load(path, executable="require")
    x = torch.randn(3, 4)
    torch.testing.assert_close(load(path)(x), model()(x).detach())  # compiled instead


def test_executable_that_xla_does_not_read(path: Path) -> None:
    edit(path, lambda _saved: None, b"no executable")
    with pytest.raises(ExecutableRefused, match="XLA does not read it"):
        load(path, executable="require")
    x = torch.randn(3, 4)
    torch.testing.assert_close(load(path)(x), model()(x).detach())


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
def test_executable_for_a_topology(tmp_path: Path) -> None:
    path = tmp_path / "f"
    manifest = export(model(), (torch.ones(3, 4),), path, topology="v6e:1x1")
    (saved,) = manifest.executables
    assert (saved.platform, saved.target, saved.device) == ("tpu", "v6e:1x1", "TPU v6 lite")
    assert set(saved.versions) == {"jaxlib", "libtpu"}
    assert manifest.members[saved.file].size > 1000
    with pytest.raises(ExecutableRefused, match="it is for v6e:1x1 and this device is a cpu"):
        load(path, executable="require")
    x = torch.randn(3, 4)
    torch.testing.assert_close(load(path)(x), model()(x).detach())


AWAY = """
import pathlib, sys
import jax, torch
from tpu_compile.portable import archive, compiling, loading
from tpu_compile.portable.loaded import Run

model = loading.load(sys.argv[1], executable=sys.argv[2])
device = jax.devices("cpu")[1]
with archive.opened(pathlib.Path(sys.argv[1])) as file:
    types = [compiling.in_memory(a.array) for a in file.manifest.arguments]
    data = file.read("program.cpu.stablehlo")
program = compiling.compile_stablehlo(data, types, device, cache=False)
model._run = Run(lambda arrays: program(*arrays), device)

copied = []
put = jax.device_put
jax.device_put = lambda x, to: copied.append(to) or put(x, to)
x = torch.arange(12.0).view(3, 4)
first = model(x)
assert copied.count(device) == 5, copied  # four weights and x
copied.clear()
assert torch.equal(model(x), first)
assert copied.count(device) == 1, copied
model.weights["2.bias"].add_(1)
copied.clear()
torch.testing.assert_close(model(x), first + 1)
assert copied.count(device) == 2, copied
"""


def test_weights_stay_on_a_device_that_is_not_the_hosts(path: Path) -> None:
    """What a TPU does with weights, on a second device of the CPU's platform."""
    flags = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, "-c", AWAY, str(path), "ignore"]
    done = subprocess.run(command, env=flags, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_description_of_this_machine() -> None:
    saved = xla_executables.describe("f", "cpu", buffers.device("cpu"))
    assert xla_executables.usable(saved, buffers.device("cpu"))
    assert saved.versions.keys() == {"jaxlib"}
