"""Withheld tasks: the model is true of them, they repeat themselves, and no two are alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fsvi_bench.errors import TaskRefused
from fsvi_bench.leaderboard.rerun import withheld as module
from fsvi_bench.leaderboard.rerun.withheld import ATTEMPTS, draw_withheld, ffg_floor, first_certified
from fsvi_bench.maths.blr import predictive_variance
from fsvi_bench.tasks.certificate import certify
from fsvi_bench.tasks.task import Task
from tests.leaderboard.planted import planted_problem, planted_task

DRAWS = 400


@pytest.fixture(scope="module")
def official() -> Task:
    return planted_problem(planted_task("boston", 0))


@pytest.mark.parametrize("features", ["sgpr-rbf-ard", "rbf-grid"])
def test_the_exact_posterior_is_calibrated(official, toy, features):
    """(w − μ)ᵀΛ(w − μ) ~ χ²_k, and a test residual over its predictive variance ~ χ²_1, over draws of both w and y."""
    problem = official if features == "sgpr-rbf-ard" else toy
    assert problem.frozen.features == features
    distances, residuals = [], []
    for draw in range(DRAWS):
        _, drawn, weights = draw_withheld(problem, 7, draw)
        mean, tril = drawn.truth.posterior
        distances.append(float((tril.mT @ (weights - mean)).square().sum()))
        row = drawn.Phi_test[3:4]
        variance = predictive_variance(row, drawn.truth.covariance_tril, drawn.frozen.noise_variance)
        residuals.append(float((drawn.y_test[3] - row @ mean).square() / variance))
    for values, degrees in ((distances, problem.frozen.k), (residuals, 1)):
        standard_error = np.sqrt(2 * degrees / DRAWS)  # χ² has mean k and variance 2k
        assert abs(np.mean(values) - degrees) < 4 * standard_error


def test_what_is_kept_and_what_is_drawn(official):
    fresh = draw_withheld(official, 1, 0).problem
    old, new = official.frozen, fresh.frozen
    for name in ("lengthscales", "outputscale", "noise_variance", "jitter", "target_std", "train_index", "test_index"):
        assert torch.equal(getattr(old, name), getattr(new, name))
    assert torch.equal(fresh.X, official.X)
    assert torch.equal(fresh.X_test, official.X_test)
    rows = [tuple(row) for row in new.inducing_points.tolist()]
    assert set(rows) <= {tuple(row) for row in official.X.tolist()}
    assert len(set(rows)) == new.k
    assert new.sha256 != old.sha256
    assert not torch.equal(fresh.y, official.y)


def test_draws_repeat_themselves_and_differ_by_seed_draw_and_task(official, toy):
    other = planted_problem(planted_task("boston", 1))

    def all_of(problem, seed, draw):
        _, drawn, weights = draw_withheld(problem, seed, draw)
        return drawn.frozen.sha256, tuple(drawn.y.tolist()), tuple(weights.tolist())

    for problem in (official, toy):
        assert all_of(problem, 5, 2) == all_of(problem, 5, 2)
        several = [all_of(problem, *place) for place in ((5, 2), (5, 3), (6, 2))]
        assert all(len(set(each)) == 3 for each in zip(*several, strict=True))
    assert all_of(official, 5, 2)[2] != all_of(other, 5, 2)[2]


def test_a_grid_keeps_its_centres(toy):
    assert torch.equal(draw_withheld(toy, 1, 0).problem.frozen.inducing_points, toy.frozen.inducing_points)


def test_what_comes_out_is_certified(official):
    drawn = first_certified(official, 3, range(100))
    certify(drawn.problem).require_limits()
    assert drawn.draw == 0


def test_a_draw_that_cannot_be_certified_is_passed_over_and_named(official, monkeypatch):
    """Of the first draws, two fail the limits."""
    bad = [draw_withheld(official, 3, draw).problem.frozen.sha256 for draw in (0, 1)]

    def certify_some(problem):
        if problem.frozen.sha256 in bad:
            raise TaskRefused("not this one")
        return certify(problem)

    monkeypatch.setattr(module, "certify", certify_some)
    told = []
    drawn = first_certified(official, 3, range(100), lambda draw, reason: told.append((draw, reason)))
    assert drawn.draw == 2
    assert told == [(0, "not this one"), (1, "not this one")]


def test_a_kernel_that_no_inducing_points_suit_is_refused(official):
    """With lengthscales this long every row of k(Z,Z) is the same, and nothing is added to its diagonal."""
    task = official.frozen
    flat = replace(task, lengthscales=task.lengthscales * 1e9, jitter=torch.zeros_like(task.jitter))
    told = []
    with pytest.raises(TaskRefused, match="no withheld task like boston split 0"):
        first_certified(replace(official, frozen=flat), 3, range(100), lambda draw, reason: told.append(draw))
    assert told == list(range(ATTEMPTS))


def test_too_few_distinct_inputs_are_refused(official):
    same = replace(official, X=official.X[:4].repeat(8, 1)[:30])
    with pytest.raises(TaskRefused, match="4 distinct training inputs, of which no 5"):
        draw_withheld(same, 3, 0)


def test_the_floor_of_the_factorised_family(official):
    """At its optimum the trace term is k, so that KL = ½(Σ log Λ_ii − log det Λ)."""
    precision = official.Phi.T @ official.Phi / official.frozen.noise_variance + torch.eye(5, dtype=torch.float64)
    expected = 0.5 * (precision.diagonal().log().sum() - torch.linalg.slogdet(precision).logabsdet)
    assert ffg_floor(official) == pytest.approx(float(expected), rel=1e-10)  # rounding of a 5×5 determinant
