"""Every private API of JAX that we use, seen in jax and jaxlib 0.10.2."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from jax._src import compilation_cache as _cc
from jax._src import config as _config
from jax._src.lib import _jax

# The public jax.dlpack.from_dlpack costs about 15 times as much a tensor.
dlpack_to_array = _jax.dlpack_managed_tensor_to_buffer
array_to_dlpack = _jax.buffer_to_dlpack_managed_tensor

_STATE = ("_cache", "_cache_initialized", "_cache_checked", "_cache_used")
_lock = threading.RLock()


def user_cache_setting() -> bool:
    """Whether the user has set JAX's compilation cache up, or switched it off."""
    return bool(_config.compilation_cache_dir.value) or not _config.enable_compilation_cache.value


@contextlib.contextmanager
def compilation_cache(folder: Path | None) -> Iterator[None]:
    """Gives compiles within a persistent cache in a folder, or none at all.

    JAX has one cache object per process, made from the settings at its first use and kept. So the
    object is put in place here and taken out again: the user's own jitted code never sees it.
    """
    with _lock:
        saved = [getattr(_cc, name) for name in _STATE]
        cache = None if folder is None else _cc.get_file_cache(str(folder))
        mine = cache[0] if cache else None
        for name, value in zip(_STATE, (mine, True, True, mine is not None), strict=True):
            setattr(_cc, name, value)
        try:
            with (
                _config.compilation_cache_dir(None if folder is None else str(folder)),
                _config.persistent_cache_min_compile_time_secs(0.0),
                _config.persistent_cache_min_entry_size_bytes(-1),
            ):
                yield
        finally:
            for name, value in zip(_STATE, saved, strict=True):
                setattr(_cc, name, value)
