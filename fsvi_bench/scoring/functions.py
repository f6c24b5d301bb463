"""Scores of n equally weighted functions, by their values at the test and box inputs.

They apply to particles and to functions from tools without weights. The predictive is a mixture of n Gaussians, whose
density and distribution function are finite sums.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.posteriors.functions import FunctionSamplesPosterior
from fsvi_bench.posteriors.particles import ParticlesPosterior
from fsvi_bench.scoring.distances import draws_distances, draws_w2
from fsvi_bench.scoring.joint import joint_scores
from fsvi_bench.scoring.predictive import (
    Integrals,
    Predictive,
    exact_predictive,
    functions_coverage,
    functions_kl,
    functions_log_density,
)
from fsvi_bench.tasks.task import Task

OVERFLOW = 1e70  #: fourth powers of smaller values are finite, also over the noise variance


def functions_of(q: ParticlesPosterior, problem: Task) -> FunctionSamplesPosterior:
    """The functions of particles."""
    return FunctionSamplesPosterior(q.particles @ problem.Phi_test.mT, q.particles @ problem.Phi_box.mT)


def function_scores(q: FunctionSamplesPosterior, problem: Task) -> dict[str, Any]:
    """Scores that need only function values.

    Raises:
        InputError: the values are at other inputs than the task's, or so large that scores overflow.
    """
    for name, f, Phi in (("f_test", q.f_test, problem.Phi_test), ("f_box", q.f_box, problem.Phi_box)):
        if f.shape[1] != len(Phi):
            raise InputError(
                f"{name} has values at {f.shape[1]} inputs, expected the task's {len(Phi)}; was it made for a "
                "different task?"
            )
        if not (largest := float(f.abs().max())) < OVERFLOW:
            raise InputError(f"{name} has values up to {largest:.1e}, expected below {OVERFLOW:g}; rescale them")
    values: dict[str, Any] = {
        "nlpd": functions_nlpd(q.f_test, problem),
        "coverage": functions_coverage([q.f_test.mT], problem),
        "w2_test": draws_w2(q.f_test, problem, problem.Phi_test),
        "w2_box": draws_w2(q.f_box, problem, problem.Phi_box),
    }
    noise_variance = problem.frozen.noise_variance
    for place, f, Phi in (("test", q.f_test, problem.Phi_test), ("box", q.f_box, problem.Phi_box)):
        values |= integral_scores(
            f"predictive_kl_{place}", functions_kl(f, exact_predictive(problem, Phi), noise_variance)
        )
    return values | draws_distances(q.f_test, problem) | joint_scores(q, problem)


def function_moments(q: FunctionSamplesPosterior, problem: Task) -> dict[str, float]:
    """Scores of the mean function, and of the Gaussians with the functions' moments at each test input."""
    variance = q.f_test.var(0, correction=0) + problem.frozen.noise_variance
    predictive = Predictive(q.f_test.mean(0), variance)
    return {"nlpd_moment_matched": predictive.nlpd(problem), "rmse": predictive.rmse(problem)}


def functions_nlpd(f_test: Float[Tensor, "n N_test"], problem: Task) -> float:
    """NLPD of the mixture, in the target's original unit."""
    task = problem.frozen
    log_density = functions_log_density(problem.y_test[:, None], f_test, task.noise_variance)
    return float(task.target_std.log() - log_density.mean())


def integral_scores(name: str, integrals: Integrals) -> dict[str, float | None]:
    """The means over inputs of the KL and of its errors."""
    error = integrals.imprecision
    return {name: float(integrals.kl.mean()), f"{name}_imprecision": None if error is None else float(error.mean())}
