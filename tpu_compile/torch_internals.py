"""Every private API of torch's compiler that we use, seen in torch 2.13."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx


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


def compiling_where() -> str:
    """``file:line in function`` of the frame Dynamo is compiling, or ""."""
    metrics = torch._dynamo.utils.get_metrics_context()
    found = metrics._metrics if metrics.in_progress() else {}
    if "co_filename" not in found:
        return ""
    line, name = found.get("co_firstlineno", "?"), found.get("co_name", "?")
    return f"{found['co_filename']}:{line} in {name}"


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
