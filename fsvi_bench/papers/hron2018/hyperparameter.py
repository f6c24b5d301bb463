"""Section 5 of Hron et al. (2018) on hyperparameters: a prior's scale by evidence, and by quasi-KL over lines."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from torch import Tensor

from fsvi_bench.maths.blr import blr_posterior, log_evidence
from fsvi_bench.maths.gaussian import LOG_2PI, normal_log_density
from fsvi_bench.papers.hron2018.quasi_kl import restrict_gaussian
from fsvi_bench.papers.hron2018.quasi_kl_pca import pca_optimum
from fsvi_bench.presenting.figures import BLUE, VERMILLION
from fsvi_bench.presenting.tables import Table


class Hyperparameter(NamedTuple):
    """Log evidence of a prior scale, and the most that −QKL can be over all lines: log evidence + log Z_S.

    As the scale s falls to 0 the evidence tends to that of no weights at all, but log Z_S → −½ log 2πs² → ∞: the bound
    has no maximum over all s > 0. `overtakes` is log10 of the s from which on downwards it exceeds those looked at.
    """

    scale: Tensor
    evidence: Tensor
    bound: Tensor
    overtakes: float


def regression(observations: int, noise_sd: float, seed: int) -> tuple[Tensor, Tensor]:
    """Features [N,2] and targets [N] of y = Φw + noise with w drawn from N(0, I)."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    Phi, w = draw(observations, 2), draw(2)
    return Phi, Phi @ w + noise_sd * draw(observations)


def prior_scales(Phi: Tensor, targets: Tensor, noise_sd: float, scale: Tensor) -> Hyperparameter:
    """For each prior sd in `scale`. The best line goes through the posterior's mean, along its longer axis."""
    # In units of the prior's scale the prior is N(0, I); the quasi-KL depends on units, and is taken in those of w.
    scaled, y = scale[:, None, None] * Phi, targets.expand(len(scale), -1)
    variance = torch.full_like(scale, noise_sd**2)
    posterior = blr_posterior(scaled, y, variance)
    precision_tril = posterior.precision_tril / scale[:, None, None]
    mean = scale[:, None] * posterior.mean
    longest = pca_optimum(torch.cholesky_inverse(precision_tril), 1).basis
    log_mass = restrict_gaussian(mean, longest, mean, precision_tril).log_mass
    evidence = log_evidence(scaled, y, variance, posterior)
    bound = evidence + log_mass
    nothing = torch.zeros_like(targets)
    without_weights = normal_log_density(targets, nothing, nothing + noise_sd**2).sum()
    overtakes = float(without_weights - bound.max() - 0.5 * LOG_2PI) / math.log(10)
    return Hyperparameter(scale, evidence, bound, overtakes)


def scale_values(scales: Hyperparameter) -> dict[str, float]:
    """Statistics by name."""
    at_bound, at_evidence = (scales.scale[v.argmax()].log10() for v in (scales.bound, scales.evidence))
    return {
        "section 5: most by which the prior scale's bound exceeds the log evidence [nats]": float(
            (scales.bound - scales.evidence).max()
        ),
        "section 5: distance of the bound's best prior scale from the evidence's [log10]": abs(
            float(at_bound - at_evidence)
        ),
    }


def scale_table(scales: Hyperparameter) -> Table:
    """Both maxima, and where the bound is larger still."""
    rows = [
        (name, float(scales.scale[v.argmax()]), float(v.max()))
        for name, v in (("log evidence", scales.evidence), ("largest -QKL", scales.bound))
    ]
    lower = f"-QKL is larger below a prior sd of 10^{scales.overtakes:.0f}"
    return Table(
        title=f"Section 5: best prior sd of those looked at; {lower}",
        columns=("by", "prior sd", "value [nats]"),
        rows=tuple(rows),
    )


def draw_scales(axes: Axes, scales: Hyperparameter) -> None:
    """Evidence and bound over the prior sd, with their maxima."""
    for values, colour, style, label in (
        (scales.evidence, BLUE, "-", "log evidence"),
        (scales.bound, VERMILLION, "--", "largest −QKL"),
    ):
        axes.plot(scales.scale, values, color=colour, linestyle=style, linewidth=1.5, label=label)
        best = int(values.argmax())
        axes.plot(float(scales.scale[best]), float(values[best]), "o", color=colour, markersize=5)
    axes.set_xscale("log")
