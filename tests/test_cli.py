"""The commands: the doctor's judgement of injected facts, and the demo on torch's own backends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tpu_compile import cli, demo, doctor
from tpu_compile.doctor import Cache, Device, Facts, Setting

HEALTHY = Facts(
    python="3.11.7",
    packages={
        "torch": "2.13.0+cpu",
        "jax": "0.10.2",
        "jaxlib": "0.10.2",
        "libtpu": "0.0.42.1",
        "numpy": "2.4.6",
    },
    libtpu_wanted="0.0.42.*",
    libtpu_importable=True,
    torch_error=None,
    device_slot="privateuseone",
    device_slot_is_ours=False,
    chips=(),
    devices=(Device("cpu", "cpu"),) * 2,
    devices_error=None,
    backend_owners=("tpu_compile",),
    torch_xla=None,
    environment={"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
    cache=Cache("/home/me/.cache/tpu_compile", writable=True, entries=3, size=4_500_000),
    settings=(Setting("a setting", "why it is changed", "[on]"),),
)
TPU = replace(HEALTHY, chips=("v6e",) * 4, devices=(Device("tpu", "TPU v6 lite"),) * 4)


def with_package(name: str, version: str | None) -> Facts:
    return replace(HEALTHY, packages={**HEALTHY.packages, name: version})


@pytest.mark.parametrize("facts", [HEALTHY, TPU, with_package("libtpu", None)])
def test_healthy(facts: Facts) -> None:
    report = doctor.examine(facts)
    assert report.ok
    assert not report.problems


@pytest.mark.parametrize(
    ("facts", "level", "name", "advice"),
    [
        (replace(HEALTHY, python="3.10.1"), "error", "python", "Python 3.11"),
        (with_package("torch", "2.12.1"), "error", "torch", "pip install 'torch>=2.13,<2.14'"),
        (with_package("jax", None), "error", "jax", "pip install 'jax>=0.10.2,<0.11'"),
        (replace(HEALTHY, torch_error="no libgomp"), "error", "import torch", "Reinstall"),
        (with_package("libtpu", "0.0.30"), "warning", "libtpu", "libtpu==0.0.42.*"),
        (replace(HEALTHY, libtpu_importable=False), "error", "libtpu", "--force-reinstall"),
        (replace(HEALTHY, devices_error="busy"), "error", "JAX devices", "JAX_PLATFORMS"),
        (replace(TPU, devices=HEALTHY.devices), "error", "JAX devices", "Install libtpu"),
        (
            replace(TPU, packages={**TPU.packages, "libtpu": None}),
            "error",
            "libtpu",
            "tpu_compile[tpu]",
        ),
        (
            replace(HEALTHY, cache=Cache("/ro", writable=False, entries=0, size=0)),
            "warning",
            "compiled programs",
            "TPU_COMPILE_CACHE_DIR",
        ),
        (replace(HEALTHY, backend_owners=()), "error", "backend 'tpu'", "pip install -e ."),
        (
            replace(HEALTHY, backend_owners=("tpu_compile", "torch_tpu")),
            "error",
            "backend 'tpu'",
            "Uninstall one",
        ),
        (
            replace(HEALTHY, device_slot="npu"),
            "warning",
            "torch's device slot",
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0",
        ),
        (replace(HEALTHY, torch_xla="2.9.0"), "warning", "torch_xla", "separate"),
    ],
)
def test_each_problem_says_what_to_do(facts: Facts, level: str, name: str, advice: str) -> None:
    report = doctor.examine(facts)
    (problem,) = report.problems
    assert (problem.level, problem.name) == (level, name)
    assert advice in problem.advice
    assert report.ok == (level != "error")


def test_our_own_device_is_no_conflict() -> None:
    facts = replace(HEALTHY, device_slot="tpu", device_slot_is_ours=True)
    assert not doctor.examine(facts).problems


@pytest.mark.parametrize("facts", [HEALTHY, replace(HEALTHY, devices_error="[busy]")])
def test_doctor_prints(
    facts: Facts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "collect", lambda: facts)
    report = doctor.examine(facts)
    assert cli.main(["doctor"]) == (0 if report.ok else 1)
    printed = " ".join(capsys.readouterr().out.split())
    assert "[on]" in printed  # not taken for markup
    for problem in report.problems:
        assert f"{problem.level}: {problem.name}: {problem.found}. {problem.advice}" in printed

    assert cli.main(["doctor", "--json"]) == (0 if report.ok else 1)
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is report.ok
    assert len(document["findings"]) == len(report.findings)


def test_collected_facts_of_this_process() -> None:
    facts = doctor.collect()
    assert facts.devices_error is None
    assert facts.devices
    assert facts.packages["torch"] == torch.__version__
    assert facts.backend_owners == ("tpu_compile",)
    assert facts.cache is not None
    assert doctor.examine(facts).ok


def scaled_by(factor: float) -> Callable[..., Any]:
    """A stand-in for torch.compile whose logits are off by a factor."""

    def compile_(model: Callable[..., Any], backend: str) -> Callable[..., Any]:
        def call(*args: Tensor) -> tuple[Tensor, Tensor | None]:
            logits, loss = model(*args)
            return logits * factor, loss

        return call

    return compile_


@pytest.mark.parametrize(
    ("factor", "code", "texts"),
    [
        (1.0, 0, ["training step", "Compiled and eager numbers agree."]),
        (1.001, 1, ["logits: error 1.0e-03 exceeds 1e-04", "numbers differ: this is a bug"]),
    ],
)
def test_demo_judges_the_numbers(
    factor: float,
    code: int,
    texts: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(demo, "CALLS", 1)
    monkeypatch.setattr(demo, "STEPS", 2)
    monkeypatch.setattr(demo, "_on_tpu", lambda: None)  # compiles by what is replaced here
    monkeypatch.setattr(torch, "compile", scaled_by(factor))
    assert cli.main(["demo"]) == code
    printed = " ".join(capsys.readouterr().out.split())
    for text in texts:
        assert text in printed


def test_not_a_number_is_an_error() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    error = demo.relative_error(nan, torch.ones(2))
    assert not demo.Result(parameters=0, errors={"x": error}).ok


def test_unknown_command() -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["dotcor"])


@pytest.mark.slow
def test_demo_with_this_backend() -> None:
    assert cli.main(["demo"]) == 0


def test_help_lists_the_commands_without_importing_torch() -> None:
    code = (
        "import sys, tpu_compile.cli\n"
        "try: tpu_compile.cli.main(['--help'])\n"
        "finally: assert 'torch' not in sys.modules\n"
    )
    printed = subprocess.check_output([sys.executable, "-P", "-c", code], text=True)
    for command in cli.COMMANDS:
        assert command.name in printed


def test_run_as_a_module() -> None:
    command = [sys.executable, "-P", "-m", "tpu_compile", "--version"]
    assert subprocess.check_output(command, text=True).startswith("tpu_compile ")
