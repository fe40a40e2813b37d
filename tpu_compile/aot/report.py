"""An ``AotResult`` as tables for a terminal."""

from __future__ import annotations

import io

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from tpu_compile import topologies
from tpu_compile.aot import chip_specs
from tpu_compile.aot.memory import readable
from tpu_compile.aot.result import AotProgram, AotResult

WIDTH = 80


def tables(result: AotResult) -> Group:
    """Memory, cost, the dearest lines and kernels of a result."""
    parts: list[Table | Text] = [_headline(result), _memory(result), _cost(result), _lines(result)]
    if result.kernels:
        parts.append(_kernels(result))
    parts += [Text(note, style="yellow") for note in notes(result)]
    return Group(*parts)


def text(result: AotResult) -> str:
    """The tables as plain text."""
    out = io.StringIO()
    Console(file=out, width=WIDTH).print(tables(result))
    return out.getvalue()


def notes(result: AotResult) -> list[str]:
    """What to know about the figures of this result."""
    found = []
    for program in result.programs:
        cost = program.cost
        if cost.cycles is not None and cost.ops_without_cycles:
            found.append(
                f"{program.name}: the compiler gives no cycles for {len(cost.ops_without_cycles)} "
                f"of {len(cost.ops)} ops; they are not in the sum."
            )
        if cost.unknown_trips:
            loops = ", ".join(cost.unknown_trips)
            found.append(f"{program.name}: loops of unknown length count once: {loops}.")
    if result.effort == "fit":
        found.append('effort="fit": memory is close to a full compile\'s, costs less so.')
    return found


def _table(title: str, *columns: str) -> Table:
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False
    )
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", no_wrap=True)
    return table


def _headline(result: AotResult) -> Text:
    topology = topologies.parse(result.topology)
    chips = f"{topology.chips} chip{'s' if topology.chips > 1 else ''}"
    memory = result.memory
    verdict = "fits" if result.fits else "does NOT fit"
    if result.mesh:
        chips += f", mesh {', '.join(f'{axis}={n}' for axis, n in result.mesh.items())}"
    words = f"{result.topology} ({chips}), compiled in {sum(result.seconds.values()):.1f} s: "
    line = Text(words)
    line.append(
        f"{verdict}, {readable(memory.total)} of {readable(memory.capacity)} on one device",
        style="green" if result.fits else "bold red",
    )
    return line


def _memory(result: AotResult) -> Table:
    columns = ("", "arguments", "outputs", "temporaries", "code", "beside it", "total")
    table = _table("Memory of one device, by the TPU compiler", *columns)
    for p in result.programs:
        m = p.memory
        sizes = (m.arguments, m.outputs - m.aliased, m.temporaries, m.code, m.held, m.total)
        table.add_row(p.name, *map(readable, sizes))
    return table


def _cost(result: AotResult) -> Table:
    peak = chip_specs.find(result.topology).per_device
    title = (
        "Cost of one run, counted over the compiled HLO\n"
        f"(at least: by peaks of {peak.hbm_bandwidth / 1e9:.0f} GB/s, "
        f"{peak.peak('bf16') / 1e12:.0f} bf16 TFLOP/s)"
    )
    columns = ("", "GFLOP run", "model's", "HBM", "sent", "cycles", "at least", "bound")
    table = _table(title, *columns)
    for p in result.programs:
        table.add_row(p.name, *_figures(p))
    return table


def _figures(p: AotProgram) -> tuple[str, ...]:
    cost, bound = p.cost, p.roofline
    return (
        f"{cost.flops / 1e9:,.2f}",
        f"{p.model_flops / 1e9:,.2f}",
        readable(cost.bytes),
        readable(cost.collective_bytes),
        "-" if cost.cycles is None else f"{cost.cycles:,.0f}",
        f"{bound.seconds * 1e3:.3f} ms",
        bound.bound,
    )


def _lines(result: AotResult, n: int = 8) -> Table:
    table = _table("Lines that move most HBM bytes", "line", "ops", "HBM", "GFLOPs", "cycles")
    for line in result.cost.by_line("bytes")[:n]:
        table.add_row(
            str(line.source or "(none)"),
            str(line.ops),
            readable(line.bytes),
            f"{line.flops / 1e9:,.2f}",
            f"{line.cycles:,.0f}",
        )
    return table


def _kernels(result: AotResult) -> Table:
    table = _table("Pallas kernels", "kernel", "places")
    for kernel in result.kernels:
        table.add_row(kernel.name, str(kernel.places))
    return table
