"""The training example: eager's losses, no recompile, resuming, and whole checkpoints."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tpu_compile import recompiles

ROOT = Path(__file__).parents[1]
TINY = ("--length=32", "--width=32", "--layers=2", "--heads=2", "--batch=4", "--sample=0")


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # ops this small take far longer on two where others are busy
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """The script, imported."""
    spec = importlib.util.spec_from_file_location(
        "train_mingpt", ROOT / "examples" / "train_mingpt.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def run(example: ModuleType, folder: Path, *options: str) -> Any:
    """What a tiny run comes to that finds nothing compiled in this process."""
    torch._dynamo.reset()
    where = (f"--text={ROOT / 'LICENSE'}", f"--out={folder}")
    return example.run(example.parse([*TINY, *where, *options]), folder)


@pytest.mark.parametrize(
    "more",
    [(), pytest.param(("--compile-optimizer",), marks=pytest.mark.slow)],
    ids=["eager optimizer", "compiled optimizer"],
)
def test_losses_of_200_steps_equal_eager(
    example: ModuleType, tmp_path: Path, more: tuple[str, ...]
) -> None:
    options = ("--steps=200", "--dropout=0", *more)
    expected = run(example, tmp_path, *options, "--backend=eager")
    actual = run(example, tmp_path, *options)
    assert len(actual.losses) == 200
    torch.testing.assert_close(
        torch.tensor(actual.losses), torch.tensor(expected.losses), rtol=1e-3, atol=0
    )
    assert actual.validation == pytest.approx(expected.validation, rel=1e-3)
    assert actual.losses[-1] < 0.7 * actual.losses[0]
    assert actual.recompiles == 0


def test_nothing_is_compiled_after_the_second_step(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    train_step = example.train_step

    def counting(training: Any, text: torch.Tensor) -> float:
        loss = train_step(training, text)
        counts.append(len(recompiles()))
        return loss

    monkeypatch.setattr(example, "train_step", counting)
    report = run(example, tmp_path, "--steps=6", "--validate=2", "--sample=40")
    assert counts[1:2] + counts[3:] == [1, 2, 2, 2]  # the first validation is the other compile
    assert report.recompiles == 0


def test_a_resumed_run_equals_one_that_was_never_stopped(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--steps=12", "--save=5", "--validate=4")
    whole = run(example, tmp_path / "whole", *options)
    train_step = example.train_step

    def stopped(training: Any, text: torch.Tensor) -> float:
        if len(training.losses) == 8:
            raise KeyboardInterrupt
        return train_step(training, text)

    with monkeypatch.context() as patch:
        patch.setattr(example, "train_step", stopped)
        with pytest.raises(KeyboardInterrupt):
            run(example, tmp_path / "parts", *options)
    torch.manual_seed(5)
    parts = run(example, tmp_path / "parts", *options, "--resume")
    assert parts.losses == whole.losses
    assert parts.validation == whole.validation
    assert len(set(whole.losses)) == 12


def test_a_failed_save_leaves_the_checkpoint_before(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--backend=eager", "--save=1")
    run(example, tmp_path, *options, "--steps=1")
    path = example.checkpoint(tmp_path)
    before, files = path.read_bytes(), sorted(tmp_path.iterdir())

    def half(_state: Any, file: Any) -> None:
        file.write(before[: len(before) // 2])
        file.flush()
        assert path.read_bytes() == before
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", half)
        with pytest.raises(OSError, match="no space left"):
            run(example, tmp_path, *options, "--steps=2", "--resume")
    assert path.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == files
    assert len(run(example, tmp_path, *options, "--steps=2", "--resume").losses) == 2


def test_what_cannot_be_resumed(example: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        example.parse(["--resume"])
    run(example, tmp_path, "--backend=eager", "--steps=1")
    with pytest.raises(SystemExit, match="of another model"):
        run(example, tmp_path, "--backend=eager", "--steps=2", "--heads=4", "--resume")


def test_schedule(example: ModuleType) -> None:
    factors = [example.warmup_then_cosine(step, steps=10, warmup=4) for step in range(11)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4:] == sorted(factors[4:], reverse=True)
    assert factors[7] == pytest.approx(0.55)
    assert factors[10] == pytest.approx(0.1)
