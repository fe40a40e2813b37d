"""A captured program to its calling convention: the manifest's arguments, results and outputs."""

from __future__ import annotations

import itertools
import operator
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument

from tpu_compile import buffers
from tpu_compile.portable import trees, views, weights
from tpu_compile.portable.capture import Captured
from tpu_compile.portable.errors import NotExportable
from tpu_compile.portable.functional import weight_of
from tpu_compile.portable.manifest import (
    Argument,
    Array,
    Input,
    Manifest,
    Output,
    Parameter,
    Result,
    Weight,
    dtype_name,
)

_KINDS: dict[InputKind, weights.Kind] = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
}
_MUTATIONS = (
    OutputKind.BUFFER_MUTATION,
    OutputKind.PARAMETER_MUTATION,
    OutputKind.USER_INPUT_MUTATION,
)


@dataclass
class Plan:
    """What to lower, what to store, and the manifest that says how they are called.

    Attributes:
        manifest: without its files.
        gm: the graph; a placeholder for each argument, in order.
        results: the nodes whose values the program returns.
        stored: tensors to store, by the name that the manifest's weights give.
    """

    manifest: Manifest
    gm: fx.GraphModule
    results: tuple[fx.Node, ...]
    stored: dict[str, torch.Tensor]


def plan(captured: Captured, versions: dict[str, str]) -> Plan:
    """Reads the calling convention off a captured program.

    Raises:
        NotExportable: for what a file can't hold, such as script objects.
    """
    return _Planner(captured).plan(versions)


@dataclass
class _Planner:
    captured: Captured
    inputs: list[Input] = field(default_factory=list)
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    kinds: dict[str, weights.Kind] = field(default_factory=dict)
    # where a placeholder's value comes from
    sources: dict[fx.Node, Argument] = field(default_factory=dict)
    # the weights, or the input, that a placeholder is
    names: dict[fx.Node, list[str]] = field(default_factory=lambda: defaultdict(list))
    numbers: dict[fx.Node, int] = field(default_factory=dict)
    # what a node's value is written into: names of weights, numbers of inputs
    into: dict[fx.Node, tuple[list[str], list[int]]] = field(default_factory=dict)
    results: dict[fx.Node, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        program = self.captured.program
        self.signature = program.graph_signature
        self.functional = self.captured.functional
        self.gm = self.functional.gm

    def plan(self, versions: dict[str, str]) -> Plan:
        parameters = self._parameters()
        self._read_inputs([path for p in parameters for path in p.tree.paths(p.name)])
        self._read_mutations()
        outputs = self._outputs()
        spec = self.captured.program.call_spec.out_spec
        tree = trees.LEAF if spec is None else trees.of_spec(spec, "what the model returns")
        mutated = {n for names, _ in self.into.values() for n in names}
        mutated |= {n for names in self.names.values() if mutated & {*names} for n in names}
        described, stored = weights.plan(self.state, self.kinds, frozenset(mutated))
        self._drop_unused()
        self._refuse_hidden_writes(described)
        arguments = self._arguments(described)
        manifest = Manifest(
            model=self.captured.model,
            versions=versions,
            parameters=tuple(parameters),
            inputs=tuple(self.inputs),
            weights=described,
            arguments=tuple(arguments),
            results=tuple(self._result(node) for node in self.results),
            outputs=tuple(outputs),
            tree=tree,
        )
        return Plan(manifest, self.gm, tuple(self.results), stored)

    # ------------------------------------------------------------ inputs

    def _parameters(self) -> list[Parameter]:
        spec = self.captured.program.call_spec.in_spec
        assert spec is not None
        positional, by_keyword = spec.children()
        names = list(self.captured.names)
        count = len(positional.children())
        if len(names) < count:  # a program that was saved and loaded by torch may have lost them
            names = [f"arg{i}" for i in range(count)]
        names = [*names[:count], *by_keyword.context]
        specs = [*positional.children(), *by_keyword.children()]
        return [
            Parameter(name, i < count, trees.of_spec(s, f"argument {name!r}"))
            for i, (name, s) in enumerate(zip(names, specs, strict=True))
        ]

    def _read_inputs(self, paths: list[str]) -> None:
        names = iter(paths)
        for spec, node in zip(self.signature.input_specs, self.functional.inputs, strict=True):
            if spec.kind is InputKind.USER_INPUT:
                self._read_input(spec.arg, node, next(names))
            elif spec.kind in _KINDS and node is not None:
                name, value = str(spec.target), weight_of(self.captured.program, spec.target)
                assert value is not None
                self.kinds[name], self.state[name] = _KINDS[spec.kind], value
                self.sources.setdefault(node, Argument(_array(node), weight=name))
                self.names[node].append(name)
            else:
                why = f"it takes a {spec.kind.name.lower().replace('_', ' ')}"
                raise NotExportable(what=f"model {self.captured.model}", why=why)

    def _read_input(self, arg: Any, node: fx.Node | None, path: str) -> None:
        if isinstance(arg, TensorArgument) and node is not None:
            array = _array(node)
            self.sources[node] = Argument(array, input=len(self.inputs))
            self.numbers[node] = len(self.inputs)
            self.inputs.append(Input(path, array))
        elif isinstance(arg, ConstantArgument):
            if not isinstance(arg.value, str | int | float | bool | None):
                why = f"it is a {type(arg.value).__name__}"
                raise NotExportable(what=f"argument {path}", why=why)
            self.inputs.append(Input(path, None, arg.value))
        else:
            raise NotExportable(what=f"argument {path}", why=f"it is a {type(arg).__name__}")

    # ------------------------------------------------------------ outputs

    def _read_mutations(self) -> None:
        """What is written: in place by a program as captured, as a result by a decomposed one."""
        changes = self.functional.written
        by_name = {name: node for node, names in self.names.items() for name in names}
        pairs = zip(self.signature.input_specs, self.functional.inputs, strict=True)
        by_name |= {s.arg.name: node for s, node in pairs if node in self.numbers}
        for spec, node in zip(self.signature.output_specs, self.functional.returned, strict=True):
            if spec.kind in _MUTATIONS:
                changes.append((by_name[str(spec.target)], node))
        for target, node in changes:
            names, numbers = self.into.setdefault(node, ([], []))
            names += self.names[target][:1]  # the others are the same tensor
            numbers += [self.numbers[target]] if target in self.numbers else []
            self._return(node)

    def _outputs(self) -> list[Output]:
        outputs = []
        for spec, node in zip(self.signature.output_specs, self.functional.returned, strict=True):
            if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT):
                outputs.append(self._output(node))
            elif spec.kind not in _MUTATIONS:
                why = f"it returns a {spec.kind.name.lower().replace('_', ' ')}"
                raise NotExportable(what=f"model {self.captured.model}", why=why)
        return outputs

    def _output(self, node: Any) -> Output:
        if not isinstance(node, fx.Node):
            return Output(constant=node)
        base, chain = _view_chain(node)
        if base in self.into and self.into[base][1]:  # an input after it was written into
            return Output(input=self.into[base][1][0], views=chain)
        source = self.sources.get(base)
        if source is not None and not self._written(source):
            return Output(input=source.input, weight=source.weight, views=chain)
        return Output(result=self._return(node))

    def _written(self, source: Argument) -> bool:
        return any(
            source.weight in names or source.input in numbers
            for names, numbers in self.into.values()
        )

    def _return(self, node: fx.Node) -> int:
        return self.results.setdefault(node, len(self.results))

    def _result(self, node: fx.Node) -> Result:
        names, numbers = self.into.get(node, ((), ()))
        return Result(_array(node), tuple(names), tuple(numbers))

    # ------------------------------------------------------------ the graph

    def _drop_unused(self) -> None:
        """Leaves what no op reads out of the program's arguments."""
        needed = set(self.results)
        graph = self.gm.graph
        graph.output_node().args = (tuple(self.results),)
        for node in graph.find_nodes(op="placeholder"):
            if not node.users and node not in needed:
                graph.erase_node(node)
        seeds = graph.find_nodes(op="call_function", target=torch.ops.tpu.seed.default)
        for node in seeds:  # one at most; it becomes the last argument
            last = graph.find_nodes(op="placeholder")
            anchor = last[-1].next if last else next(iter(graph.nodes))
            with graph.inserting_before(anchor):
                seed = graph.placeholder("seed")
            seed.meta = dict(node.meta)
            node.replace_all_uses_with(seed)
            graph.erase_node(node)
            self.sources[seed] = Argument(_array(seed))
        self.gm.recompile()

    def _refuse_hidden_writes(self, described: dict[str, Weight]) -> None:
        """A weight that is written may not be read by another name and layout in the same call."""
        used = [n for p in self.gm.graph.find_nodes(op="placeholder") for n in self.names[p][:1]]
        for names, _ in self.into.values():
            for name, other in itertools.product(names, used):
                a, b = described[name], described[other]
                same = (a.array, a.stride, a.offset) == (b.array, b.stride, b.offset)
                if a.stored == b.stored and not same:
                    why = f"calls write to it, and it shares memory with {other!r}. Clone one"
                    raise NotExportable(what=f"weight {name!r}", why=why)

    def _arguments(self, described: dict[str, Weight]) -> list[Argument]:
        arguments = []
        for node in self.gm.graph.find_nodes(op="placeholder"):
            source = self.sources[node]
            if source.weight is not None:
                source = Argument(described[source.weight].array, weight=source.weight)
            arguments.append(source)
        return arguments


def _array(node: fx.Node) -> Array:
    val = node.meta["val"]
    if not isinstance(val, torch.Tensor):
        raise NotExportable(what=f"the value {node.name}", why=f"it is a {type(val).__name__}")
    size, stride = tuple(int(n) for n in val.shape), tuple(int(n) for n in val.stride())
    order = buffers.dense_permutation(size, stride) or tuple(range(len(size)))
    return Array(dtype_name(val.dtype), size, order)


def _view_chain(node: fx.Node) -> tuple[fx.Node, tuple[views.View, ...]]:
    """The node that a value is only a view of, and the ops in between, first to last."""
    chain: list[views.View] = []
    base = node
    while base.op == "call_function" and base.target in views.NAMES and not base.kwargs:
        source, *rest = base.args
        if not isinstance(source, fx.Node) or not _plain(rest):
            break
        if base.target is operator.getitem and source.target not in views.NAMES:
            break  # one of several results of an op that computes
        chain.insert(0, views.View(views.NAMES[base.target], tuple(rest)))
        base = source
    return base, tuple(chain)


def _plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return value is None or isinstance(value, int)
