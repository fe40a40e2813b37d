"""Portable StableHLO to a program of XLA, for a device that is attached or of a topology."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import export as jax_export
from jax.sharding import SingleDeviceSharding

from tpu_compile import caches, errors
from tpu_compile.lowering.types import TensorType, numpy_dtype
from tpu_compile.options import XLA_OPTIONS
from tpu_compile.portable.manifest import Array


def in_memory(array: Array) -> TensorType:
    """What the program takes or returns for a tensor: its dimensions in the order of memory."""
    return TensorType(tuple(array.shape[d] for d in array.order), array.torch_dtype)


def compile_stablehlo(
    artifact: bytes, types: Sequence[TensorType], device: jax.Device, *, cache: bool
) -> Any:
    """Compiles portable StableHLO.

    Args:
        artifact: the StableHLO.
        types: of the program's arguments.
        device: attached, or of a topology.
        cache: whether the program may come from, and go to, the cache on disk.

    Returns:
        JAX's compiled program.

    Raises:
        CompileFailed: where XLA refuses it.
    """
    sharding = SingleDeviceSharding(device)
    with jax.enable_x64(True):
        exported = jax_export.deserialize(bytearray(artifact))
        jitted = jax.jit(exported.call, keep_unused=True, out_shardings=sharding)
        lowered = jitted.lower(
            *(jax.ShapeDtypeStruct(t.shape, numpy_dtype(t.dtype), sharding=sharding) for t in types)
        )
        try:
            with caches.xla_cache(wanted=cache):
                return lowered.compile(dict(XLA_OPTIONS))
        except jax.errors.JaxRuntimeError as err:
            raise errors.CompileFailed(target=device.platform, why=str(err)) from err
