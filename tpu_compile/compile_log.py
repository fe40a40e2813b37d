"""What was compiled, why, and how long each stage took."""

from __future__ import annotations

import threading
from collections import defaultdict

_lock = threading.Lock()
_stages: dict[str, float] = defaultdict(float)


def add_stage(name: str, seconds: float) -> None:
    """Adds time to a stage: dynamo, aot, passes, lowering or xla."""
    with _lock:
        _stages[name] += seconds


def stage_times() -> dict[str, float]:
    """Seconds spent in each compile stage since the start or the last ``reset``."""
    with _lock:
        return dict(_stages)


def reset() -> None:
    """Forgets all times and compiles so far."""
    with _lock:
        _stages.clear()
