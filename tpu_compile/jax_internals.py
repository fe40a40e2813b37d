"""Every private API of JAX that we use, seen in jax and jaxlib 0.10.2."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax
from jax._src import compilation_cache as _cc
from jax._src import config as _config
from jax._src import xla_bridge as _xla_bridge
from jax._src.compilation_cache_interface import CacheInterface
from jax._src.lib import _jax, xla_client

# The public jax.dlpack.from_dlpack costs about 15 times as much a tensor.
dlpack_to_array = _jax.dlpack_managed_tensor_to_buffer
array_to_dlpack = _jax.buffer_to_dlpack_managed_tensor


Launch = Callable[[Sequence[jax.Array]], list[jax.Array]]


@functools.cache
def cpu_device() -> jax.Device:
    """The CPU, by a client of ours that runs programs in the calling thread.

    JAX's own client hands each program to a thread and a call here has to wait for it anyway: the
    two switches cost more than a small program. Its setting is one for the process, so it is not
    for us to change; a second client leaves it alone.
    """
    client: Any = xla_client.make_cpu_client(asynchronous=False)
    return client.local_devices()[0]


def launcher(compiled: jax.stages.Compiled) -> Launch:
    """What launches a program on one device, given a list of arrays that are on it.

    Args:
        compiled: its arguments are trusted to have the dtypes and shapes that it takes.
    """
    program: Any = compiled.runtime_executable()
    if len(program.get_parameter_layouts()) != len(compiled.in_avals[0]):
        return lambda arrays: list(compiled(*arrays))  # JAX adds arguments of its own
    run = program.execute_sharded
    # A result whose type and sharding are known beforehand is wrapped at once: a call that has
    # ``program.execute`` find them out, and give it up to torch, takes half as long again.
    handlers = [
        _jax.array_result_handler(
            jax.core.ShapedArray(r.shape, r.dtype), r.sharding, committed=True, _skip_checks=True
        )
        for r in jax.tree.leaves(compiled.out_info)
    ]
    return lambda arrays: run(arrays).consume_with_handlers(handlers)


def serialized(compiled: jax.stages.Compiled) -> bytes:
    """A program in its compiler's own form, which only the same version of it reads.

    JAX's public way wraps the same bytes in a pickle; these are the bytes alone.

    Args:
        compiled: for an attached device or a topology.
    """
    unloaded = getattr(compiled._executable, "_unloaded_executable", None)
    program: Any = compiled.runtime_executable() if unloaded is None else unloaded.xla_executable
    if hasattr(program, "serialize"):
        return bytes(program.serialize())
    return bytes(program.client.serialize_executable(program))


def deserialized(
    data: bytes, device: jax.Device
) -> Callable[[Sequence[jax.Array]], list[jax.Array]]:
    """What launches a serialized program on a device, given a list of arrays that are on it."""
    devices = xla_client.DeviceList((device,))
    client: Any = device.client
    program = client.deserialize_executable(data, executable_devices=devices)
    return lambda arrays: program.execute(list(arrays))


def without_call_stacks() -> contextlib.AbstractContextManager[None]:
    """Keeps this process's files and lines out of what is lowered within."""
    return _config.traceback_in_locations_limit(0)


def skip_tpu_search() -> None:
    """Has JAX take it that there is no TPU, unless it has looked for devices already.

    Loading libtpu to find none takes seconds and prints complaints. Compiling for a topology loads
    it by another way and is not affected.
    """
    registration = _xla_bridge._backend_factories.get("tpu")
    if registration is not None and not _xla_bridge._backends:
        _xla_bridge._backend_factories["tpu"] = dataclasses.replace(registration, factory=_no_tpu)


def _no_tpu() -> NoReturn:
    raise RuntimeError("no TPU chip is attached to this machine")


def tpu_search_skipped() -> bool:
    """Whether ``skip_tpu_search`` took effect."""
    registration = _xla_bridge._backend_factories.get("tpu")
    return registration is not None and registration.factory is _no_tpu


class VerifiedCache(CacheInterface):
    """JAX's file cache with a checksum in each file: a damaged one counts as missing and goes.

    Args:
        files: the cache that keeps the bytes.
        damaged: called with the path of a file that was removed.
    """

    def __init__(self, files: CacheInterface, damaged: Callable[[Path], None]) -> None:
        self._files, self._damaged = files, damaged
        self._path = files._path

    def get(self, key: str) -> bytes | None:
        """The bytes kept under a key, or None."""
        stored = self._files.get(key)
        if stored is None:
            return None
        digest, value = stored[:_DIGEST], stored[_DIGEST:]
        if hashlib.blake2b(value, digest_size=_DIGEST).digest() == digest:
            return value
        for path in Path(str(self._path)).glob(f"{key}*"):
            path.unlink(missing_ok=True)
            self._damaged(path)
        return None

    def put(self, key: str, value: bytes) -> None:
        """Keeps bytes under a key; the file appears whole or not at all."""
        self._files.put(key, hashlib.blake2b(value, digest_size=_DIGEST).digest() + value)


_DIGEST = 16
_STATE = ("_cache", "_cache_initialized", "_cache_checked", "_cache_used")
_lock = threading.RLock()


def user_cache_setting() -> bool:
    """Whether the user has set JAX's compilation cache up, or switched it off."""
    return bool(_config.compilation_cache_dir.value) or not _config.enable_compilation_cache.value


@contextlib.contextmanager
def compilation_cache(folder: Path | None, damaged: Callable[[Path], None]) -> Iterator[None]:
    """Gives compiles within a persistent cache in a folder, or none at all.

    JAX has one cache object per process, made from the settings at its first use and kept. So the
    object is put in place here and taken out again: the user's own jitted code never sees it.

    Args:
        folder: where programs are kept.
        damaged: called with the path of a file that could not be used.
    """
    with _lock:
        saved = [getattr(_cc, name) for name in _STATE]
        cache = None if folder is None else _cc.get_file_cache(str(folder))
        mine = VerifiedCache(cache[0], damaged) if cache else None
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
