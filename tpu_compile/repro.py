"""A runnable script of a graph that failed to compile."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import fx

from tpu_compile.options import Options

_SCRIPT = '''"""A graph that tpu_compile failed on: {error}"""

import torch
from torch import device, inf, nan
import tpu_compile.random_ops
from tpu_compile.repro import run

{code}

ARGUMENTS = {arguments}
OPTIONS = {options}

run(GraphModule, ARGUMENTS, OPTIONS)
'''


@contextlib.contextmanager
def on_failure(gm: fx.GraphModule, options: Options, kind: str) -> Iterator[None]:
    """Writes a script for any error raised within, and names it in the error."""
    try:
        yield
    except Exception as err:
        if not getattr(err, "repro", None):
            try:
                path = write(gm, options, kind, err)
            except OSError as failed:
                err.add_note(f"no repro script could be written: {failed}")
            else:
                err.repro = path  # type: ignore[attr-defined]
                err.add_note(f"a script that reproduces this: {path}")
        raise


def write(gm: fx.GraphModule, options: Options, kind: str, err: Exception) -> Path:
    """Writes the script of a graph and returns its path."""
    folder = options.dump_dir or Path(tempfile.mkdtemp(prefix="tpu_compile_"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"repro_{kind}.py"
    n = 1
    while path.exists():
        path, n = folder / f"repro_{kind}_{n}.py", n + 1
    body = gm.print_readable(print_output=False, include_stride=False, include_device=False)
    code = body.replace(f"class {type(gm).__name__}(", "class GraphModule(", 1)
    code = code.replace("class <lambda>(", "class GraphModule(", 1)
    arguments = [describe(n.meta["val"]) for n in gm.graph.find_nodes(op="placeholder")]
    shown = {"matmul_precision": options.matmul_precision, "target": options.target}
    first = str(err).splitlines()[0] if str(err) else type(err).__name__
    text = _SCRIPT.format(
        error=first.replace('"""', "'''"), code=code, arguments=arguments, options=shown
    )
    path.write_text(text)
    return path


def describe(val: Any) -> Any:
    """A placeholder's value as plain data: (size, stride, dtype name), or a number."""
    if isinstance(val, torch.Tensor):
        hint = lambda v: int(v.node.hint) if isinstance(v, torch.SymInt) else int(v)  # noqa: E731
        size, stride = tuple(map(hint, val.shape)), tuple(map(hint, val.stride()))
        return (size, stride, str(val.dtype).removeprefix("torch."))
    return getattr(getattr(val, "node", None), "hint", val)


def run(graph_module: type[torch.nn.Module], arguments: list[Any], options: dict[str, Any]) -> None:
    """Compiles a repro script's graph and runs it on zeros."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from tpu_compile.executable import compile_graph
    from tpu_compile.lowering.interpreter import Settings

    args = [_argument(a) for a in arguments]
    gm = make_fx(graph_module(), tracing_mode="fake")(*args)
    target = "tpu" if options.get("target") == "tpu" else "cpu"
    out = compile_graph(gm, Settings(target=target))(args)
    print("compiled and ran:", [getattr(o, "shape", o) for o in out])


def _argument(described: Any) -> Any:
    if not isinstance(described, tuple):
        return described
    size, stride, dtype = described
    return torch.empty_strided(size, stride, dtype=getattr(torch, dtype)).zero_()
