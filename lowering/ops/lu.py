"""LU factorization and what torch derives from it: solve, inverse, determinant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.lax import linalg

from tpu_compile.lowering import builder
from tpu_compile.lowering.builder import broadcast_to, reshape
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.jax_bridge import jnp_call
from tpu_compile.lowering.mlir import Value
from tpu_compile.lowering.ops.linalg import empty, identities
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import dtype_of, shape_of

aten = torch.ops.aten


def _factor(a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """LU, LAPACK's pivots, which count from 1, and the first pivot that is 0, counted from 1."""
    lu, pivots, _ = linalg.lu(a)
    zero = jnp.diagonal(lu, axis1=-2, axis2=-1) == 0
    info = jnp.where(zero.any(-1), jnp.argmax(zero, axis=-1) + 1, 0)
    return lu, pivots + 1, info.astype(jnp.int32)


def _unpacked(lu: jax.Array) -> tuple[jax.Array, jax.Array]:
    m, n = lu.shape[-2:]
    k = min(m, n)
    lower = jnp.tril(lu[..., :, :k], -1) + jnp.eye(m, k, dtype=lu.dtype)
    return lower, jnp.triu(lu[..., :k, :])


def _permutation(pivots: jax.Array, m: int) -> jax.Array:
    """P of A = P L U, as a matrix of booleans."""
    rows = linalg.lu_pivots_to_permutation(pivots - 1, m)
    return rows[..., None, :] == jnp.arange(m)[:, None]


def _solve(
    lu: jax.Array, pivots: jax.Array, b: jax.Array, *, transposed: bool, conjugated: bool
) -> jax.Array:
    """The solution of A X = B, or of its (conjugate) transpose."""
    p = _permutation(pivots, lu.shape[-1]).astype(b.dtype)
    high = jax.lax.Precision.HIGHEST
    options = {"left_side": True, "transpose_a": transposed, "conjugate_a": conjugated}
    lower = {**options, "lower": True, "unit_diagonal": True}
    upper = {**options, "lower": False}
    if transposed:
        b = linalg.triangular_solve(lu, b, **upper)
        return jnp.matmul(p, linalg.triangular_solve(lu, b, **lower), precision=high)
    b = linalg.triangular_solve(lu, jnp.matmul(p.mT, b, precision=high), **lower)
    return linalg.triangular_solve(lu, b, **upper)


def _of_transpose(ctx: LoweringContext, a: Value) -> bool:
    """Whether torch factors the transpose for a determinant; its gradient is traced to know."""
    size, stride, _ = ctx.layout(0)
    expected, contiguous = 1, True
    for n, s in zip(reversed(size), reversed(stride), strict=True):
        contiguous &= n == 1 or s == expected
        expected *= n
    return contiguous and not dtype_of(a).is_complex


# ---------------------------------------------------------------- factors


def _no_pivot(ctx: LoweringContext, pivot: bool) -> None:
    if not pivot:
        ctx.fail("LU without pivoting")


@lowers(aten.linalg_lu_factor_ex.default, bridged=True)
def linalg_lu_factor_ex(
    ctx: LoweringContext, A: Value, *, pivot: bool = True, check_errors: bool = False
) -> tuple[Value, ...]:
    """linalg_lu_factor_ex(Tensor A, *, bool pivot=True, bool check_errors=False) -> (Tensor LU, Tensor pivots, Tensor info)"""  # noqa: E501
    _no_pivot(ctx, pivot)
    return empty(ctx) or tuple(jnp_call(ctx, _factor, A))


@lowers(aten.linalg_lu.default, bridged=True)
def linalg_lu(ctx: LoweringContext, A: Value, *, pivot: bool = True) -> tuple[Value, ...]:
    """linalg_lu(Tensor A, *, bool pivot=True) -> (Tensor P, Tensor L, Tensor U)"""
    _no_pivot(ctx, pivot)

    def run(a: jax.Array) -> tuple[jax.Array, ...]:
        lu, pivots, _ = _factor(a)
        return _permutation(pivots, a.shape[-2]).astype(a.dtype), *_unpacked(lu)

    if 0 in shape_of(A):
        return identities(ctx)
    return tuple(jnp_call(ctx, run, A))


@lowers(aten.lu_unpack.default, bridged=True)
def lu_unpack(
    ctx: LoweringContext,
    LU_data: Value,
    LU_pivots: Value,
    unpack_data: bool = True,
    unpack_pivots: bool = True,
) -> tuple[Value, ...]:
    """lu_unpack(Tensor LU_data, Tensor LU_pivots, bool unpack_data=True, bool unpack_pivots=True) -> (Tensor P, Tensor L, Tensor U)"""  # noqa: E501

    def run(lu: jax.Array, pivots: jax.Array) -> tuple[jax.Array, ...]:
        return _permutation(pivots, lu.shape[-2]).astype(lu.dtype), *_unpacked(lu)

    if 0 in shape_of(LU_data):
        return identities(ctx)
    results = jnp_call(ctx, run, LU_data, LU_pivots)
    wanted = (unpack_pivots, unpack_data, unpack_data)
    return tuple(
        r if w else builder.zeros(t.shape, t.dtype)
        for r, w, t in zip(results, wanted, ctx.outs, strict=True)
    )


# ---------------------------------------------------------------- solutions


@lowers(aten.linalg_lu_solve.default, bridged=True)
def linalg_lu_solve(
    ctx: LoweringContext,
    LU: Value,
    pivots: Value,
    B: Value,
    *,
    left: bool = True,
    adjoint: bool = False,
) -> Value:
    """linalg_lu_solve(Tensor LU, Tensor pivots, Tensor B, *, bool left=True, bool adjoint=False) -> Tensor"""  # noqa: E501
    none = empty(ctx)
    if none:
        return none[0]
    batch = ctx.out.shape[:-2]
    LU, B = (broadcast_to(v, [*batch, *shape_of(v)[-2:]]) for v in (LU, B))
    pivots = broadcast_to(pivots, [*batch, shape_of(pivots)[-1]])

    def run(lu: jax.Array, pivots: jax.Array, b: jax.Array) -> jax.Array:
        if left:
            return _solve(lu, pivots, b, transposed=adjoint, conjugated=adjoint)
        # X A = B is A^T X^T = B^T; with the adjoint of A, its conjugate
        if adjoint:
            x = _solve(lu, pivots, b.mT.conj(), transposed=False, conjugated=False)
            return x.mT.conj()
        return _solve(lu, pivots, b.mT, transposed=True, conjugated=False).mT

    return jnp_call(ctx, run, LU, pivots, B)


@lowers(aten._linalg_solve_ex.default, bridged=True)
def _linalg_solve_ex(
    ctx: LoweringContext, A: Value, B: Value, *, left: bool = True, check_errors: bool = False
) -> tuple[Value, ...]:
    """_linalg_solve_ex(Tensor A, Tensor B, *, bool left=True, bool check_errors=False) -> (Tensor result, Tensor LU, Tensor pivots, Tensor info)"""  # noqa: E501
    none = empty(ctx)
    if none:
        return none
    out, shape = ctx.outs[0], shape_of(A)
    vector = len(shape_of(B)) == 1 or shape_of(B) == shape[:-1]
    if vector:
        B = builder.unsqueeze(B, len(shape_of(B)))
    batch = out.shape[:-1] if vector else out.shape[:-2]
    B = broadcast_to(B, [*batch, *shape_of(B)[-2:]])

    def run(a: jax.Array, b: jax.Array) -> tuple[jax.Array, ...]:
        factors = _factor(a)
        lu, pivots = (
            jnp.broadcast_to(f, tuple(batch) + f.shape[len(shape) - 2 :]) for f in factors[:2]
        )
        if left:
            x = _solve(lu, pivots, b, transposed=False, conjugated=False)
        else:
            x = _solve(lu, pivots, b.mT, transposed=True, conjugated=False).mT
        return x, *factors

    x, *factors = jnp_call(ctx, run, A, B)
    return reshape(x, out.shape), *factors


@lowers(aten.linalg_inv_ex.default, bridged=True)
def linalg_inv_ex(
    ctx: LoweringContext, A: Value, *, check_errors: bool = False
) -> tuple[Value, ...]:
    """linalg_inv_ex(Tensor A, *, bool check_errors=False) -> (Tensor inverse, Tensor info)"""

    def run(a: jax.Array) -> tuple[jax.Array, ...]:
        lu, pivots, info = _factor(a)
        eye = jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape)
        return _solve(lu, pivots, eye, transposed=False, conjugated=False), info

    return empty(ctx) or tuple(jnp_call(ctx, run, A))


# ---------------------------------------------------------------- determinants


def _swaps(pivots: jax.Array) -> jax.Array:
    """-1 for an odd number of row swaps, else 1."""
    moved = pivots != jnp.arange(1, pivots.shape[-1] + 1)
    return 1 - 2 * (moved.sum(-1) % 2)


def _determinant(
    ctx: LoweringContext, a: Value, fun: Callable[[jax.Array, jax.Array], Any]
) -> tuple[Value, ...]:
    """What a function makes of the diagonal of U and the sign of P; then LU and pivots."""
    flipped = _of_transpose(ctx, a)

    def run(a: jax.Array) -> tuple[jax.Array, ...]:
        lu, pivots, _ = _factor(a.mT if flipped else a)
        diagonal = jnp.diagonal(lu, axis1=-2, axis2=-1)
        return *fun(diagonal, _swaps(pivots).astype(a.dtype)), lu, pivots

    return tuple(jnp_call(ctx, run, a))


@lowers(aten._linalg_det.default, bridged=True)
def _linalg_det(ctx: LoweringContext, A: Value) -> tuple[Value, ...]:
    """_linalg_det(Tensor A) -> (Tensor result, Tensor LU, Tensor pivots)"""
    if 0 in shape_of(A):
        result, *rest = ctx.outs
        one = builder.constant(1, result.dtype, result.shape)
        return one, *(builder.zeros(t.shape, t.dtype) for t in rest)
    return _determinant(ctx, A, lambda diagonal, sign: (diagonal.prod(-1) * sign,))


@lowers(aten._linalg_slogdet.default, bridged=True)
def _linalg_slogdet(ctx: LoweringContext, A: Value) -> tuple[Value, ...]:
    """_linalg_slogdet(Tensor A) -> (Tensor sign, Tensor logabsdet, Tensor LU, Tensor pivots)"""

    def run(diagonal: jax.Array, sign: jax.Array) -> tuple[jax.Array, ...]:
        sizes = jnp.abs(diagonal)
        phase = jnp.where(sizes == 0, 0, diagonal / jnp.where(sizes == 0, 1, sizes))
        return phase.prod(-1) * sign, jnp.log(sizes).sum(-1)

    if 0 in shape_of(A):
        result, *rest = ctx.outs
        one = builder.constant(1, result.dtype, result.shape)
        return one, *(builder.zeros(t.shape, t.dtype) for t in rest)
    return _determinant(ctx, A, run)
