"""A JAX primitive whose MLIR lowering is the walk over an FX graph.

It gives an FX graph all that ``jax.jit`` offers: XLA options, donation, shardings, caching,
ahead-of-time compiling, JAX's control flow around it, and profiling.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir as jax_mlir
from torch import fx
from torch.utils import _pytree as pytree

from tpu_compile.lowering.context import types_of
from tpu_compile.lowering.interpreter import Settings, lower_graph
from tpu_compile.lowering.mlir import Value
from tpu_compile.lowering.types import TensorType, numpy_dtype

# JAX keeps a primitive's parameters in its caches: a number there, and the graph here only while
# it is being lowered.
_graphs: dict[int, tuple[fx.GraphModule, Settings]] = {}
_tokens = itertools.count()

graph_p = Primitive("tpu_graph")
graph_p.multiple_results = True


@contextmanager
def registered(gm: fx.GraphModule, settings: Settings) -> Iterator[int]:
    """Makes a graph known under a token for as long as it is being lowered."""
    token = next(_tokens)
    _graphs[token] = (gm, settings)
    try:
        yield token
    finally:
        del _graphs[token]


def output_types(gm: fx.GraphModule) -> list[TensorType]:
    """The types of the values a lowered graph returns, in order."""
    outputs = pytree.tree_leaves(gm.graph.output_node().args)
    return [t for n in outputs if isinstance(n, fx.Node) for t in types_of(n.meta["val"])]


def shape_dtype(t: TensorType) -> jax.ShapeDtypeStruct:
    """A type as JAX writes it."""
    return jax.ShapeDtypeStruct(t.shape, numpy_dtype(t.dtype))


def _abstract(*_: Any, token: int) -> list[jax.core.ShapedArray]:
    gm, _settings = _graphs[token]
    return [jax.core.ShapedArray(t.shape, numpy_dtype(t.dtype)) for t in output_types(gm)]


def _lower(ctx: jax_mlir.LoweringRuleContext, *args: Value, token: int) -> list[Value]:
    gm, settings = _graphs[token]
    return lower_graph(gm, ctx, args, settings)


graph_p.def_abstract_eval(_abstract)
jax_mlir.register_lowering(graph_p, _lower, cacheable=False)
