"""Every private API of torch's compiler that we use, seen in torch 2.13."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch._functorch.aot_autograd import aot_export_module as aot_export_module
from torch._guards import TracingContext as TracingContext
from torch._guards import tracing as tracing
from torch._inductor.output_code import OutputCode
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module
from torch.utils._python_dispatch import _disable_current_modes

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def recompile_reason() -> str | None:
    """Why Dynamo compiles the current frame again; None at its first compile.

    Read from the compile's metrics, where Dynamo notes the guards that failed.
    """
    context = torch._guards.CompileContext.try_get()
    if context is None or context.compile_id is None:
        return None
    if not context.compile_id.frame_compile_id:
        return None
    metrics = torch._dynamo.utils.get_metrics_context()
    reason = metrics._metrics.get("recompile_reason") if metrics.in_progress() else None
    return str(reason or "a guard failed")


def where(gm: fx.GraphModule) -> str:
    """``file:line in function`` of the first of the user's lines in a graph, or ""."""
    for node in gm.graph.nodes:
        if found := _FRAME.findall(node.meta.get("stack_trace") or ""):
            return "{}:{} in {}".format(*found[-1])
    return ""


def graph_break(gm: fx.GraphModule) -> tuple[str, str] | None:
    """Why Dynamo ended a graph early and the user's line, or None when it didn't."""
    reason: Any = getattr(gm, "compile_subgraph_reason", None)
    if reason is None or not getattr(reason, "graph_break", False):
        return None
    stack = list(reason.user_stack or ())
    if not stack:
        return reason.reason, ""
    top = stack[-1]
    return (
        reason.reason,
        f'  File "{top.filename}", line {top.lineno}, in {top.name}\n    {top.line}',
    )


# What AOTAutograd's cache keeps, and the compiler function that says it may.
StoredCode = OutputCode
StoringCompiler = SerializableAOTDispatchCompiler


@contextlib.contextmanager
def aot_settings(tag: str | None) -> Iterator[None]:
    """How AOTAutograd compiles what is within, and whether it keeps it for other processes.

    Args:
        tag: what the compiled code depends on beside the graph and torch; None to keep nothing.
    """
    # The backward is compiled with its forward: what is compiled later sees no settings of ours.
    with functorch_config.patch(
        enable_autograd_cache=tag is not None,
        bundled_autograd_cache=tag is not None,
        force_non_lazy_backward_lowering=True,
    ):
        if tag is None:
            yield
            return
        old = torch.compiler.config.cache_key_tag
        with torch.compiler.config.patch(cache_key_tag=f"{old}{tag}"):  # type: ignore[attr-defined]
            yield


FakeMode = FakeTensorMode


def fake_mode_of(tensors: Sequence[torch.Tensor]) -> FakeTensorMode | None:
    """The fake mode of the first fake tensor, or the one that is on, or None."""
    return torch._guards.detect_fake_mode(list(tensors))


@contextlib.contextmanager
def one_more_compile() -> Iterator[None]:
    """Lets Dynamo compile within however often it has compiled the same code before."""
    limits = {"recompile_limit": 2**30, "accumulated_recompile_limit": 2**30}
    with torch._dynamo.config.patch(limits):
        yield


def shapes_only(args: Sequence[Any]) -> bool:
    """Whether a call is one of shapes: a fake mode is on, in which every new tensor is fake."""
    return fake_mode_of([a for a in args if isinstance(a, torch.Tensor)]) is not None


# A context in which graph modules write their Python when it is first asked for: a graph passes
# through several of them, and none but a fallback's is ever run as Python.
lazy_graph_modules = functools.partial(_use_lazy_graph_module, True)
graph_module = _make_graph_module

# A context in which tensors are real although AOTAutograd compiles under its fake mode.
without_modes = _disable_current_modes
