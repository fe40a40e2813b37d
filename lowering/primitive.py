"""A JAX primitive whose MLIR lowering is the walk over an FX graph.

It gives an FX graph all that ``jax.jit`` offers: XLA options, donation, shardings, caching,
ahead-of-time compiling, JAX's control flow around it, and profiling.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import torch
from jax.extend.core import Primitive
from jax.interpreters import mlir as jax_mlir
from jax.sharding import Sharding
from torch import fx

from tpu_compile.lowering.checks import Checks
from tpu_compile.lowering.context import types_of
from tpu_compile.lowering.interpreter import Settings, lower_graph, outputs_of
from tpu_compile.lowering.mlir import Value
from tpu_compile.lowering.types import TensorType, numpy_dtype


@dataclass(frozen=True)
class Graph:
    """What a token stands for.

    Attributes:
        gm: the graph.
        settings: target and precision.
        results: the nodes whose values the primitive returns; None for the graph's outputs.
        checks: filled by lowering; the number of the first that failed is then the last result.
    """

    gm: fx.GraphModule
    settings: Settings
    results: tuple[fx.Node, ...] | None = None
    checks: Checks | None = None

    @property
    def types(self) -> list[TensorType]:
        """The types of the results."""
        nodes = outputs_of(self.gm) if self.results is None else self.results
        types = [t for n in nodes for t in types_of(n.meta["val"])]
        return types if self.checks is None else [*types, TensorType((), torch.int32)]


# JAX keeps a primitive's parameters in its caches: a number there, and the graph here only while
# it is being lowered.
_graphs: dict[int, Graph] = {}
_tokens = itertools.count()

graph_p = Primitive("tpu_graph")
graph_p.multiple_results = True


@contextmanager
def registered(graph: Graph) -> Iterator[int]:
    """Makes a graph known under a token for as long as it is being lowered."""
    token = next(_tokens)
    _graphs[token] = graph
    try:
        yield token
    finally:
        del _graphs[token]


def shape_dtype(t: TensorType, sharding: Sharding | None) -> jax.ShapeDtypeStruct:
    """A type as JAX writes it, and where it is."""
    return jax.ShapeDtypeStruct(t.shape, numpy_dtype(t.dtype), sharding=sharding)


def _abstract(*_: Any, token: int) -> list[jax.core.ShapedArray]:
    return [jax.core.ShapedArray(t.shape, numpy_dtype(t.dtype)) for t in _graphs[token].types]


def _lower(ctx: jax_mlir.LoweringRuleContext, *args: Value, token: int) -> list[Value]:
    graph = _graphs[token]
    values = lower_graph(graph.gm, ctx, args, graph.settings, graph.results, graph.checks)
    return values if graph.checks is None else [*values, graph.checks.first_failure()]


graph_p.def_abstract_eval(_abstract)
jax_mlir.register_lowering(graph_p, _lower, cacheable=False)
