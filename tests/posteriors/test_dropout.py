"""Posteriors that are not Gaussian: draws against closed-form moments, mass functions, one interface, defects."""

import itertools
import math
from dataclasses import fields

import numpy as np
import pytest
import torch
from scipy.stats import chi2, kstest, norm

from fsvi_bench.errors import InputError
from fsvi_bench.posteriors.base import Posterior, defect, divergence, unstack
from fsvi_bench.posteriors.dropout import BernoulliDropoutPosterior, SpikeSlabPosterior
from fsvi_bench.posteriors.gaussian import FactorGaussian, FactorisedGaussian, FullGaussian, rank
from fsvi_bench.posteriors.particles import ParticlesPosterior
from fsvi_bench.posteriors.samples import MINIMUM_SAMPLES, SamplesPosterior
from tests.maths.draws import close, f64

k = 6


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed))


def make(name, *batch):
    """One of each class; the numbers depend on the batch shape only."""
    mean, scale = draw(*batch, k), draw(*batch, k, seed=1).exp()
    weight = draw(*batch, k, seed=2).sigmoid()
    if name == "full":
        return FullGaussian(mean, draw(*batch, k, k, seed=3).tril(-1) + torch.diag_embed(scale))
    if name == "samples":
        # Correlated and skewed.
        noise = torch.rand(*batch, 20_000, k, dtype=torch.float64, generator=generator(4)).square()
        return SamplesPosterior(mean[..., None, :] + noise.cumsum(-1))
    if name == "particles":
        return ParticlesPosterior(mean[..., None, :] + draw(*batch, 9, k, seed=5).abs().cumsum(-1))
    return {
        "ffg": lambda: FactorisedGaussian(mean, scale),
        "factor": lambda: FactorGaussian(mean, draw(*batch, k, k, seed=3) * scale[..., None]),
        "shared": lambda: BernoulliDropoutPosterior(mean, weight[..., 0]),
        "per-weight": lambda: BernoulliDropoutPosterior(mean, weight),
        "spike-slab": lambda: SpikeSlabPosterior(weight, mean, scale),
    }[name]()


NAMES = ["full", "ffg", "factor", "shared", "per-weight", "spike-slab", "particles", "samples"]
everything = pytest.mark.parametrize("name", NAMES)


# --- Draws and moments ------------------------------------------------------------------------------------------------


@everything
def test_draws_have_the_closed_form_moments(name):
    """χ² over all first and second moments jointly: the mean of t(w) = (w, vech ww̃ᵀ) against its expectation, in units
    of the covariance of t that the draws themselves give."""
    q, n = make(name), 200_000
    w = q.sample(n, 7)
    assert w.shape == (n, k)
    centred = (w - q.mean).numpy()
    rows, columns = np.tril_indices(k)
    statistics = np.hstack([centred, centred[:, rows] * centred[:, columns]])
    expected = np.concatenate([np.zeros(k), q.covariance.numpy()[rows, columns]])
    if name == "samples":  # draws with replacement have the divisor S, as have particles
        expected[k:] *= (q.S - 1) / q.S
    error = statistics.mean(0) - expected
    chi_square = n * error @ np.linalg.solve(np.cov(statistics.T), error)
    low, high = chi2.ppf([1e-3, 1 - 1e-3], len(error))
    assert low < chi_square < high


@everything
def test_draws_depend_on_the_generator_only(name):
    q = make(name)
    torch.manual_seed(1)
    first = q.sample(10, 5)
    torch.manual_seed(2)
    assert torch.equal(first, q.sample(10, 5))
    assert not torch.equal(first, q.sample(10, 6))


@everything
def test_a_batch_holds_its_problems(name):
    batch = make(name, 3)
    assert batch.sample(4).shape == (3, 4, k)
    assert isinstance(batch, Posterior)
    for i, q in enumerate(unstack(batch)):
        assert type(q) is type(batch)
        assert (q.kind, q.k) == (batch.kind, k)
        close(q.mean, batch.mean[i], rtol=1e-14)
        close(q.covariance_tril(), batch.covariance_tril()[i], rtol=1e-12, atol=1e-13)
        for key, tensor in q.cpu().tensors().items():
            assert torch.equal(tensor, batch.tensors()[key][i])
            assert tensor.data_ptr() % 64 == 0  # not a view, whose alignment depends on the place in the batch
        assert defect(q, k) is None
        assert divergence(q) is None


def test_covariance_factor_of_samples_is_that_of_numpy():
    q = SamplesPosterior(draw(50, k))
    tril = q.covariance_tril()
    assert (tril.diagonal() > 0).all()
    assert torch.equal(tril, tril.tril())
    close(q.covariance, np.cov(q.samples.numpy().T), rtol=1e-12, atol=1e-14)
    few = SamplesPosterior(draw(4, k))
    close(few.covariance, np.cov(few.samples.numpy().T), rtol=1e-12, atol=1e-13)


def test_slabs_are_normal_and_spikes_exact():
    q = make("spike-slab")
    w = q.sample(20_000, 1).numpy()
    for i in range(k):
        nonzero = w[:, i][w[:, i] != 0]
        assert kstest(nonzero, norm(float(q.slab_mean[i]), float(q.slab_scale[i])).cdf).pvalue > 1e-3
        weight = float(q.spike_weight[i])
        spikes = len(w) - len(nonzero)
        assert abs(spikes - len(w) * weight) < 4 * math.sqrt(len(w) * weight * (1 - weight))


# --- What is special to each ------------------------------------------------------------------------------------------


def test_masses_of_all_atoms_add_up_and_give_the_entropy():
    q = make("per-weight")
    atoms = torch.tensor(list(itertools.product([0.0, 1.0], repeat=k)), dtype=torch.float64) * q.m
    log_mass = q.log_mass(atoms)
    close(log_mass.exp().sum(), 1.0, rtol=1e-13)
    close(q.entropy(), -(log_mass.exp() * log_mass).sum(), rtol=1e-13)
    off = atoms.clone()
    off[:, 0] += 1e-9
    assert (q.log_mass(off) == -math.inf).all()
    frequent = log_mass.argmax()
    share = (q.sample(50_000) == atoms[frequent]).all(-1).double().mean()
    mass = float(log_mass[frequent].exp())
    assert abs(float(share) - mass) < 4 * math.sqrt(mass * (1 - mass) / 50_000)


def test_atoms_that_coincide_are_one():
    q = BernoulliDropoutPosterior(f64([0.0, 2.0]), f64(0.25))
    close(q.log_mass(f64([[0.0, 0.0], [0.0, 2.0]])), [math.log(0.75), math.log(0.25)], rtol=1e-15)
    close(q.entropy(), -0.75 * math.log(0.75) - 0.25 * math.log(0.25), rtol=1e-15)
    certain = BernoulliDropoutPosterior(f64([3.0]), f64(1.0))
    assert certain.log_mass(f64([[3.0], [0.0]])).tolist() == [0, -math.inf]
    assert float(certain.entropy()) == 0
    assert torch.equal(certain.sample(100), torch.full((100, 1), 3.0, dtype=torch.float64))


def test_which_are_singular():
    assert [make(name).singular for name in NAMES] == [False, False, False, True, True, True, True, None]
    without = SpikeSlabPosterior(f64([0.0]), f64([1.0]), f64([1.0]))
    assert without.singular is False
    assert (without.sample(1000) != 0).all()


@pytest.mark.parametrize(
    ("posterior", "reason"),
    [
        (
            BernoulliDropoutPosterior(f64([1.0]), f64(0.0)),
            "'retain_probability' contains 0, expected numbers in (0, 1], the probability to KEEP",
        ),
        (BernoulliDropoutPosterior(f64([1.0]), f64([1.5])), "'retain_probability' contains 1.5, expected"),
        (BernoulliDropoutPosterior(f64([math.nan]), f64(0.5)), "the posterior contains NaN or infinity"),
        (SpikeSlabPosterior(f64([-0.1]), f64([1.0]), f64([1.0])), "'spike_weight' contains -0.1, expected"),
        (SpikeSlabPosterior(f64([1.1]), f64([1.0]), f64([1.0])), "'spike_weight' contains 1.1, expected"),
        (SpikeSlabPosterior(f64([0.5]), f64([1.0]), f64([0.0])), "'scale' contains 0, expected positive numbers"),
        (SamplesPosterior(f64([[math.inf]]).expand(MINIMUM_SAMPLES, 1)), "the posterior contains NaN or infinity"),
        (ParticlesPosterior(f64([[1.0], [math.inf]])), "the posterior contains NaN or infinity"),
    ],
)
def test_diverged_posteriors_say_why(posterior, reason):
    assert defect(posterior, 1) is None
    found = divergence(posterior)
    assert found is not None
    assert found.startswith(reason)


@everything
def test_defects_name_the_tensor(name):
    q = make(name)
    first = next(iter(q.tensors()))
    message = defect(q, k + 1)
    assert message is not None
    assert message.startswith(f"its {first} has shape [")
    values = {field: getattr(q, field) for field in (each.name for each in fields(q))}
    single = type(q)(**{field: tensor.float() for field, tensor in values.items()})
    assert defect(single, k) == f"its {first} has type float32, expected float64"


@pytest.mark.parametrize(("n", "seed"), [(0, 0), (-1, 0), (3, -1), (3, 2**64)])
def test_draws_of_no_such_number_or_seed_are_refused(n, seed):
    with pytest.raises(InputError, match=r"^(n|seed) is '[-\d]+', expected a whole number of [01] or more$"):
        make("full").sample(n, seed)


def test_a_posterior_of_nan_has_diverged_and_is_not_malformed():
    q = FullGaussian(draw(k), torch.full((k, k), torch.nan, dtype=torch.float64))
    assert defect(q, k) is None
    assert divergence(q) == "the posterior contains NaN or infinity"


# --- Gaussians by a factor --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("r", range(k + 1))
def test_a_factor_of_fewer_columns_than_weights_is_singular_and_keeps_its_covariance(r):
    factor = draw(k, r)
    q = FactorGaussian(draw(k, seed=1), factor)
    assert rank(factor) == r
    assert q.singular == (r < k)
    close(q.covariance, factor @ factor.mT, rtol=1e-13, atol=1e-14)
    assert (q.covariance_tril().diagonal() == 0).sum() >= k - r
    off = torch.linalg.lstsq(factor, (q.sample(5) - q.mean).mT).residuals if r in range(1, k) else torch.zeros(1)
    assert (off < 1e-24).all()  # draws lie in the columns' span
    assert defect(q, k) is None


def test_rank_knows_neither_units_nor_sizes_of_columns():
    """Columns of an orthogonal matrix are independent however small; a product of rank 2 is not, whatever its units."""
    Q = torch.linalg.qr(draw(k, k)).Q
    small = f64([1, 1e-20, 1e-60, 1e-100, 1e-200, 1e-300])
    low = draw(k, 2) @ draw(2, k, seed=1)
    for factor, expected in ((Q * small, k), (small[:, None] * Q, k), (low, 2), (1e9 ** draw(k, 1, seed=2) * low, 2)):
        assert rank(factor) == expected
        assert rank(1e200 * factor[:, :1]) == 1
    Q[:, 2] = 0
    assert rank(Q) == k - 1
    assert rank(torch.full((k, k), torch.nan, dtype=torch.float64)) == 0
    assert FactorGaussian(draw(k), low).singular


def test_a_factor_of_more_columns_than_weights_is_malformed():
    q = FactorGaussian(draw(k), draw(k, k + 1))
    assert defect(q, k) == "its factor has 7 columns, expected no more than its 6 rows"
