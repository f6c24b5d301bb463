"""Roots of one kernel matrix as rotations of features: against roots with many digits, identities, and the extremes."""

import math

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given
from scipy.linalg import sqrtm

from fsvi_bench.maths.blr import mean_field_optimum_kl
from fsvi_bench.maths.gaussian import gaussian_kl_to_precision
from fsvi_bench.papers.burt2020.feature_roots import (
    cholesky_rotation,
    diagonalising_rotation,
    factorised_floor,
    largest_floor,
    levelled,
    random_rotation,
    spectral_rotations,
)
from tests.maths.draws import PROPERTY, close, f64, seeds
from tests.reference import random_tril

ORDER = torch.tensor([3, 0, 6, 1, 5, 2, 7, 4])


def rotations(tril):
    symmetric, eigenvectors = spectral_rotations(tril)
    return {"orders": cholesky_rotation(tril, ORDER), "symmetric": symmetric, "eigenvectors": eigenvectors}


@given(seed=seeds)
@PROPERTY
def test_rotated_factors_are_the_roots(seed):
    """R = LQ: lower triangular in the given order; symmetric and positive; with orthogonal columns, K's eigenvalues."""
    tril = torch.from_numpy(random_tril(np.random.default_rng(seed), 8, 8))
    K = tril @ tril.mT
    found = rotations(tril)
    size = float(K.abs().max())
    for Q in found.values():
        close(Q.mT @ Q, torch.eye(8, dtype=torch.float64), atol=1e-13)
        close(tril @ Q @ (tril @ Q).mT, K, atol=1e-13 * size)
    in_order = (tril @ found["orders"])[ORDER]
    close(in_order.triu(1), torch.zeros(8, 8, dtype=torch.float64), atol=1e-13 * math.sqrt(size))
    symmetric = tril @ found["symmetric"]
    # scipy's own square root is good to √eps of the smallest eigenvalue's relative size only.
    close(symmetric, sqrtm(K.numpy()).real, rtol=0, atol=1e-9 * math.sqrt(size))
    scaled = tril @ found["eigenvectors"]
    close(scaled.mT @ scaled, torch.linalg.eigvalsh(K).flip(0).diag(), rtol=1e-9, atol=1e-12 * size)


@mp.workdps(50)
def test_floors_see_only_the_root_of_the_kernels_condition():
    """cond(K) is 1e8 and eps · 1e4 is what rotations lose, against the roots R of LLᵀ with many digits, Q = L⁻¹R."""
    U, V = (random_rotation(8, torch.Generator().manual_seed(seed)) for seed in (0, 1))
    tril = torch.linalg.qr((U * torch.logspace(0, -4, 8).double() @ V).mT).R.mT
    tril = tril * tril.diagonal().sign()
    C = torch.from_numpy(random_tril(np.random.default_rng(2), 8, 8))
    L, exact_C, P = (mp.matrix(each.tolist()) for each in (tril, C, torch.eye(8)[ORDER]))
    S, W = mp.eigsy(L * L.T)
    roots = {
        "orders": P.T * mp.cholesky(P * L * L.T * P.T),
        "symmetric": W * mp.diag([mp.sqrt(each) for each in S]) * W.T,
    }
    for kind, root in roots.items():
        factor = mp.inverse(mp.inverse(L) * root) * exact_C
        diagonal = [mp.fsum(x**2 for x in factor[i, :]) for i in range(8)]
        expected = mp.fsum(map(mp.log, diagonal)) / 2 - mp.log(mp.det(exact_C))
        assert factorised_floor(rotations(tril)[kind].mT @ C, C) == pytest.approx(float(expected), rel=1e-10)


@given(seed=seeds)
@PROPERTY
def test_the_floor_is_the_kl_of_the_best_factorised_gaussian(seed):
    rng = np.random.default_rng(seed)
    C = torch.from_numpy(random_tril(rng, 5, 5))
    Q = random_rotation(5, torch.Generator().manual_seed(seed))
    factor = Q.mT @ C
    rotated_tril = torch.linalg.qr(factor.mT).R.mT
    rotated_tril = rotated_tril * rotated_tril.diagonal().sign()
    scale = factor.square().sum(-1).rsqrt()
    mean = torch.from_numpy(rng.standard_normal(5))
    kl = gaussian_kl_to_precision(mean, scale.diag(), mean, rotated_tril).total
    close(f64(factorised_floor(factor, C)), kl)
    close(f64(factorised_floor(C, C)), mean_field_optimum_kl(C))


@given(seed=seeds)
@PROPERTY
def test_every_floor_lies_between_the_two_that_are_reached(seed):
    C = torch.from_numpy(random_tril(np.random.default_rng(seed), 6, 6))
    largest = largest_floor(C)
    assert factorised_floor(diagonalising_rotation(C).mT @ C, C) == pytest.approx(0, abs=1e-11)
    rows = levelled(C)
    close(rows.mT @ rows, C.mT @ C)  # a rotation: Qᵀ leaves CᵀC
    close(rows.square().sum(-1), C.square().sum() / 6 * torch.ones(6, dtype=torch.float64))
    assert factorised_floor(rows, C) == pytest.approx(largest, rel=1e-10)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(3):
        assert -1e-11 < factorised_floor(random_rotation(6, generator).mT @ C, C) < largest + 1e-11


@pytest.mark.parametrize("factor", [torch.eye(4, dtype=torch.float64), torch.zeros(3, 3, dtype=torch.float64)])
def test_what_is_level_already_stays(factor):
    assert torch.equal(levelled(factor), factor)


def test_rows_that_are_nearly_level_and_opposite_are_levelled():
    """a = −b = −1e-9 beside c = −1: of the two tangents one is a/(c + √(c² − ab)), whose denominator would cancel to 0."""
    rows = levelled(f64([[-math.sqrt(1 - 1e-9), 0.0], [math.sqrt(1 + 1e-9), 0.0]]))
    close(rows.square().sum(-1), [1.0, 1.0], rtol=1e-14, atol=0)


def test_largest_floor_of_two_weights_by_hand():
    """Λ = diag(1, 9): rotated by 45°, both diagonal entries are 5 and the floor ½ log(25/9)."""
    C = f64([[1.0, 0.0], [0.0, 3.0]])
    assert largest_floor(C) == pytest.approx(0.5 * math.log(25 / 9), rel=1e-15)


def test_random_rotations_are_uniform():
    """Under the Haar measure k·Q_ij² has mean 1 and E Q_ij = 0; a QR whose signs are not mended has a fixed diagonal's."""
    generator = torch.Generator().manual_seed(0)
    Q = torch.stack([random_rotation(3, generator) for _ in range(4000)])
    close(Q.mT @ Q, torch.eye(3, dtype=torch.float64).expand(4000, 3, 3), atol=1e-14)
    # Var Q_ij = 1/3; Q_ij² has the Beta(½, 1) law with variance 4/45. Four standard errors, at most.
    assert float(Q.mean(0).abs().max()) < 4 * math.sqrt(1 / 3 / 4000)
    assert float((Q.square().mean(0) - 1 / 3).abs().max()) < 4 * math.sqrt(4 / 45 / 4000)
