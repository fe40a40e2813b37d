"""Puts the worst there can be into padding, and this folder on the path, for what tests share."""

import sys
from pathlib import Path

import pytest

from tpu_compile.padding import bucketed

sys.path.insert(0, str(Path(__file__).parent))

from rounded import garbage


@pytest.fixture(autouse=True)
def _garbage_in_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucketed, "blank", garbage)
