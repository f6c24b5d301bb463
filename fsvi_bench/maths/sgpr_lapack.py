"""Titsias's collapsed bound of sparse GP regression and its gradient, for one problem on a CPU, by BLAS and LAPACK.

Notation: K = k(Z,Z) + jitter·I = LLᵀ, U = k(Z,X), s = outputscale, A = L⁻¹U/σ, B = I + AAᵀ,
m = (K + UUᵀ/σ²)⁻¹Uy/σ² (the optimal mean's weights). Titsias (2009), eq. 9:

    F = log N(y; 0, UᵀK⁻¹U + σ²I) − (N·s − tr UᵀK⁻¹U)/(2σ²)
      = −½[N log 2πσ² + log|B| + (yᵀy − mᵀUy)/σ² + N·s/σ² − tr AAᵀ].

Differentiating the second line, with P⁻¹ = (K + UUᵀ/σ²)⁻¹ = L⁻ᵀB⁻¹L⁻¹ and C = K⁻¹ − P⁻¹ − mmᵀ:

    ∂F/∂U  = (C U + m yᵀ)/σ²
    ∂F/∂K  = ½(C − L⁻ᵀAAᵀL⁻¹)
    ∂F/∂σ² = −½[N/σ² − tr(B⁻¹AAᵀ)/σ² − (yᵀy − 2mᵀUy + mᵀUUᵀm)/σ⁴ − N·s/σ⁴ + tr(AAᵀ)/σ²]
    ∂F/∂s  = −N/(2σ²) + (the kernel's own scaling, ⟨∂F/∂U, U⟩/s + ⟨∂F/∂K, K − jitter·I⟩/s)

The first costs one k×k×N product, whereas autograd through the factorisations needs several.

Two techniques reduce passes over k×N memory. The exponent of k(z,x) is bilinear in [z/ℓ², −½‖z/ℓ‖² + log s, −½/ℓ²] and
[x, 1, x²], so one product with the constant matrix E = [Xᵀ; 1; (X²)ᵀ] computes it, and one product with Eᵀ computes
every moment of W = ∂F/∂U ∘ U that the gradients in Z, ℓ and s need. And y is stored as an extra row below U, so the
same product includes the rank-one term of ∂F/∂U = (C U + m yᵀ)/σ². Every N-sized array is allocated once, and BLAS is
called on Fortran-ordered buffers. `benchmarks/sgpr_fit.py` measures the speed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

Array = NDArray[np.float64]


class NotPositiveDefiniteError(ArithmeticError):
    """k(Z,Z) + jitter·I could not be factorised at these parameters."""


class BoundAndGradient(NamedTuple):
    """The total bound and its gradient in the constrained parameters."""

    bound: float
    inducing_points: Array
    lengthscales: Array
    outputscale: float
    noise_variance: float


class LapackCollapsedBound:
    """Evaluates the bound for fixed data (X [N,D], y [N]) and k inducing points; not thread-safe, since it has buffers.

    X must be standardised, or at least centred: the exponent is a difference of squares, which cancels far from 0.
    Data are processed in blocks of columns of U that fit a core's second-level cache.
    """

    def __init__(self, X: Array, y: Array, k: int, jitter: float, *, block: int = 512) -> None:
        self.N, self.D = X.shape
        self.k, self.jitter = k, jitter
        self._y, self._yy = np.array(y, order="C"), float(y @ y)
        self._blocks = [slice(a, min(a + block, self.N)) for a in range(0, self.N, block)]
        width = min(block, self.N)
        self._E = np.asfortranarray(np.concatenate([X.T, np.ones((1, self.N)), X.T**2]))
        self._Uy = np.empty((k + 1, self.N), order="F")  # U with yᵀ below it
        self._A = np.empty((k, width), order="F")
        self._W = np.empty((k, width), order="F")
        self._identity = np.eye(k)

    def __call__(self, Z: Array, lengthscales: Array, outputscale: float, noise_variance: float) -> BoundAndGradient:
        """Bound and gradient at Z [k,D], lengthscales [D].

        Raises:
            NotPositiveDefiniteError: k(Z,Z) + jitter·I could not be factorised, or the bound is not finite.
        """
        N, s, variance = self.N, outputscale, noise_variance
        K = self._inducing_kernel(Z, lengthscales, s)
        L_inverse = _inverse_cholesky(K + self.jitter * self._identity)
        AAt, Uy = self._data_pass(L_inverse, Z, lengthscales, s, variance)
        LB_inverse = _inverse_cholesky(self._identity + AAt)
        B_inverse = np.asarray(blas.dgemm(1.0, LB_inverse, LB_inverse, trans_a=1))
        # Computed with the factor. With B⁻¹ itself the bound's error would be cond(B) times the rounding of ‖A y‖²,
        # which is several nats if the noise is tiny and the residuals are as small.
        half = LB_inverse @ (L_inverse @ Uy)
        m = L_inverse.T @ (LB_inverse.T @ half) / variance
        mUy, trace_AAt = float(half @ half) / variance, float(np.trace(AAt))
        logdet_B = -2.0 * float(np.log(np.diag(LB_inverse)).sum())
        bound = -0.5 * (
            N * math.log(2 * math.pi * variance) + logdet_B + (self._yy - mUy + N * s) / variance - trace_AAt
        )
        if not math.isfinite(bound):  # LAPACK factorises NaN without an error
            raise NotPositiveDefiniteError(f"the bound is {bound} at these parameters")

        # K⁻¹ − P⁻¹ = L⁻ᵀ(I − B⁻¹)L⁻¹ avoids the cancellation of subtracting the two inverses.
        C, whitened_gram = _congruences(L_inverse, self._identity - B_inverse, AAt)
        C -= np.outer(m, m)
        W_K = 0.5 * (C - whitened_gram) * K
        moments = self._moments_of_W(C, m, variance)
        grad_Z, grad_lengthscales, total = self._pull_back(moments, W_K, Z, lengthscales)
        # mᵀUUᵀm = mᵀUy − σ²mᵀ(K + jitter·I)m, since (K + jitter·I + UUᵀ/σ²)m = Uy/σ².
        mKm = float(m @ (K @ m)) + self.jitter * float(m @ m)
        fit = (self._yy - mUy - variance * mKm + N * s) / variance
        grad_variance = -0.5 * (N - float(np.vdot(B_inverse, AAt)) - fit + trace_AAt) / variance
        grad_outputscale = total / s - N / (2 * variance)
        return BoundAndGradient(bound, grad_Z, grad_lengthscales, grad_outputscale, grad_variance)

    def _data_pass(
        self, L_inverse: Array, Z: Array, lengthscales: Array, s: float, variance: float
    ) -> tuple[Array, Array]:
        """Computes U = k(Z,X), the exponential of one product, in place, and returns AAᵀ and Uy."""
        inverse_square, D = lengthscales**-2, self.D
        left = np.zeros((self.k + 1, 2 * D + 1), order="F")
        left[:-1, :D] = Z * inverse_square
        left[:-1, D] = math.log(s) - 0.5 * (Z**2 @ inverse_square)
        left[:-1, D + 1 :] = -0.5 * inverse_square
        AAt, Uy = np.zeros((self.k, self.k), order="F"), np.zeros(self.k)
        for block in self._blocks:
            both = self._Uy[:, block]
            blas.dgemm(1.0, left, self._E[:, block], c=both, overwrite_c=1)
            np.exp(both, out=both)
            both[-1] = self._y[block]
            A = self._A[:, : both.shape[1]]
            np.copyto(A, both[:-1])
            Uy += A @ self._y[block]
            blas.dtrmm(1.0 / math.sqrt(variance), L_inverse, A, lower=1, overwrite_b=1)
            blas.dsyrk(1.0, A, beta=1.0, c=AAt, lower=1, overwrite_c=1)
        AAt += AAt.T  # the upper triangle was zero; the diagonal is now doubled
        AAt[np.diag_indices(self.k)] *= 0.5
        return AAt, Uy

    def _inducing_kernel(self, Z: Array, lengthscales: Array, s: float) -> Array:
        """k(Z,Z) without jitter; its diagonal is exactly s."""
        scaled = Z / lengthscales
        half_square = 0.5 * np.einsum("id,id->i", scaled, scaled)
        K = np.exp(scaled @ scaled.T - half_square[:, None] - half_square)
        np.fill_diagonal(K, 1.0)
        K *= s
        return K

    def _moments_of_W(self, C: Array, m: Array, variance: float) -> Array:
        """W Eᵀ [k, 2D+1] for W = ∂F/∂U ∘ U: first moments, row sums and second moments of W over the data."""
        C_m = np.asfortranarray(np.column_stack([C, m]))
        moments = np.zeros((self.k, 2 * self.D + 1), order="F")
        for block in self._blocks:
            both = self._Uy[:, block]
            W = self._W[:, : both.shape[1]]
            blas.dgemm(1.0 / variance, C_m, both, c=W, overwrite_c=1)
            np.multiply(W, both[:-1], out=W)
            blas.dgemm(1.0, W, self._E[:, block], trans_b=1, beta=1.0, c=moments, overwrite_c=1)
        return moments

    def _pull_back(self, moments: Array, W_K: Array, Z: Array, lengthscales: Array) -> tuple[Array, Array, float]:
        """Gradients in Z and ℓ, and the sum of all entries of W and W_K."""
        D = self.D
        first, row, second = moments[:, :D], moments[:, D : D + 1], moments[:, D + 1 :]
        W_KZ, row_K = W_K @ Z, W_K.sum(1, keepdims=True)
        grad_Z = (first - row * Z + 2 * (W_KZ - row_K * Z)) / lengthscales**2
        spread = second.sum(0) - 2 * (Z * (first + W_KZ)).sum(0) + ((row + 2 * row_K) * Z**2).sum(0)
        return grad_Z, spread / lengthscales**3, float(row.sum() + row_K.sum())


def _inverse_cholesky(matrix: Array) -> Array:
    """L⁻¹ (lower, Fortran order) for LLᵀ = `matrix`."""
    tril, info = lapack.dpotrf(matrix, lower=1, clean=1)
    if info != 0:
        raise NotPositiveDefiniteError(f"matrix is not positive definite (pivot {info} of {len(matrix)})")
    inverse, _ = lapack.dtrtri(tril, lower=1, overwrite_c=1)
    return np.asarray(inverse)


def _congruences(lower: Array, first: Array, second: Array) -> tuple[Array, Array]:
    """TᵀS₁T and TᵀS₂T for a lower-triangular T (Fortran order), by three triangular products instead of four."""
    k = len(lower)
    stacked = np.empty((2 * k, k), order="F")
    stacked[:k], stacked[k:] = first, second
    blas.dtrmm(1.0, lower, stacked, side=1, lower=1, overwrite_b=1)
    halves = (np.asfortranarray(stacked[:k]), np.asfortranarray(stacked[k:]))
    both = [np.asarray(blas.dtrmm(1.0, lower, half, lower=1, trans_a=1, overwrite_b=1)) for half in halves]
    return both[0], both[1]
