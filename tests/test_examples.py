"""Each example runs by itself and succeeds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.slow  # CI runs the examples themselves
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example: Path) -> None:
    subprocess.run([sys.executable, example], check=True, timeout=300)


def test_there_are_examples() -> None:
    assert [path.stem for path in EXAMPLES] == [
        "aot_llama",
        "compile_llama",
        "export_and_load",
        "train_mingpt",
        "train_mlp",
    ]
