"""Matrix products: transposed operands are folded, small floats accumulate in float32."""

from __future__ import annotations

from collections.abc import Callable

import jax
import pytest
import torch
from compiled import compile_tpu
from helpers import compare, lower
from jax.extend.core import Primitive
from jax.interpreters import mlir as jax_mlir

from tpu_compile import buffers
from tpu_compile.lowering import builder
from tpu_compile.lowering.mlir import Value


def text_of(fn: Callable[..., object], *args: torch.Tensor) -> str:
    return lower(fn, args, keep_text=True).stablehlo


@pytest.mark.parametrize(
    ("fn", "numbers"),
    [
        (lambda x, w: x @ w.t(), "contracting_dims = [1] x [1]"),
        (lambda x, w: torch.nn.functional.linear(x, w, x[0, :2]), "contracting_dims = [1] x [1]"),
        (lambda x, w: w @ x.t(), "contracting_dims = [1] x [1]"),
        (lambda x, w: x.t() @ x, "contracting_dims = [0] x [0]"),
    ],
)
def test_a_transposed_operand_is_not_materialised(fn: Callable[..., object], numbers: str) -> None:
    x, w = torch.randn(3, 4), torch.randn(2, 4)
    assert numbers in text_of(fn, x, w)
    compare(fn, x, w)


def test_batched_transposes() -> None:
    x, y = torch.randn(5, 3, 4), torch.randn(5, 2, 4)
    assert "contracting_dims = [2] x [2]" in text_of(lambda x, y: torch.bmm(x, y.mT), x, y)
    compare(lambda x, y: torch.bmm(x, y.mT), x, y)
    heads = torch.randn(5, 7, 2, 4)
    compare(lambda q: q.transpose(1, 2) @ q.permute(0, 2, 3, 1), heads)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_floats_accumulate_in_float32(dtype: torch.dtype) -> None:
    x, y = torch.ones(2, 4096).to(dtype), torch.ones(4096, 2).to(dtype)
    compare(lambda x, y: (x @ y, torch.mv(x, y[:, 0]), torch.dot(x[0], y[:, 0])), x, y)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.uint8])
def test_ints_keep_their_dtype(dtype: torch.dtype) -> None:
    x = torch.arange(12).reshape(3, 4).to(dtype) * 11
    compare(lambda x: (x @ x.t(), torch.mv(x, x[0])), x)


def test_int_mm_gives_int32() -> None:
    x = torch.randint(-128, 128, (32, 64), dtype=torch.int8)
    compare(lambda x: torch._int_mm(x, x.t().contiguous()), x)


def test_addmm_scales() -> None:
    x, y, bias = torch.randn(3, 4), torch.randn(4, 2), torch.randn(2)
    compare(lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2), bias, x, y)
    compare(lambda b, x, y: torch.addmm(b, x, y, beta=0), torch.full((2,), torch.nan), x, y)
    ints = [t.mul(10).long() for t in (bias, x, y)]
    compare(lambda b, x, y: torch.addmm(b, x, y, beta=3, alpha=2), *ints)


def test_empty_contraction() -> None:
    compare(lambda x, y: x @ y, torch.empty(2, 0), torch.empty(0, 3))
    compare(lambda x, y: x @ y, torch.empty(0, 2), torch.empty(2, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("groups", [1, 2])
def test_gradients_of_a_1x1_convolution(dtype: torch.dtype, groups: int) -> None:
    # Its input's gradient contracts the weight's first dimension with several free ones beside it.
    # The reference is float32's, rounded: eager's own sums of bfloat16 are 5% off here.
    x, weight = torch.randn(4, 16, 3, 3).to(dtype), torch.randn(8, 16 // groups, 1, 1).to(dtype)

    def gradients(f: Callable[..., torch.Tensor], kind: torch.dtype) -> list[torch.Tensor]:
        leaves = [t.clone().to(kind).requires_grad_() for t in (x, weight)]
        out = f(*leaves)
        out.backward(torch.ones_like(out))
        return [t.grad for t in leaves]

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(x, w, groups=groups)

    for got, wanted in zip(
        gradients(compile_tpu(f), dtype), gradients(f, torch.float32), strict=True
    ):
        torch.testing.assert_close(got, wanted.to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("x", "y", "contract"),
    [
        ((16, 8), (4, 16, 3, 5), (0, 1)),
        ((16, 8), (16, 4, 3), (0, 0)),
        ((8, 16), (4, 16, 3), (1, 1)),
        ((16, 2, 4), (4, 16, 3), (0, 1)),
        ((2, 16, 4), (3, 5, 16), (1, 2)),
        ((4, 2, 16), (16, 5), (2, 0)),
    ],
)
def test_every_form_of_a_product_runs(
    x: tuple[int, ...], y: tuple[int, ...], contract: tuple[int, int], dtype: torch.dtype
) -> None:
    """What ``builder.dot_general`` emits for small floats, by a primitive of its own."""
    a, b = torch.randn(x, dtype=dtype), torch.randn(y, dtype=dtype)
    wanted = torch.tensordot(a.float(), b.float(), dims=([contract[0]], [contract[1]]))
    got = emitted(
        lambda v, w: builder.dot_general(
            v, w, contract=([contract[0]], [contract[1]]), dtype=torch.float32
        ),
        tuple(wanted.shape),
        a,
        b,
    )
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def emitted(fn: Callable[..., Value], shape: tuple[int, ...], *args: torch.Tensor) -> torch.Tensor:
    """Runs what a builder emits, of float32 and a shape that is known."""
    primitive = Primitive("emitted")
    primitive.def_abstract_eval(lambda *_: jax.core.ShapedArray(shape, jax.numpy.float32))
    jax_mlir.register_lowering(primitive, lambda _, *values: [fn(*values)])
    (out,) = buffers.to_torch([jax.jit(primitive.bind)(*map(buffers.to_jax, args))])
    return out
