"""``tpu-compile aot`` as a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tpu_compile.cli import main

SCRIPT = """
import torch

def linear():
    return torch.nn.Linear(1 << 14, 64), (torch.ones(8, 1 << 14),)

def huge():
    return torch.nn.Linear(1 << 18, 1 << 17, bias=False), (torch.ones(8, 1 << 18),)

def wrong():
    return torch.ones(3)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "linear_script.py"
    path.write_text(SCRIPT)
    return path


def test_prints_a_report_and_writes_json(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("libtpu")
    out = tmp_path / "figures.json"
    args = ["aot", f"{script}:linear", "--topology", "v5e", "--effort", "fit", "--json", str(out)]
    assert main([*args, "--top", "1"]) == 0
    assert "v5e:1x1" in capsys.readouterr().out
    (program,) = json.loads(out.read_text())["programs"]
    assert program["cost"]["model_flops"] == 2 * 8 * 64 * 2**14


def test_over_a_mesh(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("libtpu")
    args = ["aot", f"{script}:linear", "--topology", "v5e:2x2", "--effort", "fit", "--json", "-"]
    mesh = ["--mesh", "data=2,model=2", "--shard", "input=data", "--shard", "weight=model,-"]
    assert main([*args, *mesh]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["mesh"] == {"data": 2, "model": 2}
    assert out["programs"][0]["shardings"] == {"input": "('data',)", "weight": "('model', None)"}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["--mesh", "data"], "data=2,model=4"),
        (["--mesh", "data=8"], "mesh (data=8) has 8 devices"),
        (["--mesh", "data=4", "--shard", "weight"], "an entry for each dimension"),
        (["--mesh", "data=4", "--shard", "weight=dta"], "Did you mean 'data'?"),
        (["--mesh", "data=4", "--shard", "wight=data"], "Names are such as weight"),
        (["--shard", "weight=data"], "They need a mesh"),
    ],
)
def test_a_wrong_mesh_exits_with_2(
    script: Path, given: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("libtpu")
    assert main(["aot", f"{script}:linear", "--topology", "v5e:2x2", *given]) == 2
    assert text in " ".join(capsys.readouterr().err.split())


def test_a_model_that_does_not_fit_exits_with_1(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("libtpu")
    # 128 GiB: on the meta device it takes no memory here
    assert main(["aot", f"{script}:huge", "--topology", "v5e", "--effort", "fit"]) == 1
    assert "float32[131072, 262144]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "topology", "text"),
    [
        ("nothing.py:fn", "v5e", "there is no file nothing.py"),
        ("{script}:nothing", "v5e", "no function nothing"),
        ("{script}:wrong", "v5e", "it returned Tensor"),
        ("{script}:linear", "v5x", "Valid names"),
    ],
)
def test_a_wrong_request_exits_with_2(
    script: Path, target: str, topology: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("libtpu")
    assert main(["aot", target.format(script=script), "--topology", topology]) == 2
    assert text in " ".join(capsys.readouterr().err.split())
