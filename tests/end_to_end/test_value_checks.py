"""What eager torch refuses by a tensor's values, a compiled program refuses too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from tests.compiled import compile_tpu
from tpu_compile.errors import AssertionFailed, IndexOutOfRange

TABLE = torch.arange(12.0).reshape(4, 3)
ROWS = torch.ones(2, 3)

BY_INDEX: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "embedding": lambda at: F.embedding(at, TABLE),
    "embedding_bag": lambda at: F.embedding_bag(at, TABLE, torch.tensor([0])),
    "index": lambda at: TABLE[at],
    "index of two": lambda at: TABLE[at, torch.zeros_like(at)],
    "index_select": lambda at: TABLE.index_select(0, at),
    "gather": lambda at: TABLE.gather(0, at[:, None]),
    "scatter": lambda at: TABLE.scatter(0, at[:, None], 1.0),
    "scatter_add": lambda at: TABLE.scatter_add(0, at[:, None], ROWS),
    "scatter_reduce": lambda at: TABLE.scatter_reduce(0, at[:, None], ROWS, "amax"),
    "index_add": lambda at: TABLE.index_add(0, at, ROWS),
    "index_copy": lambda at: TABLE.index_copy(0, at, ROWS),
    "index_fill": lambda at: TABLE.index_fill(0, at, 1.0),
    "index_put": lambda at: TABLE.index_put((at,), ROWS),
    "index_put accumulate": lambda at: TABLE.index_put((at,), ROWS, accumulate=True),
    "put": lambda at: TABLE.put(at + 8, torch.ones(2)),
    "take": lambda at: TABLE.take(at + 8),
    "cross_entropy": lambda at: F.cross_entropy(TABLE[:2], at - 1),
}
WRAPPING = ("index", "index of two", "index_fill", "index_put", "index_put accumulate")


@pytest.mark.parametrize("name", BY_INDEX)
def test_index_out_of_range_is_an_error_as_in_eager(name: str) -> None:
    op = BY_INDEX[name]
    compiled = compile_tpu(op)
    good, high = torch.tensor([1, 3]), torch.tensor([1, 4])
    torch.testing.assert_close(compiled(good), op(good))
    with pytest.raises((IndexError, RuntimeError)):
        op(high)
    with pytest.raises(IndexOutOfRange, match=r"test_value_checks.py"):
        compiled(high)
    torch.testing.assert_close(compiled(good), op(good))


@pytest.mark.parametrize("name", WRAPPING)
def test_negative_indices_wrap_as_far_as_in_eager(name: str) -> None:
    op = BY_INDEX[name]
    compiled = compile_tpu(op)
    last, low = torch.tensor([-1, -4]), torch.tensor([-5, 0])
    torch.testing.assert_close(compiled(last), op(last))
    with pytest.raises((IndexError, RuntimeError)):
        op(low)
    with pytest.raises(IndexOutOfRange):
        compiled(low)


def test_an_ignored_class_is_in_range() -> None:
    def loss(at: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(TABLE, at)

    at = torch.tensor([0, -100, 2, 1])
    torch.testing.assert_close(compile_tpu(loss)(at), loss(at))


def test_a_class_beyond_one_hot_is_refused() -> None:
    compiled = compile_tpu(lambda at: F.one_hot(at, 3))
    assert compiled(torch.tensor([0, 2])).tolist() == [[1, 0, 0], [0, 0, 1]]
    with pytest.raises(AssertionFailed, match="smaller than num_classes"):
        compiled(torch.tensor([0, 3]))


def test_an_assertion_of_the_user_alone_in_its_graph() -> None:
    def check(x: torch.Tensor) -> None:
        torch._assert_async((x > 0).all(), "x must be positive")

    compiled = compile_tpu(check)
    compiled(torch.ones(3))
    with pytest.raises(AssertionFailed, match="x must be positive"):
        compiled(torch.zeros(3))


def test_a_failed_check_leaves_arguments_as_they_were() -> None:
    def step(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x[at]

    x = torch.zeros(3)
    with pytest.raises(IndexOutOfRange):
        compile_tpu(step)(x, torch.tensor([3]))
    assert x.tolist() == [0, 0, 0]


def test_training_checks_the_forward_pass() -> None:
    table = torch.nn.Embedding(4, 2)
    compiled = compile_tpu(lambda at: table(at).sum())
    compiled(torch.tensor([0, 3])).backward()
    with pytest.raises(IndexOutOfRange, match=r"\[0, 4\)"):
        compiled(torch.tensor([0, 4]))


def test_checks_can_be_left_out() -> None:
    compiled = torch.compile(lambda at: TABLE[at], backend="tpu", options={"checks": "off"})
    assert compiled(torch.tensor([1, 9])).shape == (2, 3)
