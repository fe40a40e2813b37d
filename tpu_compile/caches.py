"""Compiled programs on disk: JAX's persistent cache, in a folder of ours unless the user set one."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import jax

from tpu_compile.errors import CacheWarning


def directory() -> Path:
    """The cache folder: TPU_COMPILE_CACHE_DIR, or ``tpu_compile`` in the user's cache folder."""
    if given := os.environ.get("TPU_COMPILE_CACHE_DIR"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tpu_compile"


@contextlib.contextmanager
def xla_cache() -> Iterator[None]:
    """JAX's persistent compilation cache for the compile within, however short it is."""
    if jax.config.jax_compilation_cache_dir or not jax.config.jax_enable_compilation_cache:
        yield  # the user's own setting, on or off
        return
    folder = directory() / "xla"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        warnings.warn(
            f"the cache folder {folder} can't be written; compiled programs are not kept. Set "
            "TPU_COMPILE_CACHE_DIR to a folder that can.",
            CacheWarning,
            stacklevel=2,
        )
        yield
        return
    yield
