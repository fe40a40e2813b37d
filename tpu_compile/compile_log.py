"""What was compiled and why, and how long each stage took."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from tpu_compile import torch_internals
from tpu_compile.errors import Recompiled, RecompileWarning

_lock = threading.Lock()
_stages: dict[str, float] = defaultdict(float)


@dataclass(frozen=True)
class Compile:
    """One compile of a piece of the user's code.

    Attributes:
        where: ``file:line in function`` of the code that was compiled.
        reason: the guard that failed, the shape that was new, or "first compile".
        graph: "frame" for a Dynamo compile; "forward", "backward" or "inference" for a new shape of
            a graph that Dynamo had traced already.
        recompile: whether the same code had been compiled before.
    """

    where: str
    reason: str
    graph: str
    recompile: bool


_compiles: list[Compile] = []


def add_stage(name: str, seconds: float) -> None:
    """Adds time to a stage: dynamo, aot, passes, lowering or xla."""
    with _lock:
        _stages[name] += seconds


def stage_times() -> dict[str, float]:
    """Seconds spent in each compile stage since the start or the last ``reset``."""
    with _lock:
        return dict(_stages)


def recompiles() -> list[Compile]:
    """Every compile since the start or the last ``reset``, oldest first."""
    with _lock:
        return list(_compiles)


def reset() -> None:
    """Forgets all times and compiles so far."""
    with _lock:
        _stages.clear()
        _compiles.clear()


@contextlib.contextmanager
def frame(gm: fx.GraphModule, policy: str) -> Iterator[None]:
    """Records a compile by Dynamo, and warns of it or forbids it where it is not the first.

    One that does not come to its end is no compile: Dynamo starts again when AOTAutograd finds
    that a number could have been a tensor.
    """
    reason = torch_internals.recompile_reason()
    where = torch_internals.where(gm)
    entry = Compile(where, reason or "first compile", "frame", reason is not None)
    _record(entry, policy)
    try:
        yield
    except BaseException:
        with _lock:
            _compiles[:] = [c for c in _compiles if c is not entry]
        raise


def new_shape(where: str, kind: str, args: Sequence[Any], policy: str) -> None:
    """Records a compile for a new shape of a graph that Dynamo did not trace again."""
    shapes = ", ".join(str(list(a.shape)) for a in args if isinstance(a, torch.Tensor))
    ints = ", ".join(str(a) for a in args if not isinstance(a, torch.Tensor))
    reason = f"new shapes {shapes}" + (f" and integers {ints}" if ints else "")
    _record(Compile(where, reason, kind, recompile=True), policy)


def _record(entry: Compile, policy: str) -> None:
    if entry.recompile and policy == "error":
        raise Recompiled(reason=f"{entry.where}: {entry.reason}")
    with _lock:
        _compiles.append(entry)
    if entry.recompile and policy == "warn":
        text = f"{entry.where} is compiled again: {entry.reason}"
        warnings.warn(text, RecompileWarning, stacklevel=3)
