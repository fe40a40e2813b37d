"""Whatever of torch or JAX is set for the whole process, and why: ``doctor`` lists it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """One process-wide change.

    Attributes:
        name: what is set.
        why: what it is for, and how long it lasts.
        current: what it is now, as text.
    """

    name: str
    why: str
    current: Callable[[], str]


def _tpu_namespace() -> str:
    import sys

    return "defined" if "tpu_compile.random_ops" in sys.modules else "not defined"


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "torch.ops.tpu",
        "the custom ops that graphs hold after our passes; defined at the first compile",
        _tpu_namespace,
    ),
)
