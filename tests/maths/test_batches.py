"""Functions of a batch of problems are loops over its problems."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fsvi_bench.maths import bernoulli_dropout, bernoulli_optimum, blr, features, gaussian, projection, spike_slab
from tests.maths.draws import close, draw, f64, normal

BATCH, N, K, D = (2, 3), 20, 4, 2


@pytest.fixture(scope="module")
def problems():
    rng = np.random.default_rng(0)

    def uniform(low, high, *shape):
        return f64(rng.uniform(low, high, (*BATCH, *shape)))

    (mean, tril), (other_mean, other_tril) = draw(rng, *BATCH, K), draw(rng, *BATCH, K)
    shapes = {"Phi": (N, K), "y": (N,), "X": (5, D), "Z": (K, D)}
    return {
        **{name: normal([1, len(name), *shape], *BATCH, *shape) for name, shape in shapes.items()},
        **{"mean": mean, "tril": tril, "other_mean": other_mean, "other_tril": other_tril},
        **{"noise": uniform(0.1, 1), "p": uniform(0.05, 0.95, K), "scale": uniform(0.1, 2, K)},
        "lengthscales": uniform(0.5, 2, D),
    }


def pair(d):
    return d.mean, d.tril, d.other_mean, d.other_tril


def evidence(d):
    return blr.log_evidence(d.Phi, d.y, d.noise, blr.blr_posterior(d.Phi, d.y, d.noise))


def nlpd(d):
    variance = blr.predictive_variance(d.Phi, d.tril, d.noise)
    return blr.negative_log_predictive_density(d.y, (d.Phi @ d.mean[..., None])[..., 0], variance, 1 + d.noise)


def nystrom_features(d):
    tril = features.inducing_tril(d.Z, d.lengthscales, d.noise, 0.1 * d.noise)
    return features.nystrom_features(d.X, d.Z, d.lengthscales, d.noise, tril)


V = projection.row_space(torch.from_numpy(np.random.default_rng(7).standard_normal((3, K))))
DIRECT = {
    "KL": lambda d: gaussian.gaussian_kl(*pair(d)),
    "KL to the prior": lambda d: gaussian.gaussian_kl_standard_normal(d.mean, d.tril),
    "KL to a precision": lambda d: gaussian.gaussian_kl_to_precision(*pair(d)),
    "KL from a precision": lambda d: gaussian.gaussian_kl_from_precision(*pair(d)),
    "W2": lambda d: gaussian.gaussian_w2(*pair(d)),
    "normal KL": lambda d: gaussian.normal_kl(d.mean, d.scale, d.other_mean, d.p),
    "normal density": lambda d: gaussian.normal_log_density(d.mean, d.other_mean, d.scale),
    "projected KL": lambda d: projection.projected_kl(V, *pair(d)),
    "posterior by QR": lambda d: blr.blr_posterior(d.Phi, d.y, d.noise),
    "posterior by Cholesky": lambda d: blr.blr_posterior_cholesky(d.Phi, d.y, d.noise),
    "posterior by Woodbury": lambda d: blr.blr_posterior_woodbury(d.Phi, d.y, d.noise),
    "evidence": evidence,
    "expected log likelihood": lambda d: blr.expected_log_likelihood(d.Phi, d.y, d.noise, d.mean, d.tril, N=40),
    "NLPD": nlpd,
    "kernel": lambda d: features.ard_kernel(d.X, d.Z, d.lengthscales, d.noise),
    "Nyström features": nystrom_features,
    "grid features": lambda d: features.rbf_grid_features(d.X, d.Z, d.lengthscales),
    "dropout objective": lambda d: bernoulli_dropout.bernoulli_objective(d.Phi, d.y, d.noise, d.mean, d.p),
    "objective, shared p": lambda d: bernoulli_dropout.bernoulli_objective(d.Phi, d.y, d.noise, d.mean, d.p[..., :1]),
    "optimal m": lambda d: bernoulli_dropout.optimal_m(d.Phi, d.y, d.noise, d.p),
    "quasi-KL": lambda d: bernoulli_dropout.bernoulli_quasi_kl(d.mean, d.p, d.other_mean, d.other_tril),
    "discrete prior KL": lambda d: bernoulli_dropout.discrete_prior_kl(d.mean, d.p[..., 0], 0.1),
    "spike-and-slab row": lambda d: spike_slab.spike_slab_row(d.mean, d.noise, 0.3),
}
#: Each problem stops by itself: no more than rounding can come from its neighbours.
ITERATIVE = {
    "shared optimum": lambda d: bernoulli_optimum.optimal_shared_retain(d.Phi, d.y, d.noise),
    "optimum per weight": lambda d: bernoulli_optimum.optimal_retain_per_weight(d.Phi, d.y, d.noise),
    "CAVI": lambda d: bernoulli_optimum.coordinate_ascent_masks(d.Phi, d.y, d.noise, d.mean, d.p.logit()),
    "spike-and-slab": lambda d: spike_slab.spike_slab_optimum(d.Phi, d.y, d.noise, 0.3),
}


@pytest.mark.parametrize("name", [*DIRECT, *ITERATIVE])
def test_a_batch_is_a_loop_over_its_elements(problems, name):
    function, tolerance = (DIRECT | ITERATIVE)[name], 1e-13 if name in DIRECT else 1e-11

    def parts(d):
        result = function(d)
        return result if isinstance(result, tuple) else (result,)

    together = parts(SimpleNamespace(**problems))
    for index in np.ndindex(BATCH):
        alone = parts(SimpleNamespace(**{name: part[index] for name, part in problems.items()}))
        for batched, single in zip(together, alone, strict=True):
            close(batched[index], single, rtol=tolerance, atol=tolerance)
