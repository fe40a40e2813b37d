"""Every private API of torch's compiler that we use, seen in torch 2.13."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import fx
from torch._functorch import config as functorch_config
from torch._functorch import partitioners
from torch._functorch._aot_autograd import descriptors
from torch._functorch._aot_autograd.schemas import (
    PlainTensorMeta,
    SerializableAOTDispatchCompiler,
)
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


def hands_on(inputs: int) -> bool:
    """Whether AOTAutograd's own part of a call only hands arguments and results on.

    That is so for an inference graph that mutates nothing and whose results are all new. Asked
    while such a graph is compiled.

    Args:
        inputs: how many the Dynamo graph has; fewer are left where two are the same tensor.
    """
    context = TracingContext.try_get()
    m = context.fw_metadata if context is not None else None
    if m is None or len(m.input_info) != inputs:
        return False
    subclasses = [*m.subclass_inp_meta, *m.subclass_fw_graph_out_meta]
    more = (
        m.mutated_inp_runtime_indices
        or m.mutated_graph_handled_indices
        or m.aliased_out_indices
        or m.num_intermediate_bases
        or any(not isinstance(s, PlainTensorMeta) for s in subclasses)
        or m.dynamic_outputs
        or m.grad_enabled_mutation is not None
        or m.tokens
        or m.act_input_indices
        or m.is_rng_op_functionalized
        or m.num_graphsafe_rng_states
    )
    return not more


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


@contextlib.contextmanager
def drawing_nothing(ops: Collection[torch._ops.OpOverload]) -> Iterator[None]:
    """Has the partitioner take it that these ops, though tagged so, draw no random numbers.

    An op that may draw some is wrapped, where it is recomputed, in one that saves the generator's
    state, unless none of what is recomputed needs it.
    """

    def recomputes_random_ops(gm: fx.GraphModule) -> bool:
        return any(
            partitioners.must_recompute(n)
            and n.target not in ops
            and torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ())
            for n in gm.graph.nodes
        )

    with mock.patch.object(partitioners, "has_recomputable_rng_ops", recomputes_random_ops):
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


@dataclass(frozen=True)
class Role:
    """What a graph's argument or output is to the user's function.

    Attributes:
        input: the number of the Dynamo graph's input that it is, or whose gradient or new value.
        result: the number of the user's result that it is, or whose gradient.
    """

    input: int | None = None
    result: int | None = None


def role(node: fx.Node) -> Role:
    """Of a placeholder of AOTAutograd's graph; a role without numbers for a saved value."""
    return _role(node.meta.get("desc"))


def output_roles(output: fx.Node, count: int) -> list[Role]:
    """Of each output of AOTAutograd's graph."""
    found = [_role(d) for d in output.meta.get("desc") or ()]
    return found if len(found) == count else [Role()] * count


def _role(desc: Any) -> Role:
    if isinstance(desc, descriptors.TangentAOTInput):
        return Role(result=_role(desc.output).result)
    if isinstance(desc, descriptors.PlainAOTInput):
        return Role(input=desc.idx)
    if isinstance(desc, descriptors.PlainAOTOutput):
        return Role(result=desc.idx)
    if isinstance(desc, descriptors.GradAOTOutput):
        return Role(input=_role(desc.grad_of).input)
    if isinstance(desc, descriptors.InputMutationAOTOutput):
        return Role(input=_role(desc.mutated_input).input)
    return Role()


_PART = re.compile(r"\[['\"]?([^'\"\]]+)['\"]?\]|\.([A-Za-z_]\w*)|^(\w+)")
_HOLDERS = ("_modules", "_parameters", "_buffers")


def named_inputs(
    gm: fx.GraphModule, parameters: Sequence[str] = ()
) -> list[tuple[str, tuple[int, ...] | None]]:
    """The inputs of a Dynamo graph: each one's name in the user's code, and a tensor's shape.

    A parameter or buffer has the name that its module's ``state_dict`` gives it; where a graph uses
    several modules that is preceded by the module's own name.

    Args:
        gm: the graph.
        parameters: of the user's function, for what a wrapper in between takes as ``*args``.
    """
    nodes = gm.graph.find_nodes(op="placeholder")
    sources = [_source(node) for node in nodes]
    owners = {owner for owner, owned in sources if owned}
    first = 1 if ("args", "0") in owners else 0  # the module itself
    named: dict[tuple[str, ...], str] = {
        ("args", str(first + i)): name for i, name in enumerate(parameters)
    }
    sources = [((named[o[:2]], *o[2:]) if o[:2] in named else o, owned) for o, owned in sources]
    found: list[tuple[str, tuple[int, ...] | None]] = []
    for node, (owner, owned) in zip(nodes, sources, strict=True):
        value = node.meta.get("example_value")
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else None
        parts = owned if owned and len(owners) == 1 else [*owner, *owned]
        found.append((".".join(parts), shape))
    return found


def dynamic_inputs(gm: fx.GraphModule) -> list[tuple[str, list[str | None]]]:
    """For each tensor input of a Dynamo graph its name, and its dimensions' symbols by name."""
    return [
        (name, [_symbol(n) for n in shape]) for name, shape in named_inputs(gm) if shape is not None
    ]


def _symbol(size: int | torch.SymInt) -> str | None:
    if not isinstance(size, torch.SymInt) or not size.node.expr.is_Symbol:
        return None
    return str(size.node.expr)


def _source(node: fx.Node) -> tuple[tuple[str, ...], list[str]]:
    """``L['net']._modules['fc']._parameters['weight']`` as ``(("net",), ["fc", "weight"])``."""
    source = getattr(node.meta.get("grapharg"), "source", None)
    if source is None:
        return (node.name,), []
    parts = [next(filter(None, found)) for found in _PART.findall(str(source.name))]
    parts = parts[1:] if parts[0] in ("L", "G") else parts
    parts = parts[1:] if parts[0] in ("self", "kwargs") and len(parts) > 1 else parts
    at = next((i for i, part in enumerate(parts) if part in _HOLDERS), len(parts))
    return tuple(parts[:at]), [p for p in parts[at:] if p not in _HOLDERS]
