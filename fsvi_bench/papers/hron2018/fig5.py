"""Hron, Matthews and Ghahramani (2018), figure 5 and section 5: minimising the quasi-KL finds the principal subspace.

In section 5.1 P = N(0, Σ) on R^D is approximated by Q = N(0, A diag(v) Aᵀ), A (D×K) with orthonormal columns
(proposition 6), and by its convolution with noise, N(0, A diag(v) Aᵀ + τI), which has a KL (proposition 7).

Corrections to the paper. The proof of proposition 6 writes P's density on the subspace as that of N(0, AᵀΣA);
restricted, not projected, P has the covariance (AᵀΣ⁻¹A)⁻¹, for which the stated formula is correct. The proof of
proposition 7 omits the term τ/γ of discarded directions; with it, replacing a discarded eigenvalue γ by a retained one
changes the KL by ½[1 − τ/γ + log(τ/γ)] ≤ 0, most for the largest γ, so the claim holds for τ < γ_K. The other choices
of K eigenvectors are stationary points but not local optima: rotating a retained eigenvector towards a discarded one
with a larger eigenvalue lowers both objectives.

Here optima are found by descent, without using these solutions, and curvatures by automatic differentiation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pandas as pd
import torch
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from scipy import stats
from scipy.linalg import subspace_angles
from torch import Tensor

from fsvi_bench.maths.blr import blr_posterior, log_evidence
from fsvi_bench.maths.gaussian import LOG_2PI, normal_kl
from fsvi_bench.papers.experiment import ExperimentContext, Frames
from fsvi_bench.papers.hron2018.quasi_kl import direction, quasi_kl_gaussian, restrict_gaussian
from fsvi_bench.strict import Plain

MISSED = 1e-3  #: radians from the principal subspace, beyond which a start counts as failed
REACH = 5.3  #: half-length of the plotted lines
EVIDENCE, BOUND = "log evidence", "largest -QKL"


class Settings(Plain):
    """Figure 5's target and lines; proposition 6's eigenvalues, K and starts; proposition 7's noise; a regression."""

    covariance: tuple[tuple[float, float], tuple[float, float]]
    angles: list[float] = Field(min_length=1, max_length=4)  #: degrees
    points: PositiveInt  #: number of angles from 0 to 180 degrees
    eigenvalues: list[PositiveFloat]  #: descending
    dimensions: PositiveInt
    starts: PositiveInt
    seed: int
    noise_variances: list[PositiveFloat] = Field(min_length=2)  #: descending
    observations: PositiveInt
    noise_sd: PositiveFloat
    prior_scales: PositiveInt
    prior_scale_range: tuple[PositiveFloat, PositiveFloat]  #: standard deviations, ascending

    @model_validator(mode="after")
    def _falling(self) -> Settings:
        kept = self.eigenvalues[: self.dimensions]
        steps = [*np.diff(self.eigenvalues), *np.diff([*kept, *self.noise_variances])]
        if max(steps) >= 0 or len(kept) == len(self.eigenvalues):
            raise ValueError(
                "expected descending values: more eigenvalues than dimensions, and noise below the last one retained"
            )
        return self


def minimise(loss: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """The end point of L-BFGS on a differentiable loss."""
    free = start.clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [free], max_iter=5000, tolerance_grad=1e-11, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss(free)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return free.detach()


# --- Figure 5: lines through the mean of a Gaussian in the plane, by their angles in radians --------------------------


def restricted(angle: Tensor, precision_tril: Tensor) -> tuple[Tensor, Tensor]:
    """Standard deviations of P_S = N(0, sd²) on these lines, and log Z_S."""
    tril, log_mass = restrict_gaussian(direction(angle)[..., None], precision_tril)
    return 1 / tril[..., 0, 0], log_mass


def line_quasi_kl(angle: Tensor, mean: Tensor, sd: Tensor, precision_tril: Tensor) -> Tensor:
    """The quasi-KL of N(mean, sd²) along these lines."""
    along = direction(angle)
    return quasi_kl_gaussian(mean[..., None] * along, sd[..., None, None] * along[..., None], precision_tril)


def best_angle(precision_tril: Tensor, start: Tensor) -> float:
    """The angle that minimises −log Z_S, by descent."""
    return float(minimise(lambda angle: -restricted(angle, precision_tril)[1], start)) % math.pi


def drawn_lines(settings: Settings, precision_tril: Tensor, best: float) -> pd.DataFrame:
    """The best line and the others: −log Z_S, the best Gaussian P_S on each, and its remaining KL term `kl`."""
    angle = torch.tensor([best, *map(math.radians, settings.angles)], dtype=torch.float64)
    sd, log_mass = restricted(angle, precision_tril)
    quasi_kl = line_quasi_kl(angle, torch.zeros_like(sd), sd, precision_tril)
    (a, b), (_, c) = settings.covariance
    axis = 0.5 * math.atan2(2 * b, a - c) % math.pi
    return pd.DataFrame(
        {
            "line": ["best"] + ["other"] * len(settings.angles),
            "degrees": angle.rad2deg(),
            "axis": math.degrees(axis),
            "apart": (angle - axis).sin().abs().asin().rad2deg(),
            "height": -log_mass,
            "excess": log_mass[0] - log_mass,
            "mean": 0.0,
            "sd": sd,
            "quasi_kl": quasi_kl,
            "kl": quasi_kl + log_mass,
        }
    )


def segments(lines: pd.DataFrame) -> pd.DataFrame:
    """Ends of the plotted lines: of the whole line, and of two standard deviations around the mean."""
    angle = np.radians(lines["degrees"])
    ends = [("whole", -REACH), ("whole", REACH), ("fitted", -2 * lines["sd"]), ("fitted", 2 * lines["sd"])]
    return pd.concat([lines.assign(part=part, w1=t * np.cos(angle), w2=t * np.sin(angle)) for part, t in ends])


def ellipses(covariance: Sequence[Sequence[float]]) -> pd.DataFrame:
    """The upper and lower halves of the ellipses of 1, 2 and 3 standard deviations."""
    turn = np.linspace(0, np.pi, 200)
    w1, high = np.linalg.cholesky(covariance) @ [np.cos(turn), np.sin(turn)]
    unit = pd.DataFrame({"w1": w1, "low": -high[::-1], "high": high})
    return pd.concat({each: each * unit for each in (1, 2, 3)}, names=["deviations"]).reset_index("deviations")


def equation_9(precision_tril: Tensor) -> dict[str, float]:
    """Quasi-KL = KL(Q‖P_S) − log Z_S ≥ −log Z_S for Gaussians on lines at many angles: the largest difference between
    the two sides of the equation, and the smallest excess over the bound [nats]."""
    grid = np.meshgrid(np.linspace(0, math.pi, 25), np.linspace(-3, 3, 7), np.logspace(-2, 1, 13))
    angle, mean, sd = map(torch.from_numpy, grid)
    sd_p, log_mass = restricted(angle, precision_tril)
    kl = normal_kl(mean, sd.square(), torch.zeros_like(mean), sd_p.square())
    excess = line_quasi_kl(angle, mean, sd, precision_tril) + log_mass
    return {"difference": float((excess - kl).abs().max()), "least_excess": float(excess.min())}


# --- Section 5.1: principal subspaces ---------------------------------------------------------------------------------


def objective(eigenvalues: Tensor, basis: Tensor, variances: Tensor, noise_variance: float = 0.0) -> Tensor:
    """QKL of Q (proposition 6); with noise, the KL of its convolution without the term that depends on τ alone (7).

    Coordinates are along Σ's eigenvectors, so Σ is diagonal; the descents do not use this.
    """
    precision_tril = torch.diag(eigenvalues.rsqrt())
    return quasi_kl_gaussian(torch.zeros_like(eigenvalues), basis * variances.sqrt(), precision_tril, noise_variance)


def descend(eigenvalues: Tensor, start: Tensor, noise_variance: float = 0.0) -> tuple[Tensor, Tensor]:
    """A and v at the end of a descent from `start`, which is a D×K matrix whose Q factor is A, and a row log v = 0."""

    def law(rows: Tensor) -> tuple[Tensor, Tensor]:
        return torch.linalg.qr(rows[:-1]).Q, rows[-1].exp()

    first = torch.cat([start, torch.zeros_like(start[:1])])
    return law(minimise(lambda rows: objective(eigenvalues, *law(rows), noise_variance), first))


def try_start(eigenvalues: Tensor, start: Tensor) -> dict[str, float | bool]:
    """Proposition 6 by descent on the quasi-KL: distances of the result from the principal subspace and variances."""
    basis, variances = descend(eigenvalues, start)
    angle = float(subspace_angles(basis, np.eye(*start.shape)).max())
    return {
        "quasi_kl": float(objective(eigenvalues, basis, variances)),
        "angle": angle,
        "variance_error": float((variances.msort().flip(0) / eigenvalues[: len(variances)] - 1).abs().max()),
        "missed": angle > MISSED,
    }


def convolved_distances(eigenvalues: Tensor, noise_variances: Sequence[float], start: Tensor) -> pd.DataFrame:
    """Proposition 7: ‖A diag(v) Aᵀ − PCA's‖_F at each noise variance, with A and v by descent; τ√K is expected."""
    K = start.shape[1]
    principal = torch.diag(eigenvalues * (torch.arange(len(eigenvalues)) < K))
    optima = (descend(eigenvalues, start, tau) for tau in noise_variances)
    distances = [float(torch.linalg.matrix_norm((A * v) @ A.mT - principal)) for A, v in optima]
    found = pd.DataFrame({"noise variance": noise_variances, "Frobenius distance": distances})
    return found.assign(expected=math.sqrt(K) * found["noise variance"])


def curvatures(eigenvalues: Tensor, K: int, noise_variance: float) -> dict[str, float]:
    """Gradient and Hessian at the first K eigenvectors with variances γ − τ.

    A is the Q factor of I + L with a strictly lower-triangular D×K matrix L. L and log v have as many numbers as the
    manifold of (A, v) has dimensions, so the parametrisation adds no flat directions.
    """
    identity, below = torch.eye(len(eigenvalues), K, dtype=torch.float64), torch.tril_indices(len(eigenvalues), K, -1)

    def value(free: Tensor) -> Tensor:
        basis = torch.linalg.qr(identity.index_put(tuple(below), free[K:])).Q
        return objective(eigenvalues, basis, (eigenvalues[:K] - noise_variance) * free[:K].exp(), noise_variance)

    origin = eigenvalues.new_zeros(K + below.shape[1])
    slope = float(torch.func.grad(value)(origin).abs().max())
    least, *_, largest = torch.linalg.eigvalsh(torch.func.hessian(value)(origin)).tolist()
    return {"slope": slope, "least_curvature": least, "largest_curvature": largest}


def stationary_points(eigenvalues: Tensor, K: int, noise_variances: Sequence[float]) -> pd.DataFrame:
    """All choices of K eigenvectors, for each noise variance."""
    D, points = range(len(eigenvalues)), []
    for tau, choice in itertools.product(noise_variances, itertools.combinations(D, K)):
        order = sorted(D, key=lambda i: i not in choice)  # the chosen eigenvectors first
        name = f"{{{', '.join(str(i + 1) for i in choice)}}}"
        points.append({"name": name, "leading": order == [*D], "noise": tau, **curvatures(eigenvalues[order], K, tau)})
    return pd.DataFrame(points)


# --- Section 5: a hyperparameter --------------------------------------------------------------------------------------


def standard_normal(seed: int) -> Callable[..., Tensor]:
    """A function that draws from N(0, 1), given a shape."""
    return partial(torch.randn, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def regression(observations: int, noise_sd: float, seed: int) -> tuple[Tensor, Tensor]:
    """Features [N,2] and targets [N] of y = Φw + noise with w drawn from N(0, I)."""
    draw = standard_normal(seed)
    Phi, w = draw(observations, 2), draw(2)
    return Phi, Phi @ w + noise_sd * draw(observations)


def prior_scales(Phi: Tensor, targets: Tensor, noise_sd: float, scale: Tensor) -> pd.DataFrame:
    """Log evidence of each prior sd, and the maximum of −QKL over all lines: log evidence + log Z_S.

    The best line passes through the posterior's mean, along its longer axis. As the scale s → 0 the evidence tends to
    that of a model without weights, but log Z_S → −½ log 2πs² → ∞: the bound has no maximum over s > 0. The frame's
    attribute `overtakes` is log10 of the s below which it exceeds all values in the frame.
    """
    # In units of the prior's scale the prior is N(0, I). The quasi-KL depends on units; it is computed in those of w.
    scaled, y = scale[:, None, None] * Phi, targets.expand(len(scale), -1)
    variance = torch.full_like(scale, noise_sd**2)
    posterior = blr_posterior(scaled, y, variance)
    precision_tril = posterior.precision_tril / scale[:, None, None]
    longest = torch.linalg.eigh(precision_tril @ precision_tril.mT).eigenvectors[..., :1]
    evidence = log_evidence(scaled, y, variance, posterior)
    bound = evidence + restrict_gaussian(longest, precision_tril)[1]
    without_weights = stats.norm.logpdf(targets, scale=noise_sd).sum()
    found = pd.DataFrame({"scale": scale, EVIDENCE: evidence, BOUND: bound})
    found.attrs["overtakes"] = (without_weights - found[BOUND].max() - 0.5 * LOG_2PI) / math.log(10)
    return found


# --- Results ----------------------------------------------------------------------------------------------------------


def investigate(settings: Settings, context: ExperimentContext) -> Frames:
    """Frames for lines in the plane, subspaces by descent, and a hyperparameter by quasi-KL."""
    precision_tril = torch.linalg.cholesky(torch.linalg.inv(torch.tensor(settings.covariance, dtype=torch.float64)))
    angles = torch.linspace(0, math.pi, settings.points, dtype=torch.float64)
    _, log_mass = restricted(angles, precision_tril)
    lines = drawn_lines(settings, precision_tril, best_angle(precision_tril, angles[log_mass.argmax()]))
    draw, eigenvalues = standard_normal(settings.seed), torch.tensor(settings.eigenvalues, dtype=torch.float64)
    *first, last = (draw(len(eigenvalues), settings.dimensions) for _ in range(settings.starts + 1))
    starts = pd.DataFrame([try_start(eigenvalues, start) for start in first])
    # The quasi-KL, and the KL at the largest noise for which every eigenvector has a positive variance.
    allowed = [tau for tau in settings.noise_variances if tau < settings.eigenvalues[-1]]
    points = stationary_points(eigenvalues, settings.dimensions, [0.0, *allowed[:1]])
    distances = convolved_distances(eigenvalues, settings.noise_variances, last)
    ratios = 1 + distances["Frobenius distance"].pct_change()
    data = regression(settings.observations, settings.noise_sd, settings.seed)
    scale = torch.from_numpy(np.geomspace(*settings.prior_scale_range, settings.prior_scales))
    scales = prior_scales(*data, settings.noise_sd, scale)
    vanishing = torch.tensor([10.0 ** (scales.attrs["overtakes"] - 1)], dtype=torch.float64)
    at_vanishing = prior_scales(*data, settings.noise_sd, vanishing)[BOUND].item()
    by = scales.melt("scale", var_name="by")
    best = by.loc[by.groupby("by", sort=False)["value"].idxmax()]
    best.attrs = scales.attrs
    whole = {
        **equation_9(precision_tril),
        "above_evidence": (scales[BOUND] - scales[EVIDENCE]).max(skipna=False),
        "gain_of_vanishing": at_vanishing - scales[BOUND].max(),
    }
    return {
        "lines": lines,
        "segments": segments(lines),
        "ellipses": ellipses(settings.covariance),
        "heights": pd.DataFrame({"degrees": angles.rad2deg(), "height": -log_mass}),
        "starts": starts,
        "best start": starts.nsmallest(1, "quasi_kl"),
        "choices": points,
        "distances": distances,
        "successive": pd.DataFrame({"step": ratios.index.astype(str), "ratio": ratios})[1:],
        "scales": by,
        "best scales": best,
        "whole": pd.DataFrame([whole]),
    }
