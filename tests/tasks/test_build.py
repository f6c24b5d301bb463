"""From raw data to a certified task: standardisation, the fit, and a cache that never fits twice."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch

from fsvi_bench.errors import InputError, TaskRefused
from fsvi_bench.maths.features import Kernel, ard_kernel, inducing_tril
from fsvi_bench.maths.sgpr_lapack import LapackCollapsedBound
from fsvi_bench.tasks import build
from fsvi_bench.tasks.card import FitSettings, load_card
from fsvi_bench.tasks.certificate import save
from fsvi_bench.tasks.fit import fit_sgpr
from fsvi_bench.tasks.raw import RawData, load_raw
from fsvi_bench.tasks.task import FeatureMap, bind_task

TOY_SHA256 = "3755191f255f3d1d1bd7b744f2de5c1d2d20c2889ef6b7b5d401b1d321469d55"


@pytest.fixture(scope="module")
def quick_card():
    """Diabetes with few inducing points and iterations: seconds become a fraction of one."""
    return load_card("diabetes").model_copy(update={"fit": FitSettings(k=8, max_iterations=40)})


@pytest.fixture(scope="module")
def built(quick_card):
    return build.build_task(quick_card, 2)


def test_standardisation_uses_population_deviations_and_keeps_constant_columns():
    values = np.array([[1.0, 0.998, 3.0], [3.0, 0.998, 3.5], [8.0, 0.998, 10.0]])
    mean, std = build.standardisation(values)
    assert mean == pytest.approx([4.0, 0.998, 5.5])
    # Population, not sample: the squares are summed over 3, not 2.
    assert std[0] == pytest.approx(np.sqrt((9 + 1 + 16) / 3))
    assert std[1] == 1.0
    assert mean[1] == 0.998  # exactly: the column becomes 0, not 1e-16


def test_a_task_is_standardised_by_its_training_rows_alone(built, quick_card):
    raw, task = load_raw(quick_card, 2), built.task
    rows = raw.X[task.train_index.numpy()]
    assert task.input_mean.numpy() == pytest.approx(rows.mean(0), rel=1e-14)
    assert task.input_std.numpy() == pytest.approx(rows.std(0), rel=1e-14)
    problem = bind_task(task, raw=raw)
    assert problem.X.mean(0).abs().max() < 1e-13
    assert problem.y.square().mean() == pytest.approx(1.0, rel=1e-13)
    test_rows = (raw.X[task.test_index.numpy()] - rows.mean(0)) / rows.std(0)
    assert problem.X_test.numpy() == pytest.approx(test_rows, rel=1e-12)
    with pytest.raises(InputError, match="was made from data with SHA-256"):
        bind_task(task, raw=RawData(raw.X, raw.y, "00" * 32))


def test_the_certificate_tells_how_the_fit_went(built, quick_card):
    fit = built.certificate.fit
    assert fit is not None
    assert fit.iterations == 40
    assert not fit.converged
    assert "ITERATIONS" in fit.message.upper()
    assert fit.settings == quick_card.fit
    assert fit.gradient_norm > 0
    assert built.certificate.bound == pytest.approx(fit.bound, rel=1e-9)
    assert built.certificate.bound < built.certificate.log_evidence
    assert set(fit.versions) >= {"torch", "gpytorch", "scipy", "numpy", "python"}


def test_inducing_points_start_at_distinct_training_inputs():
    X = np.repeat(np.arange(6.0), 5)[:, None]
    y = np.sin(X[:, 0])
    model, _ = fit_sgpr(X, y, FitSettings(k=6, max_iterations=1), np.random.default_rng(0))
    assert np.sort(model.covar_module.inducing_points.detach().numpy()[:, 0]) == pytest.approx(np.arange(6.0), abs=0.2)


def test_the_fit_starts_where_the_paper_does(monkeypatch):
    """Lengthscales 1, outputscale 1, noise 1e-4 at the first evaluation: GPyTorch's default floor would forbid it."""
    seen = []
    original = LapackCollapsedBound.__call__
    monkeypatch.setattr(LapackCollapsedBound, "__call__", lambda *given: seen.append(given[2:]) or original(*given))
    g = np.random.default_rng(0)
    fit_sgpr(g.normal(size=(30, 2)), g.normal(size=30), FitSettings(k=4, max_iterations=1), g)
    lengthscales, *others = seen[0]
    assert lengthscales == pytest.approx([1.0, 1.0], rel=1e-12)
    assert others == pytest.approx([1.0, 1e-4], rel=1e-10)


def test_a_fit_recovers_a_planted_function():
    """Targets drawn from a GP with known noise: the fitted noise is near it, the bound near the exact evidence."""
    g = np.random.default_rng(1)
    X = np.sort(g.uniform(-3, 3, size=(200, 1)), axis=0)
    K = np.exp(-0.5 * (X - X.T) ** 2 / 0.7**2)
    y = np.linalg.cholesky(K + 1e-10 * np.eye(200)) @ g.normal(size=200) + 0.3 * g.normal(size=200)
    model, fit = fit_sgpr(X, y, FitSettings(k=25), g)
    covariance = K + 0.09 * np.eye(200)
    evidence = -0.5 * (y @ np.linalg.solve(covariance, y) + np.linalg.slogdet(2 * np.pi * covariance)[1])
    assert fit.converged
    # The optimum over hyperparameters lies above the evidence at the planted ones, but by no more than a few nats.
    assert -0.5 < fit.bound - evidence < 6
    # 200 points: the noise variance has a relative standard error of √(2/200) = 0.1.
    assert model.likelihood.noise.item() == pytest.approx(0.09, rel=0.4)


def test_the_same_fit_twice_gives_the_same_task_and_the_cache_avoids_the_second(built, quick_card):
    assert build.load_cached(quick_card, 2) is None
    save(build.build_task(quick_card, 2), path := build.cached_task_path(quick_card, 2))
    found = build.load_cached(quick_card, 2)
    assert found is not None
    assert found.task.sha256 == built.task.sha256
    assert found.certificate.bound == built.certificate.bound
    path.write_bytes(path.read_bytes()[:-9])  # damaged: to be fitted again
    assert build.load_cached(quick_card, 2) is None


def test_the_cache_is_addressed_by_what_decides_the_fit(quick_card):
    path = build.cached_task_path(quick_card, 0)
    assert path != build.cached_task_path(quick_card, 1)
    other_fit = quick_card.model_copy(update={"fit": FitSettings(k=8, max_iterations=41)})
    assert path != build.cached_task_path(other_fit, 0)
    # What only people read does not decide it.
    assert path == build.cached_task_path(quick_card.model_copy(update={"title": "another"}), 0)


def test_the_toy_task_standardises_nothing(toy):
    task = toy.frozen
    assert task.features == "rbf-grid"
    assert task.k == 20
    assert torch.equal(toy.X, torch.from_numpy(load_raw(load_card("toy"), 0).X[:40]))
    assert float(task.noise_variance) == pytest.approx(0.01)
    centres = np.linspace(-2, 2, 20)
    x = toy.X.numpy()
    assert toy.Phi.numpy() == pytest.approx(np.exp(-0.5 * ((x - centres) / 0.2) ** 2), rel=1e-12)


def test_features_that_cannot_be_computed_are_refused(built):
    Z = built.task.inducing_points.clone()
    Z[1] = Z[0]
    # With an outputscale of 1 the second pivot is 0 to the last bit; rounding could make any other's positive.
    one, nothing = torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)
    singular = replace(built.task, inducing_points=Z, outputscale=one, jitter=nothing)
    with pytest.raises(TaskRefused, match="build the task with a larger jitter"):
        bind_task(singular)


def test_the_box_is_the_standardised_training_box_at_fixed_draws(built):
    problem = bind_task(built.task)
    low, high = problem.X.numpy().min(0), problem.X.numpy().max(0)
    inputs = low + (high - low) * np.random.default_rng(0).random((1000, problem.X.shape[1]))
    expected = problem.feature_map(torch.from_numpy(inputs))
    assert torch.equal(problem.Phi_box, expected)


def test_toy_data_are_the_same_bytes_on_every_processor():
    """Committed: the tasks of the toy problem, and scores on them, hang on these bytes."""
    digest = hashlib.sha256("".join(load_raw(load_card("toy"), split).sha256 for split in range(20)).encode())
    assert digest.hexdigest() == TOY_SHA256


@pytest.mark.slow
@pytest.mark.parametrize(
    "variable", [("OPENBLAS_CORETYPE", "Nehalem"), ("NPY_DISABLE_CPU_FEATURES", "AVX512F AVX512_SKX")]
)
def test_toy_data_do_not_depend_on_the_processors_vector_units(variable):
    code = (
        "import hashlib\nfrom fsvi_bench.tasks.raw import load_raw\nfrom fsvi_bench.tasks.card import load_card\n"
        "print(hashlib.sha256(''.join(load_raw(load_card('toy'), s).sha256 for s in range(20)).encode()).hexdigest())"
    )
    environment = {**os.environ, variable[0]: variable[1], "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.strip() == TOY_SHA256, done.stderr


KERNELS = get_args(Kernel)


def feature_maps(kernel):
    g = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.rand(*shape, generator=g, dtype=torch.float64)

    for _ in range(3):
        parameters = draw(4, 2), draw(2) + 0.5, draw(1)[0] + 0.5
        yield FeatureMap(*parameters, inducing_tril(*parameters, 1e-6 * torch.ones_like(parameters[2]), kernel), kernel)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_feature_map_keeps_its_kernel_in_a_batch_and_out_of_it(kernel):
    maps = list(feature_maps(kernel))
    stacked = FeatureMap.stack(maps).to(torch.device("cpu"))
    x = torch.linspace(-1, 1, 10, dtype=torch.float64).reshape(5, 2)
    together = stacked(x.expand(3, 5, 2))
    for i, one in enumerate(maps):
        assert stacked.kernel == stacked[i].kernel == one.kernel == kernel
        assert torch.equal(stacked[i](x), one(x))
        torch.testing.assert_close(together[i], one(x), rtol=1e-12, atol=1e-12)
        tril = one.tril @ one.tril.mT - 1e-6 * torch.eye(4, dtype=torch.float64)
        parameters = one.lengthscales, one.outputscale, kernel
        torch.testing.assert_close(tril, ard_kernel(one.inducing_points, one.inducing_points, *parameters))


def test_features_of_two_kinds_do_not_share_a_batch(built, toy):
    rbf, matern = (next(feature_maps(kernel)) for kernel in ("rbf", "matern12"))
    for kinds in ([rbf, matern], [toy.feature_map, bind_task(built.task).feature_map]):
        with pytest.raises(InputError, match="cannot be trained side by side; train them one by one"):
            FeatureMap.stack(kinds)


def test_a_task_is_held_to_the_split_that_it_claims(built, toy):
    task, other_train, other_test = built.task, built.task.train_index.clone(), built.task.test_index.clone()
    assert build.departures(task) == build.departures(toy.frozen) == []
    other_train[0], other_test[0] = task.test_index[0], task.train_index[0]
    for changes, words in (
        ({"train_index": other_train, "test_index": other_test}, ["its train_index", "its test_index"]),
        ({"input_mean": task.input_mean + 1}, ["its inputs are not standardised by its training rows"]),
        ({"target_std": task.target_std * 1.001}, ["its targets are not standardised by its training rows"]),
    ):
        found = build.departures(replace(task, **changes))
        assert [line.startswith(said) for line, said in zip(found, words, strict=False)] == [True] * len(words)
