"""Arguments and results: containers, keywords, memory orders, aliases."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

Check = Callable[..., Any]


def test_arguments_in_another_memory_order(check: Check, round_trip: Check) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.reshape(-1) * 2, x.permute(1, 0, 2), x + 1

    x = torch.randn(2, 3, 4)
    check(f, x)
    check(f, x.permute(2, 0, 1))
    loaded = round_trip(f, (x,))
    for other in (torch.randn(3, 4, 2).permute(2, 0, 1), torch.randn(2, 3, 8)[..., ::2]):
        for got, want in zip(loaded(other), f(other), strict=True):
            torch.testing.assert_close(got, want)


class Point(NamedTuple):
    x: Tensor
    y: Any


def containers(batch: dict[str, Any], pair: tuple[Tensor, list[Tensor]]) -> dict[str, Any]:
    (a, (b,)) = pair
    total = batch["x"] + a
    return {
        "point": Point(total, [b * 2, None, 3]),
        "nested": ({"again": total}, ()),
        "largest": torch.max(b, 0).values,
        "text": "done",
    }


def test_containers(check: Check, round_trip: Check) -> None:
    args = ({"x": torch.ones(2), "n": 3}, (torch.ones(2), [torch.arange(3.0)]))
    loaded = round_trip(containers, args)
    got, want = loaded(*args), containers(*args)
    point = got["point"]
    assert (type(point).__name__, point._fields) == ("Point", ("x", "y"))
    assert torch.equal(point.x, want["point"].x)
    assert point.y[1:] == [None, 3]
    assert got["nested"][0]["again"] is point.x
    assert got["nested"][1] == ()
    assert torch.equal(got["largest"], want["largest"])
    assert got["text"] == "done"


def test_result_classes_come_as_dicts(round_trip: Check) -> None:
    from transformers.modeling_outputs import BaseModelOutput

    def f(x: Tensor) -> Any:
        table = collections.OrderedDict(a=x + 1)
        return BaseModelOutput(last_hidden_state=x * 2), table, torch.max(x, 0)

    x = torch.randn(3)
    output, table, largest = round_trip(f, (x,))(x)
    assert type(output) is type(table) is dict
    assert torch.equal(output["last_hidden_state"], x * 2)
    assert torch.equal(table["a"], x + 1)
    assert largest.indices == x.argmax()


def test_keywords(round_trip: Check) -> None:
    def f(x: Tensor, scale: int = 2, *, shift: Tensor, sign: float = 1.0) -> Tensor:
        return (x * scale + shift) * sign

    x, shift = torch.randn(3), torch.randn(3)
    loaded = round_trip(f, (x, 3), kwargs={"shift": shift, "sign": -1.0})
    want = f(x, 3, shift=shift, sign=-1.0)
    torch.testing.assert_close(loaded(x, 3, sign=-1.0, shift=shift), want)
    torch.testing.assert_close(loaded(scale=3, shift=shift, sign=-1.0, x=x), want)
    assert (
        loaded.manifest.signature == "(x: float32[3], scale: 3, *, shift: float32[3], sign: -1.0)"
    )


def test_nothing_to_compute(round_trip: Check) -> None:
    loaded = round_trip(lambda x: (x, x.t(), 3, None), (torch.randn(2, 3),))
    assert not loaded.manifest.programs
    x = torch.randn(2, 3)
    out = loaded(x)
    assert out[0] is x
    assert out[1].data_ptr() == x.data_ptr()
    assert out[1].shape == (3, 2)
    assert out[2:] == (3, None)
