"""Factorizations and solvers, through JAX: LAPACK on the CPU, as torch.

Where torch raises for a matrix that has no factorization, the result here is NaN or infinite, and
``info`` says so as in torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.lax import linalg

from tpu_compile.lowering import builder
from tpu_compile.lowering.builder import broadcast_to
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.jax_bridge import jnp_call
from tpu_compile.lowering.mlir import Value
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import TensorType, shape_of

aten = torch.ops.aten


def adjoint(a: jax.Array) -> jax.Array:
    """The conjugate transpose of matrices."""
    return a.mT.conj()


def empty(ctx: LoweringContext) -> tuple[Value, ...] | None:
    """Zeros for all results where none of them has elements, which LAPACK won't take."""
    if all(0 in t.shape for t in ctx.outs[:1]):
        return tuple(builder.zeros(t.shape, t.dtype) for t in ctx.outs)
    return None


def identities(ctx: LoweringContext) -> tuple[Value, ...]:
    """The factors of a matrix without elements."""

    def eye(t: TensorType) -> Value:
        if 0 in t.shape:
            return builder.zeros(t.shape, t.dtype)
        return broadcast_to(
            builder.array_constant(np.eye(t.shape[-2], t.shape[-1]), t.dtype), t.shape
        )

    return tuple(eye(t) for t in ctx.outs)


@lowers(aten._linalg_check_errors.default)
def _linalg_check_errors(
    ctx: LoweringContext, info: Value, api_name: str, *, is_matrix: bool
) -> None:
    """_linalg_check_errors(Tensor info, str api_name, *, bool is_matrix) -> ()"""


# ---------------------------------------------------------------- Cholesky


def _failing_minor(a: jax.Array) -> jax.Array:
    """The order of the first leading minor that is not positive, 0 where all are."""
    n = a.shape[-1]

    def step(k: int, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        rest, info = state
        pivot = rest[..., k, k].real
        info = jnp.where((info == 0) & ~(pivot > 0), k + 1, info)
        column = rest[..., :, k] / pivot[..., None]
        return rest - column[..., :, None] * rest[..., k, :][..., None, :], info

    info = jnp.zeros(a.shape[:-2], jnp.int32)
    return jax.lax.fori_loop(0, n, step, (a, info))[1]


def _cholesky(a: jax.Array, *, upper: bool) -> tuple[jax.Array, jax.Array]:
    lower = jnp.tril(adjoint(a) if upper else a)
    factor = linalg.cholesky(lower, symmetrize_input=False)
    whole = lower + adjoint(jnp.tril(lower, -1))
    info = jax.lax.cond(
        jnp.isnan(factor).any(),
        _failing_minor,
        lambda a: jnp.zeros(a.shape[:-2], jnp.int32),
        whole,
    )
    return adjoint(factor) if upper else factor, info


@lowers(aten.linalg_cholesky_ex.default, bridged=True)
def linalg_cholesky_ex(
    ctx: LoweringContext, x: Value, *, upper: bool = False, check_errors: bool = False
) -> tuple[Value, ...]:
    """linalg_cholesky_ex(Tensor self, *, bool upper=False, bool check_errors=False) -> (Tensor L, Tensor info)"""  # noqa: E501
    return empty(ctx) or tuple(jnp_call(ctx, _cholesky, x, upper=upper))


@lowers(aten.cholesky.default, bridged=True)
def cholesky(ctx: LoweringContext, x: Value, upper: bool = False) -> Value:
    """cholesky(Tensor self, bool upper=False) -> Tensor"""
    none = empty(ctx)
    return none[0] if none else jnp_call(ctx, _cholesky, x, upper=upper)[0]


def _cholesky_solve(b: jax.Array, a: jax.Array, *, upper: bool) -> jax.Array:
    options = {"left_side": True, "lower": not upper}
    first = linalg.triangular_solve(a, b, **options, transpose_a=upper, conjugate_a=upper)
    return linalg.triangular_solve(
        a, first, **options, transpose_a=not upper, conjugate_a=not upper
    )


@lowers(aten.cholesky_solve.default, bridged=True)
def cholesky_solve(ctx: LoweringContext, x: Value, input2: Value, upper: bool = False) -> Value:
    """cholesky_solve(Tensor self, Tensor input2, bool upper=False) -> Tensor"""
    none = empty(ctx)
    if none:
        return none[0]
    batch = ctx.out.shape[:-2]
    x, input2 = (broadcast_to(v, [*batch, *shape_of(v)[-2:]]) for v in (x, input2))
    return jnp_call(ctx, _cholesky_solve, x, input2, upper=upper)


@lowers(aten._cholesky_solve_helper.default, bridged=True)
def _cholesky_solve_helper(ctx: LoweringContext, x: Value, A: Value, upper: bool) -> Value:
    """_cholesky_solve_helper(Tensor self, Tensor A, bool upper) -> Tensor"""
    return cholesky_solve(ctx, x, A, upper)


@lowers(aten.cholesky_inverse.default, bridged=True)
def cholesky_inverse(ctx: LoweringContext, x: Value, upper: bool = False) -> Value:
    """cholesky_inverse(Tensor self, bool upper=False) -> Tensor"""

    def inverse(a: jax.Array) -> jax.Array:
        eye = jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape)
        return _cholesky_solve(eye, a, upper=upper)

    none = empty(ctx)
    return none[0] if none else jnp_call(ctx, inverse, x)


# ---------------------------------------------------------------- triangular


def _solve_triangular(
    ctx: LoweringContext, a: Value, b: Value, *, left: bool, **options: bool
) -> Value:
    none = empty(ctx)
    if none:
        return none[0]
    batch = ctx.outs[0].shape[:-2]
    a, b = (broadcast_to(v, [*batch, *shape_of(v)[-2:]]) for v in (a, b))
    return jnp_call(ctx, linalg.triangular_solve, a, b, left_side=left, **options)


@lowers(aten.linalg_solve_triangular.default, bridged=True)
def linalg_solve_triangular(
    ctx: LoweringContext,
    x: Value,
    B: Value,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Value:
    """linalg_solve_triangular(Tensor self, Tensor B, *, bool upper, bool left=True, bool unitriangular=False) -> Tensor"""  # noqa: E501
    options = {"lower": not upper, "unit_diagonal": unitriangular}
    return _solve_triangular(ctx, x, B, left=left, **options)


@lowers(aten.triangular_solve.default, bridged=True)
def triangular_solve(
    ctx: LoweringContext,
    x: Value,
    A: Value,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[Value, Value]:
    """triangular_solve(Tensor self, Tensor A, bool upper=True, bool transpose=False, bool unitriangular=False) -> (Tensor solution, Tensor cloned_coefficient)"""  # noqa: E501
    options = {"lower": not upper, "unit_diagonal": unitriangular, "transpose_a": transpose}
    solution = _solve_triangular(ctx, A, x, left=True, **options)
    return solution, broadcast_to(A, ctx.outs[1].shape)


# ---------------------------------------------------------------- orthogonal


@lowers(aten.linalg_qr.default, bridged=True)
def linalg_qr(ctx: LoweringContext, A: Value, mode: str = "reduced") -> tuple[Value, ...]:
    """linalg_qr(Tensor A, str mode="reduced") -> (Tensor Q, Tensor R)"""
    if 0 in shape_of(A):
        return identities(ctx)
    q = ctx.outs[0]
    if mode == "r":
        only = jnp_call(ctx, lambda a: jnp.linalg.qr(a, mode="r"), A)
        return builder.zeros(q.shape, q.dtype), only
    return tuple(jnp_call(ctx, lambda a: tuple(jnp.linalg.qr(a, mode=mode)), A))


@lowers(aten.geqrf.default, bridged=True)
def geqrf(ctx: LoweringContext, x: Value) -> tuple[Value, ...]:
    """geqrf(Tensor self) -> (Tensor a, Tensor tau)"""

    def run(a: jax.Array) -> tuple[jax.Array, ...]:
        reflectors, tau = jnp.linalg.qr(a, mode="raw")
        return reflectors.mT, tau

    return empty(ctx) or tuple(jnp_call(ctx, run, x))


@lowers(aten.linalg_householder_product.default, bridged=True)
def linalg_householder_product(ctx: LoweringContext, input: Value, tau: Value) -> Value:
    """linalg_householder_product(Tensor input, Tensor tau) -> Tensor"""
    none = empty(ctx)
    return none[0] if none else jnp_call(ctx, linalg.householder_product, input, tau)


@lowers(aten.ormqr.default, bridged=True)
def ormqr(
    ctx: LoweringContext,
    x: Value,
    input2: Value,
    input3: Value,
    left: bool = True,
    transpose: bool = False,
) -> Value:
    """ormqr(Tensor self, Tensor input2, Tensor input3, bool left=True, bool transpose=False) -> Tensor"""  # noqa: E501
    none = empty(ctx)
    if none:
        return none[0]
    return jnp_call(ctx, linalg.ormqr, x, input2, input3, left=left, transpose=transpose)


# ---------------------------------------------------------------- spectral


@lowers(aten._linalg_svd.default, bridged=True)
def _linalg_svd(
    ctx: LoweringContext,
    A: Value,
    full_matrices: bool = False,
    compute_uv: bool = True,
    *,
    driver: str | None = None,
) -> tuple[Value, ...]:
    """_linalg_svd(Tensor A, bool full_matrices=False, bool compute_uv=True, *, str? driver=None) -> (Tensor U, Tensor S, Tensor Vh)"""  # noqa: E501
    u, s, vh = ctx.outs
    if 0 in s.shape:
        return identities(ctx)
    if not compute_uv:
        values = jnp_call(ctx, lambda a: jnp.linalg.svd(a, compute_uv=False), A)
        return builder.zeros(u.shape, u.dtype), values, builder.zeros(vh.shape, vh.dtype)
    svd = lambda a: tuple(jnp.linalg.svd(a, full_matrices=full_matrices))  # noqa: E731
    return tuple(jnp_call(ctx, svd, A))


@lowers(aten._linalg_eigh.default, bridged=True)
def _linalg_eigh(
    ctx: LoweringContext, A: Value, UPLO: str = "L", compute_v: bool = True
) -> tuple[Value, ...]:
    """_linalg_eigh(Tensor A, str UPLO="L", bool compute_v=True) -> (Tensor eigenvalues, Tensor eigenvectors)"""  # noqa: E501

    def eigh(a: jax.Array) -> tuple[jax.Array, ...]:
        a = adjoint(a) if UPLO.upper() == "U" else a
        return tuple(jnp.linalg.eigh(a, UPLO="L", symmetrize_input=False))

    none = empty(ctx)
    if none:
        return none
    values, vectors = jnp_call(ctx, eigh, A)
    second = ctx.outs[1]
    return values, vectors if compute_v else builder.zeros(second.shape, second.dtype)


def _eig(ctx: LoweringContext, x: Value) -> Sequence[Value]:
    if ctx.target == "tpu":
        ctx.fail("XLA has no eigenvalues of general matrices for TPUs")
    return jnp_call(ctx, lambda a: tuple(jnp.linalg.eig(a)), x)


@lowers(aten.linalg_eig.default, bridged=True)
def linalg_eig(ctx: LoweringContext, x: Value) -> tuple[Value, ...]:
    """linalg_eig(Tensor self) -> (Tensor eigenvalues, Tensor eigenvectors)"""
    return empty(ctx) or tuple(_eig(ctx, x))


@lowers(aten._linalg_eigvals.default, bridged=True)
def _linalg_eigvals(ctx: LoweringContext, x: Value) -> Value:
    """_linalg_eigvals(Tensor self) -> Tensor"""
    none = empty(ctx)
    return none[0] if none else _eig(ctx, x)[0]


@lowers(aten.linalg_matrix_exp.default, bridged=True)
def linalg_matrix_exp(ctx: LoweringContext, x: Value) -> Value:
    """linalg_matrix_exp(Tensor self) -> Tensor"""
    none = empty(ctx)
    return none[0] if none else ctx.result(jnp_call(ctx, jax.scipy.linalg.expm, x))
