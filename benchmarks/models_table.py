"""All small models in all settings: writes docs/models.md.

Each model is checked in a process of its own; results are kept as JSON lines, and a run that was
ended goes on where it was. ``python benchmarks/models_table.py`` takes about half an hour on two
cores; ``--models llama t5`` checks some of them again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks" / "models"))
TOPOLOGIES = ("v6e:2x2", "tpu7x:2x2x1")
FORWARD_LIMIT, LOSS_LIMIT = 1e-4, 1e-3
LOW_PRECISION_LIMIT = 1.1  # ours to eager's own: XLA sums in another order


def check(name: str) -> dict[str, Any]:
    """Everything about one model; a text where a check raised."""
    import model_checks as checks
    import torch

    import tpu_compile

    found: dict[str, Any] = {"model": name, "broken": False}

    def compiled_for(topology: str) -> dict[str, Any]:
        model, inputs = checks.build(name, train=True)
        result = tpu_compile.aot_compile(
            model, kwargs=inputs, topology=topology, train=True, effort="fit"
        )
        return {"fits": result.fits, "flops": result.cost.flops, "bytes": result.memory.total}

    def checkpointing() -> float:
        try:
            return checks.loss_error(name, recompute=True)
        except torch._dynamo.exc.Unsupported:  # with any backend
            found["broken"] = True
            return checks.loss_error(name, checks.compile_in_parts, recompute=True)

    settings: dict[str, Callable[[], Any]] = {
        "forward": lambda: checks.forward_error(name),
        "train": lambda: checks.loss_error(name),
        "eval": lambda: checks.loss_error(name, train=False),
        "bfloat16": lambda: checks.low_precision_errors(name, cast=False),
        "autocast": lambda: checks.low_precision_errors(name, cast=True),
        "train_autocast": lambda: checks.autocast_loss_errors(name),
        "checkpointing": checkpointing,
        **{t: lambda t=t: compiled_for(t) for t in TOPOLOGIES},  # type: ignore[misc]
    }
    for setting, run in settings.items():
        torch._dynamo.reset()
        start = time.perf_counter()
        try:
            found[setting] = run()
        except Exception as err:  # a table with a gap says more than none
            found[setting] = f"{type(err).__name__}: {err}".splitlines()[0]
        found[f"{setting} seconds"] = round(time.perf_counter() - start, 1)
    model, _ = checks.build(name)
    found["parameters"] = sum(p.numel() for p in model.parameters())
    return found


def page(results: dict[str, dict[str, Any]], names: list[str]) -> str:
    """The Markdown page."""
    import torch
    import transformers

    lines = [
        "# Models",
        "",
        "Small models with random weights, on XLA:CPU, beside eager torch: one graph each "
        '(`fullgraph=True`), no op run eagerly (`fallback="error"`), no dropout. Written by '
        "`benchmarks/models_table.py`.",
        "",
        "- forward: largest error of float32 logits, as a part of the largest.",
        "- five AdamW steps: largest relative difference of a loss, training (`train`), with "
        "`eval()`, and with gradient checkpointing.",
        "- autocast losses: the same under bfloat16 autocast / eager's own from float32.",
        "- bfloat16, autocast: root mean square error of logits against float32 eager, as part of "
        "their root mean square: ours / eager's own.",
        '- the last columns: the training step through the TPU compiler, `effort="fit"`.',
        "",
        f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}.",
        "",
        "| model | forward | train | eval | checkpointing | autocast losses | bfloat16 | autocast "
        "| " + " | ".join(TOPOLOGIES) + " |",
        "|" + "---|" * (8 + len(TOPOLOGIES)),
    ]
    for name in names:
        if name in results:
            lines.append("| " + " | ".join(_row(results[name])) + " |")
    if missing := [n for n in names if n not in results]:
        lines += ["", f"Not in this run: {', '.join(missing)}."]
    if any(r["broken"] for r in results.values()):
        lines += ["", "\\* Dynamo breaks this graph with any backend; `fullgraph=False`."]
    failures = [f"- {n}: {f}" for n in names if n in results for f in _failures(results[n])]
    if failures:
        lines += ["", "What does not hold:", "", *failures]
    return "\n".join(lines) + "\n"


def _row(r: dict[str, Any]) -> list[str]:
    errors = [r[k] for k in ("forward", "train", "eval", "checkpointing")]
    marks = ["", "", "", "\\*" if r["broken"] else ""]
    pairs = [r["train_autocast"], r["bfloat16"], r["autocast"]]
    return [
        r["model"],
        *(
            f"{e:.0e}{mark}" if isinstance(e, float) else "no"
            for e, mark in zip(errors, marks, strict=True)
        ),
        *(f"{p[0]:.1e} / {p[1]:.1e}" if not isinstance(p, str) else "no" for p in pairs),
        *("yes" if isinstance(r[t], dict) and r[t]["fits"] else "no" for t in TOPOLOGIES),
    ]


def _failures(r: dict[str, Any]) -> list[str]:
    found = [f"{k}: {v}" for k, v in r.items() if isinstance(v, str) and k != "model"]
    limits = {"forward": FORWARD_LIMIT} | dict.fromkeys(
        ("train", "eval", "checkpointing"), LOSS_LIMIT
    )
    found += [
        f"{k}: {r[k]:.1e}, more than {limit:.0e}"
        for k, limit in limits.items()
        if isinstance(r[k], float) and not r[k] < limit
    ]
    cast = r["train_autocast"]
    if not isinstance(cast, str) and not cast[0] <= max(LOSS_LIMIT, cast[1]):
        found.append(f"autocast losses: {cast[0]:.1e} against eager's own {cast[1]:.1e}")
    for key in ("bfloat16", "autocast"):
        if not isinstance(r[key], str) and not r[key][0] <= LOW_PRECISION_LIMIT * r[key][1]:
            found.append(f"{key}: {r[key][0]:.1e} against eager's own {r[key][1]:.1e}")
    return found


def main() -> int:
    """Reads the arguments, checks, writes the page; 1 where something does not hold."""
    from small_models import MODELS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, help="check these again")
    parser.add_argument("--results", type=Path, default=Path("models.jsonl"))
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "models.md")
    parser.add_argument("--one", choices=MODELS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(check(chosen.one)))
        return 0
    results: dict[str, dict[str, Any]] = {}
    if chosen.results.exists():
        kept = map(json.loads, chosen.results.read_text().splitlines())
        results = {r["model"]: r for r in kept}
    names = list(MODELS)
    for name in chosen.models or [n for n in names if n not in results]:
        command = [sys.executable, __file__, "--one", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        results[name] = json.loads(done.stdout.splitlines()[-1])
        with chosen.results.open("a") as file:
            file.write(json.dumps(results[name]) + "\n")
        print(name, *_failures(results[name]) or ["holds"], sep="\n  ", flush=True)
        chosen.page.write_text(page(results, names))
    chosen.page.write_text(page(results, names))
    return int(any(_failures(r) for r in results.values()))


if __name__ == "__main__":
    sys.exit(main())
