"""What a user can ask of the backend: one frozen dataclass, read from a dict in one function."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tpu_compile import buckets, meshes, topologies
from tpu_compile.errors import InvalidOption

# torch rounds a bf16 or fp16 result after every op; XLA would drop such a rounding between two ops.
XLA_OPTIONS = {"xla_allow_excess_precision": False}

TARGETS = ("auto", "cpu", "tpu")
Fallback = Literal["warn", "error"]
OnRecompile = Literal["ignore", "warn", "error"]
Checks = Literal["auto", "on", "off"]
MatmulPrecision = Literal["auto", "highest", "high", "medium"]


@dataclass(frozen=True)
class Options:
    """Options of ``torch.compile(..., backend="tpu", options={...})``.

    Attributes:
        target: what to compile for. "auto" is the attached TPU, or else the CPU. A topology such as
            "v6e:2x2" compiles for it with no TPU attached, and does not run.
        fallback: what an op without a rule does: run eagerly and "warn" once, or "error".
        on_recompile: what a compile of the same code after its first does. "error" forbids it.
        matmul_precision: of float32 matmuls. "auto" is torch's float32 matmul precision; on the CPU
            a float32 matmul is always computed in full float32.
        dump_dir: a folder for the text of each compile step; None for no dumps. Default from the
            environment's TPU_COMPILE_DUMP.
        passes_after: passes of a plug-in, by the name of the pass they follow.
        compiler_options: passed on to XLA as they are.
        cache: keep compiled programs on disk, for other processes.
        checks: whether each run checks that indices are in range and assertions hold. "auto" does
            on the CPU, as eager torch does; on a TPU each run would wait for the answer.
        mesh: names and sizes of the axes that a topology's devices are arranged in, as
            ``{"data": 2, "model": 4}``. Without one the program is a single device's.
        shardings: for patterns of names of parameters, buffers and inputs, the axes that split each
            dimension, as ``{"layers.*.weight": ("model", None), "x": ("data",)}``. The first
            pattern that matches counts; what none matches is whole on each device.
        buckets: sizes to round dynamic dimensions up to, so that one program serves many sizes:
            ``{"seq": [128, 256, 512]}``. "batch" is dimension 0 and "seq" dimension 1 of every
            input, "NAME.2" dimension 2 of the inputs whose names match. Where padding can't be
            shown to change nothing the compile is refused.
    """

    target: str = "auto"
    fallback: Fallback = "warn"
    on_recompile: OnRecompile = "ignore"
    matmul_precision: MatmulPrecision = "auto"
    dump_dir: Path | None = None
    passes_after: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    compiler_options: Mapping[str, Any] = field(default_factory=dict)
    cache: bool = True
    checks: Checks = "auto"
    mesh: meshes.Mesh | None = None
    shardings: meshes.Rules = ()
    buckets: buckets.Rules = ()

    @property
    def cache_key(self) -> str:
        """What of the options changes the compiled program, as text."""
        passes = {k: [p.name for p in v] for k, v in sorted(self.passes_after.items())}
        flags = sorted((k, repr(v)) for k, v in self.compiler_options.items())
        how = (self.target, self.fallback, self.matmul_precision, self.checks, self.buckets)
        return repr((*how, passes, flags))


_NAMES = tuple(f.name for f in dataclasses.fields(Options))
_HINTS = get_type_hints(Options)


def read(given: Mapping[str, Any] | Options | None) -> Options:
    """Checks a user's options and completes them with the defaults.

    Args:
        given: option names to values, or nothing.

    Raises:
        InvalidOption: for an unknown name or a value of the wrong type; lists what is valid.
    """
    if isinstance(given, Options):
        return given
    values: dict[str, Any] = {}
    if dump := os.environ.get("TPU_COMPILE_DUMP"):
        values["dump_dir"] = Path(dump)
    for name, value in (given or {}).items():
        if name not in _NAMES:
            near = difflib.get_close_matches(str(name), _NAMES, 1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            valid = f"{hint}Valid options: {', '.join(_NAMES)}."
            raise InvalidOption(name=name, value=value, valid=valid)
        values[name] = _check(name, value)
    return _over_mesh(Options(**values), values.get("shardings"))


def _over_mesh(options: Options, shardings: Any) -> Options:
    """Reads the shardings, which need the mesh, and checks the mesh, which needs the topology."""
    if options.mesh is not None:
        if not topologies.is_name(options.target):
            valid = "It needs a topology: options={'target': 'v6e:2x2', 'mesh': {'data': 4}}."
            raise InvalidOption(name="mesh", value=dict(options.mesh.axes), valid=valid)
        meshes.check_fit(options.mesh, topologies.parse(options.target))
    if shardings is None:
        return options
    return dataclasses.replace(options, shardings=meshes.read_rules(shardings, options.mesh))


def _check(name: str, value: Any) -> Any:
    if name in _READERS:
        return _READERS[name](value)
    hint = _HINTS[name]
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise InvalidOption(name=name, value=value, valid=f"Valid values: {get_args(hint)}.")
    elif hint is bool:
        if not isinstance(value, bool):
            raise InvalidOption(name=name, value=value, valid="Valid values: True, False.")
    elif not isinstance(value, Mapping):
        raise InvalidOption(name=name, value=value, valid="Valid values: a dict.")
    return value


def _folder(value: Any) -> Path | None:
    if value is not None and not isinstance(value, str | os.PathLike):
        raise InvalidOption(name="dump_dir", value=value, valid="Valid values: a path, or None.")
    return None if value is None else Path(value)


def _mesh(value: Any) -> meshes.Mesh | None:
    return None if value is None else meshes.Mesh.read(value)


def _target(value: Any) -> str:
    if value in TARGETS:
        return str(value)
    if topologies.is_name(value):
        return topologies.parse(value).name
    valid = f"Valid values: {TARGETS}, or a topology such as 'v6e:2x2'."
    raise InvalidOption(name="target", value=value, valid=valid)


def _passes(given: Any) -> dict[str, tuple[Any, ...]]:
    if not isinstance(given, Mapping):
        raise InvalidOption(name="passes_after", value=given, valid="Valid values: a dict.")
    for after, passes in given.items():
        ok = isinstance(passes, list | tuple) and all(
            hasattr(p, "name") and callable(getattr(p, "run", None)) for p in passes
        )
        if not ok:
            valid = "Valid values: {name of a pass: [tpu_compile.passes.base.Pass, ...]}."
            raise InvalidOption(name=f"passes_after[{after!r}]", value=passes, valid=valid)
    return {after: tuple(passes) for after, passes in given.items()}


# The shardings are read with the mesh.
_READERS: dict[str, Callable[[Any], Any]] = {
    "target": _target,
    "mesh": _mesh,
    "shardings": lambda value: value,
    "dump_dir": _folder,
    "passes_after": _passes,
    "buckets": buckets.read,
}
