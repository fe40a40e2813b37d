"""What ``bisect`` found, as data, as text and as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx

from tpu_compile.accuracy.tolerance import Difference, Tolerance
from tpu_compile.errors import user_frame, user_line

Where = Literal["nothing", "capture", "pass", "op", "program"]
Status = Literal["right", "departs", "failed", "eager", "skipped"]

SHOWN = 5  # of what may be many


@dataclass(frozen=True)
class OpFinding:
    """One op, compiled alone and fed with torch's values.

    Attributes:
        graph: its graph, as in "0 forward".
        node: its name there.
        op: as in "aten.tanh.default".
        line: the user's, as in "model.py:12"; "" where torch recorded none.
        source: the text of that line.
        status: "failed" where it did not compile or run, "eager" where it has no rule and so runs
            by torch's own kernel, "skipped" where there is nothing to compare with.
        differences: one for each of its results that is read.
        why: the reason, where it was not compared.
        repro: a script that runs it alone, where it departs and that is simple to write.
    """

    graph: str
    node: str
    op: str
    line: str
    source: str
    status: Status = "right"
    differences: tuple[Difference, ...] = ()
    why: str = ""
    repro: str = ""

    def with_(self, **fields: Any) -> OpFinding:
        """The finding with some fields filled in."""
        return dataclasses.replace(self, **fields)

    @property
    def difference(self) -> Difference | None:
        """Of the result that is furthest off for its tolerance."""
        return max(self.differences, key=_distance, default=None)

    def __str__(self) -> str:
        said = self.difference.size if self.difference else self.why.partition("\n")[0]
        where = f"%{self.node} ({self.graph})"
        return "  ".join(filter(None, [self.op, self.line, where, said]))


def _distance(d: Difference) -> float:
    return math.inf if d.why else d.excess


@dataclass(frozen=True)
class Bisection:
    """The first place where compiled code departs from eager torch.

    Attributes:
        where: "capture": the captured graph, run by torch's own kernels, is not what the model is;
            "pass": a pass changed what a graph gives; "op": one op alone is off; "program": each
            op is right alone, and not together; "nothing".
        tolerance: what was allowed.
        ops: every op compared, in graph order.
        passes: the passes that changed something and were compared, with their graph.
        notes: what was not compared, and why.
        name: of the pass or the op.
        graph: the graph, as in "0 forward".
        node: the op's name there.
        line: the user's, as in "model.py:12".
        source: the text of that line.
        errors: how far off it is.
        why: the text of the error, where something failed.
        repro: a script that runs the op alone, compiled and eagerly, where that is simple.
    """

    where: Where
    tolerance: Tolerance
    ops: tuple[OpFinding, ...] = ()
    passes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    name: str = ""
    graph: str = ""
    node: str = ""
    line: str = ""
    source: str = ""
    errors: tuple[Difference, ...] = ()
    why: str = ""
    repro: str = ""

    @property
    def by(self) -> str:
        """What computes the op in a program: its rule, or a kernel that the rule hands over to."""
        return f"the rule of {self.name}"

    @property
    def departed(self) -> list[OpFinding]:
        """The ops that are off or failed, in graph order."""
        return [op for op in self.ops if op.status in ("departs", "failed")]

    def worst(self, count: int = SHOWN) -> list[OpFinding]:
        """The ops whose error is largest for its tolerance, largest first."""
        compared = [op for op in self.ops if op.difference is not None]
        return sorted(compared, key=lambda op: -_distance(op.difference))[:count]  # type: ignore[arg-type]

    def to_json(self) -> str:
        """All of it as JSON; numbers that JSON has not are strings."""
        return json.dumps(_plain(dataclasses.asdict(self)), indent=2)

    def __str__(self) -> str:
        lines = [_HEADLINES[self.where].format(self=self)]
        if self.line:
            lines.append(f"  {self.line}  {self.source}".rstrip())
        lines += [f"  {e}" for e in _limited(self.errors)]
        lines += [f"  {text}" for text in self.why.splitlines()]
        lines += self._ops_as_text()
        lines.append(f"tolerance: {self.tolerance}")
        if self.passes:
            lines.append(f"passes compared: {', '.join(self.passes)}")
        lines += [f"note: {note}" for note in self.notes]
        if self.repro:
            lines += ["to reproduce:", *(f"  {text}".rstrip() for text in self.repro.splitlines())]
        return "\n".join(lines)

    def _ops_as_text(self) -> list[str]:
        if not self.ops:
            return []
        if off := self.departed:
            head = f"{len(off)} of {len(self.ops)} ops depart, each compiled alone:"
            return [head, *(f"  {op}" for op in _limited(off))]
        largest = [op.difference for op in self.ops if op.difference]
        exact = sum(not _distance(d) for d in largest)
        worst = [op for op in self.worst() if op.difference and op.difference.excess]
        eager = [op for op in self.ops if op.status == "eager"]
        return [
            f"{len(self.ops)} ops, each compiled alone: {exact} equal torch's exactly"
            f"{'; closest to the tolerance:' if worst else ''}",
            *(f"  {op}" for op in worst),
            *(f"runs by torch's own kernel: {op}" for op in _limited(eager)),
        ]


_HEADLINES = {
    "nothing": "nothing departs from eager torch",
    "capture": (
        "the captured graph departs from the model: run by torch's own kernels, it gives something "
        "else. Capture or a decomposition is at fault, no rule and no pass"
    ),
    "pass": "pass {self.name!r} departs, on graph {self.graph}",
    "op": "{self.by} departs from torch: %{self.node} in graph {self.graph}",
    "program": (
        "the program of graph {self.graph} departs from torch at {self.by} (%{self.node}), "
        "where every op is right alone"
    ),
}


def _limited(items: Any) -> list[Any]:
    more = len(items) - SHOWN
    return [*items[:SHOWN], *([f"and {more} more"] if more > 0 else [])]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return value if isinstance(value, str | int | float | None) else repr(value)


def name_of(node: fx.Node) -> str:
    """An op's name, as in "aten.tanh.default"."""
    op = node.target
    named = isinstance(op, torch._ops.OpOverload | torch._ops.HigherOrderOperator)
    return str(op) if named else getattr(op, "__name__", str(op))


def line_of(node: fx.Node) -> tuple[str, str]:
    """The user's line that a node comes from: where it is, and its text."""
    frame = user_frame(node) or ""
    return user_line(node), frame.splitlines()[1].strip() if "\n" in frame else ""
