"""Scores of an approximate posterior q against a problem's exact one: closed-form functions of q and the task.

All divergences are in nats; `nlpd` and `rmse` are in the target's original unit. See GLOSSARY.md for each score.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.maths.blr import (
    expected_log_likelihood,
    negative_log_predictive_density,
    predictive_variance,
)
from fsvi_bench.maths.gaussian import (
    DivergenceTerms,
    gaussian_kl_from_precision,
    gaussian_kl_standard_normal,
    gaussian_kl_to_precision,
    gaussian_w2,
    normal_kl,
)
from fsvi_bench.maths.projection import projected_kl, row_space
from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.posteriors.gaussian import GaussianPosterior
from fsvi_bench.tasks.problem import Problem

MARGINAL_COUNTS = (1, 5, 20, 50)
OVERFLOW = 1e140  #: its square, summed over k² entries, is still finite


class Overconfidence(BaseModel):
    """Eigenvalues of S*^(-1/2) S S*^(-1/2): the variance of q over the exact one, in the directions where they differ.

    All are 1 for the exact posterior; below 1 q is overconfident, above 1 underconfident.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")
    smallest: float
    median: float
    largest: float


class Scores(BaseModel):
    """Every score of one cell. A KL is never clipped: −1e-9 is rounding, less is a bug."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")
    kl: float  #: KL(q ‖ P_D)
    kl_mean_term: float
    kl_cov_term: float
    reverse_kl: float  #: KL(P_D ‖ q)
    w2: float  #: 2-Wasserstein distance, in weight space
    predictive_kl_test: float  #: mean over test inputs of KL(exact predictive ‖ q's predictive)
    predictive_kl_box: float  #: the same over 1,000 fixed inputs of the training box
    kl_marginals: dict[str, float | None]  #: KL(Q_X ‖ P_D,X) at the first 1, 5, 20, 50 test inputs
    overconfidence: Overconfidence
    nlpd: float
    nlpd_exact: float
    nlpd_gap: float
    rmse: float
    log_evidence: float
    elbo: float
    elbo_gap: float  #: log evidence − ELBO, which equals `kl` for every q
    kl_at_objective_optimum: float | None = None  #: see `fsvi_bench.scoring.objective`; null for a mere posterior
    objective_gap: float | None = None


def score(q: Posterior, problem: Problem) -> Scores:
    """All scores of one posterior on one problem.

    Raises:
        InputError: q is not a Gaussian, has another number of weights than the task has features, or numbers so large
            that they overflow.
    """
    if not isinstance(q, GaussianPosterior):
        raise InputError(f"posterior is of kind {q.kind}, expected a Gaussian; these scores are defined for no other")
    if q.k != problem.task.k:
        raise InputError(f"task has k={problem.task.k} features, posterior has {q.k}; was it trained on another task?")
    tril, exact, truth = q.covariance_tril(), problem.truth.posterior, problem.truth
    _require_no_overflow(q.mean, tril, exact.precision_tril)
    kl = gaussian_kl_to_precision(q.mean, tril, *exact)
    reverse: DivergenceTerms = gaussian_kl_from_precision(*exact, q.mean, tril)
    w2 = gaussian_w2(q.mean, tril, exact.mean, truth.covariance_tril)
    nlpd, nlpd_exact = _nlpd(problem, q.mean, tril), _nlpd(problem, exact.mean, truth.covariance_tril)
    elbo = _elbo(problem, q.mean, tril)
    return Scores(
        kl=float(kl.total),
        kl_mean_term=float(kl.mean),
        kl_cov_term=float(kl.covariance),
        reverse_kl=float(reverse.total),
        w2=float(w2),
        predictive_kl_test=_predictive_kl(problem, problem.Phi_test, q.mean, tril),
        predictive_kl_box=_predictive_kl(problem, problem.Phi_box, q.mean, tril),
        kl_marginals=_kl_marginals(problem, q.mean, tril),
        overconfidence=_overconfidence(exact.precision_tril, tril),
        nlpd=nlpd,
        nlpd_exact=nlpd_exact,
        nlpd_gap=nlpd - nlpd_exact,
        rmse=_rmse(problem, q.mean),
        log_evidence=float(truth.log_evidence),
        elbo=elbo,
        elbo_gap=float(truth.log_evidence) - elbo,
    )


def kl_and_nlpd(q: GaussianPosterior, problem: Problem) -> tuple[float, float]:
    """The two scores that a trace follows: KL(q ‖ P_D) and NLPD. NaN for a q that holds NaN."""
    tril = q.covariance_tril()
    kl = gaussian_kl_to_precision(q.mean, tril, *problem.truth.posterior)
    return float(kl.total), _nlpd(problem, q.mean, tril)


def _values(Phi: Float[Tensor, "n k"], mean: Float[Tensor, " k"]) -> Float[Tensor, " n"]:
    return (Phi @ mean[:, None])[:, 0]


def _nlpd(problem: Problem, mean: Tensor, tril: Tensor) -> float:
    task = problem.task
    variance = predictive_variance(problem.Phi_test, tril, task.noise_variance)
    return float(
        negative_log_predictive_density(problem.y_test, _values(problem.Phi_test, mean), variance, task.target_std)
    )


def _rmse(problem: Problem, mean: Tensor) -> float:
    """Root mean square error of the predictive mean in the target's original unit."""
    error = problem.y_test - _values(problem.Phi_test, mean)
    return float(error.square().mean().sqrt() * problem.task.target_std)


def _elbo(problem: Problem, mean: Tensor, tril: Tensor) -> float:
    """E_q[log p(y | Φ, w)] − KL(q ‖ prior), in standardised units like the log evidence."""
    noise_variance = problem.task.noise_variance
    likelihood = expected_log_likelihood(problem.Phi, problem.y, noise_variance, mean, tril)
    return float(likelihood - gaussian_kl_standard_normal(mean, tril))


def _predictive_kl(problem: Problem, Phi: Float[Tensor, "n k"], mean: Tensor, tril: Tensor) -> float:
    """Mean over rows of KL(exact predictive ‖ q's predictive), one-dimensional densities with the noise included."""
    truth, noise_variance = problem.truth, problem.task.noise_variance
    return float(
        normal_kl(
            _values(Phi, truth.posterior.mean),
            predictive_variance(Phi, truth.covariance_tril, noise_variance),
            _values(Phi, mean),
            predictive_variance(Phi, tril, noise_variance),
        ).mean()
    )


def _kl_marginals(problem: Problem, mean: Tensor, tril: Tensor) -> dict[str, float | None]:
    """KL(Q_X ‖ P_D,X) at the first test inputs in split order; null where the test set is smaller than that."""
    truth, Phi = problem.truth, problem.Phi_test
    marginals: dict[str, float | None] = {}
    for count in MARGINAL_COUNTS:
        if count > len(Phi):
            marginals[str(count)] = None
            continue
        basis = row_space(Phi[:count])
        marginals[str(count)] = float(projected_kl(basis, mean, tril, truth.posterior.mean, truth.covariance_tril))
    return marginals


def _overconfidence(precision_tril: Float[Tensor, "k k"], tril: Float[Tensor, "k k"]) -> Overconfidence:
    """Squared singular values of CᵀL, which are the eigenvalues of S*^(-1/2) S S*^(-1/2) for S*⁻¹ = CCᵀ, S = LLᵀ."""
    eigenvalues = torch.linalg.svdvals(precision_tril.mT @ tril).square()
    return Overconfidence(
        smallest=float(eigenvalues[-1]), median=float(eigenvalues.quantile(0.5)), largest=float(eigenvalues[0])
    )


def _require_no_overflow(mean: Float[Tensor, " k"], tril: Float[Tensor, "k k"], precision_tril: Tensor) -> None:
    """Every score is a sum of squares of numbers no larger than these; LAPACK would print its own complaint of inf."""
    largest = max(float(precision_tril.abs().max()), 1.0) * max(float(mean.abs().max()), float(tril.abs().max()))
    if not largest < OVERFLOW:
        raise InputError(
            f"the posterior's numbers reach {largest:.1e} (whitened), expected below {OVERFLOW:g}; rescale it"
        )
