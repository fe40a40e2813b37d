"""cond, while_loop, scan and map: JAX's control flow around the bodies' own lowering."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import fx

from tpu_compile.lowering import primitive
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.interpreter import Settings
from tpu_compile.lowering.jax_bridge import jnp_call
from tpu_compile.lowering.mlir import Value, ir
from tpu_compile.lowering.registry import lowers

hop = torch.ops.higher_order

Body = Callable[..., list[jax.Array]]


@contextlib.contextmanager
def _bodies(ctx: LoweringContext, *graphs: fx.GraphModule) -> Iterator[list[Body]]:
    """Subgraphs as JAX functions, for as long as they are being lowered."""
    settings = Settings(ctx.target, ctx.matmul_precision, checks=False)
    with contextlib.ExitStack() as stack:
        tokens = [
            stack.enter_context(primitive.registered(primitive.Graph(g, settings))) for g in graphs
        ]
        yield [
            lambda *xs, token=token: primitive.graph_p.bind(*xs, token=token) for token in tokens
        ]


def _values(operands: Sequence[Any]) -> list[Value]:
    """The operands that are tensors or runtime scalars; known integers are in the bodies."""
    return [v for v in operands if isinstance(v, ir.Value)]


def _as_list(out: Value | list[Value]) -> list[Value]:
    return out if isinstance(out, list) else [out]


def _with_nones(ctx: LoweringContext, outs: list[Value]) -> list[Value | None]:
    """Puts None where the op returns None (a gradient that is not wanted)."""
    rest = iter(outs)
    return [None if v is None else next(rest) for v in ctx.node.meta["val"]]


@lowers(hop.cond, bridged=True)
def cond(
    ctx: LoweringContext,
    pred: Value | bool,
    true_graph: fx.GraphModule,
    false_graph: fx.GraphModule,
    operands: Sequence[Any],
) -> list[Value | None]:
    """cond(pred, true_fn, false_fn, operands) -> outputs of the branch taken"""
    with _bodies(ctx, true_graph, false_graph) as (true, false):
        if not isinstance(pred, ir.Value):
            chosen = true if pred else false
            outs = jnp_call(ctx, lambda *xs: tuple(chosen(*xs)), *_values(operands))
        else:
            outs = jnp_call(
                ctx,
                lambda p, *xs: tuple(jax.lax.cond(p.reshape(()), true, false, *xs)),
                pred,
                *_values(operands),
            )
        return _with_nones(ctx, _as_list(outs))


@lowers(hop.while_loop, bridged=True)
def while_loop(
    ctx: LoweringContext,
    cond_graph: fx.GraphModule,
    body_graph: fx.GraphModule,
    carried: Sequence[Any],
    additional: Sequence[Any],
) -> list[Value]:
    """while_loop(cond_fn, body_fn, carried_inputs, additional_inputs) -> carried"""
    if any(not isinstance(v, ir.Value) for v in carried):
        ctx.fail("a carried Python integer: carry a tensor instead")
    n = len(carried)
    with _bodies(ctx, cond_graph, body_graph) as (test, body):

        def loop(*xs: jax.Array) -> tuple[jax.Array, ...]:
            rest = xs[n:]
            return jax.lax.while_loop(
                lambda c: test(*c, *rest)[0].reshape(()),
                lambda c: tuple(body(*c, *rest)),
                xs[:n],
            )

        return _as_list(jnp_call(ctx, loop, *carried, *_values(additional)))


@lowers(hop.scan, bridged=True)
def scan(
    ctx: LoweringContext,
    combine_graph: fx.GraphModule,
    init: Sequence[Value],
    xs: Sequence[Value],
    additional: Sequence[Any],
) -> list[Value | None]:
    """scan(combine_fn, init, xs, additional_inputs) -> (*carry, *ys), over dimension 0"""
    n, m = len(init), len(xs)
    with _bodies(ctx, combine_graph) as (combine,):

        def run(*arrays: jax.Array) -> tuple[jax.Array, ...]:
            rest = arrays[n + m :]

            def step(carry: Any, x: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
                out = combine(*carry, *x, *rest)
                return tuple(out[:n]), tuple(out[n:])

            carry, ys = jax.lax.scan(step, arrays[:n], arrays[n : n + m])
            return (*carry, *ys)

        outs = jnp_call(ctx, run, *init, *xs, *_values(additional))
        return _with_nones(ctx, _as_list(outs))


@lowers(hop.map_impl, bridged=True)
def map_impl(
    ctx: LoweringContext,
    body_graph: fx.GraphModule,
    xs: Sequence[Value],
    additional: Sequence[Any],
) -> list[Value | None]:
    """map_impl(f, xs, pos_args) -> f over dimension 0 of xs, stacked"""
    m = len(xs)
    with _bodies(ctx, body_graph) as (body,):

        def run(*arrays: jax.Array) -> tuple[jax.Array, ...]:
            rest = arrays[m:]
            step = lambda _, x: ((), tuple(body(*x, *rest)))  # noqa: E731
            return jax.lax.scan(step, (), arrays[:m])[1]

        outs = jnp_call(ctx, run, *xs, *_values(additional))
        return _with_nones(ctx, _as_list(outs))


@lowers(hop.associative_scan, bridged=True)
def associative_scan(
    ctx: LoweringContext,
    combine_graph: fx.GraphModule,
    xs: Sequence[Value],
    additional: Sequence[Any],
) -> list[Value]:
    """associative_scan(combine_fn, xs, additional_inputs) -> inclusive scan over dimension 0

    torch itself unrolls the generic mode into log(n) steps; the pointwise mode stays whole, and its
    body is of one element, so it runs in order here.
    """
    m = len(xs)
    with _bodies(ctx, combine_graph) as (combine,):

        def run(*arrays: jax.Array) -> tuple[jax.Array, ...]:
            rest = arrays[m:]

            def step(carry: Any, x: Any) -> tuple[Any, Any]:
                out = tuple(combine(*carry, *x, *rest))
                return out, out

            first = tuple(a[0] for a in arrays[:m])
            _, ys = jax.lax.scan(step, first, tuple(a[1:] for a in arrays[:m]))
            return tuple(jnp.concatenate([f[None], y]) for f, y in zip(first, ys, strict=True))

        return _as_list(jnp_call(ctx, run, *xs, *_values(additional)))
