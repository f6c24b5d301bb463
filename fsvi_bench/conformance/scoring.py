"""Checks of what a method reaches: scores that are numbers, and the exact posterior where it claims that."""

from __future__ import annotations

import math

from fsvi_bench.conformance.problems import toy_batch, toy_problems
from fsvi_bench.conformance.subject import Subject
from fsvi_bench.conformance.verdict import Failed, NotApplicable
from fsvi_bench.maths.blr import mean_field_optimum_scale
from fsvi_bench.posteriors.base import Posterior, unstack
from fsvi_bench.posteriors.gaussian import FactorisedGaussian
from fsvi_bench.scoring.scores import score, trace_scores
from fsvi_bench.tasks.task import Task
from fsvi_bench.training.trainer import train

CLAIMED_ON = 4  #: toy tasks
ROUNDING = 1e-9  #: nats; a KL below −ROUNDING is no rounding


def scores_are_numbers(subject: Subject) -> None:
    """On every toy task KL ≥ −1e-9 and no score is NaN, or the method says why it diverged."""
    method = subject.make(toy_batch())
    train(method, "cpu")
    reasons = method.divergences()
    if all(reasons):
        raise Failed(f"training diverged on every toy task ({reasons[0]}); choose defaults under which it does not")
    for q, problem, reason in zip(unstack(method.posterior().cpu()), toy_problems(), reasons, strict=True):
        if reason is not None:
            continue
        for name, value in _scores(q, problem).items():
            if math.isnan(value):
                raise Failed(f"{name} of {_name(problem)} is NaN; mend posterior()")
            if "kl" in name and value < -ROUNDING:
                raise Failed(f"{name} of {_name(problem)} is {value:.3g}, and no KL is negative; mend posterior()")


def _scores(q: Posterior, problem: Task) -> dict[str, float]:
    """A singular q's by its moments alone: the density of a mixture takes seconds, and is no matter of the method's."""
    if q.singular:
        matched = trace_scores(q, problem, mixtures=False)
        return {"kl_moment_matched": matched.kl_moment_matched, "nlpd_moment_matched": matched.nlpd_moment_matched}
    scores = score(q, problem)
    names = ("kl", "reverse_kl", "kl_moment_matched", "predictive_kl_test", "predictive_kl_box", "nlpd", "rmse")
    return {name: value for name in names if (value := getattr(scores, name)) is not None}


def exact_limit(subject: Subject) -> None:
    """Under the settings that it names, it ends at the exact posterior, or at its best factorised approximation."""
    limit = subject.entry.cls.exact_limits.get(subject.family)
    if limit is None:
        raise NotApplicable(f"it claims no exact limit for {subject.family} (Method.exact_limits)")
    if not (math.isfinite(limit.tolerance) and limit.tolerance >= 0):
        raise Failed(f"the tolerance of its exact limit is {limit.tolerance}, expected nats, 0 or more")
    method = subject.with_settings(**limit.settings).make(toy_batch(CLAIMED_ON))
    train(method, "cpu")
    for q, problem in zip(unstack(method.posterior().cpu()), toy_problems()[:CLAIMED_ON], strict=True):
        optimum = 0.0 if subject.family == "full" else factorised_floor(problem)
        gap = trace_scores(q, problem).kl - optimum
        if not -ROUNDING <= gap <= limit.tolerance:
            raise Failed(
                f"on {_name(problem)} it ends {gap:.3g} nats from the optimum, and claims {limit.tolerance:g}; mend "
                "exact_limits, or what keeps it from there"
            )


def factorised_floor(problem: Task) -> float:
    """KL(q ‖ P_D) of EXACT-FFG: the smallest that a factorised q has (exact mean, variances 1/Λ_ii)."""
    exact = problem.truth.posterior
    return trace_scores(FactorisedGaussian(exact.mean, mean_field_optimum_scale(exact.precision_tril)), problem).kl


def _name(problem: Task) -> str:
    return f"{problem.frozen.dataset} split {problem.frozen.split}"
