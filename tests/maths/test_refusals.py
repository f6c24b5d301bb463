"""Numbers outside a formula's domain are refused by name, whichever function gets them."""

import math

import pytest
import torch

from fsvi_bench.errors import InputError
from fsvi_bench.maths.bernoulli_dropout import (
    bernoulli_objective,
    bernoulli_quasi_kl,
    continuous_prior_constant,
    discrete_prior_kl,
    optimal_m,
)
from fsvi_bench.maths.bernoulli_optimum import coordinate_ascent_masks, optimal_retain_per_weight, optimal_shared_retain
from fsvi_bench.maths.blr import blr_posterior
from fsvi_bench.maths.gaussian_dropout import gaussian_dropout_kl, gaussian_dropout_optimum, gaussian_dropout_scale
from fsvi_bench.maths.mixtures import (
    bernoulli_dropout_weights,
    mixture_cdf,
    mixture_log_density,
    spike_and_slab_weights,
)
from fsvi_bench.maths.spike_slab import spike_slab_optimum, spike_slab_row
from tests.maths.draws import f64
from tests.maths.test_bernoulli_dropout import draw

Phi, y, noise, m, p = draw(12)
exact = blr_posterior(Phi, y, noise)
q = bernoulli_dropout_weights(m, 0.5)

RETAIN = [
    lambda bad: bernoulli_objective(Phi, y, noise, m, f64([bad])),
    lambda bad: optimal_m(Phi, y, noise, f64([bad])),
    lambda bad: bernoulli_quasi_kl(m, f64([bad]), *exact),
    lambda bad: discrete_prior_kl(m, f64(bad), 0.1),
    lambda bad: bernoulli_dropout_weights(m, f64([0.5, bad, 0.5, 0.5])),
]
POSITIVE = [
    ("noise variance", lambda bad: optimal_m(Phi, y, f64(bad), p)),
    ("noise variance", lambda bad: optimal_shared_retain(Phi, y, f64(bad))),
    ("noise variance", lambda bad: coordinate_ascent_masks(Phi, y, f64(bad), m, p)),
    ("noise variance", lambda bad: spike_slab_optimum(Phi, y, f64(bad), 0.5)),
    ("noise variance", lambda bad: mixture_log_density(y, Phi, q, bad)),
    ("noise variance", lambda bad: mixture_cdf(y, Phi, q, bad)),
    ("prior length-scale", lambda bad: bernoulli_objective(Phi, y, noise, m, p, bad)),
    ("prior length-scale", lambda bad: optimal_retain_per_weight(Phi, y, noise, bad)),
    ("prior length-scale", lambda bad: spike_slab_row(m, noise, 0.5, bad)),
    ("cell volume", lambda bad: discrete_prior_kl(m, f64(0.5), bad)),
    ("spread", lambda bad: continuous_prior_constant(f64(bad), 1)),
    ("sigma", lambda bad: spike_slab_row(m, f64(bad), 0.5)),
    ("slab scale", lambda bad: spike_and_slab_weights(0.5, m, f64([1.0, bad, 1.0, 1.0]))),
    ("alpha", lambda bad: gaussian_dropout_scale(m, f64([bad]))),
    ("alpha", lambda bad: gaussian_dropout_kl(m, f64([bad]), *exact)),
    ("alpha", lambda bad: gaussian_dropout_optimum(Phi, y, f64([bad]))),
]


@pytest.mark.parametrize("bad", [0.0, -0.1, 1.1, math.nan])
@pytest.mark.parametrize("call", RETAIN)
def test_retain_probabilities_outside_their_range(call, bad):
    message = r"^retain probability is .*, expected a number in \(0, 1\]; give the probability to KEEP a weight"
    with pytest.raises(InputError, match=message):
        call(bad)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize(("what", "call"), POSITIVE)
def test_scales_that_are_not_positive(what, call, bad):
    with pytest.raises(InputError, match=rf"^{what}.* is .*, expected a positive finite number"):
        call(bad)


@pytest.mark.parametrize("bad", [1.1, -0.1, math.nan])
def test_spike_weights_that_are_no_probabilities(bad):
    with pytest.raises(InputError, match=r"^spike weight"):
        spike_and_slab_weights(bad, m, torch.ones_like(m))


@pytest.mark.parametrize("bad", [0.0, 1.0, -0.5, 2.0, math.nan])
@pytest.mark.parametrize(
    "call", [lambda f: spike_slab_row(m, noise, f), lambda f: spike_slab_optimum(Phi, y, noise, f)]
)
def test_prior_spikes_at_the_ends_or_beyond(call, bad):
    with pytest.raises(InputError, match=r"^prior spike probability f is .*, expected a number in \(0, 1\), both ends"):
        call(bad)
