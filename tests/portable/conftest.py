"""Exports a model, loads it, and compares calls with eager torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tpu_compile.portable.loaded import LoadedModel
from tpu_compile.portable.loading import load
from tpu_compile.portable.saving import export

RoundTrip = Callable[..., LoadedModel]


@pytest.fixture
def round_trip(tmp_path: Path) -> RoundTrip:
    """A model through a file, for the CPU."""

    def run(model: Any, args: tuple[Any, ...] = (), **kwargs: Any) -> LoadedModel:
        path = tmp_path / "model.tpuc"
        kwargs.setdefault("platforms", ["cpu"])
        export(model, args, path, **kwargs)
        return load(path, device="cpu")

    return run


@pytest.fixture
def check(round_trip: RoundTrip) -> Callable[..., LoadedModel]:
    """Compares calls of a model that went through a file with calls of the model itself.

    Results, arguments afterwards, and parameters and buffers afterwards have to be equal.
    """

    def run(
        model: Any, *args: Any, calls: int = 2, rtol: float = 1e-5, atol: float = 1e-6
    ) -> LoadedModel:
        loaded = round_trip(model, copy.deepcopy(args))
        for _ in range(calls):
            mine, theirs = copy.deepcopy(args), copy.deepcopy(args)
            got = loaded(*mine)
            with torch.no_grad():
                want = model(*theirs)
            same((got, mine), (want, theirs), rtol=rtol, atol=atol)
            if isinstance(model, torch.nn.Module):
                state = loaded.weights
                for name, t in model.state_dict().items():
                    torch.testing.assert_close(state[name].data, t, rtol=rtol, atol=atol)
        return loaded

    return run


def same(got: Any, want: Any, *, rtol: float, atol: float) -> None:
    """Compares containers and leaves of two results."""
    a, spec = pytree.tree_flatten(got)
    b, expected = pytree.tree_flatten(want)
    assert str(spec) == str(expected)
    for x, y in zip(a, b, strict=True):
        assert type(x) is type(y) or isinstance(x, torch.Tensor)
        if isinstance(y, torch.Tensor):
            torch.testing.assert_close(x, y, rtol=rtol, atol=atol, check_stride=y.numel() > 0)
        else:
            assert x == y
