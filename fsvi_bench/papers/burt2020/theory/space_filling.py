"""Hilbert's curve: a continuous model with one parameter whose values at two inputs have a density.

Proposition 4 of Burt et al. (2020) asks for a g that is locally Lipschitz, and its proof looks at k + 1 inputs. Without
the condition these are not enough: with θ uniform on [0, 1] and (f(x₁), f(x₂)) = h(θ) for Hilbert's h, which is
continuous (Hölder with exponent ½) and carries length to area, the law at the two points is uniform on the unit square,
and its KL to a Gaussian is finite though M = 2 > k = 1. A Lipschitz curve such as θ ↦ (θ, θ) stays on a null set. The
two are told apart by rounding to cells of width 2^−n: the KL of rounded laws converges for the first, and grows by
(M − k) log 2 with each n for the second. All that enters here is that h visits every cell once.

Of processes the proposition is not true without the condition either. Let u₁ = h₁, u₂ = h₁∘h₂, u₃ = h₁∘h₂∘h₂, …: all
continuous, and by induction independent and uniform on [0, 1], since h carries length to area. Let P have f(x) = Z_n
for x in the n-th of [0, 1), [−1, 0), [1, 2), …, with Z_n standard normal and independent, which is not degenerate.
Choose a_n with Prob(|Z_n| ≤ a_n) = exp(−2^−n), and let g(θ)(x) be the u_n(θ)-quantile of Z_n given |Z_n| ≤ a_n. Every
g(·)(x) is continuous, and Q = g_*(uniform) is P given that all |Z_n| ≤ a_n: KL(Q, P) = Σ 2^−n = 1 nat. (KL(P, Q) is
infinite, but finite too for a mixture of such Q with weights 2^−m, P's probability of the m-th event rising fast to 1,
each from an interval of a θ on the line, joined by continuous paths without mass.)
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def hilbert_cells(order: int) -> Int[Tensor, "steps 2"]:
    """Cells of the 2^n × 2^n grid in the order in which the curve visits them, one for each 4^−n of θ.

    h(θ) for θ in the q-th quarter is h of the rest of θ, halved and put into a quadrant: transposed for q = 0, as it
    is for 1 and 2, transposed and turned for 3. The cells of order n + 1 lie within those of order n, so the orders
    converge uniformly to a continuous curve.
    """
    x = y = torch.zeros(1, dtype=torch.int64)
    for size in (2**level for level in range(order)):
        last = size - 1
        x, y = (
            torch.cat([y, x, x + size, 2 * size - 1 - y]),
            torch.cat([x, y + size, y + size, last - x]),
        )
    return torch.stack([x, y], dim=-1)


def rounded_kl(cells: Int[Tensor, "steps 2"], order: int) -> Float[Tensor, ""]:
    """KL of a law on cells of the unit square, each visit of equal weight, to N(0, I₂) rounded to the same cells."""
    number = 2**order
    edges = torch.arange(number + 1, dtype=torch.float64) / number
    log_mass = torch.special.ndtr(edges).diff().log()
    q = torch.bincount(cells[:, 0] * number + cells[:, 1], minlength=number**2).double() / len(cells)
    log_p = (log_mass[:, None] + log_mass).ravel()
    return (torch.xlogy(q, q) - q * log_p).sum()
