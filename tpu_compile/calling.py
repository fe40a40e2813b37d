"""The calling convention of a compiled graph: torch arguments to program arguments, and back.

The program sees C-contiguous arrays only. A dense argument in another order of dimensions (a
transposed weight, channels_last) is handed over in the order of its memory and transposed inside
the program; results go the other way. What is only a view in eager is made by torch.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import torch
from torch import fx
from torch.utils import _pytree as pytree

from tpu_compile import buffers
from tpu_compile.lowering.context import types_of
from tpu_compile.lowering.interpreter import is_static_int
from tpu_compile.lowering.types import TensorType

aten = torch.ops.aten

# Ops that only look at memory. A graph output that is such a view of an argument, or of a result
# that another output shares memory with, is made by torch on that: it costs nothing, is the alias
# that it is in eager, and has the strides and offset that eager gives it.
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
        aten.split_with_sizes.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.t.default,
        aten.transpose.int,
        aten.unbind.int,
        aten.unfold.default,
        aten.unsqueeze.default,
        aten.view.default,
        aten.view.dtype,
        aten.view_as_complex.default,
        aten.view_as_real.default,
        operator.getitem,
    }
)

Order = tuple[int, ...]  # of dimensions in memory, outermost first
Make = Callable[[Sequence[torch.Tensor], Sequence[Any]], Any]


# ---------------------------------------------------------------- arguments


@dataclass(frozen=True)
class Slot:
    """One tensor argument of a program: how a tensor becomes its JAX array.

    Attributes:
        index: among the graph's arguments.
        order: of the tensor's dimensions in memory; None where it has gaps and is always copied.
    """

    index: int
    order: Order | None
    straight: bool = field(init=False)

    def __post_init__(self) -> None:
        straight = self.order is not None and _is_straight(self.order)
        object.__setattr__(self, "straight", straight)

    def convert(self, t: torch.Tensor) -> jax.Array:
        """The JAX array of a tensor of the layout that the program was compiled for."""
        v = t.detach() if t.requires_grad else t
        if self.order is not None and not self.straight:
            v = v.permute(self.order)
        if v.is_conj() or v.is_neg() or not v.is_contiguous():
            v = buffers.physical(v)
        return buffers.to_jax(v)


# Where a tensor's memory is, and the array that is kept for it.
Kept = tuple[int, Any]
_NOTHING: Kept = (-1, None)
_pointer = torch.Tensor.data_ptr


def _gone() -> None:
    return None


@dataclass
class Arguments:
    """All arguments of a program, in the program's order: tensors, then runtime scalars.

    What comes again, as parameters, buffers and caches do, is converted once and its array kept,
    as long as that is a true alias of the tensor's memory: the same address then means the same
    values, ``.data`` updates and all. It goes with the tensor, so nothing outlives what the user
    freed.

    Attributes:
        slots: the tensors.
        scalars: index among the graph's arguments, and dtype.
        types: what the program takes, one for each.
        inputs: for each of them, the order its dimensions come in.
        positions: where each of the lowered graph's inputs is among them.
    """

    slots: list[Slot]
    scalars: list[tuple[int, torch.dtype]]
    types: list[TensorType]
    inputs: list[Order]
    positions: list[int]

    def __post_init__(self) -> None:
        n = len(self.slots)
        self._kept = [_NOTHING] * n
        self._owners: list[Callable[[], Any]] = [_gone] * n
        self._last: list[Callable[[], Any]] = [_gone] * n
        self._tensors_first = [s.index for s in self.slots] == [*range(n)]

    def arrays(self, args: Sequence[Any]) -> list[jax.Array]:
        """What the program takes, of the graph's flat arguments."""
        found: list[jax.Array] = []
        tensors = args if self._tensors_first else [args[s.index] for s in self.slots]
        for (kept, array), pointer in zip(self._kept, map(_pointer, tensors)):  # noqa: B905
            found.append(array if kept == pointer else self._fetch(len(found), tensors))
        for i, dtype in self.scalars:
            found.append(buffers.to_jax(torch.tensor(args[i], dtype=dtype)))
        return found

    def _fetch(self, i: int, tensors: Sequence[torch.Tensor]) -> jax.Array:
        t = tensors[i]
        array = self.slots[i].convert(t)
        if self._last[i]() is t or isinstance(t, torch.nn.Parameter):
            self._keep(i, t, array)
        else:
            self._last[i] = weakref.ref(t)
        return array

    def _keep(self, i: int, t: torch.Tensor, array: jax.Array) -> None:
        self._kept[i], self._owners[i] = _NOTHING, _gone
        if buffers.shares_memory(array, t) and t.numel():
            self._owners[i] = weakref.ref(t, functools.partial(self._drop, i))
            self._kept[i] = t.data_ptr(), array

    def _drop(self, i: int, owner: Any) -> None:
        if self._owners[i] is owner:
            self._kept[i], self._owners[i] = _NOTHING, _gone


def plan_arguments(gm: fx.GraphModule) -> Arguments:
    """Reads the arguments of a concrete graph off its placeholders."""
    slots: list[Slot] = []
    scalars: list[tuple[int, torch.dtype]] = []
    types: list[TensorType] = []
    inputs: list[Order] = []
    for i, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        val = node.meta["val"]
        if is_static_int(val):
            continue
        (kind,) = types_of(val)
        if not isinstance(val, torch.Tensor):
            scalars.append((i, kind.dtype))
            continue
        order = buffers.dense_permutation(kind.shape, tuple(int(s) for s in val.stride()))
        slots.append(Slot(i, order))
        inputs.append(order or tuple(range(len(kind.shape))))
        types.append(TensorType(tuple(kind.shape[d] for d in inputs[-1]), kind.dtype))
    types += [TensorType((), dtype) for _, dtype in scalars]
    inputs += [()] * len(scalars)
    indices = [s.index for s in slots] + [i for i, _ in scalars]
    positions = sorted(range(len(indices)), key=indices.__getitem__)
    return Arguments(slots, scalars, types, inputs, positions)


# ---------------------------------------------------------------- results


@dataclass(frozen=True)
class Results:
    """What a program returns, and how the graph's outputs are made of it.

    Attributes:
        values: the graph's nodes whose values the program returns, in order; with each its number
            among them and the order of dimensions it is returned in.
        outputs: for each output of the graph, a function of results and arguments.
        single: whether the graph returns one value bare, not in a tuple.
    """

    values: dict[fx.Node, tuple[int, Order]]
    outputs: list[Make]
    single: bool

    @property
    def as_they_are(self) -> bool:
        """Whether the graph's outputs are what the program returns, with nothing left to make."""
        return [getattr(m, "number", None) for m in self.outputs] == [*range(len(self.values))]


@dataclass(frozen=True)
class _Result:
    """Gives one of the program's results as it is."""

    number: int

    def __call__(self, results: Sequence[torch.Tensor], _args: Sequence[Any]) -> torch.Tensor:
        return results[self.number]


def plan_results(gm: fx.GraphModule) -> Results:
    """Decides for each output of a concrete graph where it comes from."""
    output = gm.graph.output_node().args[0]
    leaves = pytree.tree_leaves(output)
    arguments = {n: i for i, n in enumerate(gm.graph.find_nodes(op="placeholder"))}
    plan = Results({}, [], isinstance(output, fx.Node))
    chains = {n: _view_chain(n) for n in leaves if isinstance(n, fx.Node)}
    uses = Counter(chain[0] for chain in chains.values())
    for out in leaves:
        if not isinstance(out, fx.Node):
            plan.outputs.append(_constant(out))
        elif is_static_int(out.meta["val"]):
            plan.outputs.append(_constant(int(out.meta["val"])))
        else:
            plan.outputs.append(_make(plan, out, chains, uses, arguments))
    return plan


def _make(
    plan: Results,
    out: fx.Node,
    chains: dict[fx.Node, tuple[fx.Node, list[fx.Node]]],
    uses: Counter[fx.Node],
    arguments: dict[fx.Node, int],
) -> Make:
    base, chain = chains[out]
    if base not in arguments and uses[base] == 1:
        base, chain = out, []  # nothing to share with: the program makes the view
    if base in arguments:
        i = arguments[base]
        start: Make = lambda _r, a: a[i]  # noqa: E731
    elif not isinstance(base.meta["val"], torch.Tensor):
        n = _returned(plan, base, ())
        return lambda r, _a: r[n].item()
    else:
        again = base in plan.values
        start = _tensor(plan, base)
        if again and not chain:
            return lambda r, a: start(r, a).detach()
    return _viewed(start, chain) if chain else start


def _constant(value: Any) -> Make:
    return lambda _r, _a: value


def _view_chain(node: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """The node that a value is only a view of, and the ops in between, first to last."""
    chain: list[fx.Node] = []
    while node.op == "call_function" and node.target in VIEWS:
        others = pytree.tree_leaves((node.args[1:], node.kwargs))
        if any(isinstance(a, fx.Node) for a in others):
            break
        source = node.args[0]
        assert isinstance(source, fx.Node)
        if node.target is operator.getitem and source.target not in VIEWS:
            break  # one of several results of an op that computes
        chain.insert(0, node)
        node = source
    return node, chain


def _viewed(start: Make, chain: list[fx.Node]) -> Make:
    steps: list[tuple[Any, Any, Any]] = [(n.target, n.args[1:], n.kwargs) for n in chain]

    def make(results: Sequence[torch.Tensor], args: Sequence[Any]) -> torch.Tensor:
        t = start(results, args)
        for op, rest, kwargs in steps:
            t = op(t, *rest, **kwargs)
        return t

    return make


def _returned(plan: Results, node: fx.Node, order: Order) -> int:
    """Adds a node to what the program returns, once, and gives its number there."""
    return plan.values.setdefault(node, (len(plan.values), order))[0]


def _tensor(plan: Results, node: fx.Node) -> Make:
    """A result with the sizes, strides and offset of the graph's metadata."""
    val = node.meta["val"]
    size, stride = tuple(int(s) for s in val.shape), tuple(int(s) for s in val.stride())
    offset = int(val.storage_offset())
    order = buffers.dense_permutation(size, stride)
    n = _returned(plan, node, order or tuple(range(len(size))))
    if order is not None and not offset:
        if stride == _contiguous_strides(size):
            return _Result(n)
        return lambda r, _a: r[n].as_strided(size, stride)
    last = sum((s - 1) * st for s, st in zip(size, stride, strict=True))
    numel = offset + last + 1 if 0 not in size else offset
    once = tuple(slice(1 if st == 0 else s) for s, st in zip(size, stride, strict=True))

    def scattered(results: Sequence[torch.Tensor], _args: Sequence[Any]) -> torch.Tensor:
        source = results[n] if order is None else results[n].permute(inverse(order))
        out = torch.empty(numel, dtype=val.dtype).as_strided(size, stride, offset)
        out[once].copy_(source[once])
        return out

    return scattered


def inverse(order: Order) -> Order:
    """The permutation that undoes another."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _is_straight(order: Order) -> bool:
    return order == tuple(range(len(order)))


def _contiguous_strides(size: Sequence[int]) -> tuple[int, ...]:
    stride, out = 1, []
    for s in reversed(size):
        out.append(stride)
        stride *= max(s, 1)
    return tuple(reversed(out))
