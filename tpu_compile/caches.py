"""Compiled programs on disk: JAX's persistent cache, in our folder unless the user set one."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from tpu_compile.errors import CacheWarning

_complained: set[Path] = set()


def directory() -> Path:
    """The cache folder: TPU_COMPILE_CACHE_DIR, or ``tpu_compile`` in the user's cache folder."""
    if given := os.environ.get("TPU_COMPILE_CACHE_DIR"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tpu_compile"


@contextlib.contextmanager
def xla_cache(*, wanted: bool = True) -> Iterator[None]:
    """A persistent cache for the compile within, however short it is.

    A folder that the user set for JAX, or the user's switching the cache off, is left alone. A file
    in it that can't be read counts as missing, with a warning, and is written anew.

    Args:
        wanted: False for a compile that neither reads nor writes the disk.
    """
    from tpu_compile import jax_internals

    if wanted and jax_internals.user_cache_setting():
        yield
        return
    folder = directory() / "xla" if wanted else None
    if folder is not None and not _usable(folder):
        folder = None
    with jax_internals.compilation_cache(folder, _warn_damaged):
        yield


def _warn_damaged(path: Path) -> None:
    text = f"the cached program {path} is damaged; it is removed and compiled anew."
    warnings.warn(text, CacheWarning, stacklevel=2)


def _usable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return True
        why = "it can't be written"
    except OSError as err:
        why = str(err)
    if folder not in _complained:
        _complained.add(folder)
        text = (
            f"compiled programs are not kept: {folder}: {why}. Set TPU_COMPILE_CACHE_DIR to a "
            "folder that can be written."
        )
        warnings.warn(text, CacheWarning, stacklevel=4)
    return False
