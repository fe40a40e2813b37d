"""rand, dropout, bernoulli, ...  ->  pure functions of one seed per call and a number per op.

Runs on the joint graph, before it is split: forward and backward then agree on every mask,
recomputed or saved, and a new seed is drawn by the caller at each call from torch's own generator.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from tpu_compile import random_ops  # noqa: F401  (defines torch.ops.tpu.seed and friends)
from tpu_compile.passes.base import Pass

aten = torch.ops.aten


# How each random op is made of tpu.uniform, tpu.normal and tpu.randint: a function of a writer of
# nodes and the op's arguments.
_RECIPES: dict[Any, Callable[..., Any]] = {}


def _recipe(*ops: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        for op in ops:
            _RECIPES[op] = fn
        return fn

    return register


def _run(gm: fx.GraphModule) -> int:
    random = [n for n in gm.graph.nodes if n.op == "call_function" and n.target in _RECIPES]
    random = [n for n in random if n.kwargs.get("generator") is None]
    if not random:
        return 0
    placeholders = gm.graph.find_nodes(op="placeholder")
    anchor = next(n for n in gm.graph.nodes if n not in set(placeholders))
    with gm.graph.inserting_before(anchor):
        seed = gm.graph.call_function(torch.ops.tpu.seed.default)
    fake = _fake_mode(random)
    seed.meta["val"] = _evaluate(fake, torch.ops.tpu.seed.default)
    # Drawn once per call: the backward takes the forward's, it can't draw its own.
    seed.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    for number, node in enumerate(random):
        _replace(gm.graph, node, seed, number, fake)
    gm.graph.lint()
    return len(random)


def _fake_mode(nodes: list[fx.Node]) -> Any:
    val = next(torch.utils._pytree.tree_leaves(n.meta["val"])[0] for n in nodes)
    return val.fake_mode


def _evaluate(fake: Any, op: Any, *args: Any) -> Any:
    with fake:
        return op(*args)


class _Writer:
    """Traces a recipe by hand: calls become nodes with their metadata."""

    def __init__(
        self, graph: fx.Graph, node: fx.Node, seed: fx.Node, number: int, fake: Any
    ) -> None:
        self.graph, self.node, self.seed, self.number, self.fake = graph, node, seed, number, fake

    def __call__(self, op: Any, *args: Any, **kwargs: Any) -> fx.Node:
        out = self.graph.call_function(op, args, kwargs)
        value = lambda n: n.meta["val"] if isinstance(n, fx.Node) else n  # noqa: E731
        with self.fake:
            out.meta["val"] = op(
                *fx.node.map_aggregate(args, value), **fx.node.map_aggregate(kwargs, value)
            )
        for key in ("stack_trace", "recompute", "ac_graph_id", "partitioner_tag", "seq_nr"):
            if key in self.node.meta:
                out.meta[key] = self.node.meta[key]
        out.meta["from_pass"] = "functional-random"
        return out

    def draw(self, op: Any, size: Any, dtype: torch.dtype, *limits: Any) -> fx.Node:
        return self(op, self.seed, self.number, *limits, list(size), dtype)


def _replace(graph: fx.Graph, node: fx.Node, seed: fx.Node, number: int, fake: Any) -> None:
    with graph.inserting_before(node):
        write = _Writer(graph, node, seed, number, fake)
        new = _RECIPES[node.target](write, *node.args, **node.kwargs)
    if isinstance(new, tuple):
        for user in list(node.users):
            which: Any = user.args[1]
            user.replace_all_uses_with(new[which])
            graph.erase_node(user)
    else:
        node.replace_all_uses_with(new)
    graph.erase_node(node)


def _size_of(write: _Writer, x: fx.Node) -> list[Any]:
    """The sizes of a value as constants or size nodes."""
    return [
        s if isinstance(s, int) else write(aten.sym_size.int, x, i)
        for i, s in enumerate(x.meta["val"].shape)
    ]


def _dtype(write: _Writer) -> torch.dtype:
    return torch.utils._pytree.tree_leaves(write.node.meta["val"])[0].dtype


def _uniform(write: _Writer, size: Any, dtype: torch.dtype) -> fx.Node:
    return write.draw(torch.ops.tpu.uniform.default, size, dtype)


def _normal(write: _Writer, size: Any, dtype: torch.dtype) -> fx.Node:
    return write.draw(torch.ops.tpu.normal.default, size, dtype)


@_recipe(aten.rand.default)
def _rand(write: _Writer, size: Any, **_: Any) -> fx.Node:
    return _uniform(write, size, _dtype(write))


@_recipe(aten.randn.default)
def _randn(write: _Writer, size: Any, **_: Any) -> fx.Node:
    return _normal(write, size, _dtype(write))


@_recipe(aten.rand_like.default)
def _rand_like(write: _Writer, x: fx.Node, **_: Any) -> fx.Node:
    return _uniform(write, _size_of(write, x), _dtype(write))


@_recipe(aten.randn_like.default)
def _randn_like(write: _Writer, x: fx.Node, **_: Any) -> fx.Node:
    return _normal(write, _size_of(write, x), _dtype(write))


def _randint(write: _Writer, low: Any, high: Any, size: Any) -> fx.Node:
    return write.draw(torch.ops.tpu.randint.default, size, _dtype(write), low, high)


@_recipe(aten.randint.default)
def _randint_high(write: _Writer, high: Any, size: Any, **_: Any) -> fx.Node:
    return _randint(write, 0, high, size)


@_recipe(aten.randint.low)
def _randint_low(write: _Writer, low: Any, high: Any, size: Any, **_: Any) -> fx.Node:
    return _randint(write, low, high, size)


@_recipe(aten.randint_like.default)
def _randint_like(write: _Writer, x: fx.Node, high: Any, **_: Any) -> fx.Node:
    return _randint(write, 0, high, _size_of(write, x))


@_recipe(aten.randint_like.low_dtype)
def _randint_like_low(write: _Writer, x: fx.Node, low: Any, high: Any, **_: Any) -> fx.Node:
    return _randint(write, low, high, _size_of(write, x))


@_recipe(aten.randperm.default)
def _randperm(write: _Writer, n: Any, **_: Any) -> fx.Node:
    keys = write.draw(torch.ops.tpu.randint.default, [n], torch.int64, -(2**62), 2**62)
    order = write(aten.sort.default, keys)
    index = write(operator.getitem, order, 1)
    return write(aten._to_copy.default, index, dtype=_dtype(write))


@_recipe(aten.native_dropout.default)
def _native_dropout(
    write: _Writer, x: fx.Node, p: float, train: bool | None
) -> tuple[fx.Node, fx.Node]:
    if train is False or p == 0:
        mask = write(aten.full.default, _size_of(write, x), True, dtype=torch.bool, device=_cpu(x))
        return write(aten.clone.default, x), mask
    if p == 1:
        mask = write(aten.full.default, _size_of(write, x), False, dtype=torch.bool, device=_cpu(x))
        return write(aten.mul.Tensor, x, 0.0), mask
    mask = write(aten.ge.Scalar, _uniform(write, _size_of(write, x), torch.float32), p)
    kept = write(aten.mul.Tensor, x, mask)
    return write(aten.mul.Tensor, kept, 1.0 / (1.0 - p)), mask


def _cpu(x: fx.Node) -> torch.device:
    return x.meta["val"].device


@_recipe(aten.bernoulli.default)
def _bernoulli(write: _Writer, x: fx.Node, **_: Any) -> fx.Node:
    drawn = write(aten.lt.Tensor, _uniform(write, _size_of(write, x), torch.float32), x)
    return write(aten._to_copy.default, drawn, dtype=_dtype(write))


@_recipe(aten.bernoulli.p)
def _bernoulli_p(write: _Writer, x: fx.Node, p: Any = 0.5, **_: Any) -> fx.Node:
    drawn = write(aten.lt.Scalar, _uniform(write, _size_of(write, x), torch.float32), p)
    return write(aten._to_copy.default, drawn, dtype=_dtype(write))


@_recipe(aten.bernoulli.Tensor)
def _bernoulli_tensor(write: _Writer, x: fx.Node, p: fx.Node, **_: Any) -> fx.Node:
    drawn = write(aten.lt.Tensor, _uniform(write, _size_of(write, x), torch.float32), p)
    return write(aten._to_copy.default, drawn, dtype=_dtype(write))


@_recipe(aten.uniform.default)
def _uniform_range(
    write: _Writer, x: fx.Node, start: Any = 0.0, end: Any = 1.0, **_: Any
) -> fx.Node:
    unit = _uniform(write, _size_of(write, x), _dtype(write))
    return write(aten.add.Tensor, write(aten.mul.Tensor, unit, end - start), start)


@_recipe(aten.normal_functional.default)
def _normal_functional(
    write: _Writer, x: fx.Node, mean: Any = 0.0, std: Any = 1.0, **_: Any
) -> fx.Node:
    unit = _normal(write, _size_of(write, x), _dtype(write))
    return write(aten.add.Tensor, write(aten.mul.Tensor, unit, std), mean)


@_recipe(aten.normal.Tensor_float)
def _normal_mean(write: _Writer, mean: fx.Node, std: Any = 1.0, **_: Any) -> fx.Node:
    unit = _normal(write, _size_of(write, mean), _dtype(write))
    return write(aten.add.Tensor, write(aten.mul.Tensor, unit, std), mean)


@_recipe(aten.normal.float_Tensor)
def _normal_std(write: _Writer, mean: Any, std: fx.Node, **_: Any) -> fx.Node:
    unit = _normal(write, _size_of(write, std), _dtype(write))
    return write(aten.add.Tensor, write(aten.mul.Tensor, unit, std), mean)


@_recipe(aten.normal.Tensor_Tensor)
def _normal_both(write: _Writer, mean: fx.Node, std: fx.Node, **_: Any) -> fx.Node:
    shape = write.node.meta["val"].shape
    larger = next((n for n in (mean, std) if n.meta["val"].shape == shape), None)
    size = list(shape) if larger is None else _size_of(write, larger)
    unit = _normal(write, size, _dtype(write))
    return write(aten.add.Tensor, write(aten.mul.Tensor, unit, std), mean)


@_recipe(aten.exponential.default)
def _exponential(write: _Writer, x: fx.Node, lambd: Any = 1.0, **_: Any) -> fx.Node:
    unit = _uniform(write, _size_of(write, x), _dtype(write))
    log = write(aten.log1p.default, write(aten.neg.default, unit))
    return write(aten.div.Tensor, log, -lambd)


@_recipe(aten.multinomial.default)
def _multinomial(
    write: _Writer, x: fx.Node, num_samples: int, replacement: bool = False, **_: Any
) -> fx.Node:
    """Gumbel's trick: the largest of log p + g are a sample without replacement."""
    size = _size_of(write, x)
    if replacement:
        size = [*size[:-1], num_samples, size[-1]]
        x = write(aten.unsqueeze.default, x, -2)
    unit = _uniform(write, size, torch.float32)
    log = write(aten.log.default, write(aten.neg.default, write(aten.log.default, unit)))
    score = write(aten.sub.Tensor, write(aten.log.default, x), log)
    if replacement:
        return write(aten.argmax.default, score, -1)
    return write(operator.getitem, write(aten.topk.default, score, num_samples), 1)


functional_random = Pass("functional-random", _run)

# The ops that this pass rewrites: they must reach it whole.
RANDOM_OPS = frozenset(_RECIPES)
