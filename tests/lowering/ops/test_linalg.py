"""Factorizations against eager torch: flags, info, degenerate matrices, gradients."""

from __future__ import annotations

import helpers
import pytest
import torch
from gradients import check, leaf

CLOSE = {"rtol": 1e-3, "atol": 1e-4}


def positive(n: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Two positive definite matrices."""
    a = torch.randn(2, n, n, dtype=dtype)
    return a @ a.mH + n * torch.eye(n)


@pytest.mark.parametrize("upper", [False, True])
def test_cholesky(upper: bool) -> None:
    a = positive().requires_grad_()
    check(lambda a: torch.linalg.cholesky(a, upper=upper), a, **CLOSE)
    helpers.compare(
        lambda a: torch.linalg.cholesky_ex(a, upper=upper), positive(dtype=torch.complex64), **CLOSE
    )
    one = torch.linalg.cholesky(a.detach(), upper=upper)
    check(lambda b, c: torch.cholesky_solve(b, c, upper=upper), leaf(2, 4, 3), one, **CLOSE)
    check(lambda c: torch.cholesky_inverse(c, upper=upper), one.requires_grad_(), **CLOSE)


def test_cholesky_reads_one_triangle() -> None:
    a = positive()
    a[:, 0, 3] = 100
    helpers.compare(torch.linalg.cholesky, a, **CLOSE)


def test_cholesky_says_which_minor_fails() -> None:
    a = positive()
    a[1, 2, 2] = -1
    _, info = helpers.run_lowered(torch.linalg.cholesky_ex, [a])
    assert info.tolist() == torch.linalg.cholesky_ex(a).info.tolist() == [0, 3]


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_solve_triangular(upper: bool, left: bool) -> None:
    a, b = leaf(2, 3, 3), leaf(1, 3, 3)
    check(
        lambda a, b: [
            torch.linalg.solve_triangular(a, b, upper=upper, left=left, unitriangular=u)
            for u in (False, True)
        ],
        a,
        b,
        **CLOSE,
    )


@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
def test_qr(mode: str) -> None:
    helpers.compare(lambda a: torch.linalg.qr(a, mode=mode), torch.randn(2, 5, 3), **CLOSE)
    helpers.compare(lambda a: torch.linalg.qr(a, mode=mode), torch.randn(5, 0), **CLOSE)
    if mode == "reduced":
        check(torch.linalg.qr, leaf(2, 5, 3), **CLOSE)


def test_svd() -> None:
    check(torch.linalg.svdvals, leaf(2, 5, 3), **CLOSE)
    a = torch.randn(3, 5)
    u, values, vh = helpers.run_lowered(lambda a: torch.linalg.svd(a, full_matrices=False), [a])
    torch.testing.assert_close(u * values @ vh, a, **CLOSE)
    u, values, vh = helpers.run_lowered(torch.linalg.svd, [a])
    assert (u.shape, vh.shape) == ((3, 3), (5, 5))
    torch.testing.assert_close(u * values @ vh[:3], a, **CLOSE)
    torch.testing.assert_close(vh @ vh.mT, torch.eye(5), **CLOSE)


@pytest.mark.parametrize("uplo", ["L", "U"])
def test_eigh(uplo: str) -> None:
    a = torch.randn(2, 4, 4)
    helpers.compare(lambda a: torch.linalg.eigvalsh(a, UPLO=uplo), a, **CLOSE)
    values, vectors = helpers.run_lowered(lambda a: torch.linalg.eigh(a, UPLO=uplo), [a])
    half = a.tril() if uplo == "L" else a.mT.tril()
    whole = half + half.tril(-1).mT
    torch.testing.assert_close(vectors * values[:, None] @ vectors.mT, whole, **CLOSE)


def test_eig() -> None:
    a = torch.randn(4, 4)
    helpers.compare(lambda a: torch.linalg.eigvals(a), a, **CLOSE)
    values, vectors = helpers.run_lowered(torch.linalg.eig, [a])
    torch.testing.assert_close(a + 0j, vectors * values @ torch.linalg.inv(vectors), **CLOSE)


@pytest.mark.parametrize("left", [False, True])
def test_solve(left: bool) -> None:
    a = (torch.randn(2, 3, 3) + 3 * torch.eye(3)).requires_grad_()
    check(lambda a, b: torch.linalg.solve(a, b, left=left), a, leaf(3, 3), **CLOSE)
    if left:
        check(torch.linalg.solve, a, leaf(2, 3), **CLOSE)
        check(torch.linalg.solve, a, leaf(2, 3, 4), **CLOSE)


def test_inverse_and_determinants() -> None:
    for a in (leaf(2, 4, 4), leaf(4, 4, dtype=torch.complex64)):
        check(torch.linalg.inv, a, **CLOSE)
        check(torch.linalg.det, a, **CLOSE)
        check(torch.linalg.slogdet, a, **CLOSE)
    check(torch.logdet, positive().requires_grad_(), **CLOSE)
    check(torch.linalg.det, leaf(3, 3).mT.detach().requires_grad_(), **CLOSE)


def test_singular_matrices() -> None:
    a = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    helpers.compare(torch.linalg.slogdet, a)
    helpers.compare(torch.linalg.det, a)
    assert helpers.run_lowered(torch.linalg.inv_ex, [a])[1] == torch.linalg.inv_ex(a).info == 2


@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 5), (5, 3)])
def test_lu(shape: tuple[int, ...]) -> None:
    check(lambda a: torch.linalg.lu_factor(a).LU, leaf(*shape), **CLOSE)
    helpers.compare(torch.linalg.lu, torch.randn(shape), **CLOSE)
    helpers.compare(torch.linalg.lu_factor_ex, torch.randn(shape), **CLOSE)


def test_lu_solve() -> None:
    lu, pivots = torch.linalg.lu_factor(torch.randn(2, 3, 3))
    for left, adjoint in ((True, True), (True, False), (False, True), (False, False)):
        helpers.compare(
            lambda lu, p, b, o=(left, adjoint): torch.linalg.lu_solve(
                lu, p, b, left=o[0], adjoint=o[1]
            ),
            lu,
            pivots,
            torch.randn(2, 3, 3),
            **CLOSE,
        )


def test_reflectors() -> None:
    a = torch.randn(5, 3)
    helpers.compare(torch.geqrf, a, **CLOSE)
    reflectors, tau = torch.geqrf(a)
    helpers.compare(torch.linalg.householder_product, reflectors, tau, **CLOSE)
    for left, transpose in ((True, True), (True, False), (False, True)):
        helpers.compare(
            lambda a, t, c, o=(left, transpose): torch.ormqr(a, t, c, *o),
            reflectors,
            tau,
            torch.randn(5, 5),
            **CLOSE,
        )


def test_what_is_composed_of_them() -> None:
    a = leaf(4, 3)
    check(torch.linalg.pinv, a, **CLOSE)
    helpers.compare(torch.linalg.matrix_rank, a.detach())
    check(lambda a: torch.linalg.matrix_power(a, 3), leaf(2, 3, 3), **CLOSE)
    check(torch.linalg.matrix_exp, leaf(2, 3, 3), **CLOSE)
    check(lambda a: torch.linalg.matrix_norm(a, ord="nuc"), a, **CLOSE)
