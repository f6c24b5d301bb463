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

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.maths.projection import RANK_TOLERANCE
from fsvi_bench.maths.ssge import leading_count, median_bandwidth, spectral_stein_score, squared_distances
from fsvi_bench.methods.data import MeasurementDesign, MeasurementStream, Streams
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.papers.claims import Statistic
from fsvi_bench.papers.experiment import Experiment, Findings, Laboratory
from fsvi_bench.seeds import derive_seed
from fsvi_bench.tasks.build import build_task
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.official import find_task
from fsvi_bench.tasks.task import Task, bind_task

FBNN_SAMPLES = 100  #: Sun et al. (2019), and the methods' default
LARGE_K = 100  #: features that one claim is about
CONTROL = "standard normal"


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


def shrinkage(marginal: Marginal, w: Float[Tensor, "S k"], eigen_share: float) -> tuple[dict[str, float], pd.DataFrame]:
    """Regression through the origin of the estimate at its own samples, as the method takes it: what concerns all
    directions, and by principal direction, that of most variance first, the slope and the deviation over the bandwidth.

    The estimator's number of eigenfunctions J and its bandwidth, which it keeps to itself, are computed once more.
    """
    f, z, estimate = whitened_estimate(marginal, w, eigen_share)
    squared = squared_distances(f, f).fill_diagonal_(0.0)
    h = median_bandwidth(squared)
    eigenvalues = torch.linalg.eigvalsh(torch.exp(-0.5 * squared / h.square())).flip(-1)
    found, slopes = regress(estimate, z, marginal.s)
    found |= {"rank": z.shape[1], "J": int(leading_count(eigenvalues, eigen_share)), "bandwidth": float(h)}
    return found, pd.DataFrame({"direction": range(len(slopes)), "slope": slopes, "share": marginal.s / h})


def whitened_estimate(
    marginal: Marginal, w: Float[Tensor, "S k"], eigen_share: float
) -> tuple[Float[Tensor, "S M"], Float[Tensor, "S r"], Float[Tensor, "S r"]]:
    """Samples f, their whitened components z, and the components ẽ of the estimate at them."""
    z = w @ marginal.W
    f = (z * marginal.s) @ marginal.U.mT
    return f, z, (spectral_stein_score(f, share=eigen_share) @ marginal.U) * marginal.s


def regress(
    estimate: Float[Tensor, "S r"], z: Float[Tensor, "S r"], s: Float[Tensor, " r"]
) -> tuple[dict[str, float], Float[Tensor, " r"]]:
    """Slopes of a whitened estimate on the whitened score −z, over all directions and by direction.

    `raw` is the slope of the estimate on the score, both over s; `error` the mean square of the whitened estimate's
    error over the score's own, which is 1 for an estimate of 0.
    """
    products, squares = (-estimate * z).sum(0), z.square().sum(0)
    weights = (s[-1] / s).square()  # s⁻², free of overflow
    found = {
        "whitened": float(products.sum() / squares.sum()),
        "raw": float((weights * products).sum() / (weights * squares).sum()),
        "error": float((estimate + z).square().sum() / squares.sum()),
    }
    return found, products / squares


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
        _, slopes = regress(estimate, z, marginal.s)
        v = v * (slopes - v).exp()
        if step in steps:
            found.append(kl_of_variances(v))
    return found


def investigate(settings: Settings, laboratory: Laboratory) -> Findings:
    """Prior and exact posterior of each data set, and the standard normal.

    Raises:
        InputError: no data set has 100 features.
    """
    marginals: dict[str, list[Marginal]] = {}
    for dataset in settings.datasets:
        found = find_task(dataset, settings.split)
        certified = found or build_task(load_card(dataset), settings.split, laboratory.data_dir)
        marginals |= function_marginals(bind_task(certified.task, laboratory.data_dir), settings)
    if all(len(of_seeds[0].W) != LARGE_K for of_seeds in marginals.values()):
        raise InputError(
            f"none of {', '.join(settings.datasets)} has {LARGE_K} features, which a claim is about; add one that has, "
            "for example diabetes"
        )
    identity = Marginal.of(torch.eye(settings.M, dtype=torch.float64))
    return Findings(judged(**examine(marginals | {CONTROL: [identity] * settings.seeds}, settings)))


def function_marginals(problem: Task, settings: Settings) -> dict[str, list[Marginal]]:
    """Function marginals of a problem's prior and exact posterior, at one measurement set for each seed."""
    sets = [measurement_features(problem, settings.M, seed) for seed in range(settings.seeds)]
    dataset, covariance_tril = problem.frozen.dataset, problem.truth.covariance_tril
    return {
        f"{dataset} prior": [Marginal.of(Phi_A) for Phi_A in sets],
        f"{dataset} posterior": [Marginal.of(Phi_A @ covariance_tril) for Phi_A in sets],
    }


def measurement_features(problem: Task, M: int, seed: int) -> Float[Tensor, "M k"]:
    """Features at a set that the methods' own stream draws: half training inputs, half of their box."""
    streams = Streams([derive_seed("burt2020-shrinkage", problem.frozen.sha256, seed)])
    stream = MeasurementStream(TrainingData.of([problem]), MeasurementDesign(M), streams)
    return stream.draw(1)[0, 0, :, : problem.frozen.k].clone()


def examine(marginals: Mapping[str, Sequence[Marginal]], settings: Settings) -> dict[str, pd.DataFrame]:
    """By marginal and seed: a row for each S; one for each principal direction at S = 100, of those that every seed
    has; and one for each number of descent steps."""
    runs, directions, descent = [], [], []
    for name, of_seeds in marginals.items():
        common = min(len(marginal.s) for marginal in of_seeds)
        for seed, marginal in enumerate(of_seeds):
            own: dict[str, Any] = {"marginal": name, "function": name != CONTROL, "k": len(marginal.W), "seed": seed}
            streams = Streams([derive_seed("burt2020-shrinkage", name, seed)])
            (samples,), (steps,) = streams("function samples"), streams("descent")
            w = torch.from_numpy(samples.standard_normal((max(settings.S), len(marginal.W))))
            for S in settings.S:
                found, by_direction = shrinkage(marginal, w[:S], settings.eigen_share)
                runs.append({**own, "S": S, **found})
                if S == FBNN_SAMPLES:
                    directions.append(by_direction.head(common).assign(**own))
            kls = descend(marginal, steps, settings.eigen_share, settings.steps)
            descent.append(pd.DataFrame({"steps": settings.steps, "kl": kls}).assign(**own))
    return {"runs": pd.DataFrame(runs), "directions": pd.concat(directions), "descent": pd.concat(descent)}


def judged(runs: pd.DataFrame, directions: pd.DataFrame, descent: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """What claims are about, by marginal and seed, and means over seeds."""
    run = ["marginal", "function", "seed"]
    runs = runs.assign(rise=runs.groupby(run)["whitened"].diff())
    descent = descent.assign(rise=descent.groupby(run)["kl"].diff())
    number = directions.groupby("marginal")["direction"].transform("nunique")
    directions = directions.assign(quarter=1 + 4 * directions["direction"] // number)
    falls = means(descent, "steps", "kl")
    by_steps = falls.assign(steps=falls["steps"].astype(str) + " steps")
    of_directions = ["slope", "share"]
    return {
        "runs": runs,
        "most samples": runs[runs["S"] == runs["S"].max()],
        "rises": runs[runs["S"] > runs["S"].min()],
        "slopes": summary(runs),
        "directions": directions.groupby(["marginal", "direction"], sort=False)[of_directions].mean().reset_index(),
        "directions by seed": directions,
        "quarters": directions.groupby(["marginal", "quarter"], sort=False)[of_directions].mean().reset_index(),
        "lower half": directions[directions["direction"] >= number // 2].groupby(run)["slope"].mean().reset_index(),
        "falls": falls,
        "last part": descent[descent["steps"] == descent["steps"].max()],
        "descent": by_steps.pivot_table("value", "marginal", "steps", sort=False).reset_index(),
    }


def summary(runs: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds, and the KL at which q would rest if its scale alone could move."""
    slopes = means(runs, "S", "whitened").set_index(["marginal", "S"])
    others = runs.groupby(["marginal", "S"], sort=False)[["rank", "raw", "error", "J", "bandwidth"]].mean()
    found = slopes.join(others).assign(half=slopes["high"] - slopes["value"]).astype({"rank": int}).reset_index()
    alone = [kl_of_variances(torch.tensor([slope], dtype=torch.float64)) for slope in found["value"]]
    return found.assign(alone=found["rank"] * alone)


def means(frame: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """Of y by marginal and x, with the t-interval over seeds."""
    groups = frame.groupby(["marginal", x], sort=False)[y]
    rows = [(*case, *Statistic.of_mean(values.tolist())) for case, values in groups]
    return pd.DataFrame(rows, columns=["marginal", x, "value", "low", "high"])


BURT2020_SHRINKAGE = Experiment("burt2020-shrinkage", Settings, investigate)
