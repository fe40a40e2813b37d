"""The file itself: an uncompressed zip that appears whole or not at all, each member with a digest.

Nothing is ever unpacked to a disk, so a member's name is only a name.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from tpu_compile import __version__, files
from tpu_compile.portable import codec
from tpu_compile.portable.errors import DamagedExport, NewerFormat, NotAnExport
from tpu_compile.portable.manifest import FORMAT, VERSION, Manifest, Member

MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same model gives the same bytes
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class _Digest(io.RawIOBase):
    """A stream that counts and digests what goes through it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.size, self.sha = stream, 0, hashlib.sha256()

    def write(self, data: Any) -> int:
        self.size += memoryview(data).nbytes
        self.sha.update(data)
        return self.stream.write(data)

    def read(self, count: int = -1) -> bytes:
        data = self.stream.read(count)
        self.size += len(data)
        self.sha.update(data)
        return data

    @property
    def member(self) -> Member:
        return Member(self.size, self.sha.hexdigest())


class Writer:
    """Writes members, then the manifest."""

    def __init__(self, file: zipfile.ZipFile) -> None:
        self._file = file
        self.members: dict[str, Member] = {}

    @contextlib.contextmanager
    def member(self, name: str) -> Iterator[IO[bytes]]:
        """A stream to write one member to."""
        with self._file.open(_info(name), "w", force_zip64=True) as stream:
            digest = _Digest(stream)
            yield digest  # type: ignore[misc]
        self.members[name] = digest.member

    def add(self, name: str, data: bytes) -> None:
        """Writes one member that is in memory."""
        with self.member(name) as stream:
            stream.write(data)

    def finish(self, manifest: Manifest) -> None:
        """Writes the manifest."""
        self._file.writestr(_info(MANIFEST), manifest.to_json())


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.external_attr = 0o644 << 16
    return info


@contextlib.contextmanager
def create(path: Path) -> Iterator[Writer]:
    """A new file; it takes its place, and that of an older one, once it is complete."""
    with files.replacing(path) as raw, zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED) as file:
        yield Writer(file)


class Archive:
    """An open file. What is read is compared with the manifest's digests.

    Args:
        path: for errors.
        file: the zip.

    Raises:
        NotAnExport, DamagedExport, NewerFormat: where the manifest can't be used.
    """

    def __init__(self, path: Path, file: zipfile.ZipFile) -> None:
        self.path, self._file = path, file
        self._size = path.stat().st_size
        names = self._names()
        if MANIFEST not in names:
            raise NotAnExport(path=path, why=f"it has no {MANIFEST}")
        with self._reading(MANIFEST):
            text = file.read(MANIFEST)
        self.manifest = _parse(path, text)
        if missing := sorted(set(self.manifest.members) ^ (names - {MANIFEST})):
            raise DamagedExport(path=path, why=f"members and manifest differ in {missing[0]!r}")

    def _names(self) -> set[str]:
        names: set[str] = set()
        for info in self._file.infolist():
            name = info.filename
            plain = info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1
            if not _NAME.fullmatch(name) or name in names or not plain:
                raise NotAnExport(path=self.path, why=f"it has a member {name!r} as none of ours")
            if info.file_size > self._size:
                raise DamagedExport(path=self.path, why=f"{name} is longer than the file")
            names.add(name)
        return names

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except (zipfile.BadZipFile, EOFError, codec.Malformed, KeyError) as err:
            raise DamagedExport(path=self.path, why=f"{name}: {err}") from err

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """A stream to read one member from, to its end; its digest is compared then."""
        with self._reading(name), self._file.open(name) as stream:
            digest = _Digest(stream)
            yield digest  # type: ignore[misc]
            if digest.member != self.manifest.members[name]:
                raise codec.Malformed("its digest is not the manifest's")

    def read(self, name: str) -> bytes:
        """One member, compared with its digest."""
        with self.open(name) as stream:
            return stream.read()


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Archive]:
    """An existing file, for reading.

    Raises:
        NotAnExport, DamagedExport, NewerFormat: where it can't be used.
        OSError: where it can't be opened.
    """
    with open(path, "rb") as raw:
        start = raw.read(4)
        raw.seek(0)
        try:
            file = zipfile.ZipFile(raw)
        except zipfile.BadZipFile as err:
            if start == b"PK\x03\x04":
                raise DamagedExport(path=path, why="it ends early") from err
            raise NotAnExport(path=path, why="it is no zip file") from err
        with file:
            yield Archive(path, file)


def _parse(path: Path, text: bytes) -> Manifest:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise DamagedExport(path=path, why=f"{MANIFEST}: {err}") from err
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise NotAnExport(path=path, why=f"its {MANIFEST} is of something else")
    version = data.get("version")
    if isinstance(version, int) and version > VERSION:
        versions = data.get("versions")
        writer = versions.get("tpu_compile") if isinstance(versions, dict) else "?"
        raise NewerFormat(path=path, found=version, known=VERSION, here=__version__, writer=writer)
    try:
        return codec.decode(Manifest, data, "manifest")
    except codec.Malformed as err:
        raise DamagedExport(path=path, why=f"{MANIFEST}: {err}") from err
