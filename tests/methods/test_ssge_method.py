"""SSGE as a method: its gradient is RANDA's on average, noise stands in both marginals, every setting runs."""

import pytest
import torch
from scipy.stats import chi2

from fsvi_bench.maths.functional_kl import functional_kl
from fsvi_bench.maths.score_estimators import kef_score
from fsvi_bench.methods.data import MeasurementDesign, expected_nll
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.base import unstack
from tests.maths.draws import close, normal
from tests.methods.table import (
    f64,
    first_batch,
    gradients,
    method_on,
    odd_problems,
    place,
    random_q,
    rank,
    take,
    toys,
    trained_method,
)

NOISE = {"kl_jitter": 0.05, "injected_noise": 0.2}


@pytest.mark.parametrize(
    ("family", "M", "prior_score", "noise"),
    [("full", 5, "exact", NOISE), ("full", 12, "ssge", NOISE), ("full", 12, "exact", {}), ("ffg", 5, "ssge", {})],
)
def test_ssge_with_the_exact_score_is_randa_on_average(family, M, prior_score, noise, monkeypatch):
    """Mean of 1,000 gradients against the analytic one, over all entries at once (k = 7; M = 5 and 12, so that either
    A sees too little or the function values are degenerate). Chi-square in the directions that vary at all; in the
    others the estimate has no noise and must agree to rounding. Injected noise is jitter: 0.05 + 0.2² of it on both
    marginals, at the M points and not at the zero rows up to the alignment."""
    data, k = take(odd_problems(), [0]), 7
    mean, tril = random_q(family, k)
    settings = {"S": 8, "M": M, "prior_score": prior_score, "minibatch": "full", "off_diagonal_lr": 1, **noise}
    method = method_on("ssge", data, family, settings, [1])
    q, batch = method.q, first_batch(method)
    place(q, mean, tril)
    assert method.options.design == MeasurementDesign(M, kl_jitter=pytest.approx(0.09 if noise else 0.0, rel=1e-15))
    assert batch.Phi_A.shape == (1, M + -M % 4, 8)
    Phi_A = batch.Phi_A[0, :, :k]
    assert not Phi_A[M:].any()
    assert rank(Phi_A) == min(M, k)
    jitter = 0.09 * torch.diag((torch.arange(len(Phi_A)) < M).to(f64)) if noise else 0.0
    precision = torch.linalg.pinv(Phi_A @ tril @ tril.mT @ Phi_A.mT + jitter, rtol=1e-10, hermitian=True)
    prior_precision = torch.linalg.pinv(Phi_A @ Phi_A.mT + jitter, rtol=1e-10, hermitian=True)

    def exact_score(samples):
        assert not samples[..., M:].any()
        return -(samples - Phi_A @ mean) @ precision

    monkeypatch.setattr(method, "_score", exact_score)
    monkeypatch.setattr(method, "_spectral", lambda samples, queries: -queries @ prior_precision)
    draws = []
    for method.steps_done in range(1000):
        draws.append(torch.cat(gradients(q, method.loss(q(), batch))))
    estimates = torch.stack(draws)

    def randa(kl_weight):
        return torch.cat(gradients(q, expected_nll(q(), batch.rows) + kl_weight * functional_kl(q(), batch.A)))

    truth = randa(1.0)
    error = estimates.mean(0) - truth
    values, vectors = torch.linalg.eigh(estimates.T.cov() / len(estimates))
    varies = values > 1e-12 * values[-1]
    assert int(varies.sum()) >= k
    turned = vectors.mT @ error
    assert torch.allclose(turned[~varies], torch.zeros_like(turned[~varies]), atol=1e-9 * float(truth.abs().max()))
    statistic = float((turned[varies].square() / values[varies]).sum())
    assert chi2.sf(statistic, int(varies.sum())) > 1e-3
    # And it could have failed: half the KL's gradient, say, is far outside.
    wrong = (vectors.mT @ (estimates.mean(0) - randa(0.5)))[varies]
    assert chi2.sf(float((wrong.square() / values[varies]).sum()), int(varies.sum())) < 1e-12


@pytest.mark.parametrize("family", ["full", "ffg"])
@pytest.mark.parametrize(
    "settings",
    [{"S": 2}, {"eigen_share": 0.5}, {"eigen_share": 1.0}, {"M": 1}, {"kl_weight": 0}, {"draw_A": "box"}],
    ids=str,
)
def test_settings_at_their_ends_run_and_stay_finite(settings, family):
    data = TrainingData.of(toys()[:2])
    method = trained_method("ssge", data, family, {"M": 10, "minibatch": 20, "S": 20, "max_steps": 30, **settings})
    for q in unstack(method.posterior()):
        assert q.mean.isfinite().all()
        assert q.covariance_tril().isfinite().all()
        assert (q.covariance_tril().diagonal() > 0).all()
        assert not torch.equal(q.mean, torch.zeros_like(q.mean))


@pytest.mark.parametrize("family", ["full", "ffg"])
def test_a_fitted_gaussian_has_the_entropys_gradient_without_noise(family):
    """Where A determines all weights (M = 12, k = 7: the function values have no density but on a subspace), the
    covariance of the samples cancels. The gradient of the surrogate is that of mean_s ½‖w_s‖² − log det L, whatever
    the draws."""
    data, k, S = take(odd_problems(), [0]), 7, 13
    mean, tril = random_q(family, k)
    settings = {"M": 12, "S": S, "minibatch": "full", "score_estimator": "gaussian-oracle"}
    method = method_on("ssge", data, family, settings, [1])
    batch = first_batch(method)
    place(method.q, mean, tril)
    w = method.q().draws(torch.nn.functional.pad(normal(0, 1, S, k), (0, 1)))
    surrogate = (method.stein_gradient(w.detach(), batch) * w).sum() / S
    root = method.q().root
    logdet = (root if root.ndim == 2 else root.diagonal(dim1=-2, dim2=-1)).log()[:, :k].sum()
    expected = w.square().sum() / (2 * S) - logdet
    parameters = list(method.q.parameters())
    found, truth = (torch.autograd.grad(each, parameters, retain_graph=True) for each in (surrogate, expected))
    for one, other in zip(found, truth, strict=True):
        close(one, other, rtol=1e-8, atol=1e-8)


def test_estimators_see_no_columns_that_fill_up():
    """M = 13 is stored as 16."""
    settings = {"M": 13, "minibatch": "full", "S": 9, "score_estimator": "kef", "bandwidth": 2.0}
    method = method_on("ssge", take(odd_problems(), [0, 1]), "full", settings, [1, 2])
    samples = torch.nn.functional.pad(normal(1, 2, 9, 13), (0, 3))
    score = method._score(samples)
    close(score[..., :13], kef_score(samples[..., :13], 1e-4, 2.0))
    assert not score[..., 13:].any()


@pytest.mark.parametrize("family", ["full", "ffg"])
def test_fbnn_is_ssge_with_the_settings_of_its_code(family):
    """Sun et al. (2019): 100 function samples, 25 inputs, 0.99 of the eigenvalues, noise 0.01. Not their minibatch of 20."""
    data = take(odd_problems(), [0, 1])
    published = {"M": 25, "S": 100, "eigen_share": 0.99, "injected_noise": 0.01}
    searched = {"lr_schedule": "cosine", "averaging": 0.0}  # the others that matter here are the same for both
    fbnn = trained_method("fbnn", data, family, {"max_steps": 20})
    ssge = trained_method("ssge", data, family, {**published, **searched, "max_steps": 20})
    assert fbnn.options.model_dump() == ssge.options.model_dump()
    for one, other in zip(unstack(fbnn.posterior()), unstack(ssge.posterior()), strict=True):
        assert torch.equal(one.mean, other.mean)
        assert torch.equal(one.covariance_tril(), other.covariance_tril())
