"""A refit against the frozen task: distances against dense NumPy, and what counts as agreement."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fsvi_bench.tasks import build, refit
from fsvi_bench.tasks.card import FitSettings, load_card
from fsvi_bench.tasks.certificate import CertifiedTask
from fsvi_bench.tasks.raw import load_raw
from fsvi_bench.tasks.refit import compare
from fsvi_bench.tasks.task import bind_task


@pytest.fixture(scope="module")
def card():
    """Diabetes with few inducing points and iterations: seconds become a fraction of one."""
    return load_card("diabetes").model_copy(update={"fit": FitSettings(k=8, max_iterations=40)})


@pytest.fixture(scope="module")
def raw(card):
    return load_raw(card, 1)


@pytest.fixture(scope="module")
def frozen(card, raw):
    return build.build_task(card, 1, raw=raw)


def with_fit(built, task=None, **changes):
    """The same certified task with other fit figures, and perhaps another task's tensors."""
    fit = built.certificate.fit.model_copy(update=changes)
    return CertifiedTask(task or built.task, built.certificate.model_copy(update={"fit": fit}))


def predictions(task, raw):
    """Through the N×N covariance of the linear model's targets: no weights, no posterior."""
    problem = bind_task(task, raw=raw)
    Phi, Phi_test, noise = problem.Phi.numpy(), problem.Phi_test.numpy(), float(task.noise_variance)
    covariance = Phi @ Phi.T + noise * np.eye(len(Phi))
    cross = Phi_test @ Phi.T
    mean = cross @ np.linalg.solve(covariance, problem.y.numpy())
    reduced = np.einsum("nm,mn->n", cross, np.linalg.solve(covariance, cross.T))
    return mean, np.sqrt((Phi_test**2).sum(1) - reduced + noise)


def test_the_same_fit_is_identical(card, raw, frozen):
    again = compare(frozen, build.build_task(card, 1, raw=raw), raw)
    assert again.identical
    assert again.holds
    assert again.other_versions == ()
    assert [distance.apart for distance in again.distances] == [0.0, 0.0, 0.0]
    assert again.distances[0].frozen == frozen.certificate.fit.bound_per_point


def test_distances_are_what_dense_numpy_says(raw, frozen):
    """Λ has a condition number below 1e4 here: the two routes agree to 1e-10."""
    task = replace(
        frozen.task, noise_variance=1.3 * frozen.task.noise_variance, lengthscales=1.1 * frozen.task.lengthscales
    )
    bound = frozen.certificate.fit.bound_per_point
    again = compare(frozen, with_fit(frozen, task, bound_per_point=bound - 0.25), raw)
    (mean, sd), (other_mean, other_sd) = predictions(frozen.task, raw), predictions(task, raw)
    bounds, means, sds = again.distances
    assert not again.identical
    assert (bounds.frozen, bounds.refitted, bounds.apart) == (bound, bound - 0.25, pytest.approx(0.25, rel=1e-12))
    assert (means.frozen, means.refitted) == pytest.approx((mean.mean(), other_mean.mean()), rel=1e-8)
    assert means.apart == pytest.approx(np.sqrt((((other_mean - mean) / sd) ** 2).mean()), rel=1e-8)
    assert (sds.frozen, sds.refitted) == pytest.approx((sd.mean(), other_sd.mean()), rel=1e-8)
    assert sds.apart == pytest.approx(np.sqrt((np.log(other_sd / sd) ** 2).mean()), rel=1e-8)
    assert sds.apart > 0.05
    assert not again.holds


@pytest.mark.parametrize(("step", "allowed"), [(0.9, 1), (-0.9, 1), (1.1, 1), (-1.1, 1), (2, 3)])
def test_a_better_bound_departs_as_well_as_a_worse_one(raw, frozen, step, allowed, monkeypatch):
    """The question is whether the task comes out again, not whether another were better; a card may allow more."""
    usual = load_card("diabetes")
    bound = frozen.certificate.fit.bound_per_point + step * usual.refit_tolerance
    card = usual.model_copy(update={"refit_tolerance": allowed * usual.refit_tolerance})
    monkeypatch.setattr(refit, "load_card", lambda name: card)
    nearly = replace(frozen.task, noise_variance=frozen.task.noise_variance * (1 + 1e-12))
    assert compare(frozen, with_fit(frozen, nearly, bound_per_point=bound), raw).holds is (abs(step) < allowed)


def test_other_versions_are_named(raw, frozen):
    versions = {**frozen.certificate.fit.versions, "scipy": "9.9"}
    del versions["gpytorch"]
    was = frozen.certificate.fit.versions
    found = compare(frozen, with_fit(frozen, versions=versions), raw).other_versions
    assert found == (f"gpytorch None, then {was['gpytorch']}", f"scipy 9.9, then {was['scipy']}")
