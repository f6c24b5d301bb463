import math
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from fsvi_bench.maths.features import Kernel, ard_kernel, inducing_tril, nystrom_features, rbf_grid_features
from tests import reference
from tests.maths.draws import PROPERTY, eye, f64, normal, seeds
from tests.maths.draws import close as close_to

sizes = st.integers(1, 5)


def draw(seed, n, k, D):
    """(x, Z, lengthscales, outputscale)."""
    rng = np.random.default_rng(seed)
    return normal([seed, 1], n, D), normal([seed, 2], k, D), f64(rng.uniform(0.5, 2, D)), f64(rng.uniform(0.5, 2))


draws = st.builds(draw, seeds, sizes, sizes, sizes)


def close(actual, expected, rtol=0.0, atol=1e-14):
    close_to(actual, expected, rtol, atol)


# --- The kernel -------------------------------------------------------------------------------------------------------


def test_rbf_kernel_of_close_points_does_not_cancel():
    # At 1e4 from the origin the expansion ‖a‖² + ‖b‖² − 2aᵀb is off by 1e-8, and the kernel by 1e-5 and more.
    a, b = f64([[1e4, -1e4]]), f64([[1e4 + 0.5, -1e4 - 0.25]])  # the differences are exact
    expected = 1.5 * math.exp(-0.5 * ((0.5 / 1e-1) ** 2 + (0.25 / 2e-1) ** 2))
    close(ard_kernel(a, b, f64([1e-1, 2e-1]), f64(1.5)), [[expected]], rtol=1e-9)  # a/ℓ rounds at 1e5: 1e-11 each


KERNELS = get_args(Kernel)


def gpytorch_kernel(name, lengthscales, outputscale):
    """GPyTorch's own, with distances from differences where it lets them be told."""
    import gpytorch

    D = len(lengthscales)
    base = (
        gpytorch.kernels.RBFKernel(ard_num_dims=D)
        if name == "rbf"
        else gpytorch.kernels.MaternKernel(nu=int(name[-2]) / 2, ard_num_dims=D)
    )
    kernel = gpytorch.kernels.ScaleKernel(base).double()
    base.lengthscale, kernel.outputscale = lengthscales, outputscale
    return kernel


@pytest.mark.parametrize("name", KERNELS)
@PROPERTY
@given(draws)
def test_every_kernel_is_gpytorchs_and_the_matern_formula_with_bessel_functions(name, drawn):
    """k(r) = 2^(1−ν)/Γ(ν) (√(2ν) r)^ν K_ν(√(2ν) r) (Rasmussen and Williams 2006, eq. 4.14). GPyTorch's to what its
    expanded distances leave: √eps of a distance near 0, where the rough kernels have a kink."""
    a, b, lengthscales, outputscale = drawn
    kernel = ard_kernel(*drawn, name)
    close(kernel, gpytorch_kernel(name, lengthscales, outputscale)(a, b).to_dense().detach(), atol=1e-7)
    r = np.sqrt((((a.numpy()[:, None] - b.numpy()[None]) / lengthscales.numpy()) ** 2).sum(-1))
    if name == "rbf":
        expected = np.exp(-(r**2) / 2)
    else:
        nu = int(name[-2]) / 2
        scaled = np.sqrt(2 * nu) * r
        expected = 2 ** (1 - nu) / special.gamma(nu) * scaled**nu * special.kv(nu, scaled)
    close(kernel, outputscale.numpy() * expected, atol=1e-12)


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_of_a_set_with_itself_has_the_outputscale_on_its_diagonal(name):
    a, _, lengthscales, outputscale = draw(0, 6, 1, 3)
    kernel = ard_kernel(a, a, lengthscales, outputscale, name)
    assert torch.equal(kernel, kernel.mT)
    assert torch.equal(kernel.diagonal(), outputscale.expand(6))


@pytest.mark.parametrize("name", KERNELS)
def test_features_of_every_kernel_have_its_nystrom_kernel_as_inner_products(name):
    x, Z, lengthscales, outputscale = draw(3, 7, 4, 2)
    tril = inducing_tril(Z, lengthscales, outputscale, f64(1e-6), name)
    Phi = nystrom_features(x, Z, lengthscales, outputscale, tril, name)
    cross, K = (ard_kernel(points, Z, lengthscales, outputscale, name) for points in (x, Z))
    expected = cross @ torch.linalg.solve(K + 1e-6 * eye(4), cross.mT)
    close(Phi @ Phi.mT, expected, atol=1e-12)


# --- Inducing points --------------------------------------------------------------------------------------------------


def test_inducing_tril_is_the_factor_of_the_kernel_with_exactly_the_given_jitter():
    _, Z, lengthscales, outputscale = draw(1, 1, 5, 2)
    tril = inducing_tril(Z, lengthscales, outputscale, f64(0.25))
    expected = reference.rbf_kernel(Z.numpy(), Z.numpy(), lengthscales.numpy(), outputscale.item()) + 0.25 * np.eye(5)
    close(tril @ tril.mT, expected, atol=2e-15)
    assert torch.equal(tril, tril.tril())


@pytest.mark.parametrize("distance", [0.0, 1e-9])  # at 1e-9 the kernel, 1 − 5e-19, rounds to 1
def test_coinciding_inducing_points_without_jitter_are_an_error(distance):
    Z = f64([[0.0], [distance], [1.0]])  # the second pivot is 1 − 1·1, exactly zero
    with pytest.raises(torch.linalg.LinAlgError, match="positive-definite"):
        inducing_tril(Z, f64([1.0]), f64(1.0), f64(0.0))


# --- Features ---------------------------------------------------------------------------------------------------------


@PROPERTY
@given(draws)
def test_features_equal_the_dense_inverse_and_the_grids_formula(drawn):
    x, Z, lengthscales, outputscale = drawn
    tril = inducing_tril(Z, lengthscales, outputscale, f64(1e-2))
    arrays = x.numpy(), Z.numpy(), lengthscales.numpy(), outputscale.item()
    expected = reference.nystrom_features(*arrays, 1e-2)
    close(nystrom_features(*drawn, tril), expected, atol=1e-12)  # eps · cond(K), below 1e3 with this jitter
    close(rbf_grid_features(x, Z, lengthscales), reference.rbf_kernel(*arrays[:3], 1.0))
