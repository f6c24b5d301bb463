"""What is claimed of Kingma, Salimans and Welling's (2015) gradient variances, from networks that were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import chi2

from fsvi_bench.papers.claims import Statistic
from fsvi_bench.papers.intervals import least, magnitude, of_log_ratio, of_ratio
from fsvi_bench.papers.ksw2015.gradient_variance import NO_NOISE, GradientVariance
from fsvi_bench.papers.ksw2015.minibatch_law import MinibatchLaw
from fsvi_bench.papers.parts import Plain

LAYERS, PARAMETERS = ("bottom", "top"), ("theta", "log_alpha")
LOCAL, POINT, BATCH = "local", "per-point", "per-minibatch"
PAPER = {  # variances by (layer, epochs)
    "table 1": {
        LOCAL: {("top", 10): 7.8e3, ("top", 100): 1.2e3, ("bottom", 10): 1.9e2, ("bottom", 100): 1.1e2},
        POINT: {("top", 10): 1.4e4, ("top", 100): 2.6e3, ("bottom", 10): 4.3e2, ("bottom", 100): 2.5e2},
        BATCH: {("top", 10): 4.9e4, ("top", 100): 4.3e3, ("bottom", 10): 8.5e2, ("bottom", 100): 3.3e2},
        NO_NOISE: {("top", 10): 2.8e3, ("top", 100): 5.9e1, ("bottom", 10): 1.3e2, ("bottom", 100): 9.0e0},
    },
    "table 2": {
        LOCAL: {("top", 10): 2.9e4, ("top", 100): 5.8e3, ("bottom", 10): 8.8e2, ("bottom", 100): 5.3e2},
        BATCH: {("top", 10): 3.1e5, ("top", 100): 2.0e4, ("bottom", 10): 5.0e3, ("bottom", 100): 1.1e3},
        NO_NOISE: {("top", 10): 7.1e3, ("top", 100): 9.8e2, ("bottom", 10): 4.3e2, ("bottom", 100): 1.2e2},
    },
}
PAPER_TIME_RATIO = 1635 / 7.4


class Measured(Plain):
    entries: tuple[GradientVariance, ...]
    laws: tuple[MinibatchLaw, ...]
    test_error: float  # share, at the end

    def variance(self, epochs: int, layer: str, parameter: str, estimator: str) -> float:
        key = (epochs, layer, parameter, estimator)
        (found,) = (e for e in self.entries if (e.epochs, e.layer, e.parameter, e.estimator) == key)
        return found.variance.value

    def law(self, estimator: str, sampling: str) -> MinibatchLaw:
        (found,) = (law for law in self.laws if (law.estimator, law.sampling) == (estimator, sampling))
        return found


class Timed(Plain):
    """By estimator, one number for each repeat."""

    seconds: dict[str, tuple[float, ...]]
    ratio_to_local: dict[str, tuple[float, ...]]


Tables = Mapping[str, Sequence[Measured]]  # networks in order, which share their start across tables


class Cell(NamedTuple):
    """A place in a table."""

    epochs: int
    layer: str
    parameter: str


def cells(measured: Measured, parameter: str, after_training: bool = True) -> list[Cell]:
    epochs = sorted({entry.epochs for entry in measured.entries if entry.epochs > 0 or not after_training})
    return [Cell(each, layer, parameter) for layer in LAYERS for each in epochs]


def ratio(networks: Sequence[Measured], at: Sequence[Cell], above: str, below: str) -> Statistic:
    """Of two estimators' variances, geometric mean over cells; interval over networks."""
    return of_ratio(*(typical(networks, at, estimator) for estimator in (above, below)))


def typical(networks: Sequence[Measured], at: Sequence[Cell], estimator: str) -> list[float]:
    """For each network, the geometric mean of the variances in some cells."""
    return [float(np.exp(np.mean([np.log(n.variance(*cell, estimator)) for cell in at]))) for n in networks]


def _least(networks: Sequence[Measured], at: Sequence[Cell], above: str, below: str) -> Statistic:
    return least([ratio(networks, [cell], above, below) for cell in at])


def statistics(tables: Tables, timed: Timed) -> dict[str, Statistic]:
    """Intervals are over networks (repeats for times); "least" is over layers and epochs, or over M and estimators."""
    b, a = tables["table 1"], tables["table 2"]
    theta, alpha = (cells(b[0], parameter) for parameter in PARAMETERS)
    always = cells(b[0], "log_alpha", after_training=False)
    both = [cell for parameter in PARAMETERS for cell in cells(a[0], parameter, after_training=False)]
    return {
        "table 1, log alpha: per point over local, least": _least(b, always, POINT, LOCAL),
        "table 1, log alpha: per minibatch over per point, least": _least(b, always, BATCH, POINT),
        "table 1, theta: per point over local, least": _least(b, theta, POINT, LOCAL),
        "table 1, theta: per minibatch over per point, least": _least(b, theta, BATCH, POINT),
        "table 1, theta: per point over local, mean": ratio(b, theta, POINT, LOCAL),
        "table 1, log alpha: per point over local, mean after training": ratio(b, alpha, POINT, LOCAL),
        "table 1, theta: per minibatch over per point, first checkpoint over last, least": _early_over_late(b, theta),
        "table 1, theta: local over no noise, least": _least(b, theta, LOCAL, NO_NOISE),
        "table 2: distance of log(per point / local) from 0": magnitude(
            of_log_ratio(typical(a, both, POINT), typical(a, both, LOCAL))
        ),
        "table 2, theta: per minibatch over local, least": _least(a, theta, BATCH, LOCAL),
        "table 2, theta: local over no noise, least": _least(a, theta, LOCAL, NO_NOISE),
        "table 2 over table 1, theta, local: mean": of_ratio(typical(a, theta, LOCAL), typical(b, theta, LOCAL)),
        **_laws(b),
        "seconds per step: per point over local": Statistic.of_mean(timed.ratio_to_local[POINT]),
    }


def _early_over_late(networks: Sequence[Measured], at: Sequence[Cell]) -> Statistic:
    """How much larger per minibatch / per point is after the fewest epochs than after the most."""
    found = []
    for layer in LAYERS:
        here = [cell for cell in at if cell.layer == layer]
        early, late = (
            [n.variance(*cell, BATCH) / n.variance(*cell, POINT) for n in networks] for cell in (here[0], here[-1])
        )
        found.append(of_ratio(early, late))
    return least(found)


def _laws(networks: Sequence[Measured]) -> dict[str, Statistic]:
    local, shared = ([n.law(estimator, "with-replacement") for n in networks] for estimator in (LOCAL, BATCH))
    fits = [*local, *shared]
    probability = chi2.sf(sum(law.chi_square for law in fits), sum(len(law.sizes) - 2 for law in fits))
    takes_over = of_ratio([law.law.V + law.law.shared for law in shared], [law.law.shared for law in shared])
    return {
        "eq. 5: chi-square probability of the law V/M + (1 - 1/M) C": Statistic.exact(float(probability)),
        "eq. 5, local: size of C over V": magnitude(
            Statistic.of_mean([law.fitted_C.value / law.fitted_V.value for law in local])
        ),
        "eq. 5, per minibatch: M at which the covariance takes over": takes_over,
        "appendix F: bound (48) over the variance, least": least([row.printed for row in bounds(networks)]),
        "appendix F, corrected: bound over the variance, least": least([row.corrected for row in bounds(networks)]),
    }


class Bounds(NamedTuple):
    """Bounds over the exact variance of a minibatch of M without replacement."""

    estimator: str
    M: int
    printed: Statistic
    corrected: Statistic


def bounds(networks: Sequence[Measured]) -> list[Bounds]:
    """For all M < N/2, for which the paper states its bound."""
    rows = []
    for estimator in (LOCAL, BATCH):
        laws = [n.law(estimator, "without-replacement") for n in networks]
        for M in (M for M in laws[0].sizes if 2 * M < laws[0].law.N):
            exact = [law.law.without_replacement(M) for law in laws]
            printed, corrected = ([getattr(law.law, f)(M) for law in laws] for f in ("paper_bound", "corrected_bound"))
            rows.append(Bounds(estimator, M, of_ratio(printed, exact), of_ratio(corrected, exact)))
    return rows


def paper_ratio(table: str, cell: Cell, estimator: str) -> float | None:
    """To `local`, where the paper gives it; its tables are about θ."""
    printed, place = PAPER[table], (cell.layer, cell.epochs)
    if cell.parameter != "theta" or estimator not in printed or place not in printed[estimator]:
        return None
    return printed[estimator][place] / printed[LOCAL][place]
