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
