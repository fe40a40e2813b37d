"""One walk over an FX graph: each node to StableHLO by its rule, located at the user's line."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tpu_compile import errors
from tpu_compile.lowering import builder, registry, scalars
from tpu_compile.lowering.checks import Checks
from tpu_compile.lowering.context import LoweringContext, types_of
from tpu_compile.lowering.mlir import Value, ir
from tpu_compile.lowering.types import TensorType, type_of


@dataclass(frozen=True)
class Settings:
    """What of the options reaches the rules.

    Attributes:
        target: "cpu" or "tpu".
        matmul_precision: "DEFAULT", "HIGH" or "HIGHEST".
        checks: whether indices and assertions are checked in each run.
        topology: the slice that is compiled for where no TPU is attached; its target is "tpu".
        mesh: names and sizes of the axes that its devices are arranged in; none for one device.
    """

    target: str = "cpu"
    matmul_precision: str = "HIGHEST"
    checks: bool = True
    topology: str | None = None
    mesh: tuple[tuple[str, int], ...] = ()


def lower_graph(
    gm: fx.GraphModule,
    jax_ctx: Any,
    inputs: Sequence[Value],
    settings: Settings,
    results: Sequence[fx.Node] | None = None,
    checks: Checks | None = None,
) -> list[Value]:
    """Emits a graph's ops at the current insertion point.

    Args:
        gm: a functional ATen graph with concrete shapes in every ``meta["val"]``.
        jax_ctx: JAX's lowering context of the primitive that holds the graph.
        inputs: one value per placeholder that is not a known integer.
        settings: target and precision.
        results: the nodes whose values to return; default the graph's outputs.
        checks: filled with what must hold of values in a run.

    Returns:
        One value per node of ``results``.

    Raises:
        MissingLowering: for an op without a rule.
        UnsupportedCase: where a rule declines.
        RuleMismatch: where a rule's result is not what torch's meta function promises.
    """
    env: dict[fx.Node, Any] = {}
    feed = iter(inputs)
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            val = node.meta["val"]
            env[node] = int(val) if is_static_int(val) else next(feed)
        elif node.op == "get_attr":
            env[node] = _attribute(gm, node)
        elif node.op == "call_function":
            with location(node):
                env[node] = _call(node, env, jax_ctx, settings, checks)
    return [_as_value(env[n]) for n in (outputs_of(gm) if results is None else results)]


def outputs_of(gm: fx.GraphModule) -> list[fx.Node]:
    """The nodes among a graph's outputs; constants and None are left out."""
    leaves = pytree.tree_leaves(gm.graph.output_node().args)
    return [n for n in leaves if isinstance(n, fx.Node)]


def is_static_int(val: Any) -> bool:
    """Whether a placeholder is an integer known when lowering (not a tensor or runtime scalar)."""
    return isinstance(val, int) and not isinstance(val, bool)


def location(node: fx.Node) -> ir.Location:
    """``loc("op"("file.py":line))`` of the user's innermost frame."""
    name = str(node.target).removeprefix("aten.")
    found = errors.user_location(node)
    if found is None:
        return ir.Location.name(name)
    return ir.Location.name(name, ir.Location.file(*found, 0))


def _attribute(gm: fx.GraphModule, node: fx.Node) -> Any:
    value = functools.reduce(getattr, str(node.target).split("."), gm)
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().resolve_conj().resolve_neg()
        dtype = value.dtype
        if dtype.is_floating_point and dtype.itemsize < 4:
            value = value.float()
        return builder.array_constant(value.contiguous().numpy(), dtype)
    return value


def _call(
    node: fx.Node,
    env: dict[fx.Node, Any],
    jax_ctx: Any,
    settings: Settings,
    checks: Checks | None,
) -> Any:
    args: Any = fx.map_arg(node.args, env.__getitem__)
    kwargs: Any = fx.map_arg(node.kwargs, env.__getitem__)
    if node.target is operator.getitem:
        return args[0][args[1]]
    if scalars.is_scalar_op(node.target):
        return scalars.lower(node, args)
    rule = registry.find(node.target)
    if rule is None:
        raise errors.MissingLowering(op=node.target, node=node)
    ctx = LoweringContext(node, jax_ctx, settings.target, settings.matmul_precision, checks)
    try:
        out = rule(ctx, *args, **_renamed(kwargs))
    except errors.TpuCompileError as err:
        err.blame(node)
        raise
    except NotImplementedError as err:  # of JAX: this target has no such op
        raise errors.UnsupportedCase(op=node.target, why=str(err), node=node) from err
    except Exception as err:
        err.add_note(f"while lowering: {node.format_node()}")
        if frame := errors.user_frame(node):
            err.add_note(f"from your code:\n{frame}")
        raise
    _check(node, out)
    return out


def _renamed(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"x" if k == "self" else k: v for k, v in kwargs.items()}


def _check(node: fx.Node, out: Any) -> None:
    expected = types_of(node.meta.get("val"))
    got: tuple[TensorType, ...] = tuple(
        type_of(v) for v in pytree.tree_leaves(out) if isinstance(v, ir.Value)
    )
    if got != expected:
        show = lambda ts: ", ".join(map(str, ts)) or "nothing"  # noqa: E731
        raise errors.RuleMismatch(op=node.target, got=show(got), expected=show(expected), node=node)


def _as_value(v: Any) -> Value:
    if isinstance(v, ir.Value):
        return v
    (kind,) = types_of(v)
    return builder.constant(v, kind.dtype)
