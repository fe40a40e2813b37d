"""What can't be exported, loaded or called, each with a text that says why."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tpu_compile import errors
from tpu_compile.portable.errors import (
    DamagedExport,
    ExecutableRefused,
    NewerFormat,
    NotAnExport,
    NotExportable,
    PlatformNotExported,
    WrongInput,
)
from tpu_compile.portable.loading import load
from tpu_compile.portable.saving import export


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.tpuc"
    export(nn.Linear(4, 2), (torch.ones(3, 4),), path, platforms=["cpu"])
    return path


def rewrite(path: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    """Changes the members of a file as a zip tool would, with new checksums of the zip's own."""
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)


def edit(**fields: Any) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        manifest = json.loads(members["manifest.json"])
        members["manifest.json"] = json.dumps({**manifest, **fields}).encode()

    return change


# ---------------------------------------------------------------- files


def test_the_same_model_gives_the_same_file(path: Path, tmp_path: Path) -> None:
    again = load(path).weights
    model = nn.Linear(4, 2)
    model.load_state_dict(again)
    other = tmp_path / "other"
    export(model, (torch.ones(3, 4),), other, platforms=["cpu"])
    assert other.read_bytes() == path.read_bytes()


def test_an_export_that_fails_leaves_nothing(path: Path, monkeypatch: Any) -> None:
    from tpu_compile.portable import safetensors_file

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    before = path.read_bytes()
    monkeypatch.setattr(safetensors_file, "write", fail)
    with pytest.raises(OSError, match="disk full"):
        export(nn.Linear(4, 2), (torch.ones(3, 4),), path, platforms=["cpu"])
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_other_files(path: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("not a zip")
    with pytest.raises(NotAnExport, match=r"text was not written by .*: it is no zip file"):
        load(text)
    torch.save({}, tmp_path / "checkpoint")
    with pytest.raises(NotAnExport):
        load(tmp_path / "checkpoint")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nothing")
    rewrite(path, edit(format="else"))
    with pytest.raises(NotAnExport, match="of something else"):
        load(path)


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/b", "..", "a\\b"])
def test_member_names_that_are_paths(path: Path, name: str) -> None:
    rewrite(path, lambda members: members.update({name: b""}))
    with pytest.raises(NotAnExport, match="it has a member"):
        load(path)


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
def test_truncated_file(path: Path, kept: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(DamagedExport, match="it ends early"):
        load(path)


def test_every_flipped_byte_of_weights_and_program_is_noticed(path: Path) -> None:
    data = path.read_bytes()
    with zipfile.ZipFile(path) as file:
        infos = [i for i in file.infolist() if i.filename != "manifest.json"]
    assert len(infos) == 2
    for info in infos:
        for at in range(0, info.file_size, max(1, info.file_size // 7)):
            place = data.index(info.filename.encode(), info.header_offset) + len(info.filename)
            place += at + 24  # past the extra field
            path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            with pytest.raises(DamagedExport):
                load(path)


def test_member_replaced_with_a_valid_checksum(path: Path) -> None:
    def other_weights(members: dict[str, bytes]) -> None:
        data = bytearray(members["weights.safetensors"])
        data[-1] ^= 1
        members["weights.safetensors"] = bytes(data)

    rewrite(path, other_weights)
    with pytest.raises(DamagedExport, match=r"weights\.safetensors: its digest is not"):
        load(path)


def test_members_that_are_missing_or_too_many(path: Path) -> None:
    rewrite(path, lambda members: members.update(more=b"x"))
    with pytest.raises(DamagedExport, match="differ in 'more'"):
        load(path)
    rewrite(path, lambda members: [members.pop(n) for n in ("more", "weights.safetensors")])
    with pytest.raises(DamagedExport, match=r"differ in 'weights\.safetensors'"):
        load(path)
    rewrite(path, lambda members: members.pop("manifest.json"))
    with pytest.raises(NotAnExport, match=r"it has no manifest\.json"):
        load(path)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"outputs": [{"result": 7}]}, "refers to what is not there"),
        ({"outputs": 3}, "manifest.outputs is 3"),
        ({"tree": {"kind": "__import__"}}, "manifest.tree.kind is '__import__'"),
        ({"arguments": [{}]}, "lacks 'array'"),
        ({"weights": {}}, "refers to what is not there"),
        ({"arguments": [{"array": {"dtype": "f", "shape": [], "order": []}}]}, "no dtype 'f'"),
    ],
)
def test_manifests_that_make_no_sense(path: Path, fields: dict[str, Any], why: str) -> None:
    rewrite(path, edit(**fields))
    with pytest.raises(DamagedExport, match=why):
        load(path)


def test_newer_format(path: Path) -> None:
    rewrite(path, edit(version=2, versions={"tpu_compile": "9.1"}, parameters="who knows"))
    with pytest.raises(NewerFormat, match=r"version 2, written by tpu_compile 9\.1.*up to 1"):
        load(path)


def test_platform_that_was_not_exported(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    export(nn.Linear(4, 2), (torch.ones(3, 4),), other, platforms=["tpu"])
    with pytest.raises(PlatformNotExported, match=r"for \['tpu'\], none for 'cpu'"):
        load(other, device="cpu")
    with pytest.raises(errors.TargetUnavailable):
        load(path, device="tpu")
    with pytest.raises(errors.InvalidOption, match="device='gpu'"):
        load(path, device="gpu")
    with pytest.raises(ExecutableRefused, match="it holds none"):
        load(path, executable="require")


# ---------------------------------------------------------------- calls


X, ONE = torch.ones(3, 4), torch.ones(1)
GOOD = {"a": [ONE, ONE], "n": 2}


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((), {}, "input 'x': is missing"),
        ((X,), {"y": 1}, "input 'pair': is missing"),
        ((X, GOOD, 3), {}, "input 3: takes 2 by position"),
        ((X, GOOD), {"x": 1}, "input 'x': is given twice"),
        ((1, GOOD), {}, "input x: expected a tensor, got a int"),
        ((torch.ones(3, 5), GOOD), {}, r"x: expected float32\[3, 4\], got float32\[3, 5\]"),
        ((X.double(), GOOD), {}, r"expected float32\[3, 4\], got float64\[3, 4\]"),
        ((X, 3), {}, r"input pair: expected a dict with the keys \['a', 'n'\], got a int"),
        ((X, {"a": [1]}), {}, r"input pair: expected the keys \['a', 'n'\], got \['a'\]"),
        ((X, {"a": [1], "n": 2}), {}, r"input pair\['a'\]: expected a list of 2, got 1"),
        ((X, {"a": [ONE, 2], "n": 2}), {}, r"input pair\['a'\]\[1\]: expected a tensor, got a int"),
        ((X, {**GOOD, "n": 3}), {}, r"input pair\['n'\]: the model was exported for 2, got 3"),
    ],
)
def test_wrong_arguments(tmp_path: Path, args: Any, kwargs: Any, why: str) -> None:
    def f(x: Tensor, pair: dict[str, Any]) -> Tensor:
        return x * pair["n"] + pair["a"][0] * pair["a"][1]

    good = (X, GOOD)
    export(f, good, tmp_path / "f", platforms=["cpu"])
    loaded = load(tmp_path / "f", device="cpu")
    assert torch.equal(loaded(*good), f(*good))
    with pytest.raises(WrongInput, match=why):
        loaded(*args, **kwargs)
    with pytest.raises(WrongInput, match="input 'y': is not among"):
        loaded(*good, y=1)


# ---------------------------------------------------------------- exports


def test_what_can_not_be_exported(tmp_path: Path) -> None:
    x, path = torch.ones(3), tmp_path / "f"

    def refused(why: str, model: Any, args: Any = (x,), **kwargs: Any) -> None:
        with pytest.raises(NotExportable, match=why):
            export(model, args, path, **kwargs)
        assert not path.exists()

    refused("args must be a tuple", torch.sin, x)
    refused("neither a module", 3)
    refused("does not capture it", lambda x: x.nonzero() if x.sum() > 0 else x)
    refused("there is no such platform", torch.sin, platforms=["gpu"])
    refused("there is no such platform", torch.sin, platforms=[])
    sizes = {"x": {0: torch.export.Dim("n", min=2, max=8)}}
    dynamic = torch.export.export(nn.ReLU(), (x,), dynamic_shapes={"input": sizes["x"]})
    refused("it has sizes that vary or depend on data", dynamic)
    refused("keys must be strings or integers", lambda x: {1.5: x + 1})


def test_weights_without_values(tmp_path: Path) -> None:
    with torch.device("meta"):
        program = torch.export.export(nn.Linear(3, 3), (torch.ones(3),))
    with pytest.raises(NotExportable, match=r"weight 'weight'.* is on the meta device"):
        export(program, (), tmp_path / "f")


def test_writes_to_memory_that_another_weight_reads(tmp_path: Path) -> None:
    class Overlapping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("all", torch.zeros(4))
            self.register_buffer("first", self.all[:2])

        def forward(self, x: Tensor) -> Tensor:
            self.first += x
            return self.all.sum() + x

    with pytest.raises(NotExportable, match=r"'first'.*shares memory with 'all'"):
        export(Overlapping(), (torch.ones(2),), tmp_path / "f")


def test_data_dependent_sizes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotExportable, match="sizes that vary or depend on data"):
        export(lambda x: x.nonzero(), (torch.ones(3),), tmp_path / "f")


def test_unknown_topology(tmp_path: Path) -> None:
    with pytest.raises(errors.UnknownTopology, match="v6e:2x4"):
        export(torch.sin, (torch.ones(3),), tmp_path / "f", topology="v6e:2x3")


def test_missing_rule_names_the_line(tmp_path: Path) -> None:
    def f(x: Tensor) -> Tensor:
        return torch.linalg.eigvals(x)

    with pytest.raises(errors.TpuCompileError, match="eig"):
        export(f, (torch.eye(2),), tmp_path / "f", platforms=["tpu"])
