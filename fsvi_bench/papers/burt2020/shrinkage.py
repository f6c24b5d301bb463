"""What Burt et al. (2020) do not show: how far the spectral Stein estimate of a score falls short of it.

For f ~ N(m, C), C = USUᵀ on its range of dimension r, the score −C⁺(f − m) has the whitened components t_i = −z_i,
z = S^(−½)Uᵀ(f − m) standard normal, and the estimate e the components ẽ_i = √S_ii u_iᵀe. The slope of ẽ on t through
the origin, over samples and components, weighs all directions alike; without whitening, that of e on the score, a
direction counts by the inverse of its variance.

What it means: let P = N(m, C) and q = N(m, U diag(s_i² v_i) Uᵀ). The derivative of KL(q‖P) by log v_i is ½(v_i − 1),
½v_i from P's score and −½ from q's. With SSGE's estimate for q's it is, but for sampling, ½(v_i − ρ_i(v)) with ρ_i the
slope in this direction: an objective whose entropy is weighted with ρ_i. At q = P, where the KL's gradient is 0, it
pulls q together. If only a common scale v could move, q would rest at v = ρ, the slope over all directions, which does
not depend on the scale, at a KL of ½r(ρ − 1 − log ρ). Where the directions move by themselves rest is v_i = ρ_i(v), and
ρ_i is not constant: a direction of little variance beside the others has a small slope, and one that has begun to
shrink is held open less still. Gradient steps log v_i ← log v_i − (v_i − ρ_i(v)), each with samples of its own, show
what happens: the standard normal comes to rest; function marginals do not, as far as they are followed. Where ρ_i is
all but 0, v_i falls like 1/t.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.maths.projection import RANK_TOLERANCE
from fsvi_bench.maths.ssge import leading_count, median_bandwidth, spectral_stein_score, squared_distances
from fsvi_bench.methods.data import MeasurementDesign, MeasurementStream, Streams
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.papers.claims import Statistic
from fsvi_bench.papers.experiment import Experiment, Findings, Laboratory
from fsvi_bench.papers.hron2018.panels import dress
from fsvi_bench.papers.intervals import greatest_named, least_named, of_difference
from fsvi_bench.presenting.figures import BLUE, GREEN, PAGE_WIDTH, PURPLE, SMALL, VERMILLION
from fsvi_bench.presenting.tables import Cell, Table
from fsvi_bench.seeds import derive_seed
from fsvi_bench.tasks.build import build_task
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.official import find_task
from fsvi_bench.tasks.task import Task, bind_task

FBNN_SAMPLES = 100  #: Sun et al. (2019), and the methods' default
LARGE_K = 100  #: features that one claim is about
CONTROL = "standard normal"
LOOKS = (
    (BLUE, "o", "-"),
    (BLUE, "s", "--"),
    (VERMILLION, "o", "-"),
    (VERMILLION, "s", "--"),
    (GREEN, "^", "-"),
    (GREEN, "v", "--"),
    (PURPLE, "D", "-"),
)


class Settings(BaseModel):
    """Function marginals at M measurement points of each data set's split; S ascending, 100 among them."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    datasets: tuple[str, ...] = Field(min_length=1)
    split: int = Field(ge=0)
    M: int = Field(ge=2)
    S: tuple[Annotated[int, Field(ge=3)], ...] = Field(min_length=2)
    eigen_share: float = Field(gt=0, le=1)
    seeds: int = Field(ge=2)
    steps: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=2)  #: of descent, after which the KL is noted

    @model_validator(mode="after")
    def _counts_are_in_order(self) -> Settings:
        if list(self.S) != sorted(set(self.S)) or FBNN_SAMPLES not in self.S:
            raise ValueError(f"S is {list(self.S)}, expected rising numbers with {FBNN_SAMPLES} among them")
        if list(self.steps) != sorted(set(self.steps)):
            raise ValueError(f"steps are {list(self.steps)}, expected rising numbers")
        return self


class Marginal(NamedTuple):
    """N(0, FFᵀ) with F = U diag(s) Wᵀ: f = U(s·z), z = Wᵀw. Scores do not depend on the mean."""

    U: Float[Tensor, "M r"]
    s: Float[Tensor, " r"]  #: standard deviations along the principal directions, falling
    W: Float[Tensor, "k r"]

    @staticmethod
    def of(factor: Float[Tensor, "M k"]) -> Marginal:
        """What is below the methods' rank tolerance is no direction of the marginal."""
        U, s, Wt = torch.linalg.svd(factor, full_matrices=False)
        r = int((s > RANK_TOLERANCE * s[0]).sum())
        return Marginal(U[:, :r], s[:r], Wt[:r].mT)


class Shrinkage(NamedTuple):
    """Of one marginal, one number of samples and one seed."""

    S: int
    rank: int
    J: int
    bandwidth: float
    whitened: float  #: slope of the whitened estimate on the whitened score
    raw: float  #: slope of the estimate on the score
    error: float  #: mean square of the whitened estimate's error over the score's own; 1 is an estimate of 0
    directions: list[float]  #: slope by principal direction, that of most variance first
    share: list[float]  #: standard deviation in each direction over the bandwidth


def shrinkage(marginal: Marginal, w: Float[Tensor, "S k"], eigen_share: float) -> Shrinkage:
    """Regression through the origin of the estimate at its own samples, as the method takes it."""
    f, z, estimate = whitened_estimate(marginal, w, eigen_share)
    return regress(estimate, z, marginal.s, *count_and_bandwidth(f, eigen_share))


def whitened_estimate(
    marginal: Marginal, w: Float[Tensor, "S k"], eigen_share: float
) -> tuple[Float[Tensor, "S M"], Float[Tensor, "S r"], Float[Tensor, "S r"]]:
    """Samples f, their whitened components z, and the components ẽ of the estimate at them."""
    z = w @ marginal.W
    f = (z * marginal.s) @ marginal.U.mT
    return f, z, (spectral_stein_score(f, share=eigen_share) @ marginal.U) * marginal.s


def regress(
    estimate: Float[Tensor, "S r"], z: Float[Tensor, "S r"], s: Float[Tensor, " r"], J: int, bandwidth: float
) -> Shrinkage:
    """Slopes of a whitened estimate on the whitened score −z; both over s are as they are without whitening."""
    products, squares = (-estimate * z).sum(0), z.square().sum(0)
    weights = (s[-1] / s).square()  # s⁻², free of overflow
    return Shrinkage(
        S=len(z),
        rank=z.shape[1],
        J=J,
        bandwidth=bandwidth,
        whitened=float(products.sum() / squares.sum()),
        raw=float((weights * products).sum() / (weights * squares).sum()),
        error=float((estimate + z).square().sum() / squares.sum()),
        directions=(products / squares).tolist(),
        share=(s / bandwidth).tolist(),
    )


def count_and_bandwidth(f: Float[Tensor, "S M"], share: float) -> tuple[int, float]:
    """J and h that the estimator takes, which it keeps to itself."""
    squared = squared_distances(f, f).fill_diagonal_(0.0)
    h = median_bandwidth(squared)
    eigenvalues = torch.linalg.eigvalsh(torch.exp(-0.5 * squared / h.square())).flip(-1)
    return int(leading_count(eigenvalues, share)), float(h)


def kl_of_variances(v: Float[Tensor, " r"]) -> float:
    """½ Σ (v_i − 1 − log v_i): KL(N(0, diag v) ‖ N(0, I)); infinite if a v_i ≤ 0."""
    return math.inf if bool((v <= 0).any()) else 0.5 * float((v - 1 - v.log()).sum())


def descend(
    marginal: Marginal, generator: np.random.Generator, eigen_share: float, steps: Sequence[int]
) -> list[float]:
    """KL(q‖P) after so many steps from q = P, P's score exact and q's estimated from fresh samples at every step.

    With the true score nothing would move.
    """
    v, found = torch.ones_like(marginal.s), []
    for step in range(1, steps[-1] + 1):
        w = torch.from_numpy(generator.standard_normal((FBNN_SAMPLES, len(marginal.W))))
        _, z, estimate = whitened_estimate(marginal._replace(s=marginal.s * v.sqrt()), w, eigen_share)
        v = v * (-v - (estimate * z).sum(0) / z.square().sum(0)).exp()
        if step in steps:
            found.append(kl_of_variances(v))
    return found


class Case(NamedTuple):
    """One kind of marginal: by S, what each seed found."""

    name: str
    k: int | None  #: features behind it; none behind the standard normal
    found: dict[int, list[Shrinkage]]
    falls: dict[int, list[float]]  #: KL by the number of descent steps, of each seed

    def values(self, S: int, field: str) -> list[float]:
        return [float(getattr(one, field)) for one in self.found[S]]

    def mean(self, S: int, field: str) -> Statistic:
        return Statistic.of_mean(self.values(S, field))

    def directions(self, S: int) -> Float[Tensor, "seeds r"]:
        """Slopes by principal direction, up to the lowest rank of any seed."""
        r = min(one.rank for one in self.found[S])
        return torch.tensor([one.directions[:r] for one in self.found[S]], dtype=torch.float64)

    def shares(self, S: int) -> Float[Tensor, " r"]:
        """Mean standard deviation in these directions over the bandwidth."""
        r = min(one.rank for one in self.found[S])
        return torch.tensor([one.share[:r] for one in self.found[S]], dtype=torch.float64).mean(0)


def investigate(settings: Settings, laboratory: Laboratory) -> Findings:
    """Prior and exact posterior of each data set, and the standard normal.

    Raises:
        InputError: no data set has 100 features.
    """
    problems = []
    for dataset in settings.datasets:
        found = find_task(dataset, settings.split)
        certified = found or build_task(load_card(dataset), settings.split, laboratory.data_dir)
        problems.append(bind_task(certified.task, laboratory.data_dir))
    if all(problem.frozen.k != LARGE_K for problem in problems):
        raise InputError(
            f"none of {', '.join(settings.datasets)} has {LARGE_K} features, which a claim is about; add one that has, "
            "for example diabetes"
        )
    cases = [case for problem in problems for case in function_cases(problem, settings)]
    identity = Marginal.of(torch.eye(settings.M, dtype=torch.float64))
    cases.append(_case(CONTROL, None, [identity] * settings.seeds, settings))
    return Findings(
        figure=_draw(cases),
        tables=[_table(cases), _direction_table(cases), _descent_table(cases)],
        statistics=_statistics(cases),
        numbers={case.name: _numbers(case) for case in cases},
    )


def _numbers(case: Case) -> dict[str, Any]:
    by_count = {str(S): [one._asdict() for one in found] for S, found in case.found.items()}
    return {**by_count, "KL after steps of descent": {str(step): values for step, values in case.falls.items()}}


def function_cases(problem: Task, settings: Settings) -> list[Case]:
    """Function marginals of a problem's prior and exact posterior, at one measurement set for each seed."""
    sets = [measurement_features(problem, settings.M, seed) for seed in range(settings.seeds)]
    factors = {
        "prior": [Marginal.of(Phi_A) for Phi_A in sets],
        "posterior": [Marginal.of(Phi_A @ problem.truth.covariance_tril) for Phi_A in sets],
    }
    dataset = problem.frozen.dataset
    return [_case(f"{dataset} {q}", problem.frozen.k, marginals, settings) for q, marginals in factors.items()]


def _case(name: str, k: int | None, marginals: Sequence[Marginal], settings: Settings) -> Case:
    falls = []
    for seed, marginal in enumerate(marginals):
        (generator,) = Streams([derive_seed("burt2020-shrinkage", name, seed)])("descent")
        falls.append(descend(marginal, generator, settings.eigen_share, settings.steps))
    by_step = dict(zip(settings.steps, (list(values) for values in zip(*falls, strict=True)), strict=True))
    return Case(name, k, _all_S(name, marginals, settings), by_step)


def measurement_features(problem: Task, M: int, seed: int) -> Float[Tensor, "M k"]:
    """Features at a set that the methods' own stream draws: half training inputs, half of their box."""
    problems = TrainingData.of([problem])
    own = derive_seed("burt2020-shrinkage", problem.frozen.sha256, seed)
    return (
        MeasurementStream(problems, MeasurementDesign(M), Streams([own])).draw(1)[0, 0, :, : problem.frozen.k].clone()
    )


def _all_S(name: str, marginals: Sequence[Marginal], settings: Settings) -> dict[int, list[Shrinkage]]:
    found: dict[int, list[Shrinkage]] = {S: [] for S in settings.S}
    for seed, marginal in enumerate(marginals):
        (generator,) = Streams([derive_seed("burt2020-shrinkage", name, seed)])("function samples")
        w = torch.from_numpy(generator.standard_normal((max(settings.S), len(marginal.W))))
        for S in settings.S:
            found[S].append(shrinkage(marginal, w[:S], settings.eigen_share))
    return found


def _statistics(cases: Sequence[Case]) -> dict[str, Statistic]:
    """One for each claim; the worst of several marginals with the one that decides."""
    functions, control = [case for case in cases if case.k is not None], cases[-1]
    counts = list(control.found)
    by_direction = [(case.name, case.directions(FBNN_SAMPLES)) for case in functions]
    whitened = [(case.name, case.mean(FBNN_SAMPLES, "whitened")) for case in functions]
    raw = [
        (case.name, of_difference(case.values(FBNN_SAMPLES, "raw"), case.values(FBNN_SAMPLES, "whitened")))
        for case in functions
    ]
    rises = [
        (f"{case.name}, S = {S} to {more}", of_difference(case.values(more, "whitened"), case.values(S, "whitened")))
        for case in cases
        for S, more in itertools.pairwise(counts)
    ]
    lower = [(name, Statistic.of_mean(d[:, d.shape[1] // 2 :].mean(1).tolist())) for name, d in by_direction]
    first = [(name, Statistic.of_mean(d[:, 0].tolist())) for name, d in by_direction]
    large = [(case.name, case.mean(counts[-1], "whitened")) for case in functions if case.k == LARGE_K]
    further = [
        (case.name, of_difference(*(list(case.falls.values())[place] for place in (-1, -2)))) for case in functions
    ]
    of_functions = "of all function marginals"
    at_the_largest = "slope of the whitened score at the largest S, greatest of all k = 100 function marginals"
    return {
        f"slope of the whitened score at S = 100, greatest {of_functions}": greatest_named(whitened),
        f"slope of the score as it is less that of the whitened one at S = 100, greatest {of_functions}": (
            greatest_named(raw)
        ),
        "rise of the slope from one S to the next, least of all": least_named(rises),
        at_the_largest: greatest_named(large),
        "slope at the largest S, standard normal": control.mean(counts[-1], "whitened"),
        f"slope in the first principal direction at S = 100, least {of_functions}": least_named(first),
        f"slope in the lower half of the principal directions at S = 100, greatest {of_functions}": (
            greatest_named(lower)
        ),
        f"rise of KL over the last part of the descent at S = 100, least {of_functions} [nats]": least_named(further),
    }


def _table(cases: Sequence[Case]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for case in cases:
        for S in case.found:
            slope, rank = case.mean(S, "whitened"), round(case.mean(S, "rank").value)
            numbers = (case.mean(S, field).value for field in ("raw", "error", "J", "bandwidth"))
            alone = kl_of_variances(torch.full((rank,), slope.value, dtype=torch.float64))
            rows.append((case.name, rank, S, slope.value, slope.high - slope.value, *numbers, alone))
    return Table(
        title="Slope of the estimated score on the true one: mean over seeds, half its interval; error: mean square of "
        "the whitened estimate's error over that of the true score (1 for an estimate of 0); J: eigenfunctions that "
        "the estimator keeps; KL [nats] at which q would rest if its scale alone could move",
        columns=("marginal", "rank", "S", "slope", "±", "unwhitened", "error", "J", "bandwidth", "KL, scale alone"),
        rows=tuple(rows),
    )


def _descent_table(cases: Sequence[Case]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (case.name, *(Statistic.of_mean(values).value for values in case.falls.values())) for case in cases
    ]
    return Table(
        title=f"Gradient steps in the directions' variances from q = P, q's score estimated with S = {FBNN_SAMPLES}: "
        "KL(q, P) after so many, mean over seeds [nats]",
        columns=("marginal", *(f"{step} steps" for step in cases[0].falls)),
        rows=tuple(rows),
    )


def _direction_table(cases: Sequence[Case]) -> Table:
    """At S = 100, quarter by quarter of the principal directions."""
    rows: list[tuple[Cell, ...]] = []
    for case in cases:
        slopes, shares = case.directions(FBNN_SAMPLES).mean(0), case.shares(FBNN_SAMPLES)
        quarters = zip(slopes.tensor_split(4), shares.tensor_split(4), strict=True)
        rows += [(case.name, place, *(float(part.mean()) for part in two)) for place, two in enumerate(quarters, 1)]
    return Table(
        title="Mean slope at S = 100 by quarter of the principal directions, the first of most variance",
        columns=("marginal", "quarter", "slope", "deviation over bandwidth"),
        rows=tuple(rows),
    )


def _draw(cases: Sequence[Case]) -> Figure:
    figure = Figure(figsize=(PAGE_WIDTH, 3.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    looks = [LOOKS[place % len(LOOKS)] for place in range(len(cases))]
    for case, (colour, marker, dashes) in zip(cases, looks, strict=True):
        look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4, "markeredgewidth": 0.8}
        look["markerfacecolor"] = "white" if dashes == "--" else colour
        line: dict[str, Any] = {"linestyle": dashes, "linewidth": 1.2, "capsize": 2, **look}
        _draw_means(left, {S: case.mean(S, "whitened") for S in case.found}, label=case.name, **line)
        by_direction, shares = case.directions(FBNN_SAMPLES).mean(0), case.shares(FBNN_SAMPLES)
        middle.plot(shares, by_direction, linestyle="", **{**look, "markersize": 3, "markeredgewidth": 0.6})
        _draw_means(right, {step: Statistic.of_mean(values) for step, values in case.falls.items()}, **line)
    for axes in (left, middle):
        axes.set_xscale("log")
        axes.axhline(1, color="0.5", linewidth=0.8)
        axes.set_ylim(min(-0.02, axes.get_ylim()[0]), 1.08)
    right.loglog()
    counts = list(cases[0].found)
    left.set_xticks(counts, [str(S) if place % 2 == 0 or counts[-1] == S else "" for place, S in enumerate(counts)])
    left.minorticks_off()
    dress(left, "Slope of the score", "samples S", "slope (1: the true score)", legend=False)
    dress(middle, f"By direction, S = {FBNN_SAMPLES}", "deviation over bandwidth", "")
    dress(right, f"Descent from P, S = {FBNN_SAMPLES}", "gradient steps", "KL(q, P) [nats]", legend=False)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=SMALL)
    return figure


def _draw_means(axes: Axes, means: dict[int, Statistic], **look: Any) -> None:
    bars = [[s.value - s.low for s in means.values()], [s.high - s.value for s in means.values()]]
    axes.errorbar(list(means), [s.value for s in means.values()], yerr=bars, **look)


BURT2020_SHRINKAGE = Experiment("burt2020-shrinkage", Settings, investigate)
