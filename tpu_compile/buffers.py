"""torch CPU tensors to JAX arrays and back by DLPack: zero-copy where that is a true alias."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import jax
import torch

from tpu_compile.jax_internals import array_to_dlpack, cpu_device, dlpack_to_array

ALIGNMENT = 64  # bytes; XLA:CPU copies what is aligned less


@functools.cache
def device(target: str) -> jax.Device:
    """The first device of a target, "cpu" or "tpu". Host tensors alias the CPU's memory."""
    return cpu_device() if target == "cpu" else jax.local_devices(backend=target)[0]


def to_jax(t: torch.Tensor) -> jax.Array:
    """A C-contiguous CPU tensor as a JAX array of its dtype and shape, 64-bit dtypes kept.

    Shares memory when the tensor is aligned to 64 bytes, else it copies.
    """
    if t.requires_grad:
        t = t.detach()
    return dlpack_to_array(torch._C._to_dlpack(t), cpu_device(), None)


def to_torch(arrays: Iterable[jax.Array]) -> list[torch.Tensor]:
    """JAX arrays on the CPU as tensors that share their memory; waits until they are computed."""
    return list(map(torch._C._from_dlpack, map(array_to_dlpack, arrays)))


def physical(t: torch.Tensor) -> torch.Tensor:
    """A C-contiguous tensor of the same elements; conj and neg bits resolved."""
    if t.is_conj() or t.is_neg():
        t = t.resolve_conj().resolve_neg()
    return t if t.is_contiguous() else t.contiguous()


def shares_memory(a: jax.Array, t: torch.Tensor) -> bool:
    """Whether a JAX array is a true alias of a tensor's memory."""
    return a.unsafe_buffer_pointer() == t.data_ptr()


def dense_permutation(size: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...] | None:
    """The order of dimensions in memory, outermost first, when the tensor fills its memory.

    Returns:
        A permutation ``p`` such that ``t.permute(p)`` is C-contiguous, or None if there is none
        (gaps, overlaps, expanded dimensions).
    """
    order = sorted(range(len(size)), key=lambda d: (-stride[d], d))
    # dimensions of size 1 fit anywhere: leave them where they are among equal strides
    expected = 1
    for d in reversed(order):
        if size[d] == 1:
            continue
        if stride[d] != expected:
            return None
        expected *= size[d]
    return tuple(order)
