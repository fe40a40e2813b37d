"""The versions of torch and jax that this package supports, and the check of what is installed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata


@dataclass(frozen=True)
class Range:
    """Versions from ``low`` up to and without ``high``."""

    low: str
    high: str

    def __contains__(self, version: str) -> bool:
        return release(self.low) <= release(version) < release(self.high)

    def __str__(self) -> str:
        return f">={self.low},<{self.high}"


# Both are used below their public API (AOTAutograd, jax's MLIR bindings), which moves with every
# minor release: widen a range only with the tests passing on it. setup.cfg repeats the ranges.
SUPPORTED = {
    "torch": Range("2.13", "2.14"),
    "jax": Range("0.10.2", "0.11"),
    "jaxlib": Range("0.10.2", "0.11"),
}


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version: "2.13.0+cpu" gives (2, 13, 0)."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def installed(package: str) -> str | None:
    """The version of an installed package, without importing it, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check() -> None:
    """Compares what is installed with ``SUPPORTED``.

    Raises:
        UnsupportedVersion: for the first package that is missing, too old or too new.
    """
    for package, supported in SUPPORTED.items():
        found = installed(package)
        if found is None or found not in supported:
            from tpu_compile.errors import UnsupportedVersion

            raise UnsupportedVersion(
                package=package, found=found or "(not installed)", supported=str(supported)
            )
