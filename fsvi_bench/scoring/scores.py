"""Scores of an approximate posterior q against a problem's exact one.

All divergences are in nats; `nlpd` and `rmse` are in the target's original unit. See GLOSSARY.md for each score. For a
q with a density every score is a closed form. One without (dropout) has an infinite KL, and is scored by its moments
and by its exact predictive density; one known by its samples has estimates with intervals (`scoring.samples`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Float
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
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
from fsvi_bench.posteriors.base import Posterior, divergence
from fsvi_bench.posteriors.dropout import BernoulliDropoutPosterior, SpikeSlabPosterior, SwitchedPosterior
from fsvi_bench.posteriors.gaussian import FactorGaussian
from fsvi_bench.posteriors.samples import SamplesPosterior
from fsvi_bench.scoring.predictive import (
    LEVELS,
    coverage,
    exact_predictive,
    mixture_nlpd,
    moment_scores,
    predictive_kl,
    predictive_moments,
)
from fsvi_bench.scoring.samples import sample_estimates
from fsvi_bench.tasks.task import Task

MARGINAL_COUNTS = (1, 5, 20, 50)
NO_MARGINALS: dict[str, float | None] = dict.fromkeys(map(str, MARGINAL_COUNTS))
SPECTRUM_QUANTILES = 21
OVERFLOW = 1e140  #: its square, summed over k² entries, is still finite


def _of_all_levels(shares: dict[str, float]) -> dict[str, float]:
    if set(shares) != set(LEVELS):
        raise ValueError(f"levels are {', '.join(shares)}, expected {', '.join(LEVELS)}")
    return shares


Coverage = Annotated[dict[str, float], AfterValidator(_of_all_levels)]


class Overconfidence(BaseModel):
    """Eigenvalues of S*^(-1/2) S S*^(-1/2): the variance of q over the exact one, in the directions where they differ.

    All are 1 for the exact posterior; below 1 q is overconfident, above 1 underconfident.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")
    smallest: float
    median: float
    largest: float
    quantiles: Annotated[
        tuple[float, ...], Field(min_length=21, max_length=21)
    ]  #: at 0, 5, ..., 100 %, ascending, interpolated linearly between eigenvalues


class Scores(BaseModel):
    """Every score of one cell, null where one does not apply. A KL is never clipped: −1e-9 is rounding, less a bug."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")
    singular: bool | None  #: q has no density, so that `kl` is infinite; null for samples, which do not tell
    kl: float | None  #: KL(q ‖ P_D)
    kl_mean_term: float  #: of `kl`, or of `kl_moment_matched` where there is no other
    kl_cov_term: float | None
    reverse_kl: float | None  #: KL(P_D ‖ q)
    qkl: float | None  #: quasi-KL of Hron et al. (2018), for Bernoulli dropout; descriptive, never ranked
    kl_moment_matched: float  #: KL of the Gaussian with q's moments: a lower bound of `kl` for any q with a density
    w2: float | None  #: 2-Wasserstein distance, in weight space
    w2_moments: float  #: Bures–Wasserstein distance of the moments: a lower bound of the 2-Wasserstein distance
    predictive_kl_test: float | None  #: mean over test inputs of KL(exact predictive ‖ q's); null: too dear
    predictive_kl_box: float | None  #: the same over 1,000 fixed inputs of the training box
    kl_marginals: dict[str, float | None]  #: KL(Q_X ‖ P_D,X) at the first 1, 5, 20, 50 test inputs
    overconfidence: Overconfidence
    nlpd: float | None  #: null for a mixture too spread out to be summed
    nlpd_imprecision: float | None  #: how far the worst test point's density may be off (nats); null for closed forms
    nlpd_moment_matched: float
    nlpd_exact: float
    nlpd_gap: float | None
    rmse: float
    coverage: Coverage | None  #: share of the test targets within q's central 50, 90, 95 % predictive intervals
    coverage_exact: Coverage  #: the same of the exact posterior's intervals
    log_evidence: float
    elbo: float | None  #: E_q[log p(y | Φ, w)] − KL(q ‖ prior), in standardised units like the log evidence
    elbo_gap: float | None  #: log evidence − ELBO, which equals `kl` for every q
    intervals: dict[str, tuple[float, float]] | None = None  #: 95%, where scores are estimates
    kl_at_objective_optimum: float | None = None  #: see `Method.optima`; null for a posterior without its run
    objective_gap: float | None = None


def score(q: Posterior, problem: Task) -> Scores:
    """All scores of one posterior on one problem.

    Raises:
        InputError: q has another number of weights than the task has features, numbers so large that they overflow, or
            too few samples for their moments.
    """
    if q.k != problem.frozen.k:
        raise InputError(
            f"task has k={problem.frozen.k} features, posterior has {q.k}; was it trained on another task?"
        )
    mean, tril = q.mean, q.covariance_tril()
    truth, exact = problem.truth, exact_predictive(problem, problem.Phi_test)
    _require_no_overflow(mean, tril, truth.posterior.precision_tril)
    values: dict[str, Any] = dict.fromkeys(Scores.model_fields) | moment_scores(mean, tril, problem)
    values |= {
        "singular": q.singular,
        **({"kl_moment_matched": math.inf} if _is_flat(q) else {}),
        "kl_marginals": NO_MARGINALS,
        "overconfidence": _overconfidence(truth.posterior.precision_tril, tril),
        "nlpd_exact": exact.nlpd(problem),
        "coverage": coverage(q, problem),
        "coverage_exact": exact.coverage(problem),
        "log_evidence": float(truth.log_evidence),
    }
    if isinstance(q, SamplesPosterior):
        values |= sample_estimates(q, problem)
    else:
        values |= _of_known_law(q, problem, values)
    values["nlpd_gap"] = None if values["nlpd"] is None else values["nlpd"] - values["nlpd_exact"]
    values["elbo_gap"] = None if values["elbo"] is None else values["log_evidence"] - values["elbo"]
    return Scores(**values)


class TraceScores(NamedTuple):
    """The scores that a trace follows."""

    kl: float
    nlpd: float | None
    kl_moment_matched: float
    nlpd_moment_matched: float


def trace_scores(q: Posterior, problem: Task, mixtures: bool = True) -> TraceScores:
    """KL(q ‖ P_D) and NLPD of q and of its moment-matched Gaussian; NaN for a q that has diverged.

    A mixture's NLPD takes as long as many steps: without `mixtures` it is None.
    """
    if divergence(q) is not None:
        return TraceScores(*[math.nan] * 4)
    mean, tril = q.mean, q.covariance_tril()
    matched = float(gaussian_kl_to_precision(mean, tril, *problem.truth.posterior).total)
    of_moments = predictive_moments(problem, problem.Phi_test, mean, tril).nlpd(problem)
    nlpd: float | None = of_moments
    if isinstance(q, SwitchedPosterior):
        nlpd = mixture_nlpd(q, problem)[0] if mixtures else None
    kl = math.inf if q.singular else matched
    return TraceScores(kl, nlpd, math.inf if _is_flat(q) else matched, of_moments)


def _is_flat(q: Posterior) -> bool:
    """Whether q is a Gaussian on a flat: nothing with its moments has a density, which rounding in a factor hides."""
    return isinstance(q, FactorGaussian) and q.singular


def _of_known_law(q: Posterior, problem: Task, moments: dict[str, Any]) -> dict[str, Any]:
    """Scores of a q whose law is known, beyond those of its moments."""
    values = _weight_space(q, problem) | {"nlpd": moments["nlpd_moment_matched"], "w2": moments["w2_moments"]}
    values["kl_marginals"] = _kl_marginals(q, problem)
    if isinstance(q, SwitchedPosterior):
        values["nlpd"], values["nlpd_imprecision"] = mixture_nlpd(q, problem)
        values["w2"] = None if q.singular else values["w2"]
    for name, Phi in (("predictive_kl_test", problem.Phi_test), ("predictive_kl_box", problem.Phi_box)):
        kl = predictive_kl(q, problem, Phi)
        values[name] = None if kl is None else float(kl.mean())
    return values


def _weight_space(q: Posterior, problem: Task) -> dict[str, Any]:
    """What depends on whether q has a density over the weights."""
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
    values = dict.fromkeys(("kl", "kl_cov_term", "reverse_kl"), math.inf) | {"elbo": -math.inf}
    if isinstance(q, SpikeSlabPosterior):
        values["reverse_kl"] = float(spike_slab_reverse_kl(*exact, q.spike_weight, q.slab_mean, q.slab_scale))
    if isinstance(q, BernoulliDropoutPosterior):
        values["qkl"] = float(bernoulli_quasi_kl(q.m, q.retain_probabilities, *exact))
    return values


def _kl_marginals(q: Posterior, problem: Task) -> dict[str, float | None]:
    """KL(Q_X ‖ P_D,X) at the first test inputs in split order; null where the test set is smaller than that."""
    truth, Phi, tril = problem.truth, problem.Phi_test, q.covariance_tril()
    has_atoms = isinstance(q, SwitchedPosterior) and q.singular
    full_rank = bool((tril.diagonal() > 0).all()) and not _is_flat(q)
    marginals = NO_MARGINALS.copy()
    for count in (count for count in MARGINAL_COUNTS if count <= len(Phi)):
        basis = row_space(Phi[:count])
        # The covariance of Vᵀw may have full rank although that of w has not.
        seen = full_rank or int(torch.linalg.matrix_rank(basis.mT @ tril)) == basis.shape[1]
        kl = projected_kl(basis, q.mean, tril, truth.posterior.mean, truth.covariance_tril)
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
    """Every score is a sum of squares of numbers no larger than these; LAPACK would print its own complaint of inf."""
    largest = max(float(precision_tril.abs().max()), 1.0) * max(float(mean.abs().max()), float(tril.abs().max()))
    if not largest < OVERFLOW:
        raise InputError(
            f"the posterior's numbers reach {largest:.1e} (whitened), expected below {OVERFLOW:g}; rescale it"
        )


def not_a_number(scores: Scores) -> list[str]:
    """Names of the scores that are NaN (infinity is a number here: the KL of a singular q is infinite)."""
    named = _numbers("", scores.model_dump(exclude={"overconfidence"}) | scores.overconfidence.model_dump())
    return list(dict.fromkeys(name for name, value in named if math.isnan(value)))


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Every number within scores with its name, such as `kl_marginals 5`; ends and quantiles share their list's."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(f"{name} {key}".strip(), item)
    elif isinstance(value, tuple):
        for item in value:
            yield from _numbers(name, item)
    elif value is not None:
        yield name, value
