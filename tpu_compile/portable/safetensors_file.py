"""The safetensors format, streamed: each tensor straight from and into torch's own memory.

Loading so takes no second copy of the weights, and what is read is aligned as XLA:CPU wants it to
use it in place. Other readers of the format can read the same bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import IO, Any

import torch

from tpu_compile.portable.codec import Malformed

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_LONGEST_HEADER = 100_000_000  # bytes; the format's own limit
_CHUNK = 1 << 22


def has_name(dtype: torch.dtype) -> bool:
    """Whether the format knows a dtype."""
    return dtype in _NAMES


def write(out: IO[bytes], tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes C-contiguous CPU tensors by name."""
    header: dict[str, Any] = {}
    position = 0
    for name, t in tensors.items():
        end = position + t.numel() * t.itemsize
        header[name] = {
            "dtype": _NAMES[t.dtype],
            "shape": list(t.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data start aligned
    out.write(len(text).to_bytes(8, "little"))
    out.write(text)
    for t in tensors.values():
        if t.numel():
            out.write(_bytes(t.detach().flatten().view(torch.uint8)))


def read(stream: IO[bytes], size: int) -> dict[str, torch.Tensor]:
    """Reads all tensors by name, each in memory of its own.

    Args:
        stream: the bytes.
        size: how many there are.

    Raises:
        Malformed: where the bytes are not of the format.
    """
    length = int.from_bytes(_exactly(stream, 8), "little")
    if length > min(_LONGEST_HEADER, size):
        raise Malformed(f"the weights' header has {length} bytes")
    try:
        header = json.loads(_exactly(stream, length))
        header.pop("__metadata__", None)
        entries = [_entry(name, value) for name, value in header.items()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as err:
        raise Malformed(f"the weights' header can't be read: {err}") from err
    tensors, position = {}, 0
    for name, dtype, shape, start, end in sorted(entries, key=lambda e: e[3:]):
        fits = start == position and end <= size
        if not fits or end - start != math.prod(shape) * dtype.itemsize:
            raise Malformed(f"the place of weight {name!r} does not fit its type")
        tensors[name] = _tensor(stream, dtype, shape, end - start)
        position = end
    if stream.read(1):
        raise Malformed("there is more in the weights than their header says")
    return tensors


def _entry(name: str, value: Any) -> tuple[str, torch.dtype, list[int], int, int]:
    shape = [int(n) for n in value["shape"]]
    start, end = (int(n) for n in value["data_offsets"])
    if min([*shape, start, end]) < 0:
        raise ValueError(f"{name!r} has a negative size")
    return name, _DTYPES[value["dtype"]], shape, start, end


def _tensor(stream: IO[bytes], dtype: torch.dtype, shape: Iterable[int], size: int) -> torch.Tensor:
    raw = torch.empty(size, dtype=torch.uint8)
    view = _bytes(raw)
    done = 0
    while done < size:
        part = stream.read(min(_CHUNK, size - done))
        if not part:
            raise Malformed("the weights end early")
        view[done : done + len(part)] = part
        done += len(part)
    return raw.view(dtype).reshape(tuple(shape))


def _bytes(t: torch.Tensor) -> memoryview:
    array: Any = t.numpy()
    return memoryview(array)


def _exactly(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if len(data) != count:
        raise Malformed("the weights end early")
    return data
