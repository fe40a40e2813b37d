"""The Dynamo backend ``"tpu"``: a captured graph through AOTAutograd to compiled programs."""

from __future__ import annotations

import functools
import hashlib
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import fx
from torch._dynamo.backends.common import aot_autograd

import tpu_compile
from tpu_compile import (
    __version__,
    buckets,
    chips,
    compile_log,
    lowering,
    options,
    partition,
    passes,
    process_state,
    program,
    topologies,
    torch_internals,
    versions,
)
from tpu_compile.errors import FallbackWarning, TargetUnavailable, UnsupportedCase, UnsupportedMode
from tpu_compile.lowering import decompositions
from tpu_compile.lowering.interpreter import Settings
from tpu_compile.options import Options
from tpu_compile.passes import pipeline
from tpu_compile.passes.functional_random import RANDOM_OPS, functional_random
from tpu_compile.placement import Placement
from tpu_compile.program import Program

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
ATTENTION = frozenset({torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default})
_PRECISION = {"highest": "HIGHEST", "high": "HIGH", "medium": "DEFAULT"}


def tpu(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | Options | None = None,
) -> Callable[..., Any]:
    """Compiles a Dynamo graph for a TPU, or for the CPU where none is attached.

    This is what ``torch.compile(model, backend="tpu")`` calls.

    Args:
        gm: the captured graph, torch ops, with parameters and buffers as inputs.
        example_inputs: its inputs, fake or real.
        mode: as in ``torch.compile``. One compiled call is one launch here already, so
            "reduce-overhead" and the "max-autotune" modes add nothing to "default".
        options: see :class:`tpu_compile.options.Options`.

    Returns:
        A function of the same inputs, differentiable where they require grad.

    Raises:
        InvalidOption, UnsupportedMode, UnsupportedVersion, TargetUnavailable: for a wrong request.
        MissingLowering, UnsupportedCase: with ``fallback="error"``, for an op that has no rule.
        Recompiled: with ``on_recompile="error"``.
    """
    start = time.perf_counter()
    _prepare()
    opts = read_options(options)
    if mode is not None and mode not in MODES:
        raise UnsupportedMode(mode=mode, why="torch.compile has no such mode.", valid=MODES)
    settings = settings_for(opts)
    _report_graph_break(gm, opts)

    placement = Placement.of(gm, opts.mesh, opts.shardings) if settings.topology else None
    rounded = _rounded(gm, opts)

    def compiler(kind: str) -> torch_internals.StoringCompiler:
        def compile_one(graph: fx.GraphModule, _inputs: Sequence[Any]) -> Program:
            outputs = placement.annotate(graph) if placement else []
            bare = False
            if kind == "inference":
                functional_random.run(graph)
                bare = torch_internals.hands_on(len(example_inputs))
            built = Program.build(graph, opts, settings, kind, bare=bare, buckets=rounded)
            if placement and kind == "forward":
                placement.learn(outputs, built.output_specs(len(outputs)))
            return built

        return torch_internals.StoringCompiler(Program, compile_one)

    before = sum(compile_log.stage_times().values())
    with compile_log.frame(gm, opts.on_recompile), program.collected() as programs:
        tag = _cache_tag(opts, settings, rounded)
        compiled = through_aot(gm, example_inputs, compiler, tag)
    inner = sum(compile_log.stage_times().values()) - before
    compile_log.add_stage("aot", time.perf_counter() - start - inner)
    return _shortest(compiled, programs)


def _rounded(gm: fx.GraphModule, opts: Options) -> dict[str, tuple[int, ...]]:
    """The sizes that a Dynamo graph's symbols are rounded up to."""
    if not opts.buckets:
        return {}
    return buckets.assign(opts.buckets, torch_internals.dynamic_inputs(gm))


def _shortest(compiled: Callable[..., Any], programs: list[Program]) -> Callable[..., Any]:
    """The program itself where AOTAutograd's call of it does nothing more."""
    direct = programs[0].function() if len(programs) == 1 else None
    if direct is None:
        return compiled
    direct.serialize = compiled.serialize  # type: ignore[attr-defined]
    return direct


def through_aot(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    compiler: Callable[[str], Any],
    tag: str | None,
) -> Callable[..., Any]:
    """Takes a Dynamo graph through AOTAutograd as this backend does.

    Args:
        gm: the captured graph.
        example_inputs: its inputs.
        compiler: given "forward", "backward" or "inference", what compiles such a graph.
        tag: what a compiled graph that is kept depends on; None to keep none.
    """
    aot = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=_partition,
        decompositions=decompositions.table(RANDOM_OPS),
    )
    with (
        process_state.no_garbage_collection(),
        torch_internals.lazy_graph_modules(),
        torch_internals.aot_settings(tag),
        decompositions.rules_first(),
    ):
        return aot(gm, example_inputs)


read_options = options.read


def _cache_tag(opts: Options, settings: Settings, rounded: dict[str, Any]) -> str | None:
    """What a cached program depends on beside its graph, or None where it must not be cached."""
    if not opts.cache or opts.dump_dir is not None or opts.passes_after:
        return None  # a dump shows every step; a plug-in's passes may change under the same name
    if settings.topology is not None:
        return None  # names and shardings of arguments are not in a stored graph
    order = [p.name for p in (*pipeline.JOINT, *pipeline.DEFAULT)]
    asked = (settings, opts.cache_key, rounded)
    parts = (__version__, jax.__version__, order, *asked, _source_digest())
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@functools.cache
def _source_digest() -> str:
    """A digest of this package's files: an edit makes what was compiled before it stale."""
    root = Path(tpu_compile.__file__).parent
    folders = [root, *(Path(m.__path__[0]) for m in (lowering, passes))]
    digest = hashlib.sha256()
    for path in sorted(p for f in folders for p in f.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def settings_for(opts: Options) -> Settings:
    """Target and matmul precision for a user's options.

    Raises:
        TargetUnavailable: when a TPU is asked for and none is attached.
    """
    target = opts.target
    topology = target if topologies.is_name(target) else None
    attached = topology is not None or (target != "cpu" and _tpu_attached())
    if target == "tpu" and not attached:
        why = "JAX sees no TPU on this machine. Use target='auto' or 'cpu' to run on the CPU."
        raise TargetUnavailable(target=target, why=why)
    asked: str = opts.matmul_precision
    if asked == "auto":
        asked = torch.get_float32_matmul_precision()
    on_tpu = attached and target != "cpu"
    checks = opts.checks == "on" or (opts.checks == "auto" and not on_tpu)
    return Settings(
        "tpu" if on_tpu else "cpu",
        _PRECISION[asked] if on_tpu else "HIGHEST",
        checks=checks,
        topology=topology,
        mesh=opts.mesh.axes if opts.mesh else (),
    )


@functools.cache
def _prepare() -> None:
    versions.check()
    process_state.without_tpu()


@functools.cache
def _tpu_attached() -> bool:
    # Without a chip there is no need to ask JAX, which would load libtpu and search for a while.
    return bool(chips.attached()) and jax.default_backend() == "tpu"


def _partition(joint: fx.GraphModule, inputs: Any, **kwargs: Any) -> tuple[Any, Any]:
    changes = [p.run(joint) for p in pipeline.JOINT]
    if any(changes):
        joint.recompile()
    # torch takes attention that drops something apart itself: this one does not.
    with torch_internals.drawing_nothing(ATTENTION):
        return min_cut_rematerialization_partition(joint, inputs, **kwargs)


_DATA_DEPENDENT = ("data-dependent", "data dependent", "dynamic shape operator", "Tensor.item")
_broken: set[str] = set()


def _report_graph_break(gm: fx.GraphModule, opts: Options) -> None:
    """Says so where Dynamo left an op out of the graph because its result depends on data."""
    found = torch_internals.graph_break(gm)
    if found is None:
        return
    reason, where = found
    if not any(text.lower() in reason.lower() for text in _DATA_DEPENDENT):
        return
    why = f"Dynamo breaks the graph there ({reason.strip().splitlines()[0]})"
    if opts.fallback == "error":
        raise UnsupportedCase(op="a data-dependent op", why=f"{why}\nfrom your code:\n{where}")
    if where not in _broken:
        _broken.add(where)
        text = f"a data-dependent op runs eagerly on the CPU: {why}\nfrom your code:\n{where}"
        warnings.warn(text, FallbackWarning, stacklevel=2)


def reset() -> None:
    """Forgets what was warned of and logged; ``torch._dynamo.reset`` frees the programs."""
    partition.reset()
    compile_log.reset()
    _broken.clear()


tpu.reset = reset  # type: ignore[attr-defined]
