"""Not in Burt et al. (2020): by how much the spectral Stein estimate of a score is too small.

For f ~ N(m, C), C = USUᵀ on its range of dimension r, the score −C⁺(f − m) has the whitened components t_i = −z_i with
z = S^(−½)Uᵀ(f − m) standard normal, and the estimate e has the components ẽ_i = √S_ii u_iᵀe. The slope of the
regression of ẽ on t through the origin, over samples and components, weights all directions equally. The slope of e on
the score, without whitening, weights a direction by the inverse of its variance.

Consequence: let P = N(m, C) and q = N(m, U diag(s_i² v_i) Uᵀ). The derivative of KL(q‖P) in log v_i is ½(v_i − 1): ½v_i
comes from P's score and −½ from q's. With SSGE's estimate of q's score it is, up to sampling error, ½(v_i − ρ_i(v)),
where ρ_i is the slope in this direction: the entropy is weighted by ρ_i. At q = P, where the KL's gradient is 0, it
shrinks q. If q had only a common scale v, its fixed point would be v = ρ, the slope over all directions, which does not
depend on the scale, with a KL of ½r(ρ − 1 − log ρ). If directions vary separately, a fixed point has v_i = ρ_i(v), and
ρ_i is not constant: a direction with a small variance compared with the others has a small slope, which decreases as it
shrinks. Gradient steps log v_i ← log v_i − (v_i − ρ_i(v)), each with new samples, show the result: the standard normal
converges, whereas function marginals do not within the steps taken. If ρ_i is close to 0, v_i falls like 1/t.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from pydantic import Field, NonNegativeInt, PositiveInt, field_validator
from torch import Tensor

from fsvi_bench.maths.projection import RANK_TOLERANCE
from fsvi_bench.maths.ssge import leading_count, median_bandwidth, spectral_stein_score, squared_distances
from fsvi_bench.methods.data import MeasurementDesign, MeasurementStream, Streams
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.papers.claims import intervals
from fsvi_bench.papers.experiment import ExperimentContext, Frames, Rising, Row, as_row, joined
from fsvi_bench.papers.problems import Source
from fsvi_bench.running.runner import require_data
from fsvi_bench.seeds import derive_seed
from fsvi_bench.strict import Plain
from fsvi_bench.tasks.task import Task
from fsvi_bench.threads import use_one_thread

FBNN_SAMPLES = 100  #: Sun et al. (2019), and the methods' default
CONTROL = "standard normal"


class Settings(Plain):
    """Function marginals at M measurement points of a split of each data set; S is ascending and contains 100."""

    datasets: tuple[str, ...] = Field(min_length=1)
    split: NonNegativeInt
    M: int = Field(ge=2)
    S: Annotated[tuple[Annotated[int, Field(ge=3)], ...], Rising] = Field(min_length=2)
    eigen_share: float = Field(gt=0, le=1)
    seeds: int = Field(ge=2)
    steps: Annotated[tuple[PositiveInt, ...], Rising] = Field(min_length=2)  #: of descent, at which the KL is recorded

    @field_validator("S")
    @classmethod
    def _has_the_methods_own(cls, S: tuple[int, ...]) -> tuple[int, ...]:
        if FBNN_SAMPLES not in S:
            raise ValueError(f"expected {FBNN_SAMPLES} to be one of them")
        return S

    def require_data(self, data_dir: Path | None) -> None:
        """Raises InputError if raw data are not on this machine and cannot be downloaded."""
        require_data([(dataset, self.split) for dataset in self.datasets], data_dir)


class Marginal(NamedTuple):
    """N(0, FFᵀ) with F = U diag(s) Wᵀ in its principal coordinates Uᵀf = s·z, z = Wᵀw.

    Scores do not depend on the mean, and rotate with U: SSGE depends on distances only, which U does not change.
    """

    s: Float[Tensor, " r"]  #: standard deviations along the principal directions, descending
    W: Float[Tensor, "k r"]

    @staticmethod
    def of(factor: Float[Tensor, "M k"]) -> Marginal:
        """The marginal's directions, without those below the methods' rank tolerance."""
        _, s, Wt = torch.linalg.svd(factor, full_matrices=False)
        r = int((s > RANK_TOLERANCE * s[0]).sum())
        return Marginal(s[:r], Wt[:r].mT)


def shrinkage(marginal: Marginal, w: Float[Tensor, "S k"], eigen_share: float) -> tuple[dict[str, float], pd.DataFrame]:
    """Regression through the origin of the estimate at its own samples, as the method uses it: values over all
    directions; and by principal direction, in order of descending variance, the slope and the ratio of standard
    deviation to bandwidth.

    The estimator's number of eigenfunctions J and its bandwidth are computed again, since it does not return them.
    """
    z = w @ marginal.W
    f = z * marginal.s
    squared = squared_distances(f, f).fill_diagonal_(0.0)
    h = median_bandwidth(squared)
    eigenvalues = torch.linalg.eigvalsh(torch.exp(-0.5 * squared / h.square())).flip(-1)
    found, slopes = regress(spectral_stein_score(f, share=eigen_share) * marginal.s, z, marginal.s)
    found |= {"rank": z.shape[1], "J": int(leading_count(eigenvalues, eigen_share)), "bandwidth": float(h)}
    return found, pd.DataFrame({"direction": range(len(slopes)), "slope": slopes, "share": marginal.s / h})


def regress(
    estimate: Float[Tensor, "S r"], z: Float[Tensor, "S r"], s: Float[Tensor, " r"]
) -> tuple[dict[str, float], Float[Tensor, " r"]]:
    """Slopes of a whitened estimate on the whitened score −z, over all directions and by direction.

    `raw` is the slope of the estimate on the score, both divided by s. `error` is the mean squared error of the
    whitened estimate divided by the mean square of the score, which is 1 for an estimate of 0.
    """
    squares = z.square().sum(0)
    slopes = (-estimate * z).sum(0) / squares
    found = {
        "whitened": float(np.average(slopes, weights=squares)),
        "raw": float(np.average(slopes, weights=squares * (s[-1] / s).square())),  # s⁻² without overflow
        "error": float((estimate + z).square().sum() / squares.sum()),
    }
    return found, slopes


def kl_of_variance(v: float) -> float:
    """½(v − 1 − log v) = KL(N(0, v) ‖ N(0, 1)); infinite if v ≤ 0."""
    return math.inf if v <= 0 else 0.5 * (v - 1 - math.log(v))


def descend(marginal: Marginal, streams: Streams, eigen_share: float, steps: Sequence[int]) -> list[float]:
    """KL(q‖P) after given numbers of steps from q = P, with P's exact score and q's score estimated from new samples
    at every step. With q's exact score, q would not change.
    """
    v, found = torch.ones_like(marginal.s), []
    for step in range(1, steps[-1] + 1):
        z = streams.at(step, streams.device).normal("descent", FBNN_SAMPLES, len(marginal.W))[0] @ marginal.W
        s = marginal.s * v.sqrt()
        _, slopes = regress(spectral_stein_score(z * s, share=eigen_share) * s, z, s)
        v = v * (slopes - v).exp()
        if step in steps:
            found.append(sum(map(kl_of_variance, v.tolist())))
    return found


def investigate(settings: Settings, context: ExperimentContext) -> Frames:
    """Results for the prior and the exact posterior of each data set, and for the standard normal."""
    sources = [Source.of(dataset, settings.split, context.data_dir) for dataset in dict.fromkeys(settings.datasets)]
    functions = context.table(examine_source, {"source": sources}, settings=settings).drop(columns="source")
    return judged(**joined(pd.concat([functions, context.table(examine_control, {}, settings=settings)])))


def examine_source(source: Source, settings: Settings) -> Row:
    """The rows of each frame of `examine`, for the prior and the exact posterior."""
    use_one_thread()
    return as_row(examine(function_marginals(source.load(), settings), settings))


def examine_control(settings: Settings) -> Row:
    """The same for the standard normal."""
    use_one_thread()
    identity = Marginal.of(torch.eye(settings.M, dtype=torch.float64))
    return as_row(examine({CONTROL: [identity] * settings.seeds}, settings))


def function_marginals(problem: Task, settings: Settings) -> dict[str, list[Marginal]]:
    """Function marginals of a problem's prior and exact posterior, at one measurement set per seed."""
    sets = [measurement_features(problem, settings.M, seed) for seed in range(settings.seeds)]
    return {
        f"{problem.dataset} prior": [Marginal.of(Phi_A) for Phi_A in sets],
        f"{problem.dataset} posterior": [Marginal.of(Phi_A @ problem.truth.covariance_tril) for Phi_A in sets],
    }


def measurement_features(problem: Task, M: int, seed: int) -> Float[Tensor, "M k"]:
    """Features at a measurement set drawn as by the methods: half training inputs, half from their bounding box."""
    streams = Streams((derive_seed("burt2020-shrinkage", problem.sha256, seed),))
    stream = MeasurementStream(TrainingData.of([problem]), MeasurementDesign(M), streams)
    return stream.draw(range(1))[0, 0, :, : problem.k]


def examine(marginals: Mapping[str, Sequence[Marginal]], settings: Settings) -> Frames:
    """By marginal and seed: one row per S; one per principal direction at S = 100, for the directions that all seeds
    have; and one per number of descent steps."""
    runs, directions, descent = [], [], []
    for name, of_seeds in marginals.items():
        common = min(len(marginal.s) for marginal in of_seeds)
        for seed, marginal in enumerate(of_seeds):
            own: dict[str, Any] = {"marginal": name, "k": len(marginal.W), "seed": seed}
            streams = Streams((derive_seed("burt2020-shrinkage", name, seed),))
            (w,) = streams.normal("function samples", settings.S[-1], len(marginal.W))
            for S in settings.S:
                found, by_direction = shrinkage(marginal, w[:S], settings.eigen_share)
                runs.append({**own, "S": S, **found})
                if S == FBNN_SAMPLES:
                    directions.append(by_direction.head(common).assign(**own))
            kls = descend(marginal, streams, settings.eigen_share, settings.steps)
            descent.append(pd.DataFrame({"steps": settings.steps, "kl": kls}).assign(**own))
    return {"runs": pd.DataFrame(runs), "directions": pd.concat(directions), "descent": pd.concat(descent)}


def judged(runs: pd.DataFrame, directions: pd.DataFrame, descent: pd.DataFrame) -> Frames:
    """Frames for claims, by marginal and seed, and means over seeds."""
    run = ["marginal", "function", "seed"]
    runs, directions, descent = (
        frame.assign(function=frame["marginal"] != CONTROL) for frame in (runs, directions, descent)
    )
    runs = runs.assign(rise=runs.groupby(run)["whitened"].diff())
    by_run = runs.groupby(run)
    descent = descent.assign(rise=descent.groupby(run)["kl"].diff())
    number = directions.groupby("marginal")["direction"].transform("nunique")
    directions = directions.assign(quarter=1 + 4 * directions["direction"] // number)
    falls = intervals(descent.groupby(["marginal", "steps"], sort=False)["kl"]).reset_index()
    by_steps = falls.pivot_table("value", "marginal", "steps", sort=False).add_suffix(" steps")
    along, quarters = (
        directions.groupby(["marginal", place], sort=False)[["slope", "share"]].mean().reset_index()
        for place in ("direction", "quarter")
    )
    return {
        "runs": runs,
        "most samples": by_run.tail(1),
        "rises": by_run.tail(-1),
        "slopes": summary(runs),
        "directions": along,
        "directions by seed": directions,
        "quarters": quarters,
        "lower half": directions[directions["direction"] >= number // 2].groupby(run)["slope"].mean().reset_index(),
        "falls": falls,
        "last part": descent.groupby(run).tail(1),
        "descent": by_steps.reset_index(),
    }


def summary(runs: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds, and the KL of q's fixed point if only its scale could change."""
    groups = runs.groupby(["marginal", "S"], sort=False)
    others = groups[["rank", "raw", "error", "J", "bandwidth"]].mean()
    found = intervals(groups["whitened"]).join(others).astype({"rank": int}).reset_index()
    return found.assign(half=found["high"] - found["value"], alone=found["rank"] * found["value"].map(kl_of_variance))
