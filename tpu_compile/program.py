"""One AOT graph made callable: passes, fallback stages, and an executable per concrete shape."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tpu_compile import (
    compile_log,
    dump,
    errors,
    partition,
    random_ops,
    repro,
    specialize,
    torch_internals,
)
from tpu_compile.executable import Executable, compile_graph
from tpu_compile.lowering.interpreter import Settings
from tpu_compile.options import Options
from tpu_compile.passes import pipeline

# Tensor constants up to this many elements are part of the program; larger ones are arguments.
EMBED_LIMIT = 64


class Program:
    """An AOT graph's compiled code. Called with a list of arguments that it empties (boxed).

    A graph without symbols is compiled at once. A symbolic one is compiled at the first call with
    each combination of sizes, strides and integers.
    """

    def __init__(self, gm: fx.GraphModule, options: Options, settings: Settings, kind: str) -> None:
        self._boxed_call = True  # AOTAutograd looks for it in the instance's own attributes
        self.options, self.settings, self.kind = options, settings, kind
        self.dump = dump.Dump(options.dump_dir, kind)
        self.dump.graph("captured", gm)
        start = time.perf_counter()
        self.extras = _lift(gm)
        pipeline.run(gm, pipeline.compose(options.passes_after), self.dump.observe)
        compile_log.add_stage("passes", time.perf_counter() - start)
        self.gm = gm
        self.origin = torch_internals.where(gm)
        self._by_shape: dict[Any, Callable[[list[Any]], list[Any]]] = {}
        self._static: Callable[[list[Any]], list[Any]] | None = None
        if specialize.is_symbolic(gm):
            self._runtime = specialize.runtime_scalars(gm)
            self._runtime_index = {
                i for i, p in enumerate(gm.graph.find_nodes(op="placeholder")) if p in self._runtime
            }
        else:
            self._static = self._compile(gm)

    def __call__(self, args: list[Any]) -> list[Any]:
        """Runs the graph on its flat arguments; compiles first where the shapes are new."""
        full = [*args, *(make() for make in self.extras)]
        args.clear()
        run = self._static or self._find(full)
        return run(full)

    def _find(self, args: Sequence[Any]) -> Callable[[list[Any]], list[Any]]:
        key = tuple(
            (*a.shape, *a.stride(), a.storage_offset())
            if isinstance(a, torch.Tensor)
            else (a if i not in self._runtime_index else None)
            for i, a in enumerate(args)
        )
        run = self._by_shape.get(key)
        if run is None:
            if self._by_shape:
                compile_log.new_shape(self.origin, self.kind, args, self.options.on_recompile)
            start = time.perf_counter()
            concrete = specialize.specialize(self.gm, args, self._runtime)
            compile_log.add_stage("passes", time.perf_counter() - start)
            run = self._by_shape[key] = self._compile(concrete)
        return run

    def _compile(self, gm: fx.GraphModule) -> Callable[[list[Any]], list[Any]]:
        with torch_internals.without_modes(), repro.on_failure(gm, self.options, self.kind):
            return self._stages(gm)

    def _stages(self, gm: fx.GraphModule) -> Callable[[list[Any]], list[Any]]:
        eager = partition.unsupported(gm)
        for node in eager.values():
            self._fallback(node, errors.MissingLowering(op=node.target, node=node), "no rule")
        while True:
            if not eager:
                try:
                    return self._executable(gm, self.kind)
                except errors.UnsupportedCase as err:
                    node = self._declined(gm, err)
                    eager[node] = node
                    continue
            parts, compiled = partition.split(gm, eager)
            try:
                for name in sorted(compiled):
                    part = getattr(parts, name)
                    setattr(parts, name, _Stage(self._executable(part, f"{self.kind}_{name}")))
            except errors.UnsupportedCase as err:
                node = self._declined(gm, err)
                eager[node] = node
                continue
            return functools.partial(_run_parts, parts)

    def _declined(self, gm: fx.GraphModule, err: errors.UnsupportedCase) -> fx.Node:
        name = err.node.name if err.node is not None else ""
        node = next((n for n in gm.graph.nodes if n.name == name), None)
        if node is None:
            raise err
        self._fallback(node, err, err.fields["why"])
        return node

    def _fallback(self, node: fx.Node, err: errors.TpuCompileError, why: str) -> None:
        if self.options.fallback == "error":
            raise err
        partition.report(node, why)

    def _executable(self, gm: fx.GraphModule, name: str) -> Executable:
        exe = compile_graph(
            gm,
            self.settings,
            name=name,
            compiler_options=dict(self.options.compiler_options),
            keep_text=self.dump.enabled,
            cache=self.options.cache,
        )
        self.dump.text("stablehlo", exe.stablehlo, "mlir")
        return exe


class _Stage(torch.nn.Module):
    """An executable as a module of a partitioned graph."""

    def __init__(self, exe: Executable) -> None:
        super().__init__()
        self.exe = exe

    def forward(self, *args: Any) -> Any:
        out = self.exe(args)
        return out[0] if self.exe.results.single else tuple(out)


def _run_parts(parts: fx.GraphModule, args: list[Any]) -> list[Any]:
    with torch.no_grad():
        return list(pytree.tree_leaves(parts(*args), is_leaf=lambda x: x is None))


def _lift(gm: fx.GraphModule) -> list[Callable[[], Any]]:
    """Turns seeds and large constants into trailing placeholders.

    Returns:
        For each of them, what makes its argument at a call.
    """
    extras: list[Callable[[], Any]] = []
    nodes = [
        *gm.graph.find_nodes(op="call_function", target=torch.ops.tpu.seed.default),
        *gm.graph.find_nodes(op="get_attr"),
    ]
    for node in nodes:
        if node.op == "call_function":
            extras.append(random_ops.draw_seed)
        else:
            value = functools.reduce(getattr, str(node.target).split("."), gm)
            if not isinstance(value, torch.Tensor) or value.numel() <= EMBED_LIMIT:
                continue
            node.meta.setdefault("val", torch.empty_like(value, device="meta"))
            extras.append(lambda value=value: value)
        last = gm.graph.find_nodes(op="placeholder")
        anchor = last[-1].next if last else next(iter(gm.graph.nodes))
        with gm.graph.inserting_before(anchor):
            placeholder = gm.graph.placeholder(f"{node.name}_input")
        placeholder.meta = dict(node.meta)
        node.replace_all_uses_with(placeholder)
        gm.graph.erase_node(node)
    if extras:
        gm.recompile()
    return extras
