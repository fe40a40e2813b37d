"""An ``AotResult`` as one zip file: figures as JSON, texts, and the TPU executables."""

from __future__ import annotations

import json
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tpu_compile import files
from tpu_compile.aot.errors import NotAnAotFile
from tpu_compile.aot.memory import Memory
from tpu_compile.aot.result import AotProgram, AotResult
from tpu_compile.liveness import Buffer, Peak

FORMAT = "tpu_compile aot result"
VERSION = 2


@dataclass(frozen=True)
class SavedTexts:
    """A program's texts in a file; read when they are asked for."""

    path: Path
    folder: str

    def _read(self, name: str) -> bytes:
        with zipfile.ZipFile(self.path) as archive:
            return archive.read(f"{self.folder}/{name}")

    @property
    def stablehlo(self) -> str:
        """What was compiled."""
        return self._read("stablehlo.mlir").decode()

    @property
    def hlo(self) -> str:
        """What the TPU compiler made of it."""
        return self._read("optimized.hlo").decode()

    @property
    def executable(self) -> bytes:
        """The TPU compiler's own form."""
        return self._read("executable.bin")


def save(result: AotResult, path: Path) -> None:
    """Writes a result; the file appears whole or not at all."""
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "topology": result.topology,
        "effort": result.effort,
        "seconds": result.seconds,
        "versions": result.versions,
        "mesh": result.mesh,
        "programs": [
            {
                "name": p.name,
                "memory": asdict(p.memory),
                "model_flops": p.model_flops,
                "estimate": asdict(p.estimate),
                "shardings": p.shardings,
            }
            for p in result.programs
        ],
    }
    with (
        files.replacing(path) as raw,
        zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        archive.writestr("manifest.json", json.dumps(manifest, indent=1))
        for p in result.programs:
            archive.writestr(f"{p.name}/stablehlo.mlir", p.stablehlo)
            archive.writestr(f"{p.name}/optimized.hlo", p.hlo)
            archive.writestr(f"{p.name}/executable.bin", p.texts.executable)


def load(path: Path) -> AotResult:
    """Reads a saved result; its texts stay in the file."""
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(archive.read("manifest.json"))
            if damaged := archive.testzip():
                raise NotAnAotFile(path=path, why=f"its part {damaged} is damaged")
    except (zipfile.BadZipFile, KeyError, ValueError) as err:
        if isinstance(err, NotAnAotFile):
            raise
        raise NotAnAotFile(path=path, why=str(err)) from err
    if manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
        found = f"{manifest.get('format')!r} version {manifest.get('version')!r}"
        raise NotAnAotFile(path=path, why=f"it holds {found}, not {FORMAT!r} version {VERSION}")
    programs = tuple(_program(p, manifest["topology"], path) for p in manifest["programs"])
    return AotResult(
        manifest["topology"],
        manifest["effort"],
        programs,
        manifest["seconds"],
        manifest["versions"],
        manifest["mesh"],
    )


def _program(saved: dict[str, Any], topology: str, path: Path) -> AotProgram:
    estimate = dict(saved["estimate"])
    buffers = [Buffer(**{**b, "shape": tuple(b["shape"])}) for b in estimate.pop("largest")]
    return AotProgram(
        saved["name"],
        topology,
        Memory(**saved["memory"]),
        saved["model_flops"],
        Peak(**estimate, largest=tuple(buffers)),
        SavedTexts(path, saved["name"]),
        saved["shardings"],
    )
