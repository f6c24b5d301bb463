"""What Burt et al. (2020) do not show: the KL of EXACT-FFG depends on the root of k(Z,Z) that makes the features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.maths.blr import (
    blr_posterior,
    covariance_tril,
    log_evidence,
    mean_field_optimum_kl,
    predictive_variance,
)
from fsvi_bench.maths.features import ard_kernel as rbf_kernel
from fsvi_bench.maths.gaussian import normal_kl
from fsvi_bench.papers.burt2020.feature_roots import (
    cholesky_rotation,
    diagonalising_rotation,
    eigenvector_rotation,
    factorised_floor,
    largest_floor,
    levelled,
    random_rotation,
    symmetric_rotation,
)
from fsvi_bench.papers.claims import Statistic, Worst
from fsvi_bench.papers.experiment import Experiment, Findings, Laboratory
from fsvi_bench.papers.hron2018.panels import dress
from fsvi_bench.papers.intervals import (
    greatest_named,
    largest,
    largest_named,
    least_named,
    magnitude,
    of_split_ratio,
)
from fsvi_bench.presenting.figures import BLUE, GREEN, PAGE_WIDTH, PURPLE, SMALL, VERMILLION
from fsvi_bench.presenting.tables import Cell, Table
from fsvi_bench.seeds import derive_seed
from fsvi_bench.tasks.official import official_splits, read_official
from fsvi_bench.tasks.task import Task, bind_task

OWN, ORDERS, SYMMETRIC, EIGENVECTORS, RANDOM = "own", "orders", "symmetric", "eigenvectors", "random"


class Settings(BaseModel):
    """The first `splits` of each data set that has official tasks; so many orders of Z, and as many rotations."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    datasets: tuple[str, ...] = Field(min_length=1)
    splits: int = Field(ge=2)
    permutations: int = Field(ge=2)
    seed: int


class Direct(NamedTuple):
    """Largest differences of features made from each root by itself from the task's own features."""

    evidence: float  #: nats
    evidence_share: float  #: of the evidence's absolute value
    kernel: float  #: between test inputs, share of the largest value
    predictive: float  #: of means and deviations (noise included), in the own predictive's deviations
    floor: float  #: relative, against the floor by rotation


class Split(NamedTuple):
    """One task: floors and predictive KLs by kind of root [nats], one value or one for each order or rotation."""

    dataset: str
    split: int
    floors: dict[str, list[float]]
    predictive: dict[str, list[float]]  #: mean over test inputs of KL(exact predictive ‖ EXACT-FFG's)
    largest: float  #: the largest floor of any root
    levelled: float  #: the floor of a rotation that reaches it
    diagonal: float  #: the floor in Λ's eigenvectors
    direct: Direct

    @property
    def rank(self) -> float:
        """Share of the orders whose floor is below the task's own."""
        return float(torch.tensor([f < self.floors[OWN][0] for f in self.floors[ORDERS]], dtype=torch.float64).mean())

    def quantile(self, share: float, kind: str = ORDERS) -> float:
        return _quantile(self.floors[kind], share)


def investigate(settings: Settings, laboratory: Laboratory) -> Findings:
    """All splits of the data sets that have official tasks; the others are named."""
    found: dict[str, list[Split]] = {}
    left_out = []
    for dataset in settings.datasets:
        splits = official_splits(dataset)[: settings.splits]
        if len(splits) < 2:
            laboratory.note(f"{dataset} has less than two official tasks: left out")
            left_out.append(dataset)
            continue
        problems = (bind_task(read_official(dataset, split).task, laboratory.data_dir) for split in splits)
        found[dataset] = [examine(problem, settings) for problem in problems]
    if not found:
        raise InputError(
            f"none of {', '.join(settings.datasets)} has two official tasks or more; name data sets that have"
        )
    every = [split for splits in found.values() for split in splits]
    return Findings(
        figure=_draw(found),
        tables=_tables(found, left_out),
        statistics={**_identities(every), **_dependence(found)},
        numbers={
            "splits": [{**split._asdict(), "direct": split.direct._asdict()} for split in every],
            "left out, fewer than two official tasks": left_out,
        },
    )


def examine(problem: Task, settings: Settings) -> Split:
    """All roots of one task.

    Raises:
        ValueError: the task's features have no root, as an RBF grid's.
    """
    tril, task, C = problem.feature_map.tril, problem.frozen, problem.truth.posterior.precision_tril
    if tril is None:
        raise ValueError(f"{task.dataset} has features without a root")
    generator = torch.Generator().manual_seed(derive_seed(settings.seed, task.sha256, "orders") % 2**63)
    orders = [torch.randperm(task.k, generator=generator) for _ in range(settings.permutations)]
    rotations: dict[str, Iterator[Tensor]] = {
        OWN: iter([torch.eye(task.k, dtype=torch.float64)]),
        ORDERS: (cholesky_rotation(tril, order) for order in orders),
        SYMMETRIC: iter([symmetric_rotation(tril)]),
        EIGENVECTORS: iter([eigenvector_rotation(tril)]),
        RANDOM: (random_rotation(task.k, generator) for _ in orders),
    }
    floors, predictive = {}, {}
    for kind, choices in rotations.items():
        pairs = [_floor_and_predictive(problem, Q) for Q in choices]
        floors[kind], predictive[kind] = [floor for floor, _ in pairs], [kl for _, kl in pairs]
    by_rotation = {OWN: floors[OWN][0], ORDERS: floors[ORDERS][0]}
    by_rotation |= {kind: floors[kind][0] for kind in (SYMMETRIC, EIGENVECTORS)}
    return Split(
        dataset=task.dataset,
        split=task.split,
        floors=floors,
        predictive=predictive,
        largest=float(largest_floor(C)),
        levelled=float(factorised_floor(levelled(C), C)),
        diagonal=float(factorised_floor(diagonalising_rotation(C).mT @ C, C)),
        direct=compare_directly(problem, orders[0], by_rotation),
    )


def _floor_and_predictive(problem: Task, Q: Float[Tensor, "k k"]) -> tuple[float, float]:
    """EXACT-FFG's KL with the features Qᵀφ, and the mean KL of the exact predictive to its own at the test inputs.

    Their means agree. The variances are Σ φ'_i²/Λ'_ii + σ² for the one, and do not depend on Q for the other.
    """
    truth, noise = problem.truth, problem.frozen.noise_variance
    C = truth.posterior.precision_tril
    factor = Q.mT @ C
    exact = predictive_variance(problem.Phi_test, truth.covariance_tril, noise)
    factorised = (problem.Phi_test @ Q).square() @ factor.square().sum(-1).reciprocal() + noise
    zero = torch.zeros_like(exact)
    return float(factorised_floor(factor, C)), float(normal_kl(zero, exact, zero, factorised).mean())


def compare_directly(problem: Task, order: Tensor, by_rotation: dict[str, float]) -> Direct:
    """Roots factorised from k(Z,Z) + jitter·I, features by solving with them, posteriors from those features."""
    feature_map = problem.feature_map
    kernel, Z = (feature_map.lengthscales, feature_map.outputscale), feature_map.inducing_points
    K = rbf_kernel(Z, Z, *kernel) + problem.frozen.jitter * torch.eye(len(Z), dtype=torch.float64)
    cross, cross_test = (rbf_kernel(Z, X, *kernel) for X in (problem.X, problem.X_test))
    own, differences = Exact.of(problem, problem.Phi, problem.Phi_test), []
    for kind, root in direct_roots(K, order).items():
        other = Exact.of(problem, torch.linalg.solve(root, cross).mT, torch.linalg.solve(root, cross_test).mT)
        floor = abs(other.floor / by_rotation[kind] - 1)
        differences.append(Direct(*own.differences(other), floor))
    return Direct(*(largest(values) for values in zip(*differences, strict=True)))


def direct_roots(K: Float[Tensor, "k k"], order: Tensor) -> dict[str, Float[Tensor, "k k"]]:
    """Roots R of K = RRᵀ (with the rows in another order, R = Pᵀ chol(PKPᵀ)), from K alone."""
    eigenvalues, U = torch.linalg.eigh(K)
    permuted = torch.empty_like(K)
    permuted[order] = torch.linalg.cholesky(K[order][:, order])
    scaled = U * eigenvalues.sqrt()
    return {OWN: torch.linalg.cholesky(K), ORDERS: permuted, SYMMETRIC: scaled @ U.mT, EIGENVECTORS: scaled}


class Exact(NamedTuple):
    """What one root's features imply."""

    evidence: float
    kernel: Float[Tensor, "N_test N_test"]
    mean: Float[Tensor, " N_test"]
    deviation: Float[Tensor, " N_test"]
    floor: float

    @staticmethod
    def of(problem: Task, Phi: Float[Tensor, "N k"], Phi_test: Float[Tensor, "N_test k"]) -> Exact:
        noise = problem.frozen.noise_variance
        posterior = blr_posterior(Phi, problem.y, noise)
        variance = predictive_variance(Phi_test, covariance_tril(posterior.precision_tril), noise)
        return Exact(
            evidence=float(log_evidence(Phi, problem.y, noise, posterior)),
            kernel=Phi_test @ Phi_test.mT,
            mean=Phi_test @ posterior.mean,
            deviation=variance.sqrt(),
            floor=float(mean_field_optimum_kl(posterior.precision_tril)),
        )

    def differences(self, other: Exact) -> tuple[float, float, float, float]:
        """In evidence (both ways), kernel and predictive, as `Direct` has them."""
        moments = torch.stack([self.mean - other.mean, self.deviation - other.deviation]) / self.deviation
        kernel = _largest(self.kernel - other.kernel) / _largest(self.kernel)
        evidence = abs(self.evidence - other.evidence)
        return evidence, evidence / abs(self.evidence), kernel, _largest(moments)


def _identities(every: Sequence[Split]) -> dict[str, Statistic]:
    """What no root moves, to rounding, and the two ends between which it moves the floor; each with its worst split."""

    def worst(value: Callable[[Split], float]) -> Worst:
        return largest_named((f"{split.dataset} split {split.split}", value(split)) for split in every)

    return {
        "log evidence: largest difference between roots, share of its absolute value": worst(
            lambda s: s.direct.evidence_share
        ),
        "kernel at test inputs: largest difference between roots, share of its largest value": worst(
            lambda s: s.direct.kernel
        ),
        "exact predictive: largest difference between roots, in its standard deviations": worst(
            lambda s: s.direct.predictive
        ),
        "floor: largest relative difference between rotating and features from the root itself": worst(
            lambda s: s.direct.floor
        ),
        "diagonalising root: largest floor [nats]": worst(lambda s: abs(s.diagonal)),
        "levelling root: largest relative difference from k/2 log(tr Lambda/k) - 1/2 log det Lambda": worst(
            lambda s: abs(s.levelled / s.largest - 1)
        ),
    }


def _worst(splits: Sequence[Split]) -> Direct:
    return Direct(*(largest(values) for values in zip(*(split.direct for split in splits), strict=True)))


def _dependence(found: dict[str, list[Split]]) -> dict[str, Statistic]:
    """How the floor moves: ratios within splits, the worst of all data sets, which is named."""

    def ratios(upper: Callable[[Split], float], lower: Callable[[Split], float]) -> list[tuple[str, Statistic]]:
        return [
            (dataset, of_split_ratio([upper(s) for s in splits], [lower(s) for s in splits]))
            for dataset, splits in found.items()
        ]

    def middle(split: Split) -> float:
        return split.quantile(0.5)

    # A mean for each data set: its splits share rows, data sets share none.
    ranks = [fmean(split.rank - 0.5 for split in splits) for splits in found.values()]
    predictive = ratios(lambda s: s.predictive[EIGENVECTORS][0], lambda s: _quantile(s.predictive[ORDERS], 0.5))
    symmetric = ratios(lambda s: s.floors[SYMMETRIC][0], middle)
    eigenvectors = ratios(lambda s: s.floors[EIGENVECTORS][0], middle)
    random = ratios(lambda s: s.quantile(0.5, RANDOM), middle)
    spread = ratios(lambda s: s.quantile(0.95), lambda s: s.quantile(0.05))
    of_official = "of the data sets with official tasks"
    return {
        f"order of Z: 95% over 5% quantile of the floors, least {of_official}": least_named(spread),
        "order of Z: distance from 1/2 of the mean rank of the task's own order": magnitude(Statistic.of_mean(ranks)),
        f"symmetric root's floor over the median order's, least {of_official}": least_named(symmetric),
        f"eigenvector root's floor over the median order's, greatest {of_official}": greatest_named(eigenvectors),
        f"random rotations' median floor over the median order's, least {of_official}": least_named(random),
        f"eigenvector root's predictive KL over the median order's, greatest {of_official}": greatest_named(predictive),
    }


def _largest(values: Tensor) -> float:
    return float(values.abs().max())


def _quantile(values: Sequence[float], share: float) -> float:
    return float(torch.tensor(values, dtype=torch.float64).quantile(share))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


class Row(NamedTuple):
    """Means over a data set's splits [nats]."""

    own: float
    low: float  #: 5% quantile over orders
    median: float
    high: float  #: 95% quantile
    symmetric: float
    eigenvectors: float
    random: float  #: median over rotations

    @staticmethod
    def of(of_splits: Sequence[dict[str, list[float]]]) -> Row:
        def mean(kind: str, share: float = 0.5) -> float:
            return _mean([_quantile(values[kind], share) for values in of_splits])

        orders = (mean(ORDERS, share) for share in (0.05, 0.5, 0.95))
        return Row(mean(OWN), *orders, *(mean(kind) for kind in (SYMMETRIC, EIGENVECTORS, RANDOM)))


def _tables(found: dict[str, list[Split]], left_out: Sequence[str]) -> list[Table]:
    others = f"; left out, fewer than two official tasks: {', '.join(left_out)}" if left_out else ""
    names = ("task's order", "orders, 5%", "orders, median", "orders, 95%", "symmetric", "eigenvectors", "random")
    floors = [
        (dataset, len(splits), *Row.of([s.floors for s in splits]), _mean([s.largest for s in splits]))
        for dataset, splits in found.items()
    ]
    predictive = [(dataset, *Row.of([s.predictive for s in splits])) for dataset, splits in found.items()]
    direct: list[tuple[Cell, ...]] = [(dataset, *_worst(splits)) for dataset, splits in found.items()]
    return [
        Table(
            title=f"KL of EXACT-FFG by root, mean over splits [nats]; 0 is the least of any root{others}",
            columns=("data set", "splits", *names, "largest of any root"),
            rows=tuple(floors),
        ),
        Table(
            title="KL(exact predictive, EXACT-FFG's) at test inputs by root, mean over them and splits [nats]",
            columns=("data set", *names),
            rows=tuple(predictive),
        ),
        Table(
            title="Largest differences of features from each root itself; of the floor by rotation",
            columns=(
                "data set",
                "log evidence [nats]",
                "log evidence (relative)",
                "kernel (relative)",
                "predictive [deviations]",
                "floor (relative)",
            ),
            rows=tuple(direct),
        ),
    ]


def _draw(found: dict[str, list[Split]]) -> Figure:
    figure = Figure(figsize=(PAGE_WIDTH, 5.4), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True)
    _draw_rows(top, [Row.of([s.floors for s in splits]) for splits in found.values()])
    _draw_rows(bottom, [Row.of([s.predictive for s in splits]) for splits in found.values()])
    largest = [_mean([split.largest for split in splits]) for splits in found.values()]
    places = range(len(found))
    edges = [place - 0.42 for place in places], [place + 0.42 for place in places]
    top.hlines(largest, *edges, color="black", linewidth=1, label="largest of any root (the least is 0)")
    dress(top, "EXACT-FFG by the root that makes its features", "", "KL(q ‖ $P_D$) [nats]", legend=False)
    dress(bottom, "The same: how far its predictions are from the exact ones", "", "predictive KL [nats]", legend=False)
    bottom.set_xticks(places, [f"{name}\n{len(splits)} splits" for name, splits in found.items()])
    handles, labels = top.get_legend_handles_labels()
    # Bars come last of themselves; the orders of Z belong beside the task's own.
    handles, labels = [handles[-1], *handles[:-1]], [labels[-1], *labels[:-1]]
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=SMALL)
    return figure


def _draw_rows(axes: Axes, rows: Sequence[Row]) -> None:
    """One column per data set; the orders of Z as a bar from the 5% to the 95% quantile, the median in white."""
    place = torch.arange(len(rows), dtype=torch.float64).numpy()
    columns = Row(*zip(*rows, strict=True))  # type: ignore[arg-type]
    height = [high - low for high, low in zip(columns.high, columns.low, strict=True)]  # type: ignore[call-overload]
    words = "Cholesky, any order of Z (90%, median)"
    axes.bar(place - 0.1, height, 0.2, columns.low, color=VERMILLION, alpha=0.55, label=words)
    axes.hlines(columns.median, place - 0.2, place, color="white", linewidth=1.2)  # type: ignore[arg-type]
    axes.plot(place - 0.1, columns.own, "x", color="black", markersize=5, label="Cholesky, the task's order")
    look: dict[str, Any] = {"linestyle": "", "markersize": 5.5}
    axes.plot(place + 0.08, columns.symmetric, marker="s", color=BLUE, label="symmetric root", **look)
    axes.plot(place + 0.2, columns.eigenvectors, marker="o", color=GREEN, label="eigenvector root", **look)
    axes.plot(place + 0.32, columns.random, marker="D", color=PURPLE, label="random rotation", **look)
    axes.set_yscale("log")
    axes.set_ylim(0.7 * min(map(min, rows)), None)  # a lowest bar would end at the frame, which cuts marks beside it
    axes.set_xlim(-0.5, len(rows) - 0.5)
    for edge in range(1, len(rows)):
        axes.axvline(edge - 0.5, color="0.88", linewidth=0.6, zorder=0)


BURT2020_ROOTS = Experiment("burt2020-roots", Settings, investigate)
