"""A program of ``torch.export`` to one functional ATen graph of ops that have rules.

``ExportedProgram.run_decompositions`` would do, but that it fails where two of a model's tensors
are one, or where constants are made in submodules (torch 2.13).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument

from tpu_compile.lowering import decompositions
from tpu_compile.passes.functional_random import RANDOM_OPS
from tpu_compile.portable.errors import NotExportable
from tpu_compile.torch_internals import (
    FakeMode,
    FakeTensor,
    TracingContext,
    aot_export_module,
    tracing,
)

aten = torch.ops.aten


@dataclass(frozen=True)
class Functional:
    """What a program computes, as a graph without side effects.

    Attributes:
        gm: the graph; it returns the program's tensors, and then what the targets become.
        inputs: for each input of the program's signature its placeholder, or None where it is no
            tensor. Weights that are one tensor have one placeholder.
        outputs: how many outputs the program's signature has.
        constants: the values of those that are no tensors, by number.
        targets: placeholders that the program writes into.
    """

    gm: fx.GraphModule
    inputs: list[fx.Node | None]
    outputs: int
    constants: dict[int, Any]
    targets: list[fx.Node]

    @property
    def _results(self) -> list[fx.Node]:
        return list(self.gm.graph.output_node().args[0])  # type: ignore[arg-type]

    @property
    def returned(self) -> list[Any]:
        """For each output of the program's signature its node, or its value where it has none."""
        nodes = iter(self._results)
        return [
            self.constants[i] if i in self.constants else next(nodes) for i in range(self.outputs)
        ]

    @property
    def written(self) -> list[tuple[fx.Node, fx.Node]]:
        """Placeholders that the program writes into, and the nodes of what they become."""
        return list(
            zip(self.targets, self._results[self.outputs - len(self.constants) :], strict=True)
        )


def functional(program: ExportedProgram) -> Functional:
    """Traces a program once more, with our decompositions and with nothing written in place."""
    gm = program.graph_module
    slots, examples = _slots(program)
    outputs: tuple[Any, ...] = gm.graph.output_node().args[0]
    values = [_value(out) for out in outputs]
    tensors = [i for i, v in enumerate(values) if isinstance(v, torch.Tensor)]
    specs = program.graph_signature.input_specs
    constants = [s.arg.value if isinstance(s.arg, ConstantArgument) else None for s in specs]

    class Copying(torch.nn.Module):
        """The program on copies of its inputs, which it returns after its results."""

        def forward(self, *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
            copies = [a.clone() for a in args]
            inputs = [c if i is None else copies[i] for i, c in zip(slots, constants, strict=True)]
            with fx.traceback.preserve_node_meta():
                results = fx.Interpreter(gm).run(*inputs, enable_io_processing=False)
            return (*(results[i] for i in tensors), *copies)

    mode = _fake_mode(gm)
    with (
        _without_mkldnn(),
        decompositions.rules_first(),
        tracing(TracingContext(mode)),
    ):
        traced, _ = aot_export_module(
            Copying(), examples, trace_joint=False, decompositions=decompositions.table(RANDOM_OPS)
        )
    assert isinstance(traced, fx.GraphModule)
    targets = _without_copies(traced, len(tensors))
    placeholders = traced.graph.find_nodes(op="placeholder")
    inputs = [None if i is None else placeholders[i] for i in slots]
    others = {i: v for i, v in enumerate(values) if i not in tensors}
    return Functional(traced, inputs, len(outputs), others, targets)


@contextlib.contextmanager
def _without_mkldnn() -> Iterator[None]:
    """Keeps layers, as LSTMs, from becoming ops of that library while they are traced."""
    before = torch.backends.mkldnn.set_flags(False, _fp32_precision=None)
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(before[0], _fp32_precision=None)


def _slots(program: ExportedProgram) -> tuple[list[int | None], list[torch.Tensor]]:
    """For each input of the signature the number of its tensor, and tensors like them.

    The tensors are fakes that share no memory. Weights that are the same tensor get one number, so
    that what is written to one is read from the other.
    """
    numbers: dict[object, int] = {}
    slots: list[int | None] = []
    examples = []
    placeholders = program.graph_module.graph.find_nodes(op="placeholder")
    for spec, node in zip(program.graph_signature.input_specs, placeholders, strict=True):
        val = _value(node)
        if not isinstance(val, torch.Tensor):
            slots.append(None)
            continue
        weight = weight_of(program, spec.target)
        key = node if weight is None or not weight.numel() else _identity(weight)
        if key not in numbers:
            numbers[key] = len(numbers)
            examples.append(_example(val, node))
        slots.append(numbers[key])
    return slots, examples


def weight_of(program: ExportedProgram, name: str | None) -> torch.Tensor | None:
    """A parameter, buffer or constant by name; None where there is no such tensor."""
    if name is None:
        return None
    value = program.state_dict.get(name, program.constants.get(name))
    return value if isinstance(value, torch.Tensor) else None


def _identity(t: torch.Tensor) -> object:
    storage = t.untyped_storage()._cdata
    return storage, t.dtype, t.shape, t.stride(), t.storage_offset(), t.is_conj(), t.is_neg()


def _example(val: torch.Tensor, node: fx.Node) -> torch.Tensor:
    assert isinstance(val, FakeTensor)
    with val.fake_mode:
        like = torch.empty_strided(val.shape, val.stride(), dtype=val.dtype, device=val.device)
        copy = like.clone()
    strided = node.graph.find_nodes(op="call_function", target=aten.as_strided.default)
    if strided and copy.stride() != like.stride():
        why = f"{node.name} has gaps or overlaps in memory, and as_strided looks at it"
        raise NotExportable(what=f"argument {node.name}", why=why)
    return copy


def _value(out: Any) -> Any:
    return out.meta.get("val") if isinstance(out, fx.Node) else out


def _fake_mode(gm: fx.GraphModule) -> FakeMode:
    values = (n.meta.get("val") for n in gm.graph.nodes)
    found = next((v.fake_mode for v in values if isinstance(v, FakeTensor)), None)
    return found or FakeMode()


def _without_copies(gm: fx.GraphModule, count: int) -> list[fx.Node]:
    """Takes the copies of inputs out of a graph again.

    Args:
        gm: returns its results and then, for each placeholder, what its copy became.
        count: of the results.

    Returns:
        The placeholders whose copies were written into; the graph then returns no others.
    """
    output = gm.graph.output_node()
    results: list[fx.Node] = list(output.args[0])  # type: ignore[arg-type]
    placeholders = gm.graph.find_nodes(op="placeholder")
    # the program sees copies only: nothing else uses a placeholder
    copies = [next(iter(node.users)) for node in placeholders]
    final = list(zip(placeholders, copies, results[count:], strict=True))
    written = [(node, last) for node, copy, last in final if last is not copy]
    output.args = ((*results[:count], *(last for _, last in written)),)
    for node, copy in zip(placeholders, copies, strict=True):
        copy.replace_all_uses_with(node)
        gm.graph.erase_node(copy)
    gm.recompile()
    return [node for node, _ in written]
