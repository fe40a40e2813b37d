"""Indexing: None, broadcast and negative indices, duplicates, masks, and indices out of range."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers import capture, compare, run_lowered

from tpu_compile.errors import IndexOutOfRange
from tpu_compile.executable import compile_graph
from tpu_compile.lowering.interpreter import Settings

X = torch.arange(60.0).reshape(3, 4, 5)
I = torch.tensor([0, -1, 1])  # noqa: E741
J = torch.tensor([[2], [-2]])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, i, j: x[i],
        lambda x, i, j: x[:, i],
        lambda x, i, j: x[..., i],
        lambda x, i, j: x[i, j],
        lambda x, i, j: x[i, :, j],
        lambda x, i, j: x[:, i, j],
        lambda x, i, j: x[None, i, ..., None, j],
        lambda x, i, j: x[i, 1, j],
        lambda x, i, j: x[i, 1:3, j],
        lambda x, i, j: x[i, j, i],
    ],
)
def test_index_read_and_write(fn: Callable[..., torch.Tensor]) -> None:
    compare(fn, X, I, J)

    def write(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        out = x.clone()
        fn_out = fn(torch.arange(60).reshape(3, 4, 5), i, j).flatten()
        return out.flatten().index_put((fn_out,), -torch.ones(()), accumulate=True)

    compare(write, X, I, J)


def test_index_put() -> None:
    v = torch.randn(2, 3, 4)
    put = torch.ops.aten.index_put
    compare(lambda x, i, j, v: put(x, (i, None, j), v), X, I, J, v)
    compare(lambda x, i, j, v: put(x, (i, None, j), v, accumulate=True), X, I, J, v)
    compare(lambda x, i: x.index_put((i,), torch.full((), 7.0)), X, I)
    duplicates = torch.tensor([0, 0, -3, 2])
    compare(lambda x, i: x.index_put((i,), x[:1], accumulate=True), X, duplicates)


def test_masks_of_static_size() -> None:
    def assign(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return x.index_put((m,), torch.full((), -1.0))

    compare(assign, X, X > 20)
    compare(assign, X, torch.tensor([True, False, True]))
    compare(lambda x, m: x.masked_fill(m, 0.5), X, X > 20)
    compare(lambda x, m, s: x.masked_scatter(m, s), X, X > 20, torch.randn(60))
    compare(lambda x, m, s: x.masked_scatter(m, s), X, torch.tensor([True] * 5), torch.randn(60))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int8])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(reduce: str, include_self: bool, dtype: torch.dtype) -> None:
    x, src = torch.arange(-4, 4).to(dtype), torch.tensor([3, -5, 2, 7, 1]).to(dtype)
    index = torch.tensor([0, 0, 1, 7, 0])
    compare(
        lambda x, i, s: x.scatter_reduce(0, i, s, reduce, include_self=include_self), x, index, src
    )


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gather_and_scatter(dim: int) -> None:
    x, index = torch.randn(3, 4), torch.tensor([[0, 1], [2, 0]])
    src = torch.randn(3, 4)
    compare(lambda x, i: x.gather(dim, i), x, index)
    compare(lambda x, i, s: (x.scatter(dim, i, s), x.scatter_add(dim, i, s)), x, index, src)
    compare(lambda x, i: (x.scatter(dim, i, 2.5), x.scatter(dim, i, 2, reduce="add")), x, index)


def test_rank_zero_and_empty() -> None:
    s, i = torch.tensor(3.0), torch.tensor(0)
    compare(lambda s, i: (s.gather(0, i), s.scatter(0, i, 2.0), s.index_select(0, i)), s, i)
    compare(lambda x, i: (x[i], x.index_select(0, i), x.gather(0, i)), X[:, 0, 0], I[:0])
    compare(lambda x, i: (x.index_add(0, i, x[:0]), x.index_fill(0, i, 1)), X, I[:0])


def test_embedding() -> None:
    weight, at = torch.randn(5, 3), torch.tensor([[0, 4], [4, 1]])
    compare(torch.nn.functional.embedding, at, weight)
    for by_freq in (False, True):
        compare(
            lambda g, i, f=by_freq: torch.ops.aten.embedding_dense_backward(g, i, 5, 1, f),
            torch.randn(2, 2, 3),
            at,
        )


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, i: x[i],
        lambda x, i: x.gather(0, i),
        lambda x, i: x.index_select(0, i),
        lambda x, i: x.scatter(0, i, x[: i.numel()]),
        lambda x, i: x.index_put((i,), x[:1], accumulate=True),
        lambda x, i: torch.nn.functional.embedding(i, x.unsqueeze(1)),
        lambda x, i: x.take(i),
    ],
)
def test_out_of_range_does_not_crash_unchecked(fn: Callable[..., torch.Tensor]) -> None:
    # as on a TPU; what the program gives is not promised
    args = (torch.arange(8.0), torch.tensor([9, 100, -50, 2**62]))
    with pytest.raises(IndexOutOfRange):
        run_lowered(fn, args)
    gm = capture(fn, (args[0], torch.arange(4)))
    compile_graph(gm, Settings(checks=False))(args)
