"""Run a torch function through AOTAutograd, lowering and XLA without Dynamo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch.aot_autograd import (
    aot_export_joint_simple,
    aot_function,
    make_boxed_func,
)
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree

from tpu_compile.executable import Executable, compile_graph
from tpu_compile.lowering import decompositions
from tpu_compile.lowering.interpreter import Settings


def _aot(
    fn: Callable[..., Any], args: Sequence[Any], compiler: Callable[..., Any]
) -> tuple[Any, ...]:
    detached = [a.detach() if isinstance(a, torch.Tensor) else a for a in args]
    run = aot_function(fn, fw_compiler=compiler, decompositions=decompositions.table())
    with decompositions.rules_first(), _tracing():
        return run(*detached)


def _tracing() -> Any:
    """As under Dynamo: constants made in the function become constants of the graph."""
    return tracing(TracingContext(FakeTensorMode()))


def capture(fn: Callable[..., Any], args: Sequence[Any]) -> torch.fx.GraphModule:
    """The functional, decomposed ATen graph of ``fn`` on tensors like ``args``."""
    graphs: list[torch.fx.GraphModule] = []

    def compiler(gm: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        graphs.append(gm)
        return make_boxed_func(gm.forward)

    _aot(fn, args, compiler)
    return graphs[0]


def lower(fn: Callable[..., Any], args: Sequence[Any], *, keep_text: bool = False) -> Executable:
    """``fn`` compiled for the CPU; raises where an op has no rule."""
    return compile_graph(capture(fn, args), Settings(), keep_text=keep_text)


def run_lowered(fn: Callable[..., Any], args: Sequence[Any], **options: Any) -> list[Any]:
    """The flat outputs of ``fn`` run by XLA:CPU, compiled with XLA's ``options``."""

    def compiler(gm: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        # at the first call: here a fake mode is on, under which constants can't be read
        return make_boxed_func(
            lambda *args: compile_graph(gm, Settings(), compiler_options=options)(args)
        )

    return pytree.tree_leaves(_aot(fn, args, compiler))


def compare(
    fn: Callable[..., Any],
    *args: torch.Tensor,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Checks values, dtypes and shapes of the lowered ``fn`` against eager torch on the CPU."""
    expected = pytree.tree_leaves(fn(*args))
    actual = run_lowered(fn, args)
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=rtol, atol=atol, equal_nan=True)


def run_with_gradients(
    fn: Callable[..., Any], args: Sequence[torch.Tensor], **options: Any
) -> tuple[list[Any], list[Any]]:
    """Results of ``fn`` and gradients of the arguments that want one: by eager, and lowered.

    The lowered graph is AOTAutograd's joint graph. Gradients of arguments that want none are None.
    """
    flat = [out for out in fn(*args) if out is not None]
    wanted = [t for t in args if t.requires_grad]
    smooth = [out for out in flat if out.requires_grad]
    torch.manual_seed(1)
    tangents = [torch.randn_like(out) for out in smooth]
    if not smooth:
        return flat, run_lowered(fn, args, **options)
    grads = iter(torch.autograd.grad(smooth, wanted, tangents, allow_unused=True))
    with decompositions.rules_first(), _tracing():
        gm = aot_export_joint_simple(
            lambda *xs: tuple(fn(*xs)),
            list(args),
            trace_joint=True,
            num_params_buffers=0,
            decompositions=decompositions.table(),
        )
    # only exported graphs, as this one, have these checks of what was traced
    for node in gm.graph.find_nodes(
        op="call_function", target=torch.ops.aten._assert_tensor_metadata.default
    ):
        gm.graph.erase_node(node)
    run = compile_graph(gm, Settings(), compiler_options=options)
    actual = run([*(t.detach() for t in args), *tangents])
    every = [next(grads) if t.requires_grad else None for t in args]
    return [t.detach() for t in flat] + every, actual
