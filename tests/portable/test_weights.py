"""Weights as stored: every dtype, memory shared as it was, and headers that lie."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
import torch

from tpu_compile.portable import safetensors_file, weights
from tpu_compile.portable.codec import Malformed
from tpu_compile.portable.errors import NotExportable

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64),
    *(torch.complex128, torch.int64, torch.int32, torch.int16, torch.int8, torch.bool),
    *(torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.float8_e4m3fn),
    *(torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
]


def through(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    described, stored = weights.plan(state, dict.fromkeys(state, "buffer"), frozenset())
    stream = io.BytesIO()
    safetensors_file.write(stream, stored)
    size = stream.tell()
    stream.seek(0)
    return weights.unpack(described, safetensors_file.read(stream, size))


def raw(t: torch.Tensor) -> bytes:
    return bytes(t.detach().contiguous().flatten().view(torch.uint8).tolist())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes_and_shapes(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    values = torch.randint(0, 2, (3, 4, 16), dtype=torch.uint8)
    wide = values.view(dtype)
    state = {"a": wide, "b": wide.transpose(0, 1), "none": wide[:0], "one": wide[0, 0, 0]}
    state = {name: t.clone() for name, t in state.items()}
    found = through(state)
    for name, t in state.items():
        assert (found[name].dtype, found[name].shape) == (t.dtype, t.shape)
        assert raw(found[name]) == raw(t)
        assert found[name].data_ptr() % 64 == 0


def test_conjugates() -> None:
    t = torch.randn(3, dtype=torch.complex64)
    found = through({"t": t.conj(), "n": t.clone().conj().imag})
    assert torch.equal(found["t"], t.conj())
    assert torch.equal(found["n"], -t.imag)


def test_sharing() -> None:
    base = torch.arange(12.0)
    state = {
        "rows": base[:6].view(2, 3),
        "again": base[:6].view(2, 3),
        "columns": base[:6].view(2, 3).t(),
        "tail": base[8:],
        "bits": base.view(torch.int32),
    }
    found = through(state)
    for name, t in state.items():
        assert torch.equal(found[name], t)
    found["rows"][0, 1] = 100
    assert found["again"] is found["rows"]
    assert found["columns"][1, 0] == 100
    assert not found["tail"].eq(100).any()


def test_kinds_of_tensors_that_are_not_stored() -> None:
    for t, why in (
        (torch.eye(2).to_sparse(), "its layout is"),
        (torch.ones(2, device="meta"), "meta device"),
    ):
        with pytest.raises(NotExportable, match=why):
            through({"t": t})


def stored(header: Any, data: bytes = b"", length: int | None = None) -> io.BytesIO:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length is None else length
    return io.BytesIO(size.to_bytes(8, "little") + text + data)


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (stored(b"{"), "can't be read"),
        (stored([1]), "can't be read"),
        (stored(b"[" * 100_000), "can't be read"),
        (stored({}, length=1 << 40), "has 1099511627776 bytes"),
        (stored({}, length=12), "end early"),
        (stored({}, length=50), "has 50 bytes"),
        (stored({}, b"more"), "more in the weights"),
        (stored({"t": {"dtype": "F3", "shape": [], "data_offsets": [0, 4]}}), "can't be read"),
        (stored({"t": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}), "negative"),
        (stored({"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}), "end early"),
        (stored({"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}), "does not fit"),
        (stored({"t": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}), "does not fit"),
        (
            stored({"t": {"dtype": "U8", "shape": [1 << 50], "data_offsets": [0, 1 << 50]}}),
            "does not fit",
        ),
    ],
)
def test_headers_that_lie(stream: io.BytesIO, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        safetensors_file.read(stream, len(stream.getvalue()) + 8)
