"""A model to a functional ATen graph of ops that have rules, by ``torch.export``."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from tpu_compile.passes import pipeline
from tpu_compile.passes.functional_random import functional_random
from tpu_compile.portable.errors import NotExportable
from tpu_compile.portable.functional import Functional, functional

_FOLDERS = re.compile(r'File "[^"]*[/\\]')


@dataclass(frozen=True)
class Captured:
    """A program of torch.export, with our ops only, and what its call looks like.

    Attributes:
        program: as torch.export captured it.
        functional: what it computes; the seed, if it draws one, is still an op in the graph.
        model: the name of the model's class or function.
        names: of the arguments, by position and then by keyword.
    """

    program: ExportedProgram
    functional: Functional
    model: str
    names: tuple[str, ...]


def capture(
    model: Callable[..., Any] | ExportedProgram, args: Any, kwargs: Mapping[str, Any] | None
) -> Captured:
    """Captures a model as it runs on arguments like these.

    Args:
        model: a module, a function, or what torch.export has captured.
        args: a tuple of the positional arguments.
        kwargs: the others.

    Raises:
        NotExportable: where torch.export can't, or where the program has no single shape.
    """
    if isinstance(model, ExportedProgram):
        exported, name = model, type(model).__name__
    else:
        if not isinstance(args, tuple):
            why = f"args must be a tuple of the positional arguments, not a {type(args).__name__}"
            raise NotExportable(what="the model", why=why)
        module = _as_module(model)
        name = _name_of(model)
        try:
            exported = torch.export.export(module, args, dict(kwargs or {}), strict=False)
        except Exception as err:  # torch.export's errors have no class of their own
            why = f"torch.export does not capture it ({type(err).__name__}: {err})"
            raise NotExportable(what=f"model {name}", why=why) from err
    _refuse_symbols(exported)
    names = exported.module_call_graph[0].signature.forward_arg_names
    found = functional(exported)
    gm = found.gm
    _erase_type_checks(gm)
    _shorten_paths(gm)
    functional_random.run(gm)
    pipeline.run(gm, pipeline.compose())
    return Captured(exported, found, name, tuple(names or ()))


def _as_module(model: Callable[..., Any]) -> torch.nn.Module:
    if isinstance(model, torch.nn.Module):
        return getattr(model, "_orig_mod", model)  # of torch.compile
    if not callable(model):
        why = "it is neither a module, a function nor an ExportedProgram"
        raise NotExportable(what=f"a {type(model).__name__}", why=why)
    return _Function(getattr(model, "_torchdynamo_orig_callable", model))


class _Function(torch.nn.Module):
    """A function as a module; torch.export reads the names of its parameters off it."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()

        @functools.wraps(fn)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        forward.__signature__ = inspect.signature(fn)  # type: ignore[attr-defined]
        self.forward = forward


def _name_of(model: Callable[..., Any]) -> str:
    if isinstance(model, torch.nn.Module):
        return type(_as_module(model)).__name__
    return getattr(model, "__name__", type(model).__name__)


def _refuse_symbols(exported: ExportedProgram) -> None:
    symbols = exported.range_constraints
    if symbols:
        why = (
            f"it has sizes that vary or depend on data ({', '.join(map(str, symbols))}). Export "
            "it with fixed sizes, once for each combination of them, and pad inputs to these"
        )
        raise NotExportable(what="the model", why=why)


def _erase_type_checks(gm: fx.GraphModule) -> None:
    """Leaves out what torch.export adds to check its own tracing: shapes and dtypes are fixed."""
    op = torch.ops.aten._assert_tensor_metadata.default
    for module in gm.modules():
        if isinstance(module, fx.GraphModule):
            for node in module.graph.find_nodes(op="call_function", target=op):
                module.graph.erase_node(node)


def _shorten_paths(gm: fx.GraphModule) -> None:
    """Leaves the folders out of the user's lines: the program goes to other machines."""
    for module in gm.modules():
        if isinstance(module, fx.GraphModule):
            for node in module.graph.nodes:
                if trace := node.meta.get("stack_trace"):
                    node.meta["stack_trace"] = _FOLDERS.sub('File "', trace)
