"""``tpu-compile demo``: a small Llama, eager beside compiled, and what it would need on a TPU."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import importlib.util
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from torch import Tensor

    from tpu_compile.aot.result import AotResult
    from tpu_compile.demo_llama import Llama

TOLERANCE = 1e-4
"""Largest allowed error, relative to the largest value. Float32 sums in another order give 1e-6."""
BATCH, LENGTH = 4, 128
CALLS = 10
STEPS = 5
TOPOLOGY = "v6e"


@dataclass(frozen=True)
class Timing:
    """Seconds of one job, and of the parts of its first compiled call."""

    eager: float
    compiled: float
    first_call: float
    stages: dict[str, float]


@dataclass(frozen=True)
class Result:
    """What the demo measured."""

    parameters: int
    errors: dict[str, float] = field(default_factory=dict)
    losses: list[tuple[float, float]] = field(default_factory=list)
    timings: dict[str, Timing] = field(default_factory=dict)
    on_tpu: AotResult | None = None

    @property
    def ok(self) -> bool:
        """Whether every error is within ``TOLERANCE`` (NaN is not)."""
        return all(error <= TOLERANCE for error in self.errors.values())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``tpu-compile demo``."""
    parser.add_argument("--backend", default="tpu", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Runs the demo, prints it, and returns 0, or 1 if compiled and eager numbers differ."""
    from rich.console import Console

    console = Console()
    result = measure(args.backend, console)
    show(result, console)
    return 0 if result.ok else 1


def measure(backend: str, console: Console) -> Result:
    """Runs the model's forward and training steps, eager and compiled."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<38}"),
        BarColumn(bar_width=30),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("importing torch", total=7)

        def advance(next_step: str) -> None:
            progress.update(task, advance=1, description=next_step)

        result = _measure(backend, advance)
        if importlib.util.find_spec("libtpu") is None:
            return result
        advance(f"compiling the training step for {TOPOLOGY}")
        return dataclasses.replace(result, on_tpu=_on_tpu())


def _on_tpu() -> AotResult:
    import torch

    from tpu_compile.aot.compiling import aot_compile
    from tpu_compile.demo_llama import Llama, LlamaConfig

    with torch.device("meta"):
        model = Llama(LlamaConfig())
        tokens = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    return aot_compile(model, tokens, tokens, topology=TOPOLOGY, train=True, effort="fit")


def _measure(backend: str, advance: Callable[[str], None]) -> Result:
    import torch

    from tpu_compile.demo_llama import Llama, LlamaConfig

    torch.manual_seed(0)
    model = Llama(LlamaConfig())
    tokens = torch.randint(model.config.vocab, (BATCH, LENGTH + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    result = Result(parameters=sum(p.numel() for p in model.parameters()))

    advance("forward, eager")
    with torch.no_grad():
        expected, _ = model(inputs)
        eager = _median(lambda: model(inputs))
        advance("forward, compiling")
        compiled_model = torch.compile(model, backend=backend)
        (got, _), first_call, stages = _first_call(lambda: compiled_model(inputs))
        compiled = _median(lambda: compiled_model(inputs))
    result.errors["logits"] = relative_error(got, expected)
    result.timings["forward"] = Timing(eager, compiled, first_call, stages)

    advance("training, eager")
    eager_step = _training_step(copy.deepcopy(model), inputs, targets)
    eager_losses = torch.stack([eager_step() for _ in range(STEPS)])
    eager = _median(eager_step)
    advance("training, compiling")
    compiled_step = _training_step(copy.deepcopy(model), inputs, targets, backend)
    loss, first_call, stages = _first_call(compiled_step)
    compiled_losses = torch.stack([loss, *(compiled_step() for _ in range(STEPS - 1))])
    advance("training, compiled")
    compiled = _median(compiled_step)
    result.errors[f"losses of {STEPS} steps"] = relative_error(compiled_losses, eager_losses)
    result.losses.extend(zip(eager_losses.tolist(), compiled_losses.tolist(), strict=True))
    result.timings["training step"] = Timing(eager, compiled, first_call, stages)
    return result


def _training_step(
    model: Llama, inputs: Tensor, targets: Tensor, backend: str | None = None
) -> Callable[[], Tensor]:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    forward: Callable[..., Any] = torch.compile(model, backend=backend) if backend else model

    def step() -> Tensor:
        _, loss = forward(inputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def _first_call(call: Callable[[], Any]) -> tuple[Any, float, dict[str, float]]:
    from tpu_compile import compile_log

    compile_log.reset()
    start = time.perf_counter()
    value = call()
    return value, time.perf_counter() - start, dict(compile_log.stage_times())


def _median(call: Callable[[], object]) -> float:
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def relative_error(got: Tensor, expected: Tensor) -> float:
    """The largest difference, divided by the largest expected value."""
    return float((got - expected).abs().max() / expected.abs().max())


# ---------------------------------------------------------------- show


def show(result: Result, console: Console) -> None:
    """Prints the numbers' agreement, the times, the compile stages, and the verdict."""
    console.print(
        f"Llama architecture, {result.parameters / 1e6:.1f} M parameters, float32, "
        f"batch {BATCH} x {LENGTH} tokens",
        highlight=False,
    )
    console.print(_times(result), _stages(result), _losses(result))
    for name, error in result.errors.items():
        good = error <= TOLERANCE
        style, sign = ("green", "<=") if good else ("bold red", "exceeds")
        console.print(
            f"[{style}]{name}: error {error:.1e} {sign} {TOLERANCE:.0e} of the largest value[/]",
            highlight=False,
        )
    if result.ok:
        console.print("[green]Compiled and eager numbers agree.[/]")
    else:
        console.print(
            "[bold red]Compiled and eager numbers differ: this is a bug in the compiler. "
            "Please report it with the output of `tpu-compile doctor --json`.[/]",
            soft_wrap=True,
        )
    console.print("\n[bold]The same training step through the TPU compiler, with no TPU[/]")
    if result.on_tpu is not None:
        console.print(result.on_tpu.report())
    else:
        console.print(
            "needs libtpu, which the extra 'tpu' brings: pip install '.[tpu]'", markup=False
        )


def _plain_table(title: str, *columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    return table


def _times(result: Result) -> Table:
    table = _plain_table(f"Time of a call (median of {CALLS})", "", "eager", "compiled", "speedup")
    for name, timing in result.timings.items():
        table.add_row(
            name,
            f"{timing.eager * 1e3:.1f} ms",
            f"{timing.compiled * 1e3:.1f} ms",
            f"{timing.eager / timing.compiled:.2f}x",
        )
    return table


def _stages(result: Result) -> Table:
    names = list(dict.fromkeys(n for t in result.timings.values() for n in t.stages))
    table = _plain_table("First call, with its compile stages", "", "total", *names, "rest")
    for name, timing in result.timings.items():
        parts = [timing.stages.get(n, 0.0) for n in names]
        rest = max(0.0, timing.first_call - sum(parts))
        table.add_row(name, *(f"{t:.2f} s" for t in (timing.first_call, *parts, rest)))
    return table


def _losses(result: Result) -> Table:
    steps = [str(step + 1) for step in range(len(result.losses))]
    table = _plain_table("Loss by training step (AdamW)", "", *steps)
    for name, index in (("eager", 0), ("compiled", 1)):
        table.add_row(name, *(f"{pair[index]:.6f}" for pair in result.losses))
    return table
