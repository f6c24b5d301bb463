"""The 2-Wasserstein distance: a metric, free of the factor's choice, and free of cancellation."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given

from fsvi_bench.maths.gaussian import gaussian_w2
from tests import reference
from tests.maths.draws import PROPERTY, close, dense, draw_pair, f64, log_scales, seeds, sizes
from tests.reference import random_orthogonal


@PROPERTY
@given(seed=seeds, k=sizes, log_scale=log_scales)
def test_w2_equals_the_textbook_formula(seed, k, log_scale):
    mean_q, tril_q, mean_p, tril_p = draw_pair(seed, k, log_scale)
    expected = reference.gaussian_w2(mean_q.numpy(), dense(tril_q), mean_p.numpy(), dense(tril_p))
    close(gaussian_w2(mean_q, tril_q, mean_p, tril_p), expected)


@PROPERTY
@given(seed=seeds, k=sizes, log_scale=log_scales)
def test_w2_is_zero_if_and_only_if_the_gaussians_agree(seed, k, log_scale):
    mean_q, tril_q, mean_p, tril_p = draw_pair(seed, k, log_scale)
    rounding = 1e-14 * math.exp(log_scale)  # not its square root: nothing cancels
    assert gaussian_w2(mean_q, tril_q, mean_q, tril_q) < 4 * k * rounding
    assert gaussian_w2(mean_q, tril_q, mean_q, tril_p) > 1e-3
    assert gaussian_w2(mean_q, tril_q, mean_p, tril_q) > 1e-3


@PROPERTY
@given(seed=seeds, k=sizes, log_scale=log_scales)
def test_w2_does_not_depend_on_the_factor(seed, k, log_scale):
    mean_q, tril_q, mean_p, tril_p = draw_pair(seed, k, log_scale)
    rng = np.random.default_rng(seed + 1)
    U, V = torch.from_numpy(random_orthogonal(rng, k)), torch.from_numpy(random_orthogonal(rng, k))
    close(gaussian_w2(mean_q, tril_q @ U, mean_p, tril_p @ V), gaussian_w2(mean_q, tril_q, mean_p, tril_p))


@pytest.mark.parametrize("perturbation", [1e-3, 1e-6, 1e-9])
def test_w2_of_commuting_covariances_keeps_its_digits(perturbation):
    # Same eigenvectors: W2 is the Euclidean distance of the standard deviations. The textbook formula is off by 1e-8.
    axes = torch.from_numpy(random_orthogonal(np.random.default_rng(7), 4))
    mean, scale = torch.zeros(4, dtype=torch.float64), f64([0.3, 1.0, 2.0, 0.7])
    change = perturbation * f64([1.0, -2.0, 0.5, 1.5])
    expected = change.square().sum().sqrt()
    distance = gaussian_w2(mean, axes * (scale + change), mean, axes * scale)
    close(distance, expected, rtol=0, atol=1e-14)  # a few eps of the factors; of 2.7e-9, five digits are right


@pytest.mark.parametrize("perturbation", [1e-3, 1e-6, 1e-9])
def test_w2_of_close_covariances_that_do_not_commute_keeps_its_digits(perturbation):
    mean = torch.zeros(2, dtype=torch.float64)
    factor_p = f64([[1.0, 0.0], [0.6, 0.5]])
    factor_q = factor_p + perturbation * f64([[0.7, 0.0], [-1.1, 0.4]])
    expected = reference.gaussian_w2_many_digits_2d(mean, factor_q, mean, factor_p)
    assert 0.1 * perturbation < expected < 10 * perturbation
    close(gaussian_w2(mean, factor_q, mean, factor_p), expected, rtol=0, atol=1e-14)


def test_w2_to_a_point_mass_is_the_root_mean_square_distance():
    mean_q, tril_q, mean_p, _ = draw_pair(8, 3)
    expected = ((mean_q - mean_p).square().sum() + tril_q.square().sum()).sqrt()
    point = torch.zeros(3, 3, dtype=torch.float64)
    close(gaussian_w2(mean_q, tril_q, mean_p, point), expected, rtol=1e-14, atol=0)
    close(gaussian_w2(mean_p, point, mean_q, tril_q), expected, rtol=1e-14, atol=0)


def test_w2_of_equal_covariances_is_the_distance_of_the_means():
    mean_q, tril, mean_p, _ = draw_pair(9, 3)
    close(gaussian_w2(mean_q, tril, mean_p, tril), (mean_q - mean_p).norm(), rtol=1e-14, atol=0)
