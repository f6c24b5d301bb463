"""What the tests of objectives share: problems, Gaussians that are no optimum, and the objective by hand."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from fsvi_bench.maths.blr import blr_posterior, covariance_tril, expected_log_likelihood, mean_field_optimum_scale
from fsvi_bench.maths.gaussian import gaussian_kl_to_precision
from fsvi_bench.maths.projection import projected_kl
from fsvi_bench.methods.data import HELD_OUT_SETS
from fsvi_bench.methods.exact import Exact
from fsvi_bench.methods.fixed_a import FixedA
from fsvi_bench.methods.rand_a import RandA
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian
from fsvi_bench.tasks.task import FeatureMap, Task
from fsvi_bench.training.trace import TRACED_SETS
from tests.maths.draws import draw, eye, f64, linspace, normal
from tests.methods.table import terms

FAMILIES = pytest.mark.parametrize("family", ["full", "ffg"])


def nearest(family, p):
    if family == "full":
        return FullGaussian(p.mean, covariance_tril(p.precision_tril))
    return FactorisedGaussian(p.mean, mean_field_optimum_scale(p.precision_tril))


def kl(q, p):
    return float(gaussian_kl_to_precision(q.mean, q.covariance_tril(), *p).total)


def tempered(problem, c):
    return blr_posterior(problem.Phi, problem.y, c * problem.frozen.noise_variance)


def random_q(family, k, seed=0):
    rng = np.random.default_rng(seed)
    mean, tril = draw(rng, k)
    return FullGaussian(mean, tril) if family == "full" else FactorisedGaussian(mean, tril.diagonal().clone())


def problem_of(toy, y, k=8, Phi=None):
    """30 rows, σ² = 0.5, an RBF grid of k narrow bumps over [0, 1]; or any features in place of the grid's."""
    centres, inputs = linspace(0, 1, k), linspace(0, 1, len(y))
    task = replace(toy.frozen, inducing_points=centres[:, None], lengthscales=f64([0.1]), noise_variance=f64(0.5))
    problem = Task(task, FeatureMap.of(task), inputs[:, None], y, toy.X_test, toy.y_test)
    if Phi is not None:
        problem.__dict__["Phi"] = Phi  # what the cached property would compute
    return problem


class ObjectiveScores(NamedTuple):
    """As a record has them."""

    kl_at_objective_optimum: float | None
    objective_gap: float | None


class Objective:
    """What a method minimises, at Gaussians q of one task after the other.

    Args:
        make: sets up the method on a task, for q's family.
    """

    def __init__(self, make):
        self.make = make

    def value(self, q, problem, sets=HELD_OUT_SETS):
        return self.make(problem, q.family).objective(0, problem, sets, terms(q))

    def loss(self, problem):
        """As traces follow it."""
        return lambda q: self.value(q, problem, TRACED_SETS)

    def scores(self, q, problem):
        (optimum,) = self.make(problem, q.family).optima([problem])
        if optimum is None:
            return ObjectiveScores(None, None)
        gap = self.value(q, problem) - optimum.value
        return ObjectiveScores(optimum.kl, None if math.isnan(gap) else gap)


WEIGHT_SPACE = Objective(Exact)


def expected(M, kl_weight=1.0, **options):
    """RANDA's."""
    return Objective(lambda problem, family: RandA(problem, family, M=M, kl_weight=kl_weight, **options))


def fixed_a(problem, family, Phi_A, **options):
    """FIXEDA at a set that is given by its features [M,k]."""
    method = FixedA(problem, family, M=2, **options)
    method.Phi_A = Phi_A[None].clone()
    return method


def fixed(Phi_A, kl_weight=1.0, **options):
    return Objective(lambda problem, family: fixed_a(problem, family, Phi_A, kl_weight=kl_weight, **options))


def random_features(M, k, seed=1):
    return normal([seed, M], M, k)


def loss_by_hand(q, problem, basis, c):
    """−E_q[log p(y|w)] + c·KL(Q_A ‖ P_A) with all its constants, from `maths/` alone."""
    mean, factor = q.mean, q.covariance_tril()
    fit = expected_log_likelihood(problem.Phi, problem.y, problem.frozen.noise_variance, mean, factor)
    return float(-fit + c * projected_kl(basis, mean, factor, 0 * mean, eye(len(mean))))
