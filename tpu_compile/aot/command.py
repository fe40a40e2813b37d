"""``tpu-compile aot SCRIPT.py:fn``: what a model needs and costs on a TPU, on the command line."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tpu_compile.aot.errors import BadScript
from tpu_compile.errors import InvalidOption, TpuCompileError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``tpu-compile aot``."""
    parser.add_argument(
        "script",
        metavar="SCRIPT.py:fn",
        help="a function that returns (model, args) or (model, args, kwargs); its tensors are "
        "made on the meta device, so that a model of any size takes no memory",
    )
    parser.add_argument("--topology", default="v6e", help="such as v6e:2x2 (default: %(default)s)")
    parser.add_argument(
        "--mesh", metavar="AXIS=N,...", help="axes over all devices, such as data=2,model=2"
    )
    parser.add_argument(
        "--shard",
        action="append",
        default=[],
        metavar="NAMES=AXES",
        help="how tensors lie over the mesh: a pattern of names of parameters and inputs, and for "
        "each dimension an axis, axes joined by +, or - : 'layers.*.weight=model,-'; repeatable",
    )
    parser.add_argument("--train", action="store_true", help="the backward, too")
    parser.add_argument("--effort", choices=("fit", "full"), default="full")
    parser.add_argument("--real", action="store_true", help="run the function with real tensors")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures; - prints")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write figures, texts, programs")
    parser.add_argument("--top", type=int, default=0, metavar="N", help="print the N dearest ops")


def run(args: argparse.Namespace) -> int:
    """Compiles and prints; returns 0, 1 where it does not fit, 2 for a wrong request."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    try:
        result = _compile(args, console)
    except TpuCompileError as err:
        console.print(Text(type(err).__name__, style="bold red"), end=": ")
        console.print(Text(str(err)))
        return 1 if type(err).__name__ == "DoesNotFit" else 2
    if args.save:
        result.save(args.save)
    if args.json and str(args.json) != "-":
        args.json.write_text(json.dumps(result.to_json(), indent=1))
    elif args.json:
        print(json.dumps(result.to_json(), indent=1))
        return 0 if result.fits else 1
    out = Console()
    out.print(result.report())
    for op in result.top_ops("bytes", args.top):
        out.print(f"{op.bytes:>16,.0f} B  {op.name}  {op.source or ''}", highlight=False)
    return 0 if result.fits else 1


def _compile(args: argparse.Namespace, console: Any) -> Any:
    import torch

    from tpu_compile import topologies
    from tpu_compile.aot.compiling import aot_compile

    topologies.devices(topologies.parse(args.topology))  # before the model is made
    fn = load_function(args.script)
    with console.status("making the model"):
        if args.real:
            made = fn()
        else:
            with torch.device("meta"):
                made = fn()
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise BadScript(given=args.script, why=f"it returned {type(made).__name__}")
    model, inputs, *rest = made
    with console.status(f"compiling for {args.topology}"):
        return aot_compile(
            model,
            *inputs,
            topology=args.topology,
            train=args.train,
            effort=args.effort,
            mesh=read_mesh(args.mesh) if args.mesh else None,
            shardings=dict(map(read_sharding, args.shard)) or None,
            kwargs=rest[0] if rest else None,
        )


def read_mesh(given: str) -> dict[str, int]:
    """``data=2,model=4`` as a mesh.

    Raises:
        InvalidOption: for something else.
    """
    axes = [part.partition("=") for part in given.split(",")]
    if not all(size.isdecimal() for _, _, size in axes):
        valid = "Valid values: axes with their sizes, such as data=2,model=4."
        raise InvalidOption(name="--mesh", value=given, valid=valid)
    return {name.strip(): int(size) for name, _, size in axes}


def read_sharding(given: str) -> tuple[str, tuple[tuple[str, ...] | None, ...]]:
    """``layers.*.weight=model,-`` as a pattern and a spec.

    Raises:
        InvalidOption: for something else.
    """
    pattern, equals, entries = given.rpartition("=")
    if not equals or not pattern or not entries:
        valid = "Valid values: a pattern of names and an entry for each dimension, as 'x=data,-'."
        raise InvalidOption(name="--shard", value=given, valid=valid)
    parts = [part.strip() for part in entries.split(",")]
    return pattern, tuple(None if p in ("-", "") else tuple(p.split("+")) for p in parts)


def load_function(given: str) -> Callable[[], Any]:
    """Imports ``SCRIPT.py`` and gets its function.

    Raises:
        BadScript: for a file or function that is not there.
    """
    file, _, name = given.rpartition(":")
    path = Path(file)
    if not file or not path.is_file():
        raise BadScript(given=given, why=f"there is no file {file or given}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # pickling and dataclasses look their module up
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    fn = getattr(module, name, None)
    if not callable(fn):
        raise BadScript(given=given, why=f"{path.name} has no function {name}")
    return fn
