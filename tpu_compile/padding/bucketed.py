"""Calls with sizes rounded up: arguments padded, one program a bucket, results cut."""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils import _pytree as pytree

from tpu_compile import compile_log, specialize
from tpu_compile.padding.graph import is_tensor, sizes_of
from tpu_compile.padding.layout import Layout, of_argument, varies
from tpu_compile.padding.rewrite import rewrite
from tpu_compile.specialize import Number, Spec

Run = Callable[[list[Any]], list[Any]]
Bound = Mapping[sympy.Symbol, Any]

# So many true sizes' calls are kept ready for each program.
KEPT = 256


@dataclass
class Bucketed:
    """A symbolic graph's programs by bucket.

    Attributes:
        gm: the graph, with specs and numbers as metadata.
        buckets: for each symbol that is rounded up, by name, the sizes to round it up to,
            ascending; in the order in which they nest in a merged dimension, outermost first.
        runtime: placeholders that stay inputs (``specialize.runtime_scalars``).
        compile: makes a program of a concrete graph.
    """

    gm: fx.GraphModule
    buckets: Mapping[str, Sequence[int]]
    runtime: set[fx.Node]
    compile: Callable[[fx.GraphModule], Run]
    runs: dict[Any, _Padded] = field(default_factory=dict)

    def __post_init__(self) -> None:
        placeholders = self.gm.graph.find_nodes(op="placeholder")
        self.vals = [p.meta["val"] for p in placeholders]
        self.staying = {s for p in self.runtime for s in _symbols(p.meta["val"])}
        named = {str(s): s for v in self.vals for s in _symbols(v)}
        self.symbols = tuple(named[name] for name in self.buckets if name in named)
        # what else than the sizes a program depends on
        self.keys = [
            None if isinstance(v, Number) or self._rounds(v) else _layout_of for v in self.vals
        ]

    def find(self, args: Sequence[Any], missing: Callable[[], None]) -> Run | None:
        """The program for a call's sizes, or None where one is larger than its largest bucket.

        Args:
            args: the graph's flat arguments.
            missing: called before a program is compiled.
        """
        bound = specialize.bind(self.gm, args)
        padded = dict(bound)
        for s in self.symbols:
            sizes = self.buckets[str(s)]
            at = bisect.bisect_left(sizes, bound[s])
            if at == len(sizes):
                return None
            padded[s] = sizes[at]
        sizes = tuple(n for s, n in padded.items() if s not in self.staying)
        key = (
            sizes,
            *(None if of is None else of(a) for of, a in zip(self.keys, args, strict=True)),
        )
        run = self.runs.get(key)
        if run is None:
            missing()
            run = self.runs[key] = self._build(padded)
        return run.at({s: n for s, n in bound.items() if s not in self.staying})

    def _rounds(self, val: Any) -> bool:
        return isinstance(val, Spec) and any(
            isinstance(n, Number) and varies(n.expr, self.symbols) for n in val.shape
        )

    def _build(self, padded: Bound) -> _Padded:
        start = time.perf_counter()
        g = rewrite(self.gm, self.symbols, padded)
        lengths = [(number.kind, number.expr) for number in g.lengths]
        sizes = {s: n for s, n in padded.items() if s not in self.staying}
        concrete = specialize.with_sizes(g.gm, sizes)
        compile_log.add_stage("passes", time.perf_counter() - start)
        arguments = [self._argument(v, padded) for v in self.vals]
        outputs = []
        given = pytree.tree_leaves(self.gm.graph.output_node().args[0], is_leaf=_is_none)
        made = pytree.tree_leaves(g.gm.graph.output_node().args[0], is_leaf=_is_none)
        for old, new in zip(given, made, strict=True):
            outputs.append(self._output(old, g.layouts.get(new), padded))
        return _Padded(self.compile(concrete), arguments, lengths, outputs)

    def _argument(self, val: Any, padded: Bound) -> Any:
        if self._rounds(val):
            layout = tuple(of_argument(size, self.symbols) for size in sizes_of(val))
            return _Pad(layout, padded)
        if isinstance(val, Number) and not _symbols(val) & self.staying:
            return _value(val, padded)
        return None

    def _output(self, node: Any, layout: Layout | None, padded: Bound) -> Any:
        if not isinstance(node, fx.Node):
            return None
        val = node.meta["val"]
        if node.op == "placeholder":
            return self.gm.graph.find_nodes(op="placeholder").index(node)
        if isinstance(val, Number):
            return val
        if is_tensor(val) and layout and any(d.padded(self.symbols) for d in layout):
            return _Cut(layout, val, padded)
        return None


def _is_none(v: Any) -> bool:
    return v is None


def _symbols(val: Any) -> set[sympy.Symbol]:
    numbers = val.numbers if isinstance(val, Spec) else (val,)
    return {s for n in numbers if isinstance(n, Number) for s in n.expr.free_symbols}


def _value(v: Any, bound: Bound) -> Any:
    return v.kind(v.expr.xreplace(dict(bound))) if isinstance(v, Number) else v


def _layout_of(a: Any) -> Any:
    return (*a.shape, *a.stride(), a.storage_offset()) if isinstance(a, torch.Tensor) else a


@dataclass
class _Padded:
    """One bucket's program, and how its arguments and results are made.

    Attributes:
        run: the program.
        arguments: for each a _Pad, a number in its place, or None where it is taken as it is.
        lengths: kinds and values of the integers behind them.
        outputs: for each the place of the argument that it is, a _Cut, a Number, or None where it
            is returned as it is.
    """

    run: Run
    arguments: list[Any]
    lengths: list[tuple[type, sympy.Expr]]
    outputs: list[Any]
    calls: dict[tuple[Any, ...], Run] = field(default_factory=dict)

    def at(self, bound: Bound) -> Run:
        """The program for some true sizes; the last ones are kept ready."""
        key = tuple(bound.values())
        if key not in self.calls:
            if len(self.calls) == KEPT:
                del self.calls[next(iter(self.calls))]
            self.calls[key] = self._prepare(bound)
        return self.calls[key]

    def _prepare(self, bound: Bound) -> Run:
        ready = lambda how: how.at(bound) if isinstance(how, _Pad | _Cut) else how  # noqa: E731
        arguments = [(i, ready(h)) for i, h in enumerate(self.arguments) if h is not None]
        outputs = [(i, ready(h)) for i, h in enumerate(self.outputs) if h is not None]
        outputs = [(i, _value(h, bound) if isinstance(h, Number) else h) for i, h in outputs]
        is_argument = [isinstance(h, int) for h in self.outputs]
        lengths = [_value(Number(kind, expr), bound) for kind, expr in self.lengths]

        def call(args: list[Any]) -> list[Any]:
            mine = list(args)
            for i, how in arguments:
                mine[i] = how(args[i]) if callable(how) else how
            results = self.run([*mine, *lengths])
            for i, how in outputs:
                if is_argument[i]:
                    results[i] = args[self.outputs[i]]
                else:
                    results[i] = how(results[i]) if callable(how) else how
            return results

        return call


def _factors(layout: Layout, bound: Bound) -> list[int]:
    return [int(f.xreplace(dict(bound))) for d in layout for f in d.factors]


def blank(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """What an argument is written into. No result depends on what is in it."""
    return like.new_zeros(shape)


@dataclass
class _Pad:
    """Makes a padded tensor of an argument."""

    layout: Layout
    padded: Bound

    def at(self, bound: Bound) -> Callable[[torch.Tensor], torch.Tensor]:
        grid, valid = _factors(self.layout, self.padded), _factors(self.layout, bound)
        shape = [int(d.size.xreplace(dict(self.padded))) for d in self.layout]
        if valid == grid:
            return torch.Tensor.contiguous
        box = tuple(map(slice, valid))

        def pad(t: torch.Tensor) -> torch.Tensor:
            out = blank(t, grid)
            out[box].copy_(t.reshape(valid))
            return out.view(shape)

        return pad


@dataclass
class _Cut:
    """Makes a result of a padded one, with the strides that the graph promises."""

    layout: Layout
    val: Spec
    padded: Bound

    def at(self, bound: Bound) -> Callable[[torch.Tensor], torch.Tensor]:
        grid, valid = _factors(self.layout, self.padded), _factors(self.layout, bound)
        shape = [_value(n, bound) for n in self.val.shape]
        stride = [_value(n, bound) for n in self.val.stride]
        box = tuple(map(slice, valid))
        # an expanded dimension's elements are one
        stored = [1 if step == 0 else n for n, step in zip(shape, stride, strict=True)]
        first = tuple(map(slice, stored))

        def cut(t: torch.Tensor) -> torch.Tensor:
            out = t.new_empty_strided(stored, stride)
            return out.copy_(t.reshape(grid)[box].reshape(shape)[first]).expand(shape)

        return cut
