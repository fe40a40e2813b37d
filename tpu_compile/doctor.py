"""``tpu-compile doctor``: facts about this installation into findings, each with what to do."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Literal

from tpu_compile import versions
from tpu_compile.chips import attached
from tpu_compile.process_state import NO_TPU

if TYPE_CHECKING:
    from rich.table import Table

Level = Literal["ok", "note", "warning", "error"]
Topic = Literal["versions", "devices", "caches", "settings", "conflicts"]

OWN_PACKAGE = "tpu_compile"
BACKEND_NAME = "tpu"
FREE_DEVICE_NAME = "privateuseone"
"""What torch calls its one slot for an outside device while nobody has taken it."""

ENVIRONMENT = (
    "JAX_PLATFORMS",
    "XLA_FLAGS",
    "LIBTPU_INIT_ARGS",
    "TPU_LIBRARY_PATH",
    "TPU_SKIP_MDS_QUERY",
    "TPU_VISIBLE_CHIPS",
)
"""Variables from outside that change which devices there are or how XLA compiles."""

DEVICE_SECONDS = 90
"""How long JAX may take to list its devices. On TPU hosts it takes up to about 30 s."""


@dataclass(frozen=True)
class Device:
    """A device that JAX lists."""

    platform: str
    kind: str


@dataclass(frozen=True)
class Cache:
    """The folder of compiled programs."""

    directory: str
    writable: bool
    entries: int
    size: int


@dataclass(frozen=True)
class Setting:
    """Something process-wide of torch or jax that this package changes."""

    name: str
    why: str
    current: str


@dataclass(frozen=True)
class Facts:
    """What was found on this machine; ``examine`` judges it."""

    python: str
    packages: dict[str, str | None]
    libtpu_wanted: str | None
    libtpu_importable: bool
    torch_error: str | None
    device_slot: str
    device_slot_is_ours: bool
    chips: tuple[str, ...]
    devices: tuple[Device, ...]
    devices_error: str | None
    backend_owners: tuple[str, ...]
    torch_xla: str | None
    environment: dict[str, str]
    cache: Cache | None
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class Finding:
    """One line of the report; ``advice`` says what to do when the level is warning or error."""

    topic: Topic
    name: str
    found: str
    level: Level = "ok"
    advice: str = ""


@dataclass(frozen=True)
class Report:
    """All findings."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no error; warnings are allowed."""
        return not any(finding.level == "error" for finding in self.findings)

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The warnings and errors."""
        return tuple(f for f in self.findings if f.level in ("warning", "error"))


# ---------------------------------------------------------------- judge


def examine(facts: Facts) -> Report:
    """Judges what was collected. Pure: looks at nothing but its argument."""
    parts = (_versions, _devices, _caches, _settings, _conflicts)
    return Report(tuple(finding for part in parts for finding in part(facts)))


def _versions(facts: Facts) -> Iterator[Finding]:
    if versions.release(facts.python) < (3, 11):
        advice = "Make the virtual environment with Python 3.11 or newer."
        yield Finding("versions", "python", facts.python, "error", advice)
    else:
        yield Finding("versions", "python", facts.python)
    for name, supported in versions.SUPPORTED.items():
        found = facts.packages[name]
        if found is not None and found in supported:
            yield Finding("versions", name, found)
        else:
            advice = f"Install a supported version: pip install '{name}{supported}'"
            yield Finding("versions", name, found or "not installed", "error", advice)
    if facts.torch_error is not None:
        advice = "Reinstall torch; its own error is on the left."
        yield Finding("versions", "import torch", facts.torch_error, "error", advice)
    yield _libtpu(facts)
    yield Finding("versions", "numpy", facts.packages["numpy"] or "not installed")


def _libtpu(facts: Facts) -> Finding:
    found, wanted = facts.packages["libtpu"], facts.libtpu_wanted
    install = "pip install 'tpu_compile[tpu]'"
    if found is None:
        if facts.chips:
            advice = f"TPUs are attached, and JAX needs libtpu to use them: {install}"
            return Finding("versions", "libtpu", "not installed", "error", advice)
        advice = f"Only needed for attached TPUs and to compile for TPUs: {install}"
        return Finding("versions", "libtpu", "not installed", "note", advice)
    if not facts.libtpu_importable:
        advice = f"Installed but can't be imported. Reinstall it: {install} --force-reinstall"
        return Finding("versions", "libtpu", found, "error", advice)
    if wanted is not None and not found.startswith(wanted.removesuffix("*")):
        advice = f"The installed jax wants libtpu=={wanted}: {install}"
        return Finding("versions", "libtpu", found, "warning", advice)
    return Finding("versions", "libtpu", found)


def _devices(facts: Facts) -> Iterator[Finding]:
    chips = f"{len(facts.chips)} x {facts.chips[0]}" if facts.chips else "none"
    yield Finding("devices", "attached TPU chips", chips)
    if facts.devices_error is not None:
        advice = (
            "JAX can't list its devices. Unset JAX_PLATFORMS if it names a platform that is not "
            "there; end other processes that hold the TPU; without a TPU set TPU_SKIP_MDS_QUERY=1."
        )
        yield Finding("devices", "JAX devices", facts.devices_error, "error", advice)
        return
    counts: dict[Device, int] = {}
    for device in facts.devices:
        counts[device] = counts.get(device, 0) + 1
    found = ", ".join(f"{n} x {d.kind} ({d.platform})" for d, n in counts.items()) or "none"
    if facts.chips and not any(d.platform == "tpu" for d in facts.devices):
        advice = (
            "TPU chips are attached, but JAX does not use them. Install libtpu "
            "(pip install 'tpu_compile[tpu]') and unset JAX_PLATFORMS."
        )
        yield Finding("devices", "JAX devices", found, "error", advice)
    else:
        yield Finding("devices", "JAX devices", found)
    for name, value in facts.environment.items():
        yield Finding("devices", f"${name}", value, "note")


def _caches(facts: Facts) -> Iterator[Finding]:
    cache = facts.cache
    if cache is None:
        return
    found = f"{cache.directory}: {cache.entries} entries, {cache.size / 1e6:.1f} MB"
    if cache.writable:
        yield Finding("caches", "compiled programs", found)
    else:
        advice = (
            f"Not writable, so every process compiles anew. Make {cache.directory} writable, or "
            "set TPU_COMPILE_CACHE_DIR to a folder that is."
        )
        yield Finding("caches", "compiled programs", found, "warning", advice)


def _settings(facts: Facts) -> Iterator[Finding]:
    for setting in facts.settings:
        yield Finding("settings", setting.name, setting.current, "note", setting.why)


def _conflicts(facts: Facts) -> Iterator[Finding]:
    owners = facts.backend_owners
    others = [owner for owner in owners if owner != OWN_PACKAGE]
    name, found = f"backend {BACKEND_NAME!r}", ", ".join(owners) or "not registered"
    if OWN_PACKAGE not in owners:
        advice = (
            "torch finds backends by their installed package, and this one is not installed (a "
            "checkout on the path is not enough): pip install -e . in the checkout."
        )
        yield Finding("conflicts", name, found, "error", advice)
    elif others:
        advice = (
            f"{', '.join(others)} registers a backend of the same name, and torch takes either. "
            "Uninstall one, or use separate virtual environments."
        )
        yield Finding("conflicts", name, found, "error", advice)
    else:
        yield Finding("conflicts", name, found)
    if facts.torch_error is None:
        yield _device_slot(facts)
    if facts.torch_xla is not None:
        advice = (
            "torch_xla brings a second TPU runtime, and one process can hold a TPU only once. Use "
            "separate virtual environments, or import only one of the two in a process."
        )
        yield Finding("conflicts", "torch_xla", facts.torch_xla, "warning", advice)


def _device_slot(facts: Facts) -> Finding:
    slot = facts.device_slot
    if slot == FREE_DEVICE_NAME:
        return Finding("conflicts", "torch's device slot", "free")
    if facts.device_slot_is_ours:
        return Finding("conflicts", "torch's device slot", f"{slot}, ours")
    advice = (
        f"Another package has registered the device {slot!r}, and torch has one such slot: "
        "torch.compile works, the eager device 'tpu' does not. Uninstall that package, or set "
        "TORCH_DEVICE_BACKEND_AUTOLOAD=0 if importing torch loads it."
    )
    return Finding("conflicts", "torch's device slot", slot, "warning", advice)


# ---------------------------------------------------------------- collect


def collect() -> Facts:
    """Looks at this process, its packages, and (in a child process) the devices JAX sees."""
    names = ("torch", "jax", "jaxlib", "libtpu", "numpy")
    chips = attached()
    devices, devices_error = _list_devices(has_chips=bool(chips))
    torch_error, slot, slot_is_ours = _torch_device_slot()
    return Facts(
        python=platform.python_version(),
        packages={name: versions.installed(name) for name in names},
        libtpu_wanted=_libtpu_wanted(),
        libtpu_importable=importlib.util.find_spec("libtpu") is not None,
        torch_error=torch_error,
        device_slot=slot,
        device_slot_is_ours=slot_is_ours,
        chips=chips,
        devices=devices,
        devices_error=devices_error,
        backend_owners=_backend_owners(),
        torch_xla=versions.installed("torch_xla"),
        environment={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        cache=_cache(),
        settings=_current_settings(),
    )


def _libtpu_wanted() -> str | None:
    if versions.installed("jax") is None:
        return None
    for requirement in metadata.requires("jax") or ():
        if requirement.startswith("libtpu=="):
            return requirement.removeprefix("libtpu==").split(";")[0].strip()
    return None


def _torch_device_slot() -> tuple[str | None, str, bool]:
    try:
        import torch
    except (ImportError, OSError) as error:
        return _last_line(str(error)), FREE_DEVICE_NAME, False
    slot = torch._C._get_privateuse1_backend_name()
    module = getattr(torch, slot, None)
    owner = str(getattr(module, "__name__", ""))
    return None, slot, owner.split(".")[0] == OWN_PACKAGE


_LIST_DEVICES = """
import json, jax
print(json.dumps([[d.platform, d.device_kind] for d in jax.devices()]))
"""


def _list_devices(*, has_chips: bool) -> tuple[tuple[Device, ...], str | None]:
    # In a child: starting JAX takes the TPU away from other processes, and may hang.
    environment = dict(os.environ)
    if not has_chips:
        # Else libtpu asks a metadata server that is not there, and complains.
        environment = {**NO_TPU, **environment}
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-c", _LIST_DEVICES],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEVICE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return (), f"no answer in {DEVICE_SECONDS} s"
    if child.returncode:
        return (), _last_line(child.stderr)
    return tuple(Device(*pair) for pair in json.loads(_last_line(child.stdout))), None


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["(no message)"])[-1]


def _backend_owners() -> tuple[str, ...]:
    entries = metadata.entry_points(group="torch_dynamo_backends", name=BACKEND_NAME)
    return tuple(sorted({e.dist.name.replace("-", "_") if e.dist else e.value for e in entries}))


def _cache() -> Cache | None:
    try:
        from tpu_compile import caches
    except ImportError:  # of torch or jax: found by the checks of those
        return None
    directory = caches.directory()
    sizes = []
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):  # other processes may clean up meanwhile
            if path.is_file():
                sizes.append(path.stat().st_size)
    existing = next(p for p in (directory, *directory.parents) if p.exists())
    return Cache(
        directory=str(directory),
        writable=os.access(existing, os.W_OK),
        entries=len(sizes),
        size=sum(sizes),
    )


def _current_settings() -> tuple[Setting, ...]:
    try:
        from tpu_compile import process_state
    except ImportError:  # of torch or jax: found by the checks of those
        return ()
    return tuple(Setting(s.name, s.why, str(s.current())) for s in process_state.SETTINGS)


# ---------------------------------------------------------------- show

_TITLES: dict[Topic, str] = {
    "versions": "Versions",
    "devices": "Devices",
    "caches": "Caches",
    "settings": "Process-wide settings this package changes",
    "conflicts": "Conflicts",
}
_STYLES: dict[Level, str] = {
    "ok": "green",
    "note": "dim",
    "warning": "yellow",
    "error": "bold red",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``tpu-compile doctor``."""
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    """Prints the report and returns 0, or 1 if there are errors."""
    report = examine(collect())
    if args.json:
        print(json.dumps({"ok": report.ok, "findings": [asdict(f) for f in report.findings]}))
    else:
        show(report)
    return 0 if report.ok else 1


def show(report: Report) -> None:
    """Prints one table per topic, then every problem with what to do about it."""
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    for topic in _TITLES:
        findings = [f for f in report.findings if f.topic == topic]
        if findings:
            console.print(_table(topic, findings))
    for problem in report.problems:
        style = _STYLES[problem.level]
        text = f"{problem.name}: {problem.found}. {problem.advice}"
        console.print(f"[{style}]{problem.level}[/]: {escape(text)}", highlight=False)
    if not report.problems:
        console.print("[green]No problems found.[/]")


def _table(topic: Topic, findings: list[Finding]) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=_TITLES[topic], title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("what")
    table.add_column("found", overflow="fold")
    table.add_column("verdict")
    for finding in findings:
        note = finding.advice if finding.level == "note" else ""
        verdict = f"[{_STYLES[finding.level]}]{finding.level}[/] {escape(note)}".rstrip()
        table.add_row(escape(finding.name), escape(finding.found), verdict)
    return table
