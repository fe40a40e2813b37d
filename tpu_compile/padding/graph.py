"""A graph while it is rewritten: layouts of its values, lengths as inputs, nodes to insert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import sympy
import torch
from torch import fx
from torch.utils import _pytree as pytree

from tpu_compile import errors
from tpu_compile.padding import layout as lay
from tpu_compile.padding import ops  # noqa: F401  (defines torch.ops.tpu.fill_padding and friends)
from tpu_compile.padding.layout import Dim, Layout
from tpu_compile.specialize import Number, Spec

tpu = torch.ops.tpu


@dataclass
class PaddedGraph:
    """A symbolic graph whose symbols stand for padded sizes.

    Attributes:
        gm: with specs and numbers as metadata (``specialize.abstract``).
        symbols: those that are rounded up, as they nest in a merged dimension, outermost first.
        padded: the value of every symbol, rounded up.
        layouts: of each tensor node; a tuple of layouts for a node with several results.
        lengths: for each integer that a program takes beside the graph's arguments, its value as an
            expression over the true sizes.
    """

    gm: fx.GraphModule
    symbols: tuple[sympy.Symbol, ...]
    padded: Mapping[sympy.Symbol, Any]
    layouts: dict[fx.Node, Any] = field(default_factory=dict)
    lengths: dict[Number, fx.Node] = field(default_factory=dict)

    # ------------------------------------------------------------ what rules read

    def layout(self, node: fx.Node) -> Layout:
        """The layout of a tensor node."""
        found: Layout = self.layouts[node]
        return found

    def is_padded(self, dim: Dim) -> bool:
        """Whether there is padding in a dimension."""
        return dim.padded(self.symbols)

    def depends(self, v: Any) -> bool:
        """Whether a size or a number changes with what is rounded up."""
        return isinstance(v, Number) and lay.varies(v.expr, self.symbols)

    def concrete(self, size: sympy.Expr) -> int:
        """A padded size as a number."""
        return int(size.xreplace(dict(self.padded)))

    @staticmethod
    def tensors(args: Any) -> list[fx.Node]:
        """The nodes among arguments that are tensors."""
        leaves = pytree.tree_leaves(args)
        return [n for n in leaves if isinstance(n, fx.Node) and is_tensor(n.meta.get("val"))]

    def refuse(self, node: fx.Node, why: str) -> NoReturn:
        """Declines a graph.

        Raises:
            PaddingRefused: naming the op and the user's line.
        """
        raise errors.PaddingRefused(op=node.target, why=why, node=node)

    # ------------------------------------------------------------ what rules write

    def value(self, expr: sympy.Expr, kind: type = int) -> fx.Node:
        """A number over the true sizes, as an input of the program."""
        number = Number(kind, expr)
        if number not in self.lengths:
            last = self.gm.graph.find_nodes(op="placeholder")[-1]
            name = f"length_{len(self.lengths)}"
            with self.gm.graph.inserting_after(last):
                node = self.gm.graph.placeholder(name)
            node.meta["val"] = Number(kind, sympy.Symbol(name, integer=kind is int))
            self.lengths[number] = node
        return self.lengths[number]

    def true_number(self, v: Any) -> Any:
        """An argument that is a number as a value: over the true sizes where it depends on them."""
        val: Any = v.meta.get("val") if isinstance(v, fx.Node) else None
        return self.value(val.expr, val.kind) if self.depends(val) else v

    def insert(
        self,
        before: fx.Node,
        op: Any,
        *args: Any,
        layout: Layout,
        dtype: torch.dtype,
        kwargs: Mapping[str, Any] | None = None,
    ) -> fx.Node:
        """A new node in front of another, with its metadata."""
        with self.gm.graph.inserting_before(before):
            new = self.gm.graph.call_function(op, args, dict(kwargs or {}))
        new.meta = {k: v for k, v in before.meta.items() if k in ("stack_trace", "nn_module_stack")}
        new.meta["val"] = spec_of(layout, dtype)
        self.layouts[new] = layout
        return new

    def filled(
        self,
        user: fx.Node,
        x: fx.Node,
        fill: Any,
        dims: Sequence[int] | None = None,
        layout: Layout | None = None,
    ) -> fx.Node:
        """``x`` for one user, with a value in the padding of the given (default all) dimensions.

        Args:
            user: the node in front of which it is made.
            x: a tensor.
            fill: a number; a function of the dtype, as ``lowest``, where it depends on that.
            dims: non-negative.
            layout: of its first dimensions, joined with that of other operands: a dimension that is
                constant takes theirs.
        """
        own = self.layout(x)
        layout = (*(layout or ()), *own[len(layout or ()) :])
        dtype = x.meta["val"].dtype
        out = x
        for d in range(len(layout)) if dims is None else dims:
            factors = layout[d].factors
            for i, factor in enumerate(factors):
                if not lay.varies(factor, self.symbols):
                    continue
                inner = self.concrete(sympy.Mul(*factors[i + 1 :]))
                number = fill(dtype) if callable(fill) else fill
                length = self.value(factor)
                args = (out, d, self.concrete(factor), inner, length, number)
                op = tpu.fill_padding.default
                out = self.insert(user, op, *args, layout=layout, dtype=dtype)
        return out


def is_tensor(val: Any) -> bool:
    """Whether a node's metadata is one tensor's."""
    return isinstance(val, Spec | torch.Tensor)


def sizes_of(val: Any) -> tuple[sympy.Expr, ...]:
    """A tensor's sizes as expressions."""
    return tuple(lay.expr_of(n) for n in val.shape)


def spec_of(layout: Layout, dtype: torch.dtype) -> Spec:
    """The metadata of a contiguous tensor of a layout."""
    sizes = [d.size for d in layout]
    strides = [sympy.Mul(*sizes[i + 1 :]) for i in range(len(sizes))]
    number = lambda e: int(e) if e.is_Integer else Number(int, e)  # noqa: E731
    return Spec(dtype, tuple(map(number, sizes)), tuple(map(number, strides)), 0)
