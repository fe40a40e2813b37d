"""Every op of a graph, compiled alone and fed with torch's values, compared with torch's kernel."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from tpu_compile.accuracy.left_open import LEFT_OPEN, as_torch_has_it
from tpu_compile.accuracy.one_op import OneOpPrograms, parts
from tpu_compile.accuracy.reference import (
    SAMPLES,
    UNDEFINED,
    Reference,
    in_float64,
    value_in_float64,
)
from tpu_compile.accuracy.result import OpFinding, Status, line_of, name_of
from tpu_compile.accuracy.script import script_of
from tpu_compile.accuracy.tolerance import Tolerance, compare_all
from tpu_compile.errors import MissingLowering, UnsupportedCase
from tpu_compile.lowering.types import RuntimeScalar

_NOTHING_TO_COMPARE: dict[Any, str] = {
    **dict.fromkeys(SAMPLES, "random: both sides were given what its program gave"),
    **dict.fromkeys(UNDEFINED, "what it gives is not defined"),
}


class OpCheck(Reference):
    """Runs a graph by torch's kernels, and each of its ops by its rule as well.

    Attributes:
        findings: one for each op that computes something, in graph order.
    """

    def __init__(
        self, gm: fx.GraphModule, programs: OneOpPrograms, tolerance: Tolerance, graph: str
    ) -> None:
        super().__init__(gm, programs.samples)
        self.findings: list[OpFinding] = []
        self._programs, self._tolerance, self._graph = programs, tolerance, graph

    def run_node(self, n: fx.Node) -> Any:
        """Gives torch's value of a node, and compares."""
        value = super().run_node(n)
        if _computes(n):
            found = self._finding(n, value)
            self.findings.append(found)
            if n.target in LEFT_OPEN and found.status == "right":
                return self._programs.choices[n.target](self.gm, n, self.inputs(n))
        return value

    def _finding(self, node: fx.Node, value: Any) -> OpFinding:
        found = OpFinding(self._graph, node.name, name_of(node), *line_of(node))
        if why := _NOTHING_TO_COMPARE.get(node.target):
            return found.with_(status="skipped", why=why)
        inputs = self.inputs(node)
        try:
            got = self._programs.run(self.gm, node, inputs)
        except Exception as err:
            return found.with_(status=self._status(err), why=f"{type(err).__name__}: {err}")
        numbers = parts(node)
        names = [""] if numbers is None else [f"result {i}" for i in numbers]
        read = lambda v: [v] if numbers is None else [v[i] for i in numbers]  # noqa: E731
        if node.target in LEFT_OPEN and numbers is not None:
            pairs = zip(numbers, got, strict=True)
            got = [as_torch_has_it(node, inputs, value, i, v) for i, v in pairs]
        exact = lambda: in_float64(lambda: read(value_in_float64(node, inputs)))  # noqa: E731
        differences = tuple(compare_all(got, read(value), names, self._tolerance, exact))
        if not any(d.departs for d in differences):
            return found.with_(differences=differences)
        script = script_of(node, inputs, self._tolerance)
        return found.with_(status="departs", differences=differences, repro=script)

    def _status(self, err: Exception) -> Status:
        # as the backend does: such an op is a stage of its own, and torch runs it
        falls_back = self._programs.options.fallback == "warn"
        declined = isinstance(err, MissingLowering | UnsupportedCase)
        return "eager" if falls_back and declined else "failed"


def _computes(node: fx.Node) -> bool:
    """Whether something is lowered for a node, and read."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    val = node.meta.get("val")
    return isinstance(val, torch.Tensor | RuntimeScalar) or bool(
        isinstance(val, list | tuple) and parts(node)
    )
