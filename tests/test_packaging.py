"""The package list, version ranges, entry points, public names, and README's commands."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from configparser import ConfigParser
from importlib import metadata
from pathlib import Path

import pytest

import tpu_compile
from tpu_compile import versions

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def setup_cfg() -> ConfigParser:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def folders_with_code(top: Path) -> set[Path]:
    # The links that mypy needs are not folders of their own.
    # A folder of the mapping may be empty so far; one with code has to be listed.
    found = {path.parent for path in top.rglob("*.py")}
    return {p for p in found if not any(q.is_symlink() for q in (p, *p.parents))}


def test_every_folder_with_code_is_a_listed_package(setup_cfg: ConfigParser) -> None:
    listed = lines(setup_cfg["options"]["packages"])
    folders = dict(line.split(" = ") for line in lines(setup_cfg["options"]["package_dir"]))
    expected = set()
    for name, folder in folders.items():
        for path in folders_with_code(ROOT / folder):
            expected.add(".".join((name, *path.relative_to(ROOT / folder).parts)))
    assert sorted(listed) == sorted(expected)


def test_top_level_folders_are_mapped(setup_cfg: ConfigParser) -> None:
    folders = lines(setup_cfg["options"]["package_dir"])
    expected = ["tpu_compile = tpu_compile"]
    expected += [f"tpu_compile.{name} = {name}" for name in ("lowering", "passes", "kernels")]
    assert folders == expected


def test_ranges_in_setup_cfg_are_the_checked_ones(setup_cfg: ConfigParser) -> None:
    required = dict(re.findall(r"^(\w+)(\S*)$", setup_cfg["options"]["install_requires"], re.M))
    for name in ("torch", "jax"):
        assert set(required[name].split(",")) == set(str(versions.SUPPORTED[name]).split(","))
    extra = setup_cfg["options.extras_require"]["tpu"]
    assert extra.strip() == f"jax[tpu]{versions.SUPPORTED['jax']}"


def test_constraints_pin_supported_versions() -> None:
    text = (ROOT / "constraints.txt").read_text()
    pins = dict(line.split("==") for line in lines(text))
    for name, supported in versions.SUPPORTED.items():
        assert pins[name] in supported


@pytest.mark.parametrize(
    ("version", "inside"),
    [("2.13.0+cpu", True), ("2.13.1", True), ("2.12.9", False), ("2.14.0a0", False), ("?", False)],
)
def test_range(version: str, inside: bool) -> None:
    assert (version in versions.Range("2.13", "2.14")) is inside


@pytest.mark.parametrize("found", ["2.12.0", None])
def test_unsupported_version_says_what_to_install(
    found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tpu_compile.errors import UnsupportedVersion

    monkeypatch.setattr(versions, "installed", lambda package: found)
    with pytest.raises(UnsupportedVersion, match=r"pip install 'torch>=2\.13,<2\.14'"):
        versions.check()


def test_installed_versions_are_supported() -> None:
    versions.check()


def test_entry_points() -> None:
    backends = metadata.entry_points(group="torch_dynamo_backends", name="tpu")
    assert [entry.value for entry in backends] == ["tpu_compile.backend:tpu"]
    scripts = metadata.entry_points(group="console_scripts", name="tpu-compile")
    assert [entry.value for entry in scripts] == ["tpu_compile.cli:main"]


@pytest.mark.parametrize("name", tpu_compile.__all__)
def test_public_name_exists(name: str) -> None:
    value = getattr(tpu_compile, name)
    assert name in dir(tpu_compile)
    # Importing a submodule sets it as an attribute of the package, over any function of its name.
    if name in {module.name for module in pkgutil.iter_modules(tpu_compile.__path__)}:
        assert value is importlib.import_module(f"tpu_compile.{name}")


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        tpu_compile.nonsense  # noqa: B018


IMPORTS = """
import sys, time
start = time.perf_counter()
import tpu_compile
ours = time.perf_counter() - start
assert not {"torch", "jax", "numpy"} & set(sys.modules), "import tpu_compile imports too much"
start = time.perf_counter()
import torch
print(ours / (time.perf_counter() - start))
"""


def test_import_costs_little_beside_torch() -> None:
    ratios = []
    for _ in range(3):  # the best of several: a busy machine can slow one down, not speed it up
        command = [sys.executable, "-c", IMPORTS]
        ratios.append(float(subprocess.check_output(command, cwd=ROOT / "tests")))
        if ratios[-1] < 0.2:
            return
    pytest.fail(f"import tpu_compile takes {min(ratios):.2f} times as long as import torch")


def test_ci_runs_the_commands_of_the_readme() -> None:
    listed = subprocess.check_output([ROOT / ".ci" / "run", "--list"], text=True).splitlines()
    blocks = re.findall(r"^```bash\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    commands = [line for block in blocks for line in block.splitlines()]
    assert sorted(listed) == sorted(commands)
    assert "pytest" in listed[0]
    assert "demo" in listed[1]
