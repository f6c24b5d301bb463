"""`score` of our posteriors, of moments as arrays and of samples."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fsvi_bench import (
    FactorisedGaussian,
    FullGaussian,
    InputError,
    ParticlesPosterior,
    SamplesPosterior,
    fit,
    score,
)
from fsvi_bench.api.arrays import posterior_of
from fsvi_bench.maths.projection import projected_kl, row_space
from fsvi_bench.posteriors.io import write_posterior


@pytest.fixture(scope="module")
def q(diabetes):
    return fit("rand-a", diabetes, max_steps=100)


def moments(q):
    return q.mean.numpy(), q.covariance.numpy()


def flat_json(nested: dict, prefix: str = "") -> dict:
    named = {}
    for name, value in nested.items():
        if isinstance(value, dict):
            named |= flat_json(value, f"{prefix}{name}.")
        else:
            named[prefix + name] = float(value) if value in ("Infinity", "-Infinity") else value
    return named


@pytest.mark.usefixtures("short_scores")
@pytest.mark.parametrize("method", ["rand-a", "bernoulli-dropout", "spike-and-slab"])
def test_names_and_numbers_are_those_of_the_command(diabetes, tmp_path, cli, method):
    settings = {"max_steps": 5} if method == "rand-a" else {}
    q = fit(method, diabetes, **settings)
    write_posterior(tmp_path / "q.safetensors", q)
    status, out, _ = cli("score", "--task", "diabetes:0", "--posterior", tmp_path / "q.safetensors", "--json")
    assert status == 0
    said = flat_json(json.loads(out))
    assert said.pop("intervals") is None
    scores = score(q, diabetes)
    assert scores.pop("overconfidence.quantiles") == tuple(said.pop("overconfidence.quantiles"))
    assert scores == said
    assert all(value is None or type(value) in (float, bool) for value in scores.values())


def close(got: dict, expected: dict, rtol: float) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, float | tuple):
            assert got[name] == pytest.approx(value, rel=rtol, abs=rtol), name
        else:
            assert got[name] is value


@pytest.mark.parametrize(
    "form",
    [
        lambda mean, cov: (mean, cov),
        lambda mean, cov: [mean, cov],
        lambda mean, cov: (torch.tensor(mean, requires_grad=True), torch.tensor(cov)),
        lambda mean, cov: (mean.tolist(), cov.tolist()),
        lambda mean, cov: SimpleNamespace(mean=mean, covariance=cov),  # as `task.exact`
        lambda mean, cov: (mean, np.asfortranarray(cov)),
        lambda mean, cov: (mean, cov * (1 + 1e-12 * np.triu(np.ones_like(cov)))),  # asymmetric by rounding
    ],
)
def test_a_pair_of_moments_is_the_gaussian(diabetes, q, form):
    close(score(form(*moments(q)), diabetes), score(q, diabetes), 1e-8)


def test_the_tasks_own_exact_posterior_has_kl_0(diabetes):
    exact, truth = diabetes.exact, diabetes.truth
    moments = truth.posterior.mean, truth.covariance_tril @ truth.covariance_tril.mT
    for form in (exact, (exact.mean, exact.covariance), moments):
        assert abs(score(form, diabetes)["kl"]) < 1e-12


def test_very_different_scales_do_not_count_as_singular(diabetes, q):
    """Correlations decide, not variances: 24 digits between the variances of two weights are a Gaussian like any other."""
    k = q.k
    scale = torch.logspace(-8, 4, k, dtype=torch.float64)
    root = torch.linalg.qr(torch.randn(k, k, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).Q
    tril = torch.linalg.cholesky(scale[:, None] * (0.5 * torch.eye(k, dtype=torch.float64) + root @ root.mT) * scale)
    exact = FullGaussian(q.mean, tril)
    assert score((q.mean, exact.covariance), diabetes)["kl"] == pytest.approx(score(exact, diabetes)["kl"], rel=1e-10)


@pytest.mark.parametrize("rank", [60, 3, 0])
def test_a_singular_covariance_has_an_infinite_kl_and_finite_others(diabetes, q, rank):
    F = torch.randn(q.k, rank, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) / 10
    scores = score((q.mean, F @ F.mT), diabetes)
    assert scores["singular"] is True
    assert (scores["kl"], scores["reverse_kl"], scores["kl_moment_matched"]) == (math.inf,) * 3
    assert (scores["elbo"], scores["elbo_gap"]) == (-math.inf, math.inf)
    assert math.isfinite(scores["w2"])
    assert scores["w2"] == scores["w2_moments"]
    assert math.isfinite(scores["predictive_kl_test"])
    # As close by as one likes lies a Gaussian with a density.
    near = score((q.mean, F @ F.mT + 1e-10 * torch.eye(q.k, dtype=torch.float64)), diabetes)
    for name in ("w2", "nlpd", "predictive_kl_test", "predictive_kl_box", "kl_mean_term"):
        assert scores[name] == pytest.approx(near[name], rel=1e-3), name
    truth = diabetes.truth
    for count in (1, 5, 20):
        marginal = scores[f"kl_marginals.{count}"]
        if count > rank:
            assert marginal == math.inf
            continue
        V = row_space(diabetes.Phi_test[:count])
        wide = torch.cat([F, torch.zeros(q.k, q.k - rank, dtype=torch.float64)], 1)
        expected = projected_kl(V, q.mean, wide, truth.posterior.mean, truth.covariance_tril)
        assert marginal == pytest.approx(float(expected), rel=1e-8)


def test_a_weight_that_does_not_vary_is_singular(diabetes, q):
    mean, covariance = moments(q)
    covariance = covariance.copy()
    covariance[4] = covariance[:, 4] = 0
    assert score((mean, covariance), diabetes)["kl"] == math.inf


@pytest.mark.usefixtures("short_scores")
def test_samples_are_scored_as_such(diabetes, q):
    w = q.sample(10_000, seed=3)
    for form in (w, w.numpy(), np.asfortranarray(w.numpy())):
        made = posterior_of(form, q.k)
        assert torch.equal(made.samples, w)
        assert made.samples.is_contiguous()
    scores = score(w, diabetes)
    assert scores["kl"] is None
    low, high = scores["intervals.kl_moment_matched"]
    assert low < score(q, diabetes)["kl"] < high


def indefinite(covariance):
    eigenvalues, vectors = np.linalg.eigh(covariance)
    eigenvalues[0] *= -0.5
    return (vectors * eigenvalues) @ vectors.T


REFUSED = {
    "another k": (lambda m, C, q: (m[:9], C[:9, :9]), "the posterior has 9 weights, expected 100, one per feature of the task"),
    "float32 mean": (lambda m, C, q: (m.astype("f4"), C), "'mean' has type float32, expected float64 (float32 rounding alone can move a KL by 2e-6); compute it in float64"),
    "float32 torch": (lambda m, C, q: (m, torch.tensor(C).float()), "'covariance' has type float32, expected float64 (float32 "),
    "float32 posterior": (lambda m, C, q: q.map(torch.Tensor.float), "this is not a posterior over the task's 100 weights: its mean has type float32, expected float64 (float32 "),
    "complex": (lambda m, C, q: (m + 0j, C), "'mean' has type complex128, expected float64"),
    "NaN": (lambda m, C, q: (np.where(np.arange(100) == 3, np.nan, m), C), "'mean' contains NaN or infinity at [3], expected finite numbers"),
    "infinity": (lambda m, C, q: (m, np.inf * C), "'covariance' contains NaN or infinity"),
    "NaN in a posterior": (lambda m, C, q: FullGaussian(q.mean * np.nan, q.scale_tril), "the posterior contains NaN or infinity"),
    "negative scale": (lambda m, C, q: FactorisedGaussian(q.mean, -q.mean.abs() - 1), "'scale' contains -"),
    "upper triangle": (lambda m, C, q: FullGaussian(q.mean, q.covariance), "its scale_tril has entries above the diagonal"),
    "a batch": (lambda m, C, q: q.map(lambda t: t[None]), "shapes mean [1, 100], scale_tril [1, 100, 100], expected those of one problem; score q[0]"),
    "variances": (lambda m, C, q: (m, np.diag(C)), "the covariance has shape [100], expected [100, 100]; put variances on its diagonal with numpy.diag, or give two particles as an array"),
    "wide": (lambda m, C, q: (m, C[:, :40]), "the covariance has shape [100, 40], expected [100, 100]"),
    "a matrix for a mean": (lambda m, C, q: (C, C), "the mean has shape [100, 100], expected [100]"),
    "asymmetric": (lambda m, C, q: (m, C + np.tril(C, 3)), "if that is rounding, give (C + C.T) / 2"),
    "Cholesky factor": (lambda m, C, q: (m, np.linalg.cholesky(C)), "if it is a Cholesky factor L, give L @ L.T"),
    "upper Cholesky factor": (lambda m, C, q: (m, np.linalg.cholesky(C).T), "if it is a Cholesky factor U, give U.T @ U"),
    "indefinite": (lambda m, C, q: (m, indefinite(C)), "the covariance is not positive semi-definite: its correlation matrix has the eigenvalue -"),
    "negative variance": (lambda m, C, q: (m, -C), "the covariance has the variance -"),
    "one particle": (lambda m, C, q: q.sample(1), "this is not a posterior: it has 1 particle, expected 2 or more; draw more"),
    "few samples": (lambda m, C, q: SamplesPosterior(q.sample(50)), "it has 50 samples, expected at least 10000; draw more, or give them as particles"),
    "many particles": (lambda m, C, q: ParticlesPosterior(q.sample(10_000)), "it has 10000 particles, expected fewer than 10000; give them as samples"),
    "NaN in particles": (lambda m, C, q: q.sample(5) * np.nan, "'samples' contains NaN or infinity"),
    "transposed": (lambda m, C, q: q.sample(10_000).T, "the samples have shape [100, 10000], expected [n, 100]; transpose them"),
    "other samples": (lambda m, C, q: np.zeros((10_000, 7)), "the samples have shape [10000, 7], expected [n, 100]"),
    "chains": (lambda m, C, q: q.sample(10_000)[None].numpy(), "the posterior has shape [1, 10000, 100], expected"),
    "a mean alone": (lambda m, C, q: m, "the posterior has shape [100], expected a posterior of fit, a pair (mean [k], covariance [k, k]), or samples or particles [n, k]"),
    "ragged": (lambda m, C, q: [[1.0], [1.0, 2.0], []], "'samples' cannot be read as an array of numbers"),
    "object": (lambda m, C, q: torch.distributions.Normal(0.0, 1.0), "'samples' is a Normal, expected an array of float64 numbers; give"),
    "words": (lambda m, C, q: ["a", "b", "c"], "'samples' has type <U1, expected float64"),
    "a name": (lambda m, C, q: "q.safetensors", "the posterior is of type str, expected"),
    "nothing": (lambda m, C, q: None, "the posterior is of type NoneType, expected"),
    "too large": (lambda m, C, q: (1e200 * m, C), "the posterior's numbers reach"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_scored_is_refused_in_one_sentence(diabetes, q, name):
    make, message = REFUSED[name]
    with pytest.raises(InputError) as refused:
        score(make(*moments(q), q), diabetes)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.slow  # shapes and types are not checked on the way in
def test_arrays_in_a_posterior_are_refused(diabetes, q):
    with pytest.raises(InputError, match="the posterior's mean is of type ndarray, expected a tensor"):
        score(FullGaussian(*moments(q)), diabetes)


def test_what_is_no_task_is_refused(q, diabetes):
    for other in ("diabetes", None, 3, diabetes.frozen, Path("task.safetensors")):
        with pytest.raises(InputError, match=r"expected a Task; .*load"):
            score(q, other)
