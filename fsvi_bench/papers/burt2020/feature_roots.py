"""Other roots of k(Z,Z) + jitter·I, as rotations of the features that its Cholesky factor makes.

Every root R of K = k(Z,Z) + jitter·I = LLᵀ = RRᵀ is LQ for an orthogonal Q, and its features R⁻¹k(Z, x) are Qᵀφ(x).
So the kernel φᵀφ, and with it evidence and exact predictive, are the same, and the posterior precision is QᵀΛQ. What a
factorised q can reach is not: its least KL to N(μ, Λ⁻¹), the floor, is ½(Σ log Λ_ii − log det Λ), the logarithm of how
far Hadamard's inequality is from equality, and depends on the basis.

Q comes from orthogonal decompositions of L, which see √cond(K): K itself is never formed again, nor a root inverted.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fsvi_bench.maths.linalg import logdet_of_tril


def cholesky_rotation(tril: Float[Tensor, "k k"], order: Int[Tensor, " k"]) -> Float[Tensor, "k k"]:
    """Q for the Cholesky root with the inducing points in another order, up to the features' signs.

    For the permuted rows PL the QR decomposition (PL)ᵀ = QR gives PKPᵀ = RᵀR, so Rᵀ is the Cholesky factor, and
    its features R⁻ᵀPk(Z, x) = R⁻ᵀ(PL)φ(x) are Qᵀφ(x).
    """
    return torch.linalg.qr(tril[order].mT).Q


def symmetric_rotation(tril: Float[Tensor, "k k"]) -> Float[Tensor, "k k"]:
    """Q for the symmetric root K^½ = USUᵀ, from L = USVᵀ: Qᵀ = K^(−½)L = UVᵀ, the orthogonal factor of L."""
    U, _, Vt = torch.linalg.svd(tril)
    return (U @ Vt).mT


def eigenvector_rotation(tril: Float[Tensor, "k k"]) -> Float[Tensor, "k k"]:
    """Q for the root US of K = US²Uᵀ: features are k(Z, x)'s components along K's eigenvectors, scaled; Q = V."""
    return torch.linalg.svd(tril).Vh.mT


def diagonalising_rotation(precision_tril: Float[Tensor, "k k"]) -> Float[Tensor, "k k"]:
    """Q of Λ's eigenvectors, with which the exact posterior is itself factorised: no root does better."""
    return torch.linalg.svd(precision_tril).U


def random_rotation(k: int, generator: torch.Generator) -> Float[Tensor, "k k"]:
    """Q from the Haar measure (Stewart 1980): the QR of a Gaussian matrix, R's diagonal made positive."""
    Q, R = torch.linalg.qr(torch.randn(k, k, generator=generator, dtype=torch.float64))
    return Q * R.diagonal().sign()


def factorised_floor(factor: Float[Tensor, "*B k k"], precision_tril: Float[Tensor, "*B k k"]) -> Float[Tensor, "*B"]:
    """½(Σ log Λ'_ii − log det Λ) in nats for Λ' = FFᵀ with F = QᵀC, C = `precision_tril`, det Λ' = det Λ.

    The diagonal is a sum of squares and the determinant C's own, so nothing cancels but the difference itself.
    """
    return 0.5 * (factor.square().sum(-1).log().sum(-1) - logdet_of_tril(precision_tril))


def largest_floor(precision_tril: Float[Tensor, "*B k k"]) -> Float[Tensor, "*B"]:
    """½(k log(tr Λ/k) − log det Λ), the largest floor of any root.

    tr Λ' = tr Λ for every rotation, and Σ log Λ'_ii is concave: it is largest where all Λ'_ii are equal, which some
    rotation reaches (Schur and Horn; `levelled`).
    """
    k = precision_tril.shape[-1]
    trace = precision_tril.square().sum((-2, -1))
    return 0.5 * (k * (trace / k).log() - logdet_of_tril(precision_tril))


def levelled(factor: Float[Tensor, "k k"]) -> Float[Tensor, "k k"]:
    """QᵀF whose rows all have the same length, by k − 1 plane rotations (Bendel and Mickey 1978).

    Each turns a row that is too short and one that is too long until one of them has the mean square m: with a, b
    their squares and c their product, tan θ solves (b − m)t² − 2ct + (a − m) = 0, which has real roots as a < m < b.
    """
    rows = factor.clone()
    mean = float(rows.square().sum() / len(rows))
    unfinished = list(range(len(rows)))
    while len(unfinished) > 1:
        excess = (rows.square().sum(-1) - mean).tolist()
        unfinished.sort(key=excess.__getitem__)
        short, long = unfinished.pop(0), unfinished[-1]
        a, b, c = excess[short], excess[long], float(rows[short] @ rows[long])
        # Of the two solutions the one that does not cancel; b = 0 means that all are level already.
        largest = c + math.copysign(math.sqrt(max(c * c - a * b, 0.0)), c)
        angle = math.atan2(a, largest) if largest else 0.0
        plane = rows.new_tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        rows[[short, long]] = plane @ rows[[short, long]]
    return rows
