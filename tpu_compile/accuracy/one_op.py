"""One node of a graph as a program of its own, which runs the node's rule and little else."""

from __future__ import annotations

import copy
import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tpu_compile import errors, torch_internals
from tpu_compile.accuracy.left_open import LEFT_OPEN
from tpu_compile.accuracy.reference import SAMPLES, Choices
from tpu_compile.calling import VIEWS
from tpu_compile.executable import Executable, compile_graph
from tpu_compile.lowering.interpreter import Settings
from tpu_compile.lowering.types import RuntimeScalar
from tpu_compile.options import Options
from tpu_compile.specialize import Spec

aten = torch.ops.aten


def parts(node: fx.Node) -> list[int] | None:
    """The numbers of a node's results that are read, or None where it has one result."""
    val = node.meta["val"]
    if not isinstance(val, list | tuple):
        return None
    read = {u.args[1] for u in node.users if u.target is operator.getitem}
    return sorted(i for i in read if isinstance(i, int) and isinstance(val[i], torch.Tensor))


@dataclass
class OneOpPrograms:
    """Compiles and runs single nodes, each combination of op and types once."""

    options: Options
    settings: Settings
    _compiled: dict[str, Executable] = field(default_factory=dict)

    def run(self, gm: fx.GraphModule, node: fx.Node, inputs: dict[fx.Node, Any]) -> list[Any]:
        """A node's results (those of ``parts``), given the values of what it reads."""
        key = _key(node, inputs)
        exe = self._compiled.get(key)
        if exe is None:
            exe = self._compiled[key] = self._compile(graph_of(gm, node, inputs))
        return exe([v for n, v in inputs.items() if _is_argument(n, v)])

    @property
    def samples(self) -> Choices:
        """For ops that torch has no kernel for: what their programs give."""
        return dict.fromkeys(SAMPLES, self._value)

    @property
    def choices(self) -> Choices:
        """For ops whose results are left open in part: what their programs give."""
        return dict.fromkeys(SAMPLES | LEFT_OPEN, self._value)

    def _value(self, gm: fx.GraphModule, node: fx.Node, inputs: dict[fx.Node, Any]) -> Any:
        numbers = parts(node)
        try:
            values = self.run(gm, node, inputs)
        except errors.TpuCompileError:
            if node.target in SAMPLES:
                raise
            args, kwargs = fx.map_arg((node.args, node.kwargs), inputs.__getitem__)
            return node.target(*args, **kwargs)  # type: ignore[operator]
        return values[0] if numbers is None else dict(zip(numbers, values, strict=True))

    def _compile(self, gm: fx.GraphModule) -> Executable:
        return compile_graph(
            gm,
            self.settings,
            compiler_options=dict(self.options.compiler_options),
            cache=self.options.cache,
        )


def graph_of(gm: fx.GraphModule, node: fx.Node, inputs: dict[fx.Node, Any]) -> fx.GraphModule:
    """A graph of one node.

    A result that is only a view of an argument is made by torch and not by the program. So what
    takes a view reads a copy of its argument here, and has one for each of its results.
    """
    graph = fx.Graph()
    given = {n: _given(graph, n, v) for n, v in inputs.items()}
    numbers = parts(node)
    if node.target in VIEWS:
        outputs = [
            _part(graph, _copy_of(graph, node, _cloned(graph, given)), i)
            for i in (numbers if numbers is not None else [None])
        ]
    else:
        whole = _copy_of(graph, node, given)
        outputs = [_part(graph, whole, i) for i in (numbers if numbers is not None else [None])]
    graph.output(tuple(outputs))
    return torch_internals.graph_module(gm, graph)


def _is_argument(node: fx.Node, value: Any) -> bool:
    return isinstance(value, torch.Tensor) or isinstance(node.meta.get("val"), RuntimeScalar)


def _given(graph: fx.Graph, node: fx.Node, value: Any) -> Any:
    if isinstance(value, torch.nn.Module):
        return graph.get_attr(str(node.target))
    if not _is_argument(node, value):
        return value
    placeholder = graph.placeholder(node.name)
    tensor = isinstance(value, torch.Tensor)
    placeholder.meta["val"] = Spec.of(value).tensor() if tensor else node.meta["val"]
    return placeholder


def _cloned(graph: fx.Graph, given: dict[fx.Node, Any]) -> dict[fx.Node, Any]:
    return {n: _clone(graph, v) if isinstance(v, fx.Node) else v for n, v in given.items()}


def _clone(graph: fx.Graph, x: fx.Node) -> fx.Node:
    out = graph.call_function(aten.clone.default, (x,))
    out.meta["val"] = x.meta["val"]  # of the same strides: rules may ask for them
    return out


def _copy_of(graph: fx.Graph, node: fx.Node, given: dict[fx.Node, Any]) -> fx.Node:
    args, kwargs = (fx.map_arg(v, given.__getitem__) for v in (node.args, node.kwargs))
    out = graph.call_function(node.target, args, kwargs)  # type: ignore[arg-type]
    out.meta = copy.copy(node.meta)
    return out


def _part(graph: fx.Graph, node: fx.Node, number: int | None) -> fx.Node:
    if number is None:
        return node
    out = graph.call_function(operator.getitem, (node, number))
    out.meta["val"] = node.meta["val"][number]
    return out


def _key(node: fx.Node, inputs: dict[fx.Node, Any]) -> str:
    """What two nodes have in common where one program serves both."""
    order = {n: i for i, n in enumerate(inputs)}  # one argument read twice is one argument

    def kind(n: fx.Node) -> Any:
        value = inputs[n]
        if isinstance(value, torch.Tensor):
            return order[n], Spec.of(value)
        if isinstance(value, torch.nn.Module):
            return id(value)
        return order[n], n.meta["val"] if _is_argument(n, value) else value

    given = fx.map_arg((node.args, node.kwargs), kind)
    types = pytree.tree_map_only(torch.Tensor, Spec.of, node.meta["val"])
    return repr((str(node.target), given, parts(node), types))
