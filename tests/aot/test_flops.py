"""FLOPs against formulas by hand and XLA's own analysis."""

from __future__ import annotations

from typing import Any

import hlo_programs as programs
import jax
import jax.numpy as jnp
import pytest
from hlo_programs import TARGET, TPU, array, close, cost_of
from jax import Array, lax

from tpu_compile.aot.products import Product


@TARGET
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_flops_of_products(target: str, dtype: Any) -> None:
    compiled = programs.compile_for(
        target, jnp.matmul, array(128, 256, dtype=dtype), array(256, 512, dtype=dtype)
    )
    cost = programs.measured(compiled)
    products = sum(sum(op.products.values()) for op in cost.ops)
    assert products == 2 * 128 * 256 * 512
    assert cost.flops == close(compiled.cost_analysis()["flops"], 0.02)


@TARGET
def test_flops_of_batched_products(target: str) -> None:
    cost = cost_of(target, jnp.matmul, array(6, 128, 256), array(6, 256, 512))
    assert sum(sum(op.products.values()) for op in cost.ops) == 6 * 2 * 128 * 256 * 512


CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "strided": {"window_strides": (2, 3)},
    "padded": {"padding": [(1, 2), (0, 3)]},
    "dilated window": {"rhs_dilation": (2, 1)},
    "transposed": {"lhs_dilation": (2, 2), "padding": [(2, 2), (2, 2)]},
}


def hand_count(n: int, stride: int, pad: tuple[int, int], hole: int, spread: int, k: int) -> int:
    """Products in one dimension, by trying all pairs."""
    padded = (n - 1) * hole + 1 + sum(pad)
    outputs = (padded - ((k - 1) * spread + 1)) // stride + 1
    met = 0
    for o in range(outputs):
        for j in range(k):
            at = o * stride + j * spread - pad[0]
            met += 0 <= at <= (n - 1) * hole and at % hole == 0
    return met


@TARGET
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_flops_of_convolutions(target: str, kind: str) -> None:
    options = {"window_strides": (1, 1), "padding": [(0, 0), (0, 0)], **CONVOLUTIONS[kind]}

    def fn(x: Array, w: Array) -> Array:
        return lax.conv_general_dilated(x, w, **options)

    batch, inputs, outputs, size, k = 8, 16, 32, 15, 3
    cost = cost_of(target, fn, array(batch, inputs, size, size), array(outputs, inputs, k, k))
    expected = 2 * batch * inputs * outputs
    for d in range(2):
        expected *= hand_count(
            size,
            options["window_strides"][d],
            options["padding"][d],
            options.get("lhs_dilation", (1, 1))[d],
            options.get("rhs_dilation", (1, 1))[d],
            k,
        )
    assert sum(sum(op.products.values()) for op in cost.ops) == expected


@TARGET
def test_flops_of_grouped_convolutions(target: str) -> None:
    def fn(x: Array, w: Array) -> Array:
        return lax.conv_general_dilated(x, w, (1, 1), "VALID", feature_group_count=4)

    compiled = programs.compile_for(target, fn, array(4, 16, 8, 8), array(32, 4, 3, 3))
    cost = programs.measured(compiled)
    products = sum(sum(op.products.values()) for op in cost.ops)
    assert products == close(2 * 4 * 32 * 6 * 6 * 4 * 9, 0.01)
    assert products == close(compiled.cost_analysis()["flops"], 0.05)


@pytest.mark.parametrize(
    ("precision", "passes"),
    [(lax.Precision.DEFAULT, 1), (lax.Precision.HIGH, 3), (lax.Precision.HIGHEST, 6)],
)
def test_passes_of_float32_products(precision: lax.Precision, passes: int) -> None:
    def fn(x: Array, w: Array) -> Array:
        return jnp.matmul(x, w, precision=precision)

    cost = cost_of(TPU, fn, array(128, 256), array(256, 512))
    (product,) = (op for op in cost.ops if op.products)
    assert product.products == {Product("f32", passes): 2 * 128 * 256 * 512}


@TARGET
def test_reductions_and_transcendentals(target: str) -> None:
    def fn(x: Array) -> Any:
        return x.sum(), jnp.exp(x).max(axis=0)

    compiled = programs.compile_for(target, fn, array(256, 1024))
    cost = programs.measured(compiled)
    assert cost.flops == close(compiled.cost_analysis()["flops"], 0.02)
    assert cost.transcendentals == 256 * 1024


@TARGET
def test_attention(target: str) -> None:
    """On the TPU its maximum is a reduce-window over everything, and fusions compute it twice."""

    def fn(q: Array, k: Array, v: Array) -> Array:
        return jax.nn.softmax(q @ k.swapaxes(1, 2), axis=-1) @ v

    compiled = programs.compile_for(target, fn, *[array(4, 512, 128)] * 3)
    cost = programs.measured(compiled)
    assert cost.flops >= 2 * 2 * 4 * 512 * 512 * 128
    assert cost.flops == close(compiled.cost_analysis()["flops"], 0.03)


def test_sorts() -> None:
    cost = cost_of("cpu", lambda x: jnp.sort(x, axis=0), array(256, 1024))
    assert cost.flops >= 256 * 1024 * 8
