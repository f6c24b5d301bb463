"""Other roots of k(Z,Z) + jitter·I, as rotations of the features from its Cholesky factor.

Every root R of K = k(Z,Z) + jitter·I = LLᵀ = RRᵀ is LQ for an orthogonal Q, and its features R⁻¹k(Z, x) are Qᵀφ(x). So
the kernel φᵀφ, and hence the evidence and the exact predictive, are the same, and the posterior precision is QᵀΛQ. But
the smallest KL of a factorised q to N(μ, Λ⁻¹), the floor, depends on the basis: it is ½(Σ log Λ_ii − log det Λ), half
the logarithm of the ratio in Hadamard's inequality.

Q is computed by orthogonal decompositions of L, whose error grows like √cond(K): K is not formed and no root is
inverted.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fsvi_bench.maths.linalg import logdet_of_tril

Square = Float[Tensor, "k k"]  #: a root, a rotation, or a factor of the precision of k features


def cholesky_rotation(tril: Square, order: Int[Tensor, " k"]) -> Square:
    """Q for the Cholesky root with permuted inducing points, up to the features' signs.

    For the permuted rows PL the QR decomposition (PL)ᵀ = QR gives PKPᵀ = RᵀR, so Rᵀ is the Cholesky factor, and
    its features R⁻ᵀPk(Z, x) = R⁻ᵀ(PL)φ(x) are Qᵀφ(x).
    """
    return torch.linalg.qr(tril[order].mT).Q


def spectral_rotations(tril: Square) -> tuple[Square, Square]:
    """Q for two roots from the SVD L = USVᵀ, where U are the eigenvectors of K = US²Uᵀ.

    For the symmetric root K^½ = USUᵀ, Qᵀ = K^(−½)L = UVᵀ, the orthogonal factor of L. For the root US, whose features
    are the scaled components of k(Z, x) along the eigenvectors, Q = V.
    """
    U, _, Vt = torch.linalg.svd(tril)
    return (U @ Vt).mT, Vt.mT


def diagonalising_rotation(precision_tril: Square) -> Square:
    """Q of Λ's eigenvectors. The exact posterior is then factorised, so this root has the smallest floor."""
    return torch.linalg.svd(precision_tril).U


def random_rotation(k: int, generator: torch.Generator) -> Square:
    """Q from the Haar measure (Stewart 1980): the QR of a Gaussian matrix, with R's diagonal made positive."""
    return torch.nn.init.orthogonal_(torch.empty(k, k, dtype=torch.float64), generator=generator)


def factorised_floor(factor: Square, precision_tril: Square) -> float:
    """½(Σ log Λ'_ii − log det Λ) in nats for Λ' = FFᵀ with F = QᵀC, C = `precision_tril`, det Λ' = det Λ.

    The diagonal is a sum of squares and the determinant is C's, so only the final difference cancels.
    """
    return 0.5 * float(factor.square().sum(-1).log().sum() - logdet_of_tril(precision_tril))


def largest_floor(precision_tril: Square) -> float:
    """½(k log(tr Λ/k) − log det Λ), the largest floor of any root.

    tr Λ' = tr Λ for every rotation, and Σ log Λ'_ii is concave: it is largest if all Λ'_ii are equal, which some
    rotation achieves (Schur and Horn; `levelled`).
    """
    k = len(precision_tril)
    return 0.5 * float(k * (precision_tril.square().sum() / k).log() - logdet_of_tril(precision_tril))


def levelled(factor: Square) -> Square:
    """QᵀF with rows of equal norm, by k − 1 plane rotations (Bendel and Mickey 1978).

    Each rotation combines a row below the mean square norm m with a row above it, such that one of them gets m: with
    squared norms a and b and inner product c, t = tan θ solves (b − m)t² − 2ct + (a − m) = 0, which has real roots
    since a < m < b.
    """
    rows = factor.clone()
    mean = float(rows.square().sum() / len(rows))
    for _ in range(len(rows) - 1):
        excess = rows.square().sum(-1) - mean
        short, long = int(excess.argmin()), int(excess.argmax())
        a, b, c = float(excess[short]), float(excess[long]), float(rows[short] @ rows[long])
        # The solution that does not cancel; b = 0 means that all rows are equal already.
        largest = c + math.copysign(math.sqrt(max(c * c - a * b, 0.0)), c)
        angle = math.atan2(a, largest) if largest else 0.0
        plane = rows.new_tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        rows[[short, long]] = plane @ rows[[short, long]]
    return rows
