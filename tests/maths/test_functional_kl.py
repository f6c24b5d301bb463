"""The functional KL to the prior and its gradients, through every way that `measure` prepares a set."""

import math
from itertools import pairwise
from typing import NamedTuple

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given

from fsvi_bench.maths.batching import SIDE
from fsvi_bench.maths.functional_kl import Gaussian, Mixed, _alike, functional_kl, measure
from fsvi_bench.maths.gaussian import gaussian_kl_standard_normal
from fsvi_bench.maths.projection import RANK_TOLERANCE
from fsvi_bench.posteriors.io import read_posterior
from tests import reference
from tests.conftest import REFERENCE
from tests.maths.draws import EXPECTED, PROPERTY, PUBLISHED, close, draw, eye, f64, published, seeds, sizes, zeros

K = 8
JITTER = 0.05
WAYS = {"default": {}, "row space": {"span": True}, "jitter": {"jitter": JITTER}}
KINDS = ("regular", "duplicates", "combination", "blind")
#: M < k/2 (Span), M = k/2 (Span still), k/2 < M < k (Complement), M ≥ k; multiples of 4 and not.
SIZES = (1, 3, 4, 5, 6, 7, 8, 11)
CASES = [
    pytest.param(kind, M, way, id=f"{kind}-{M}-{way}")
    for kind in KINDS
    for M in SIZES
    for way in WAYS
    if {"regular": 1, "duplicates": 2, "combination": 3, "blind": 1}[kind] <= M
]


def draw_sets(rng, B, M, k=K, kind="regular"):
    """B sets' features, problem 1 (or, when `blind`, every problem) degenerate in its own way."""
    Phi_A = rng.standard_normal((B, M, k))
    if kind == "duplicates":
        Phi_A[1, M // 2] = Phi_A[1, 0]
    elif kind == "combination":
        Phi_A[1, M - 1] = 0.3 * Phi_A[1, 0] - 1.7 * Phi_A[1, 1]
    elif kind == "blind":
        Phi_A[..., 2] = 0.0
    return torch.from_numpy(Phi_A)


def draw_q(rng, B, k=K):
    """(mean, factor, scale) of B full and B factorised q."""
    return *draw(rng, B, k), torch.from_numpy(np.exp(0.5 * rng.standard_normal((B, k))))


def case(kind, M, seed=0, B=3):
    rng = np.random.default_rng([seed, M])
    return draw_sets(rng, B, M, kind=kind), *draw_q(rng, B)


class Derivatives(NamedTuple):
    """KL of N(μ, LLᵀ), or of N(μ, diag(s²)), and its derivatives."""

    kl: torch.Tensor
    mean: torch.Tensor
    root: torch.Tensor


def gradient(A, mean, root):
    """As `loss.backward()` gets them; each problem's number depends on that problem alone."""
    leaves = [part.detach().clone().requires_grad_() for part in (mean, root)]
    kl = functional_kl(Gaussian(*leaves), A)
    return Derivatives(kl.detach(), *torch.autograd.grad(kl.sum(), leaves))


@torch.no_grad()
def value(A, mean, factor):
    return functional_kl(Gaussian(mean, factor), A)


def projector(A, B, k=K):
    return A.project_rows(eye(k).repeat(B, 1, 1))


def everything(Phi_A, mean, factor, scale, **options):
    """All that a measurement computes, as a list of tensors with a leading axis of problems."""
    return computed(measure(Phi_A, **options), mean, factor, scale)


def computed(A, mean, factor, scale):
    precision = factor @ factor.mT + eye(factor.shape[-1])
    full, diagonal = gradient(A, mean, factor), gradient(A, mean, scale)
    seen, rows, natural = A.project(mean), A.project_rows(factor), A.precision_gradient(precision)
    values = value(A, mean, factor), value(A, mean, scale)
    return [full.kl, full.mean, full.root.tril(), *diagonal, seen, rows, natural, *values]


# --- Against dense twins ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "M", "way"), CASES)
def test_values_and_gradients_equal_dense_formulas(kind, M, way):
    # What is left is eps times the condition numbers of the draws' Σ (≤ 1e4) and of Φ_A (≤ 1e2).
    Phi_A, mean, factor, scale = case(kind, M)
    jitter = WAYS[way].get("jitter", 0.0)
    A = measure(Phi_A, **WAYS[way])
    full, diagonal = gradient(A, mean, factor), gradient(A, mean, scale)
    natural = A.precision_gradient(torch.linalg.inv(factor @ factor.mT))
    seen, seen_mean = projector(A, 3), A.project(mean)
    values, values_diagonal = value(A, mean, factor), value(A, mean, scale)
    for b in range(3):
        F, m, L, s = (tensor[b].numpy() for tensor in (Phi_A, mean, factor, scale))
        prior = reference.measured_precision(F, np.eye(K), jitter)
        in_covariance = prior - reference.measured_precision(F, L @ L.T, jitter)
        in_variances = np.diag(prior - reference.measured_precision(F, np.diag(s**2), jitter))
        close(seen[b], prior)
        for in_mean in (seen_mean, full.mean, diagonal.mean):
            close(in_mean[b], prior @ m)
        for kl in (full.kl, values):
            close(kl[b], reference.functional_kl_to_prior(F, m, L @ L.T, jitter))
        for kl in (diagonal.kl, values_diagonal):
            close(kl[b], reference.functional_kl_to_prior(F, m, np.diag(s**2), jitter))
        close(full.root[b].tril(), np.tril(in_covariance @ L), rtol=1e-9, atol=1e-9)
        close(natural[b], in_covariance, rtol=1e-9, atol=1e-9)
        close(diagonal.root[b], s * in_variances, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("kind", "M"), [(kind, M) for kind, M, way in (case.values for case in CASES) if way == "default"]
)
def test_one_form_for_all_ranks_gives_the_same_numbers(kind, M):
    """As sets are prepared off the CPU, in shapes that do not depend on their ranks."""
    Phi_A, *q = case(kind, M)
    A = _alike(Phi_A, [kind == "regular", False, kind != "blind"], RANK_TOLERANCE)
    assert A.basis.shape == (3, K, SIDE * math.ceil(min(M, K) / SIDE))
    for found, expected in zip(computed(A, *q), everything(Phi_A, *q), strict=True):
        close(found, expected, rtol=1e-9, atol=1e-9)


# --- Identities -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["default", "row space"])
@pytest.mark.parametrize("M", [8, 11])
def test_is_the_weight_space_kl_where_the_rank_is_k(M, way):
    Phi_A, mean, factor, scale = case("regular", M, seed=4)
    measurement = measure(Phi_A, **WAYS[way])
    # Nothing is projected at all: the two sides differ by the order of a few sums.
    close(gradient(measurement, mean, factor).kl, gaussian_kl_standard_normal(mean, factor), rtol=1e-13, atol=1e-13)
    expected = gaussian_kl_standard_normal(mean, torch.diag_embed(scale))
    close(gradient(measurement, mean, scale).kl, expected, rtol=1e-13, atol=1e-13)


@PROPERTY
@given(seed=seeds, k=sizes)
def test_nested_sets_never_lower_the_kl(seed, k):
    """Nor does it ever exceed that of the weights; with jitter the same holds, by the data-processing inequality."""
    k = SIDE * (1 + k % 3)
    rng = np.random.default_rng(seed)
    Phi_A, (mean, factor, scale) = draw_sets(rng, 1, k + 2, k), draw_q(rng, 1, k)
    for way in WAYS.values():
        nested = [measure(Phi_A[:, :m], **way) for m in range(1, k + 3)]
        full = [float(gradient(A, mean, factor).kl) for A in nested]
        diagonal = [float(gradient(A, mean, scale).kl) for A in nested]
        full.append(float(gaussian_kl_standard_normal(mean, factor)))
        diagonal.append(float(gaussian_kl_standard_normal(mean, torch.diag_embed(scale))))
        for smaller, larger in (*pairwise(full), *pairwise(diagonal)):
            assert smaller >= 0
            assert larger >= smaller * (1 - 1e-10) - 1e-10  # they are equal once the rank is k, but for rounding


@pytest.mark.parametrize(("delta", "rank"), [(1e-12, 1), (1e-8, 2), (1e-5, 2), (1.0, 2)])
@pytest.mark.parametrize("k", [4, 8])
def test_nearly_equal_rows_count_for_one_below_the_rank_tolerance_only(delta, rank, k):
    """Rows e₁ and e₁ + δe₂ span the first two weights whatever δ; at δ = 1e-8 the singular values decide, at 1e-5 the
    pivots see no danger. The rounding of a basis of such rows is eps/δ."""
    Phi_A = zeros(1, 2, k)
    Phi_A[0, :, 0], Phi_A[0, 1, 1] = 1.0, delta
    rng = np.random.default_rng(6)
    mean, factor, _ = draw_q(rng, 1, k)
    measurement = measure(Phi_A)
    assert isinstance(measurement, Mixed) == (delta < 1e-7)
    assert float(projector(measurement, 1, k).diagonal(dim1=1, dim2=2).sum()) == (pytest.approx(rank, abs=1e-12))
    expected = gaussian_kl_standard_normal(mean[:, :rank], factor[:, :rank, :rank])
    close(gradient(measurement, mean, factor).kl, expected, rtol=max(1e-12, 1e-15 / delta if rank == 2 else 1e-11))


def test_the_rank_tolerance_decides_on_a_degenerate_set():
    Phi_A = torch.diag(f64([1.0, 1.0, 1e-10, 1.0]))[None]
    for tolerance, rank in ((1e-9, 3), (1e-11, 4), (0.0, 4)):
        seen = projector(measure(Phi_A, rank_tolerance=tolerance), 1, 4)
        close(seen[0], torch.diag(f64([1.0, 1.0, rank - 3.0, 1.0])), atol=1e-15)


@pytest.mark.parametrize("M", [3, 9])
def test_a_set_that_sees_nothing_costs_nothing(M):
    _, mean, factor, scale = case("regular", M)
    for result in everything(zeros(3, M, K), mean, factor, scale):
        assert not result.any()


@pytest.mark.parametrize("M", [5, 6])
def test_the_value_keeps_its_digits_where_q_is_nearly_singular(M):
    """Four of eight standard deviations are 1e-9, so that VᵀΣV has eigenvalues of 1e-18 beside 1: with 60 digits."""
    Phi_A, mean, factor, _ = case("regular", M, B=1)
    factor[0, 4:] *= 1e-9
    got = float(value(measure(Phi_A, span=True), mean, factor)[0])
    with mpmath.workdps(60):
        F, m, L = (mpmath.matrix(tensor[0].tolist()) for tensor in (Phi_A, mean[..., None], factor))
        gram, covariance = F * F.T, F * L * L.T * F.T
        trace = sum((mpmath.inverse(gram) * covariance)[i, i] for i in range(M))
        fit = ((F * m).T * mpmath.inverse(gram) * F * m)[0]
        logdet = mpmath.log(mpmath.det(covariance)) - mpmath.log(mpmath.det(gram))
        expected = float((trace - M + fit - logdet) / 2)
    assert got == pytest.approx(expected, rel=1e-9)
    assert expected > 15


@pytest.mark.parametrize("way", ["default", "row space"])
@pytest.mark.parametrize("M", [3, 6, 8])
def test_a_singular_q_has_no_kl_and_does_not_affect_others(M, way):
    Phi_A, mean, factor, scale = case("regular", M)
    measurement = measure(Phi_A, **WAYS[way])
    roots = factor, scale
    healthy, values = [gradient(measurement, mean, root) for root in roots], value(measurement, mean, factor)
    factor[1], scale[1] = 0.0, 0.0
    assert torch.equal(value(measurement, mean, factor)[::2], values[::2])
    assert value(measurement, mean, factor)[1] == torch.inf
    for before, root in zip(healthy, roots, strict=True):
        after = gradient(measurement, mean, root)
        assert after.kl.isnan().tolist() == [False, True, False]
        for whole, one in zip(before, after, strict=True):
            assert torch.equal(whole[::2], one[::2])


def test_an_empty_set_is_refused():
    with pytest.raises(ValueError, match="empty"):
        measure(zeros(2, 0, 4))


# --- The published set ------------------------------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.parametrize("way", ["default", "row space"])
@PUBLISHED
def test_equals_the_reference_at_its_fixed_set(name, way):
    expected, problem = EXPECTED[name]["fixed_a"], published(name)
    q = read_posterior(REFERENCE / "posteriors" / f"{name}-full.safetensors", problem.frozen.k)
    low, high = problem.bounding_box
    unit = torch.from_numpy(np.random.default_rng(7).random((40, len(low))))
    Phi_A = problem.feature_map(torch.cat([problem.X[:40], low + (high - low) * unit]))[None]
    measurement = measure(Phi_A, **WAYS[way])
    kl = float(gradient(measurement, q.mean[None], q.covariance_tril()[None]).kl)
    assert kl == pytest.approx(expected["functional_kl_of_posterior_full_no_jitter"], rel=1e-9)
    seen = projector(measurement, 1, problem.frozen.k)
    assert float(seen[0].trace()) == pytest.approx(expected["rank"], abs=1e-9)
