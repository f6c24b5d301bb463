"""The 2-Wasserstein distance: a metric, free of the factor's choice, and free of cancellation."""

import numpy as np
import pytest
import torch
from hypothesis import given

from fsvi_bench.maths.gaussian import gaussian_w2
from tests import reference
from tests.maths.draws import PROPERTY, close, dense, draw_pair, f64, pairs, zeros
from tests.reference import random_orthogonal


@PROPERTY
@given(pairs)
def test_w2_equals_the_textbook_formula_whatever_the_factors(pair):
    mean_q, tril_q, mean_p, tril_p = pair
    distance, rng = gaussian_w2(*pair), np.random.default_rng(0)
    close(distance, reference.gaussian_w2(mean_q.numpy(), dense(tril_q), mean_p.numpy(), dense(tril_p)))
    U, V = (torch.from_numpy(random_orthogonal(rng, len(mean_q))) for _ in range(2))
    close(gaussian_w2(mean_q, tril_q @ U, mean_p, tril_p @ V), distance)
    # Zero where the Gaussians agree, and to rounding, not to its square root: nothing cancels.
    assert gaussian_w2(*pair[:2], *pair[:2]) < 4e-14 * (1 + tril_q.abs().sum())
    assert min(gaussian_w2(mean_q, tril_q, mean_q, tril_p), gaussian_w2(mean_q, tril_q, mean_p, tril_q)) > 1e-3


@pytest.mark.parametrize("perturbation", [1e-3, 1e-6, 1e-9])
def test_w2_of_commuting_covariances_keeps_its_digits(perturbation):
    # Same eigenvectors: W2 is the Euclidean distance of the standard deviations. The textbook formula is off by 1e-8.
    axes = torch.from_numpy(random_orthogonal(np.random.default_rng(7), 4))
    mean, scale = zeros(4), f64([0.3, 1.0, 2.0, 0.7])
    change = perturbation * f64([1.0, -2.0, 0.5, 1.5])
    expected = change.square().sum().sqrt()
    distance = gaussian_w2(mean, axes * (scale + change), mean, axes * scale)
    close(distance, expected, rtol=0, atol=1e-14)  # a few eps of the factors; of 2.7e-9, five digits are right


@pytest.mark.parametrize("perturbation", [1e-3, 1e-6, 1e-9])
def test_w2_of_close_covariances_that_do_not_commute_keeps_its_digits(perturbation):
    mean = zeros(2)
    factor_p = f64([[1.0, 0.0], [0.6, 0.5]])
    factor_q = factor_p + perturbation * f64([[0.7, 0.0], [-1.1, 0.4]])
    expected = reference.gaussian_w2_many_digits_2d(mean, factor_q, mean, factor_p)
    assert 0.1 * perturbation < expected < 10 * perturbation
    close(gaussian_w2(mean, factor_q, mean, factor_p), expected, rtol=0, atol=1e-14)


def test_w2_to_a_point_mass_and_to_an_equal_covariance():
    mean_q, tril, mean_p, _ = draw_pair(8, 3)
    square, point = (mean_q - mean_p).square().sum(), zeros(3, 3)
    root_mean_square = (square + tril.square().sum()).sqrt()
    close(gaussian_w2(mean_q, tril, mean_p, point), root_mean_square, rtol=1e-14, atol=0)
    close(gaussian_w2(mean_p, point, mean_q, tril), root_mean_square, rtol=1e-14, atol=0)
    close(gaussian_w2(mean_q, tril, mean_p, tril), square.sqrt(), rtol=1e-14, atol=0)
