"""A graph run op by op with torch's own CPU kernels: what its program has to give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tpu_compile import random_ops  # noqa: F401  (defines torch.ops.tpu)

aten, tpu = torch.ops.aten, torch.ops.tpu

# Samples by our own generator, for which torch has no kernel: a program's are taken on both sides.
SAMPLES = frozenset({tpu.uniform.default, tpu.normal.default, tpu.randint.default})

# What these give is whatever is in memory. Here it is zeros, so that it is the same in each run.
UNDEFINED = frozenset(
    {
        aten.empty.memory_format,
        aten.empty_like.default,
        aten.empty_permuted.default,
        aten.empty_strided.default,
        aten.new_empty.default,
        aten.new_empty_strided.default,
    }
)

# For an op, what gives a node's value, of its graph, the node, and the values of what it reads.
Choices = Mapping[Any, Callable[[fx.GraphModule, fx.Node, dict[fx.Node, Any]], Any]]


class Reference(fx.Interpreter):
    """Runs a concrete graph by torch's kernels, but for the ops in ``choices``."""

    def __init__(self, gm: fx.GraphModule, choices: Choices) -> None:
        super().__init__(gm)
        self.gm, self._choices = gm, choices

    def inputs(self, node: fx.Node) -> dict[fx.Node, Any]:
        """The values of what a node reads; for use while it is run."""
        return {n: self.env[n] for n in node.all_input_nodes}

    def run_node(self, n: fx.Node) -> Any:
        """Gives one node's value."""
        if choose := self._choices.get(n.target):
            return choose(self.gm, n, self.inputs(n))
        value = super().run_node(n)
        return value.zero_() if n.target in UNDEFINED else value

    def outputs(self, args: Sequence[Any]) -> list[Any]:
        """The graph's flat outputs for its flat arguments."""
        with torch.no_grad():
            return pytree.tree_leaves(self.run(*args))


class InFloat64(Reference):
    """As ``Reference``, with every float in float64 (or complex128), to tell rounding by."""

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[Any, Any]:
        """Gives a node's arguments, dtypes widened as well."""
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        return pytree.tree_map_only(torch.dtype, _wide, (args, kwargs))

    def run_node(self, n: fx.Node) -> Any:
        """Gives one node's value, widened."""
        return widened(super().run_node(n))


def _wide(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def widened(value: Any) -> Any:
    """A tree with every tensor of floats in float64."""
    return pytree.tree_map_only(torch.Tensor, lambda t: t.to(_wide(t.dtype)), value)


def value_in_float64(node: fx.Node, inputs: dict[fx.Node, Any]) -> Any:
    """One node's value computed in float64, given the values of what it reads."""
    given = fx.map_arg((node.args, node.kwargs), lambda n: widened(inputs[n]))
    args, kwargs = pytree.tree_map_only(torch.dtype, _wide, given)
    return widened(node.target(*args, **kwargs))  # type: ignore[operator]


def in_float64(run: Callable[[], Sequence[Any]]) -> Sequence[Any] | None:
    """What a run gives, or None where torch has no kernel for float64 or for a mix of types."""
    try:
        with torch.no_grad():
            return run()
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return None


def output_names(gm: fx.GraphModule) -> list[str]:
    """The names of the nodes that a graph's flat outputs are."""
    return [str(n) for n in pytree.tree_leaves(gm.graph.output_node().args)]
