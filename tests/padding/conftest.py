"""Puts the worst there can be into padding, and what tests share on the path."""

import sys
from pathlib import Path

import pytest

from tpu_compile.padding import bucketed

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "lowering")]

from rounded import garbage  # noqa: E402


@pytest.fixture(autouse=True)
def _garbage_in_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucketed, "blank", garbage)
