import math

import numpy as np
import pytest
import torch

from fsvi_bench.maths.batching import matvec, products
from fsvi_bench.maths.linalg import (
    positive_diagonal_tril,
    product_tril,
    tril_of_gram,
)
from tests.maths.draws import close, f64, ones
from tests.reference import random_tril

# --- Triangular factors -----------------------------------------------------------------------------------------------


def test_positive_diagonal_tril_keeps_the_gram_matrix():
    rng = np.random.default_rng(3)
    signs = f64([1.0, -1.0, -1.0, 1.0])
    upper = torch.from_numpy(random_tril(rng, 2, 3, 4, 4)).mT * signs[:, None]
    lower = positive_diagonal_tril(upper)
    assert torch.equal(lower, lower.tril())
    assert (lower.diagonal(dim1=-2, dim2=-1) > 0).all()
    # Turning signs rounds nothing, but the two products may be summed in another order.
    close(lower @ lower.mT, upper.mT @ upper, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("m", "n"), [(4, 4), (9, 4), (1, 1)])
def test_tril_of_gram_is_the_cholesky_factor(m, n):
    factor = np.random.default_rng(4).standard_normal((2, m, n))
    tril = tril_of_gram(torch.from_numpy(factor)).numpy()
    assert (np.diagonal(tril, axis1=-2, axis2=-1) > 0).all()
    expected = np.linalg.cholesky(factor.mT @ factor)
    np.testing.assert_allclose(tril, expected, rtol=0, atol=1e-12)  # eps · cond(FᵀF), which is below 1e3 here


def test_tril_of_gram_keeps_digits_that_the_gram_matrix_loses():
    # Läuchli's matrix: FᵀF rounds to a singular matrix of ones, though det FᵀF = 2e² + e⁴.
    e = 1e-10
    factor = f64([[1.0, 1.0], [e, 0.0], [0.0, e]])
    assert torch.equal(factor.mT @ factor, ones(2, 2))
    # QR's error is eps relative to ‖F‖, hence eps/e relative to the small pivot.
    assert tril_of_gram(factor)[1, 1].item() == pytest.approx(math.sqrt(2) * e, rel=1e-5)


def test_tril_of_gram_of_a_rank_deficient_factor_is_no_error():
    factor = f64([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]])
    tril = tril_of_gram(factor)
    assert tril[1, 1].item() == pytest.approx(0.0, abs=1e-14)
    close(tril @ tril.mT, factor.mT @ factor, rtol=1e-14, atol=0)


@pytest.mark.parametrize("small", [1e-4, 1e-12, 1e-20, 1e-150])
def test_tril_of_gram_keeps_the_digits_of_small_rows(small):
    """log det FᵀF is known from F's own factors, whatever the rows' sizes and order; 1e-12 is 1e4 times rounding."""
    rng = np.random.default_rng(12)
    V = torch.from_numpy(np.linalg.qr(rng.standard_normal((5, 5)))[0])
    scales = f64([1.0, small, 0.5, 2.0, 1.0])
    tril = tril_of_gram(scales[:, None] * V)
    assert abs(float(tril.diagonal().log().sum()) - float(scales.log().sum())) < 1e-12


@pytest.mark.parametrize("n", [1, 8, 16, 20, 100])
def test_product_tril_is_the_product_on_and_below_the_diagonal(n):
    rng = np.random.default_rng(5)
    matrix, tril = torch.from_numpy(rng.standard_normal((3, n, n))), torch.from_numpy(random_tril(rng, 3, n, n))
    # Sums of n products of numbers of order 1 round to some n times 1e-16.
    close(product_tril(matrix, tril).tril(), (matrix @ tril).tril(), rtol=0, atol=1e-13)


@pytest.mark.parametrize(("n", "k", "given"), [(5, 3, 3), (104, 100, 97), (4, 8, 8)])
@pytest.mark.parametrize("S", [1, 4, 9])
def test_products_fill_vectors_up_with_zeros(n, k, given, S):
    rng = np.random.default_rng(6)
    matrix, vectors = (torch.from_numpy(rng.standard_normal(shape)) for shape in ((2, n, k), (2, S, given)))
    expected = torch.einsum("bnk,bsk->bsn", matrix[..., :given], vectors)
    close(products(matrix, vectors), expected, rtol=0, atol=1e-13)
    close(matvec(matrix, vectors[:, 0]), expected[:, 0], rtol=0, atol=1e-13)
