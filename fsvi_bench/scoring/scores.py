"""Scores of an approximate posterior q against a problem's exact one.

All divergences are in nats; `nlpd` and `rmse` are in the target's original unit. See GLOSSARY.md for each score. For a
Gaussian q every score is a closed form. A q without a density (dropout, particles) has an infinite KL, and is scored by
its moments and its exact predictive density. A q given by many samples is scored by estimates with intervals
(`scoring.samples`), and functions without weights by what needs function values only (`scoring.functions`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Float
from pydantic import AfterValidator, Field
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.maths.bernoulli_dropout import bernoulli_quasi_kl
from fsvi_bench.maths.blr import expected_log_likelihood
from fsvi_bench.maths.gaussian import (
    gaussian_kl_from_precision,
    gaussian_kl_standard_normal,
    gaussian_kl_to_precision,
)
from fsvi_bench.maths.projection import projected_kl, row_space
from fsvi_bench.maths.spike_slab import spike_slab_reverse_kl
from fsvi_bench.posteriors.base import Approximation, Posterior, divergence, wrong_size
from fsvi_bench.posteriors.dropout import BernoulliDropoutPosterior, SpikeSlabPosterior, SwitchedPosterior
from fsvi_bench.posteriors.functions import FunctionSamplesPosterior
from fsvi_bench.posteriors.gaussian import FactorGaussian
from fsvi_bench.posteriors.particles import ParticlesPosterior
from fsvi_bench.posteriors.samples import SamplesPosterior
from fsvi_bench.scoring.distances import gaussian_distances, samples_distances
from fsvi_bench.scoring.functions import (
    function_moments,
    function_scores,
    functions_nlpd,
    functions_of,
    integral_scores,
)
from fsvi_bench.scoring.joint import NO_JOINT, joint_scores
from fsvi_bench.scoring.predictive import (
    LEVELS,
    coverage,
    exact_predictive,
    mixture_nlpd,
    moment_scores,
    predictive_kl,
    predictive_moments,
)
from fsvi_bench.scoring.samples import is_flat, sample_estimates
from fsvi_bench.strict import Plain
from fsvi_bench.tasks.task import Task

MARGINAL_COUNTS = (1, 5, 20, 50)
NO_MARGINALS: dict[str, float | None] = dict.fromkeys(map(str, MARGINAL_COUNTS))
#: Scores of a q without a density.
SINGULAR = dict.fromkeys(("kl", "kl_cov_term", "reverse_kl"), math.inf) | {"elbo": -math.inf}
SPECTRUM_QUANTILES = 21
OVERFLOW = 1e140  #: sums of k² squares of smaller numbers are finite


def _of_all_levels(shares: dict[str, float]) -> dict[str, float]:
    if set(shares) != set(LEVELS):
        raise ValueError(f"levels are {', '.join(shares)}, expected {', '.join(LEVELS)}")
    return shares


Coverage = Annotated[dict[str, float], AfterValidator(_of_all_levels)]


def _of_all_counts(values: dict[str, float | None]) -> dict[str, float | None]:
    if set(values) != set(NO_JOINT):
        raise ValueError(f"counts are {', '.join(values)}, expected {', '.join(NO_JOINT)}")
    return values


Joint = Annotated[dict[str, float | None], AfterValidator(_of_all_counts)]  #: null where there are fewer inputs


class Overconfidence(Plain):
    """Eigenvalues of S*^(-1/2) S S*^(-1/2): the variance of q over the exact one, in the directions where they differ.

    All are 1 for the exact posterior; below 1 q is overconfident, above 1 underconfident.
    """

    smallest: float
    median: float
    largest: float
    quantiles: Annotated[
        tuple[float, ...], Field(min_length=21, max_length=21)
    ]  #: at 0, 5, ..., 100%, ascending, interpolated linearly between eigenvalues


class Scores(Plain):
    """All scores of one cell, null if not applicable. KLs are never clipped: −1e-9 is rounding, less is a bug.

    The last fields have defaults because records of earlier versions lack them.
    """

    singular: bool | None  #: q has no density, so `kl` is infinite; null for samples, which do not show it
    kl: float | None  #: KL(q ‖ P_D)
    kl_mean_term: float | None  #: of `kl`, or of `kl_moment_matched` where `kl` is infinite or null
    kl_cov_term: float | None
    reverse_kl: float | None  #: KL(P_D ‖ q)
    qkl: float | None  #: quasi-KL of Hron et al. (2018), for Bernoulli dropout; descriptive, never ranked
    kl_moment_matched: (
        float | None
    )  #: KL of the Gaussian with q's moments: a lower bound on `kl` for any q with a density
    w2: float | None  #: 2-Wasserstein distance, in weight space
    w2_moments: float | None  #: Bures–Wasserstein distance of the moments: a lower bound on the 2-Wasserstein distance
    predictive_kl_test: float | None  #: mean over test inputs of KL(exact predictive ‖ q's); null: costly, or biased
    predictive_kl_box: float | None  #: the same over 1,000 fixed inputs of the training box
    kl_marginals: dict[str, float | None]  #: KL(Q_X ‖ P_D,X) at the first 1, 5, 20, 50 test inputs
    overconfidence: Overconfidence | None
    nlpd: float | None  #: null for a mixture that is too spread out, and for samples if too biased
    nlpd_imprecision: float | None  #: largest error of a test point's log density (nats); null for closed forms
    nlpd_moment_matched: float
    nlpd_exact: float
    nlpd_gap: float | None
    rmse: float
    coverage: Coverage | None  #: fraction of the test targets within q's central 50, 90, 95% predictive intervals
    coverage_exact: Coverage  #: the same of the exact posterior's intervals
    log_evidence: float
    elbo: float | None  #: E_q[log p(y | Φ, w)] − KL(q ‖ prior), in standardised units like the log evidence
    elbo_gap: float | None  #: log evidence − ELBO, which equals `kl` for every q
    intervals: dict[str, tuple[float, float]] | None = None  #: 95%, where scores are estimates
    kl_at_objective_optimum: float | None = None  #: see `Method.optima`; null for a posterior without its run
    objective_gap: float | None = None
    predictive_kl_test_imprecision: float | None = None  #: mean error of the integrals (nats); null for closed forms
    predictive_kl_box_imprecision: float | None = None
    joint_predictive_kl_test: Joint | None = None  #: KL(exact ‖ q) of the first 1, 10, 100 targets together
    joint_predictive_kl_test_error: Joint | None = None  #: its standard error; null for closed forms
    joint_predictive_kl_box: Joint | None = None  #: the same at the first box inputs
    joint_predictive_kl_box_error: Joint | None = None
    mmd2_test: float | None = None  #: MMD² of f at the first 20 test inputs to the exact posterior; null if both are 0
    energy_distance_test: float | None = None  #: energy distance of the same
    w2_test: float | None = None  #: mean over test inputs of W₂ between the distributions of f at the input
    w2_box: float | None = None  #: the same over the box inputs


def score(q: Approximation, problem: Task) -> Scores:
    """All scores of one posterior on one problem.

    Raises:
        InputError: q's number of weights is not the task's number of features, its values are at other inputs, its
            numbers are so large that scores overflow, or it has too few samples for their moments.
    """
    exact = exact_predictive(problem, problem.Phi_test)
    values: dict[str, Any] = dict.fromkeys(Scores.model_fields) | {
        "kl_marginals": NO_MARGINALS,
        "nlpd_exact": exact.nlpd(problem),
        "coverage_exact": exact.coverage(problem),
        "log_evidence": float(problem.truth.log_evidence),
    }
    if isinstance(q, FunctionSamplesPosterior):
        values |= _without_density(problem) | function_scores(q, problem) | function_moments(q, problem)
    else:
        assert isinstance(q, Posterior)
        values |= _of_weights(q, problem)
    values["nlpd_gap"] = None if values["nlpd"] is None else values["nlpd"] - values["nlpd_exact"]
    values["elbo_gap"] = None if values["elbo"] is None else values["log_evidence"] - values["elbo"]
    return Scores(**values)


def _of_weights(q: Posterior, problem: Task) -> dict[str, Any]:
    """Scores of a distribution of weights."""
    if q.k != problem.frozen.k:
        raise InputError(wrong_size(q.k, problem.frozen.k))
    mean, tril, precision_tril = q.mean, q.covariance_tril(), problem.truth.posterior.precision_tril
    _require_no_overflow(mean, tril, precision_tril)
    values: dict[str, Any] = {"singular": q.singular, "overconfidence": _overconfidence(precision_tril, tril)}
    if isinstance(q, SamplesPosterior):
        values |= joint_scores(q, problem) | {"coverage": coverage(q, problem)}
        return values | sample_estimates(q, problem) | samples_distances(q.samples, problem)
    values |= moment_scores(mean, tril, problem) | ({"kl_moment_matched": math.inf} if _is_flat(q, tril) else {})
    if isinstance(q, ParticlesPosterior):
        return values | _without_density(problem) | function_scores(functions_of(q, problem), problem)
    values |= joint_scores(q, problem) | {"coverage": coverage(q, problem)}
    return values | _of_known_law(q, problem, values)


def _without_density(problem: Task) -> dict[str, Any]:
    """Scores of a q that consists of atoms, in weight space and at any inputs."""
    counts = (count for count in MARGINAL_COUNTS if count <= len(problem.Phi_test))
    marginals = NO_MARGINALS | {str(count): math.inf for count in counts}
    return SINGULAR | {"singular": True, "kl_marginals": marginals}


#: Keys of the scores that are objects; the object is null if the score does not apply.
NESTED: dict[str, dict[str, None]] = {
    **dict.fromkeys(("coverage", "coverage_exact"), dict.fromkeys(LEVELS)),
    **dict.fromkeys((f"joint_predictive_kl_{place}" for place in ("test", "test_error", "box", "box_error")), NO_JOINT),
    "overconfidence": dict.fromkeys(Overconfidence.model_fields),
    "kl_marginals": dict.fromkeys(NO_MARGINALS),
}


class TraceScores(NamedTuple):
    """The scores in a trace."""

    kl: float
    nlpd: float | None
    kl_moment_matched: float
    nlpd_moment_matched: float


def trace_scores(q: Posterior, problem: Task, mixtures: bool = True) -> TraceScores:
    """KL(q ‖ P_D) and NLPD of q and of its moment-matched Gaussian; NaN for a q that has diverged.

    A mixture's NLPD takes as long as many steps; it is None without `mixtures`.
    """
    if divergence(q) is not None:
        return TraceScores(*[math.nan] * 4)
    mean, tril = q.mean, q.covariance_tril()
    matched = float(gaussian_kl_to_precision(mean, tril, *problem.truth.posterior).total)
    of_moments = predictive_moments(problem, problem.Phi_test, mean, tril).nlpd(problem)
    nlpd: float | None = of_moments
    if isinstance(q, SwitchedPosterior):
        nlpd = mixture_nlpd(q, problem)[0] if mixtures else None
    if isinstance(q, ParticlesPosterior):
        nlpd = functions_nlpd(q.particles @ problem.Phi_test.mT, problem)
    kl = math.inf if q.singular else matched
    return TraceScores(kl, nlpd, math.inf if _is_flat(q, tril) else matched, of_moments)


def _is_flat(q: Posterior, tril: Float[Tensor, "k k"]) -> bool:
    """Whether q does not vary in some direction, which rounding may hide: no distribution with its moments has a
    density."""
    if isinstance(q, ParticlesPosterior):
        return is_flat(q.particles, tril)
    return isinstance(q, FactorGaussian) and q.singular


def _of_known_law(q: Posterior, problem: Task, moments: dict[str, Any]) -> dict[str, Any]:
    """Scores of a Gaussian or a mixture beyond those of its moments."""
    values = _weight_space(q, problem) | {"nlpd": moments["nlpd_moment_matched"], "w2": moments["w2_moments"]}
    values["kl_marginals"] = _kl_marginals(q, problem)
    has_atoms = isinstance(q, SwitchedPosterior) and q.singular
    if isinstance(q, SwitchedPosterior):
        values["nlpd"], values["nlpd_imprecision"] = mixture_nlpd(q, problem)
        values["w2"] = None if has_atoms else values["w2"]
    if not has_atoms:
        values |= gaussian_distances(q.mean, q.covariance_tril(), problem)
    for name, Phi in (("predictive_kl_test", problem.Phi_test), ("predictive_kl_box", problem.Phi_box)):
        if (found := predictive_kl(q, problem, Phi)) is not None:
            values |= integral_scores(name, found)
    return values


def _weight_space(q: Posterior, problem: Task) -> dict[str, Any]:
    """Scores that depend on whether q has a density over the weights."""
    exact, tril = problem.truth.posterior, q.covariance_tril()
    if not q.singular:
        kl = gaussian_kl_to_precision(q.mean, tril, *exact)
        likelihood = expected_log_likelihood(problem.Phi, problem.y, problem.frozen.noise_variance, q.mean, tril)
        return {
            "kl": float(kl.total),
            "kl_cov_term": float(kl.covariance),
            "reverse_kl": float(gaussian_kl_from_precision(*exact, q.mean, tril).total),
            "elbo": float(likelihood - gaussian_kl_standard_normal(q.mean, tril)),
        }
    values = dict(SINGULAR)
    if isinstance(q, SpikeSlabPosterior):
        values["reverse_kl"] = float(spike_slab_reverse_kl(*exact, q.spike_weight, q.slab_mean, q.slab_scale))
    if isinstance(q, BernoulliDropoutPosterior):
        values["qkl"] = float(bernoulli_quasi_kl(q.m, q.retain_probabilities, *exact))
    return values


def _kl_marginals(q: Posterior, problem: Task) -> dict[str, float | None]:
    """KL(Q_X ‖ P_D,X) at the first test inputs in split order; null if the test set is smaller, and for a mixture with
    a density there."""
    truth, Phi, tril = problem.truth, problem.Phi_test, q.covariance_tril()
    has_atoms = isinstance(q, SwitchedPosterior) and q.singular
    full_rank = bool((tril.diagonal() > 0).all()) and not _is_flat(q, tril)
    marginals = NO_MARGINALS.copy()
    for count in (count for count in MARGINAL_COUNTS if count <= len(Phi)):
        basis = row_space(Phi[:count])
        # The covariance of Vᵀw may have full rank even if that of w does not.
        seen = full_rank or int(torch.linalg.matrix_rank(basis.mT @ tril)) == basis.shape[1]
        kl = projected_kl(basis, q.mean, tril, truth.posterior.mean, truth.covariance_tril)
        if isinstance(q, SpikeSlabPosterior) and has_atoms:
            # Slabs that are always on and reach every direction give the mixture a density; its KL is not a Gaussian's.
            always_on = basis.mT * torch.where(q.spike_weight > 0, 0.0, q.slab_scale)
            marginals[str(count)] = None if int(torch.linalg.matrix_rank(always_on)) == basis.shape[1] else math.inf
        else:
            marginals[str(count)] = float(kl) if seen and not has_atoms else math.inf
    return marginals


def _overconfidence(precision_tril: Float[Tensor, "k k"], tril: Float[Tensor, "k k"]) -> Overconfidence:
    """Squared singular values of CᵀL, which are the eigenvalues of S*^(-1/2) S S*^(-1/2) for S*⁻¹ = CCᵀ, S = LLᵀ."""
    eigenvalues = torch.linalg.svdvals(precision_tril.mT @ tril).square()
    levels = torch.arange(SPECTRUM_QUANTILES, dtype=torch.float64) / (SPECTRUM_QUANTILES - 1)
    quantiles = eigenvalues.quantile(levels).tolist()
    median = quantiles[SPECTRUM_QUANTILES // 2]
    return Overconfidence(smallest=quantiles[0], median=median, largest=quantiles[-1], quantiles=tuple(quantiles))


def _require_no_overflow(mean: Float[Tensor, " k"], tril: Float[Tensor, "k k"], precision_tril: Tensor) -> None:
    """Scores are sums of squares of numbers no larger than these; on overflow, LAPACK would print its own errors."""
    largest = max(float(precision_tril.abs().max()), 1.0) * max(float(mean.abs().max()), float(tril.abs().max()))
    if not largest < OVERFLOW:
        raise InputError(
            f"the posterior's numbers reach {largest:.1e} (whitened), expected below {OVERFLOW:g}; rescale it"
        )


def not_a_number(scores: Scores) -> list[str]:
    """Names of the scores that are NaN (infinity is a number here: the KL of a singular q is infinite)."""
    spectrum = {} if scores.overconfidence is None else scores.overconfidence.model_dump()
    named = _numbers("", scores.model_dump(exclude={"overconfidence"}) | spectrum)
    return list(dict.fromkeys(name for name, value in named if math.isnan(value)))


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Every number in scores with its name, such as `kl_marginals 5`; all numbers of a list share its name."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(f"{name} {key}".strip(), item)
    elif isinstance(value, tuple):
        for item in value:
            yield from _numbers(name, item)
    elif value is not None:
        yield name, value
