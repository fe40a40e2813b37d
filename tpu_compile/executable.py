"""A concrete ATen graph as one XLA program that takes and returns torch CPU tensors."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import torch
from torch import fx
from torch.utils import _pytree as pytree

from tpu_compile import buffers, caches, compile_log, errors
from tpu_compile.lowering import primitive
from tpu_compile.lowering.context import types_of
from tpu_compile.lowering.interpreter import Settings, is_static_int
from tpu_compile.lowering.types import TensorType

aten = torch.ops.aten

# Ops that only look at memory: a graph output that is such a view of a graph input is made by torch
# on the input itself. It costs nothing, and has the strides and offset that eager gives it.
VIEWS = frozenset(
    {
        aten.alias.default,
        aten.as_strided.default,
        aten.detach.default,
        aten.diagonal.default,
        aten.expand.default,
        aten.permute.default,
        aten.select.int,
        aten.slice.Tensor,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.t.default,
        aten.transpose.int,
        aten.unfold.default,
        aten.unsqueeze.default,
        aten.view.default,
        aten.view_as_real.default,
        aten.view_as_complex.default,
    }
)


@dataclass
class _Slot:
    """One tensor argument of the program: how to turn it into a JAX array.

    A parameter or buffer is converted once and kept, as long as its array is a true alias of the
    tensor's memory; ``.data`` updates then show in it with no further ado. The entry goes with the
    tensor, so nothing outlives what the user freed.
    """

    index: int
    permutation: tuple[int, ...] | None
    ref: weakref.ref[torch.Tensor] | None = None
    pointer: int = 0
    array: jax.Array | None = None

    def fetch(self, t: torch.Tensor) -> jax.Array:
        """The JAX array for a tensor of the layout this program was compiled for."""
        if self.ref is not None and self.ref() is t and self.pointer == t.data_ptr():
            return self.array  # type: ignore[return-value]
        if self.permutation is not None:
            v = t.detach().permute(self.permutation) if self.permutation else t
            if v.is_conj() or v.is_neg() or not v.is_contiguous():
                v = buffers.physical(v)
        else:
            v = buffers.physical(t.detach())
        array = buffers.to_jax(v)
        if isinstance(t, torch.nn.Parameter | torch.nn.Buffer):
            self._keep(t, array)
        return array

    def _keep(self, t: torch.Tensor, array: jax.Array) -> None:
        pointer = t.data_ptr()
        self.array = self.ref = None
        if array.unsafe_buffer_pointer() == pointer and t.numel():
            self.pointer, self.array = pointer, array
            self.ref = weakref.ref(t, self._drop)

    def _drop(self, ref: Any) -> None:
        if self.ref is ref:
            self.array = self.ref = None


@dataclass(frozen=True)
class _Output:
    """How one output of the graph is made from the program's results or the graph's arguments."""

    make: Callable[[Sequence[torch.Tensor], Sequence[Any]], Any]


@dataclass
class Executable:
    """One compiled program and its calling convention.

    Call it with the graph's flat arguments (tensors, and integers that are ignored); it returns the
    graph's flat outputs: tensors with the sizes, strides and dtypes of the graph's metadata, ints,
    and None.
    """

    compiled: Any
    slots: list[_Slot]
    scalars: list[tuple[int, torch.dtype]]
    outputs: list[_Output]
    stablehlo: str = ""
    single: bool = False
    times: dict[str, float] = field(default_factory=dict)

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Runs the program and waits for it."""
        if self.compiled is None:
            return [o.make((), args) for o in self.outputs]
        arrays = [slot.fetch(args[slot.index]) for slot in self.slots]
        for i, dtype in self.scalars:
            arrays.append(buffers.to_jax(torch.tensor(args[i], dtype=dtype)))
        try:
            results = self.compiled(*arrays)
            # The inputs are the user's own memory: the program must have read it on return.
            jax.block_until_ready(results)
        except jax.errors.JaxRuntimeError as err:
            raise self._runtime_error(err) from err
        tensors = [buffers.to_torch(r) for r in results]
        return [o.make(tensors, args) for o in self.outputs]

    def _runtime_error(self, err: Exception) -> errors.TpuCompileError:
        if "RESOURCE_EXHAUSTED" not in str(err) and "Out of memory" not in str(err):
            return errors.ExecutionFailed(why=str(err))
        memory = self.compiled.memory_analysis()
        mib = lambda n: f"{n / 2**20:.0f} MiB"  # noqa: E731
        return errors.OutOfMemory(
            arguments=mib(memory.argument_size_in_bytes),
            outputs=mib(memory.output_size_in_bytes),
            temporaries=mib(memory.temp_size_in_bytes),
            why=str(err),
        )


def compile_graph(
    gm: fx.GraphModule,
    settings: Settings,
    *,
    name: str = "graph",
    compiler_options: dict[str, Any] | None = None,
    keep_text: bool = False,
    cache: bool = True,
) -> Executable:
    """Lowers a graph and compiles it by XLA.

    Args:
        gm: functional, with concrete shapes in each ``meta["val"]``.
        settings: target and precision.
        name: shown in profiles and XLA's dumps.
        compiler_options: passed on to XLA.
        keep_text: whether to keep the StableHLO text, locations included.
        cache: whether the program may come from, and go to, the cache on disk.

    Raises:
        MissingLowering, UnsupportedCase, UnsupportedDtype: from lowering.
        CompileFailed: when XLA refuses the program.
    """
    plan = _Plan(gm)
    if not plan.results:
        return Executable(None, [], [], plan.outputs, single=plan.single)
    start = time.perf_counter()
    with jax.enable_x64(True), primitive.registered(gm, settings) as token:
        fn = plan.function(token)
        fn.__name__ = fn.__qualname__ = name
        lowered = jax.jit(fn, keep_unused=True).lower(*plan.arguments)
        text = lowered.as_text(debug_info=True) if keep_text else ""
        middle = time.perf_counter()
        try:
            with caches.xla_cache(wanted=cache):
                compiled = lowered.compile(compiler_options=compiler_options or None)
        except jax.errors.JaxRuntimeError as err:
            raise errors.CompileFailed(target=settings.target, why=str(err)) from err
    end = time.perf_counter()
    compile_log.add_stage("lowering", middle - start)
    compile_log.add_stage("xla", end - middle)
    times = {"lowering": middle - start, "xla": end - middle}
    return Executable(compiled, plan.slots, plan.scalars, plan.outputs, text, plan.single, times)


class _Plan:
    """Layouts of arguments and results, and which outputs torch makes itself."""

    def __init__(self, gm: fx.GraphModule) -> None:
        self.slots: list[_Slot] = []
        self.scalars: list[tuple[int, torch.dtype]] = []
        self.arguments: list[jax.ShapeDtypeStruct] = []
        self.outputs: list[_Output] = []
        self.results: list[tuple[int, tuple[int, ...]]] = []  # value among the graph's, permutation
        self._argument_permutations: list[tuple[int, ...] | None] = []
        self._index: dict[fx.Node, int] = {}
        self._plan_arguments(gm)
        self._plan_outputs(gm)
        # split_module returns a lone output bare
        self.single = isinstance(gm.graph.output_node().args[0], fx.Node)

    def _plan_arguments(self, gm: fx.GraphModule) -> None:
        scalars: list[tuple[int, TensorType]] = []
        for i, node in enumerate(gm.graph.find_nodes(op="placeholder")):
            self._index[node] = i
            val = node.meta["val"]
            if is_static_int(val):
                continue
            (kind,) = types_of(val)
            if not isinstance(val, torch.Tensor):
                scalars.append((i, kind))
                continue
            size, stride = kind.shape, tuple(int(s) for s in val.stride())
            permutation = buffers.dense_permutation(size, stride)
            straight = permutation is None or permutation == tuple(range(len(size)))
            self.slots.append(_Slot(i, () if straight and permutation is not None else permutation))
            shape = size if permutation is None else tuple(size[d] for d in permutation)
            self.arguments.append(primitive.shape_dtype(TensorType(shape, kind.dtype)))
            self._argument_permutations.append(None if straight else permutation)
        for i, kind in scalars:
            self.scalars.append((i, kind.dtype))
            self.arguments.append(primitive.shape_dtype(kind))
        self._n_scalars = len(scalars)
        self._order = [s.index for s in self.slots] + [i for i, _ in self.scalars]

    def _plan_outputs(self, gm: fx.GraphModule) -> None:
        value = 0
        first: dict[fx.Node, int] = {}
        for out in pytree.tree_leaves(gm.graph.output_node().args):
            if not isinstance(out, fx.Node):
                self.outputs.append(_Output(lambda _r, _a, out=out: out))
                continue
            mine, value = value, value + 1
            val = out.meta["val"]
            if is_static_int(val):
                self.outputs.append(_Output(lambda _r, _a, v=int(val): v))
            elif (view := self._host_view(out)) is not None:
                self.outputs.append(_Output(view))
            elif out in first:
                n = first[out]
                self.outputs.append(_Output(lambda r, _a, n=n: r[n].detach()))
            elif not isinstance(val, torch.Tensor):
                n = len(self.results)
                self.results.append((mine, ()))
                self.outputs.append(_Output(lambda r, _a, n=n: r[n].item()))
            else:
                first[out] = len(self.results)
                self.outputs.append(self._tensor(mine, val))

    def _host_view(self, node: fx.Node) -> Callable[..., Any] | None:
        chain: list[fx.Node] = []
        while node.op == "call_function" and node.target in VIEWS:
            rest = pytree.tree_leaves((node.args[1:], node.kwargs))
            if any(isinstance(a, fx.Node) for a in rest):
                return None
            chain.insert(0, node)
            (node,) = node.all_input_nodes
        if node.op != "placeholder" or not isinstance(node.meta["val"], torch.Tensor):
            return None
        index = self._index[node]
        steps = [(n.target, n.args[1:], n.kwargs) for n in chain]

        def make(_results: Sequence[torch.Tensor], args: Sequence[Any]) -> torch.Tensor:
            t = args[index]
            for op, rest, kwargs in steps:
                t = op(t, *rest, **kwargs)
            return t

        return make

    def _tensor(self, value: int, val: torch.Tensor) -> _Output:
        n = len(self.results)
        size = tuple(int(s) for s in val.shape)
        stride = tuple(int(s) for s in val.stride())
        offset = int(val.storage_offset())
        order = buffers.dense_permutation(size, stride)
        self.results.append((value, order or tuple(range(len(size)))))
        if order is not None and not offset:
            if order == tuple(range(len(size))) and stride == _contiguous(size):
                return _Output(lambda r, _a, n=n: r[n])
            return _Output(lambda r, _a, n=n: r[n].as_strided(size, stride))
        last = sum((s - 1) * st for s, st in zip(size, stride, strict=True))
        numel = offset + last + 1 if 0 not in size else offset
        inner = [1 if st == 0 else s for s, st in zip(size, stride, strict=True)]

        def scattered(results: Sequence[torch.Tensor], _args: Sequence[Any]) -> torch.Tensor:
            src = results[n]
            if order is not None:
                src = src.permute(sorted(range(len(order)), key=order.__getitem__))
            storage = torch.empty(numel, dtype=val.dtype)
            storage.as_strided(inner, stride, offset).copy_(src[tuple(map(slice, inner))])
            return storage.as_strided(size, stride, offset)

        return _Output(scattered)

    def function(self, token: int) -> Callable[..., list[jax.Array]]:
        """The JAX function to compile: physical arguments to physical results."""
        permutations = self._argument_permutations + [None] * self._n_scalars
        # the graph wants its inputs in placeholder order, the program has tensors first
        position = sorted(range(len(self._order)), key=self._order.__getitem__)

        def program(*arrays: jax.Array) -> list[jax.Array]:
            logical = [
                a if p is None else a.transpose(sorted(range(len(p)), key=p.__getitem__))
                for a, p in zip(arrays, permutations, strict=True)
            ]
            values = primitive.graph_p.bind(*(logical[i] for i in position), token=token)
            return [
                values[i] if p == tuple(range(len(p))) else values[i].transpose(p)
                for i, p in self.results
            ]

        return program


def _contiguous(size: Sequence[int]) -> tuple[int, ...]:
    stride, out = 1, []
    for s in reversed(size):
        out.append(stride)
        stride *= max(s, 1)
    return tuple(reversed(out))


__all__ = ["VIEWS", "Executable", "compile_graph"]
