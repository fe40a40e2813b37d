"""``explain``: what becomes of a function on its way to a program, step by step, as text."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tpu_compile import compile_log, partition

_FILE = re.compile(r"\d+_(\w+)")


@dataclass(frozen=True)
class Step:
    """One step of one graph.

    Attributes:
        graph: its number and kind, as in "000_forward".
        name: "captured", a pass's name, or "stablehlo".
        text: Python code of an FX graph, or MLIR.
    """

    graph: str
    name: str
    text: str


@dataclass(frozen=True)
class Explanation:
    """What ``explain`` found.

    Attributes:
        steps: each step of each graph, in order.
        fallbacks: for each op that runs eagerly, in how many places.
        times: seconds per compile stage.
    """

    steps: tuple[Step, ...]
    fallbacks: dict[str, int]
    times: dict[str, float]

    @property
    def graphs(self) -> list[str]:
        """The captured graphs, as Python code."""
        return [s.text for s in self.steps if s.name == "captured"]

    @property
    def mlir(self) -> list[str]:
        """The StableHLO programs."""
        return [s.text for s in self.steps if s.name == "stablehlo"]


def explain(
    fn: Callable[..., Any],
    *args: Any,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Explanation:
    """Compiles a function or module afresh for some arguments, runs it once and tells the steps.

    Args:
        fn: what ``torch.compile`` would be called with.
        args: its arguments; where one requires grad, the backward is compiled too.
        options: as for the backend.
        kwargs: its keyword arguments.
    """
    counts, times = partition.fallbacks(), compile_log.stage_times()
    with tempfile.TemporaryDirectory() as folder:
        chosen = {**(options or {}), "dump_dir": folder}
        torch.compile(fn, backend="tpu", options=chosen)(*args, **kwargs)
        steps = tuple(_read(p) for p in sorted(Path(folder).glob("*/*")))
    return Explanation(
        steps,
        {k: n - counts.get(k, 0) for k, n in partition.fallbacks().items() if n > counts.get(k, 0)},
        {k: t - times.get(k, 0.0) for k, t in compile_log.stage_times().items()},
    )


def _read(path: Path) -> Step:
    match = _FILE.match(path.stem)
    return Step(path.parent.name, match[1] if match else path.stem, path.read_text())
