"""Python scalars as runtime inputs, promotion, dtypes kept, rounding of bf16, empty and rank 0."""

import pytest
import torch
from compiled import STRICT, check, compile_tpu
from hypothesis import given, settings
from hypothesis import strategies as st

DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes_are_kept(dtype: torch.dtype) -> None:
    x = (torch.randn(3, 4) * 3).to(dtype)
    check(lambda v: (v + v, v.clone(), v.sum(0), v[1]), x, calls=1)


def test_changing_floats_and_ints_do_not_recompile() -> None:
    torch._dynamo.reset()

    def step(p: torch.Tensor, g: torch.Tensor, lr: float, n: int) -> torch.Tensor:
        return p - g * (lr / (1 - 0.9**n)) + n

    f = compile_tpu(step)
    p, g = torch.randn(4), torch.randn(4)
    for n in range(1, 4):
        f(p, g, 0.1 / n, n)
    g_strict = compile_tpu(step, options={**STRICT, "on_recompile": "ignore"})
    import tpu_compile

    before = len(tpu_compile.recompiles())
    for n in range(4, 12):
        torch.testing.assert_close(f(p, g, 0.1 / n, n), step(p, g, 0.1 / n, n))
    assert len(tpu_compile.recompiles()) == before
    del g_strict


@pytest.mark.parametrize("other", [2, 2.5, True, 1 + 2j], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scalar_promotion(dtype: torch.dtype, other: complex) -> None:
    x = (torch.randn(4) * 2).to(dtype)
    if (dtype, type(other)) == (torch.float16, complex):  # complex32, which XLA has no equal of
        with pytest.raises(Exception, match=r"torch.complex32 has no XLA type"):
            compile_tpu(lambda v: v * other)(x)
        return
    check(lambda v: (v + other, v * other), x, calls=1)


@pytest.mark.parametrize("zero", [torch.int64, torch.float32, torch.float64, torch.complex64])
def test_zero_dim_promotion(zero: torch.dtype) -> None:
    s = torch.tensor(2, dtype=zero)
    for dtype in (torch.uint8, torch.int32, torch.bfloat16, torch.float32):
        x = torch.ones(3, dtype=dtype)
        check(lambda v, s: (v + s, v * s, torch.where(v > 0, v, s)), x, s, calls=1)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_bf16_rounds_after_every_op(seed: int) -> None:
    """A chain of bf16 ops is rounded after each of them, as eager does: no excess precision."""
    g = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(64, generator=g).bfloat16() for _ in range(2))
    global _chain
    if _chain is None:
        _chain = compile_tpu(_bf16_chain)
    for a, e in zip(_chain(x, y), _bf16_chain(x, y), strict=True):
        assert torch.equal(a, e)


_chain = None


def _bf16_chain(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = x * y + x
    w = (z - y) * z
    return z, w, torch.add(x, y, alpha=0.3), (x + y).float() - x.float(), w / (y.abs() + 1)


def test_empty_and_rank_zero() -> None:
    check(lambda x: (x + 1, x.sum(), x.sum(0), x @ x.t()), torch.randn(0, 3))
    check(lambda x: (x * 2, x.view(1), x.exp()), torch.tensor(1.5))
    check(lambda x: x.sum() + torch.zeros(0).sum(), torch.tensor(2))


def test_graph_without_inputs_and_constants() -> None:
    check(lambda: torch.arange(5) * 2)
    check(
        lambda x: (torch.ones(3), torch.zeros(2, dtype=torch.int64), x + 1, 7, None), torch.ones(2)
    )
    table = torch.arange(200.0)[::2].view(10, 10).t()
    check(lambda x: (x + table, table @ x), torch.randn(10, 10))
    first = compile_tpu(lambda: torch.ones(3))
    first().add_(5)
    torch.testing.assert_close(first(), torch.ones(3))


def test_complex_and_double_rotary() -> None:
    def rotary(x: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
        z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(z * freqs).flatten(-2)

    freqs = torch.polar(torch.ones(5, 4), torch.randn(5, 4))
    check(rotary, torch.randn(2, 5, 8), freqs)
    check(lambda x: torch.outer(x, x).cos(), torch.randn(4, dtype=torch.float64))
