"""Trains a small GPT on the bytes of this repository's pages, with all that a real script has.

Run it as it is, or keep what it writes and go on later (docs/training.md):
``train_mingpt.py --out FOLDER``, then ``train_mingpt.py --out FOLDER --resume --steps 600``.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
import statistics
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from tpu_compile import recompiles, stage_times

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks" / "models"))

from mingpt import MinGpt, MinGptConfig

ROOT = Path(__file__).resolve().parents[1]
BYTES = 256
PROMPT = b"## "
TEMPERATURE = 0.8
VALIDATION_BATCHES = 4


@dataclass
class Training:
    """A model in training.

    Attributes:
        args: the command line's.
        batches: draws the places that batches are read from. Dropout has torch's default generator
            for itself, so that the batches are the same with every backend.
        loss_of: of tokens and those that follow them, through the backend.
        logits_of: of tokens, through the backend.
        update: the optimizer's step, perhaps through the backend.
        losses: of each step so far.
        validation: loss by step.
    """

    args: Namespace
    model: MinGpt
    optimizer: torch.optim.AdamW
    scheduler: torch.optim.lr_scheduler.LambdaLR
    batches: torch.Generator
    loss_of: Callable[[Tensor, Tensor], Tensor]
    logits_of: Callable[[Tensor], Tensor]
    update: Callable[[], Any]
    losses: list[float] = field(default_factory=list)
    validation: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """What a run comes to; the speed is that of a step without compiles."""

    losses: list[float]
    validation: dict[int, float]
    steps_per_second: float
    compile_seconds: float
    recompiles: int
    text: str
    plot: str


def parse(argv: Sequence[str] | None = None) -> Namespace:
    """Reads the command line."""
    parser = ArgumentParser(description="Trains a small GPT on bytes of text.")
    add = parser.add_argument
    add("--text", type=Path, nargs="+", default=pages(), help="files; default: the repository's")
    add("--out", type=Path, help="folder for checkpoint and plot; default: nothing is kept")
    add("--resume", action="store_true", help="go on from the checkpoint in --out")
    add("--backend", default="tpu", choices=("tpu", "inductor", "eager"), help="eager: no compile")
    add("--compile-optimizer", action="store_true", help="compile the optimizer's step, too")
    add("--steps", type=int, default=100, help="in all, with those before --resume")
    add("--batch", type=int, default=16, help="sequences in one pass")
    add("--accumulate", type=int, default=2, help="passes in one step")
    add("--length", type=int, default=64, help="bytes of a sequence")
    add("--width", type=int, default=96)
    add("--layers", type=int, default=2)
    add("--heads", type=int, default=4)
    add("--dropout", type=float, default=0.1)
    add("--rate", type=float, default=3e-3, help="highest learning rate")
    add("--warmup", type=int, default=20, help="steps until it is reached")
    add("--decay", type=float, default=0.1, help="weight decay of matrices")
    add("--clip", type=float, default=1.0, help="largest norm of the gradient")
    add("--validate", type=int, default=50, help="steps from one validation to the next")
    add("--save", type=int, default=50, help="steps from one checkpoint to the next")
    add("--sample", type=int, default=200, help="bytes to write at the end")
    add("--seed", type=int, default=0)
    add("--threads", type=int, default=1, help="of torch's own ops, tiny at the default sizes")
    args = parser.parse_args(argv)
    if args.resume and not (args.out and checkpoint(args.out).exists()):
        parser.error("--resume needs an --out that has a checkpoint")
    return args


def pages() -> list[Path]:
    """The repository's own text, but for the generated table, which is longer than all the rest."""
    docs = [p for p in sorted((ROOT / "docs").glob("*.md")) if p.name != "supported_ops.md"]
    return [ROOT / "README.md", *docs, ROOT / "LICENSE"]


def read(files: Sequence[Path]) -> tuple[Tensor, Tensor]:
    """Bytes to train on, and the last tenth of each file to validate on."""
    training, validation = bytearray(), bytearray()
    for file in files:
        content = file.read_bytes()
        cut = len(content) * 9 // 10
        training += content[:cut]
        validation += content[cut:]
    as_tensor = partial(torch.frombuffer, dtype=torch.uint8)
    return as_tensor(training), as_tensor(validation)


def windows(text: Tensor, starts: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """The bytes from each start on, and for each the one that follows it."""
    tokens = text[starts[:, None] + torch.arange(length + 1)].long()
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def begin(args: Namespace) -> Training:
    """A new model, its optimizer and its schedule, or those of the checkpoint."""
    torch.manual_seed(args.seed)
    sizes = {name: getattr(args, name) for name in ("length", "width", "layers", "heads")}
    model = MinGpt(MinGptConfig(BYTES, **sizes, dropout=args.dropout))

    def loss_of(tokens: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())

    optimizer = optimizer_of(model, args)
    factor = partial(warmup_then_cosine, steps=args.steps, warmup=args.warmup)
    training = Training(
        args,
        model,
        optimizer,
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, factor),
        batches=torch.Generator().manual_seed(args.seed),
        loss_of=through(args.backend, loss_of),
        logits_of=through(args.backend, model),
        update=through(args.backend if args.compile_optimizer else "eager", optimizer.step),
    )
    if args.resume:
        restore(training, checkpoint(args.out))
    return training


def optimizer_of(model: nn.Module, args: Namespace) -> torch.optim.AdamW:
    """AdamW; weights that are vectors do not decay."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": args.decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    # A number would be a constant of a compiled step, and each new rate would compile it again.
    rate = torch.tensor(args.rate)
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=True)


def through(backend: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled by a backend, or as it is."""
    if backend == "eager":
        return fn
    # Every step has the same shapes: a recompile would be a mistake, worth a warning.
    options = {"on_recompile": "warn"} if backend == "tpu" else None
    return torch.compile(fn, backend=backend, options=options)


def warmup_then_cosine(step: int, *, steps: int, warmup: int) -> float:
    """The factor of the learning rate: up in a line, then down along a cosine to a tenth."""
    if step < warmup:
        return (step + 1) / warmup
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    return 0.55 + 0.45 * math.cos(math.pi * done)


def train_step(training: Training, text: Tensor) -> float:
    """One step of the optimizer, on the mean gradient of a few batches; returns their mean loss."""
    args = training.args
    total = torch.zeros(())
    for _ in range(args.accumulate):
        places = len(text) - args.length
        starts = torch.randint(places, (args.batch,), generator=training.batches)
        loss = training.loss_of(*windows(text, starts, args.length)) / args.accumulate
        loss.backward()
        total += loss.detach()
    nn.utils.clip_grad_norm_(training.model.parameters(), args.clip)
    training.update()
    training.scheduler.step()
    training.optimizer.zero_grad()
    return total.item()


@torch.no_grad()
def validate(training: Training, text: Tensor) -> float:
    """The mean loss at places spread evenly over the text, without dropout."""
    training.model.eval()
    batch, length = training.args.batch, training.args.length
    last, count = len(text) - length - 1, VALIDATION_BATCHES * batch
    losses = []
    for starts in torch.linspace(0, last, count, dtype=torch.float64).long().split(batch):
        tokens, targets = windows(text, starts, length)
        logits = training.logits_of(tokens)
        losses.append(F.cross_entropy(logits.flatten(0, 1), targets.flatten()))
    training.model.train()
    return torch.stack(losses).mean().item()


@torch.no_grad()
def write_text(training: Training) -> str:
    """Text that the model writes, a byte at a time."""
    args = training.args
    training.model.eval()
    written = list(PROMPT)
    # A validation batch's shape, which is compiled already. Only the first row is used, and in it
    # attention looks back only: it does not see the zeros after the text.
    tokens = torch.zeros(args.batch, args.length, dtype=torch.long)
    for _ in range(args.sample):
        seen = written[-args.length :]
        tokens[0, : len(seen)] = torch.tensor(seen)
        chances = F.softmax(training.logits_of(tokens)[0, len(seen) - 1] / TEMPERATURE, dim=-1)
        written.append(int(torch.multinomial(chances, 1)))
    training.model.train()
    return bytes(written).decode(errors="replace")


def checkpoint(folder: Path) -> Path:
    """The checkpoint of a run that writes to a folder."""
    return folder / "checkpoint.pt"


def save(training: Training, path: Path) -> None:
    """Writes a checkpoint beside the one before, and puts it in its place once it is complete."""
    state = {
        "config": dataclasses.asdict(training.model.config),
        "model": training.model.state_dict(),
        "optimizer": training.optimizer.state_dict(),
        "scheduler": training.scheduler.state_dict(),
        "random": torch.get_rng_state(),
        "batches": training.batches.get_state(),
        "losses": training.losses,
        "validation": training.validation,
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def restore(training: Training, path: Path) -> None:
    """Reads a checkpoint; the random numbers go on where they were."""
    state = torch.load(path, weights_only=True)
    config = dataclasses.asdict(training.model.config)
    if state["config"] != config:
        raise SystemExit(f"{path} is of another model: {state['config']}, not {config}")
    training.model.load_state_dict(state["model"])
    training.optimizer.load_state_dict(state["optimizer"])
    training.scheduler.load_state_dict(state["scheduler"])
    training.batches.set_state(state["batches"])
    training.losses, training.validation = state["losses"], state["validation"]
    torch.set_rng_state(state["random"])


def plot(training: Training, path: Path) -> str:
    """Draws the losses, where matplotlib is installed, and says where they are or why not."""
    if importlib.util.find_spec("matplotlib") is None:
        return "none: matplotlib is not installed (pip install matplotlib)"
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    axes.plot(range(1, len(training.losses) + 1), training.losses, label="training")
    axes.plot(*zip(*training.validation.items(), strict=True), "o-", label="validation")
    axes.set(xlabel="step", ylabel="loss")
    axes.legend()
    figure.savefig(path)
    return str(path)


def run(args: Namespace, folder: Path) -> Report:
    """Trains up to the last step, with checkpoints and the plot in the folder."""
    text, held_out = read(args.text)
    training = begin(args)
    folder.mkdir(parents=True, exist_ok=True)
    seconds: list[float] = []
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeRemainingColumn(), transient=True) as progress:
        bar = progress.add_task("compiling", total=args.steps)
        while (step := len(training.losses) + 1) <= args.steps:
            start = time.perf_counter()
            loss = train_step(training, text)
            seconds.append(time.perf_counter() - start)
            training.losses.append(loss)
            progress.update(bar, completed=step, description=f"loss {loss:.3f}")
            if step % args.validate == 0 or step == args.steps:
                held = training.validation[step] = validate(training, held_out)
                line = f"step {step:5}   loss {loss:.4f}   validation {held:.4f}"
                progress.console.print(line, highlight=False)
            if step % args.save == 0 or step == args.steps:
                save(training, checkpoint(folder))
    sample = write_text(training)
    return Report(
        training.losses,
        training.validation,
        steps_per_second=1 / statistics.median(seconds) if seconds else 0.0,
        compile_seconds=sum(stage_times().values()),
        recompiles=sum(compile.recompile for compile in recompiles()),
        text=sample,
        plot=plot(training, folder / "loss.png"),
    )


def show(report: Report) -> None:
    """Prints what a run comes to."""
    losses, step = report.losses, max(report.validation)
    print(f"Written by the model:\n\n{report.text}\n")
    print(f"training loss    {losses[0]:.4f} in step 1, {losses[-1]:.4f} in step {len(losses)}")
    print(f"validation loss  {report.validation[step]:.4f} after step {step}")
    print(f"speed            {report.steps_per_second:.1f} steps/s")
    if report.compile_seconds:
        print(f"compiling        {report.compile_seconds:.1f} s")
        print(f"recompiles       {report.recompiles}")


def main() -> None:
    """Reads the command line, trains, and says what came of it."""
    args = parse()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as temporary:
        report = run(args, args.out or Path(temporary))
    show(report)
    print(f"checkpoint       {checkpoint(args.out) if args.out else 'not kept: no --out'}")
    print(f"plot             {report.plot if args.out else 'not kept: no --out'}")
    if not statistics.mean(report.losses[-10:]) <= report.losses[0]:
        raise SystemExit("the loss did not fall")


if __name__ == "__main__":
    main()
