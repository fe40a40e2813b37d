"""One AOT graph made callable: passes, fallback stages, and an executable per concrete shape."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tpu_compile import (
    compile_log,
    dump,
    errors,
    meshes,
    partition,
    planned,
    random_ops,
    repro,
    specialize,
    torch_internals,
)
from tpu_compile.collecting import Collection
from tpu_compile.executable import Executable, compile_graph
from tpu_compile.graph_store import StoredGraph, restore, store
from tpu_compile.lowering.interpreter import Settings
from tpu_compile.options import Options
from tpu_compile.padding.bucketed import Bucketed
from tpu_compile.passes import pipeline

# Tensor constants up to this many elements are part of the program; larger ones are arguments.
EMBED_LIMIT = 64


@dataclass
class Program(torch_internals.StoredCode):
    """An AOT graph's compiled code. Called with a list of arguments that it empties (boxed).

    A graph without symbols is compiled at once. A symbolic one is compiled at the first call with
    each combination of sizes, strides and integers. AOTAutograd's cache keeps a program as its
    graph after all passes; what XLA made of it is in XLA's cache.
    """

    gm: fx.GraphModule | None
    options: Options
    settings: Settings
    kind: str
    origin: str
    extras: list[Callable[[], Any]]
    symbolic: bool
    bare: bool = False
    stored: StoredGraph | None = None
    buckets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def build(
        cls,
        gm: fx.GraphModule,
        options: Options,
        settings: Settings,
        kind: str,
        *,
        bare: bool = False,
        buckets: Mapping[str, tuple[int, ...]] | None = None,
    ) -> Program:
        """Runs the passes over a graph of AOTAutograd and compiles it.

        Args:
            gm: functional ATen ops; changed in place.
            options: the user's.
            settings: target and precision.
            kind: "forward", "backward" or "inference".
            bare: whether a call needs nothing of AOTAutograd.
            buckets: sizes to round symbols up to, by the symbols' names.
        """
        shown = dump.Dump(options.dump_dir, kind)
        shown.graph("captured", gm)
        start = time.perf_counter()
        origin = torch_internals.where(gm)
        extras = lift(gm)
        pipeline.run(gm, pipeline.compose(options.passes_after), shown.observe)
        gm = specialize.copy_graph(gm)  # AOTAutograd clears the metadata of its own
        symbolic = specialize.abstract(gm)
        compile_log.add_stage("passes", time.perf_counter() - start)
        program = cls(gm, options, settings, kind, origin, extras, symbolic, bare)
        program.buckets = buckets or {}
        program._prepare(shown)
        return program

    def _prepare(self, shown: dump.Dump) -> None:
        # AOTAutograd looks for these in the instance's own attributes.
        self._boxed_call = True
        self._fx_graph_cache_key, self._time_taken_ns = "tpu_compile", 0
        self._dump = shown
        self._by_shape: dict[Any, Callable[[list[Any]], list[Any]]] = {}
        self._runtime: set[fx.Node] = set()
        self._run: Callable[[list[Any]], list[Any]] | None = None
        self._bucketed: Bucketed | None = None
        assert self.gm is not None
        if self.symbolic:
            self._runtime = specialize.runtime_scalars(self.gm)
            placeholders = self.gm.graph.find_nodes(op="placeholder")
            self._sizes = {i for i, p in enumerate(placeholders) if p not in self._runtime}
            if self.buckets:
                self._bucketed = Bucketed(self.gm, self.buckets, self._runtime, self._compile)
        else:
            self._run = self._compile(self.gm)
        _made.add(self)

    def function(self) -> Callable[..., list[Any]] | None:
        """A function of the arguments, one by one, where one launch is all there is to a call."""
        if not self.bare or self.extras or not isinstance(self._run, Executable):
            return None
        run = self._run.__call__
        return lambda *args: run(args)

    def output_specs(self, count: int) -> list[meshes.Spec | None]:
        """How the compiler laid each of the graph's outputs over the mesh, where it is known."""
        if not isinstance(self._run, Executable):
            return [None] * count
        return self._run.output_specs()

    def __call__(self, args: list[Any]) -> list[Any]:  # type: ignore[override]
        """Runs the graph on its flat arguments; compiles first where the shapes are new."""
        for make in self.extras:
            args.append(make())
        results = (self._run or self._find(args))(args)
        args.clear()
        return results

    def _find(self, args: Sequence[Any]) -> Callable[[list[Any]], list[Any]]:
        if self._bucketed is not None:
            found = self._bucketed.find(args, functools.partial(self._new_shape, args))
            if found is not None:
                return found
        key = tuple(
            (*a.shape, *a.stride(), a.storage_offset())
            if isinstance(a, torch.Tensor)
            else (a if i in self._sizes else None)
            for i, a in enumerate(args)
        )
        run = self._by_shape.get(key)
        assert self.gm is not None
        if run is None:
            self._new_shape(args)
            start = time.perf_counter()
            concrete = specialize.specialize(self.gm, args, self._runtime)
            compile_log.add_stage("passes", time.perf_counter() - start)
            run = self._by_shape[key] = self._compile(concrete)
        return run

    def _new_shape(self, args: Sequence[Any]) -> None:
        if self._by_shape or (self._bucketed is not None and self._bucketed.runs):
            compile_log.new_shape(self.origin, self.kind, args, self.options.on_recompile)

    # ------------------------------------------------------------ in AOTAutograd's cache

    def prepare_for_serialization(self) -> None:
        """Replaces what can't be pickled; called on a copy."""
        assert self.gm is not None
        self.stored = store(self.gm)
        self.gm = None
        for name in ("_dump", "_by_shape", "_runtime", "_run", "_sizes", "_bucketed"):
            self.__dict__.pop(name, None)

    def post_compile(self, *_: Any) -> None:
        """Makes a program that came from the cache callable; nothing to do for a new one."""
        if self.gm is None:
            assert self.stored is not None
            self.gm, self.stored = restore(self.stored), None
            with torch_internals.without_modes():
                self._prepare(dump.Dump(None, self.kind))

    def set_triton_bundle(self, _bundle: Any) -> None:
        """There is none."""

    # ------------------------------------------------------------ compiling

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
            keep_text=self._dump.enabled,
            cache=self.options.cache,
        )
        self._dump.text("stablehlo", exe.stablehlo, "mlir")
        if exe.topology is not None:
            planned.add(planned.Planned(name, gm, exe))
        return exe


# Gives the programs that are built, or come from AOTAutograd's cache, within.
_made = Collection[Program]("made")
collected = _made.collect


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


def _same(value: torch.Tensor) -> torch.Tensor:
    return value


def lift(gm: fx.GraphModule) -> list[Callable[[], Any]]:
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
            extras.append(functools.partial(_same, value))
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
