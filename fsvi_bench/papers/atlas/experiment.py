"""The atlas: what the methods of 2011 to 2024 converge to, beside the exact posterior, and claims about it."""

from __future__ import annotations

from itertools import product
from typing import Annotated

import pandas as pd
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator

from fsvi_bench.papers.atlas.chains import run_chains
from fsvi_bench.papers.atlas.estimators import compare_estimators
from fsvi_bench.papers.atlas.optima import OPTIMA, bands, check_fsp_laplace, check_gfsvi, check_gwi, spectra, sweep
from fsvi_bench.papers.claims import intervals
from fsvi_bench.papers.experiment import ExperimentContext, Frames, Rising
from fsvi_bench.papers.problems import load_problem
from fsvi_bench.strict import Plain
from fsvi_bench.tasks.task import Task
from fsvi_bench.threads import one_thread

Values = Annotated[tuple[PositiveFloat, ...], Rising]


class Chains(Plain):
    """Runs of SGLD on splits of each data set; `rounds` as in `run_chains`."""

    datasets: dict[str, PositiveInt]  #: with the number of splits
    shares: Annotated[tuple[Annotated[float, Field(gt=0, lt=1)], ...], Rising]
    chains: int = Field(ge=10, lt=10_000)
    rounds: PositiveFloat


class Scores(Plain):
    """Estimates of scores at M measurement points from S samples."""

    M: int = Field(ge=2)
    S: Annotated[tuple[Annotated[int, Field(ge=3)], ...], Rising]
    seeds: int = Field(ge=2)


class Settings(Plain):
    """Data sets, of which split 0 is drawn, and values of each method's parameter, in the units of `optima`."""

    datasets: tuple[str, ...] = Field(min_length=1)
    splits: PositiveInt  #: of each data set, on which GFSVI is checked
    values: dict[str, Values]
    shown: dict[str, NonNegativeFloat]  #: value of each method at which bands and spectra are drawn
    seeds: PositiveInt  #: of VIP's draws
    chains: Chains
    scores: Scores

    @field_validator("values", "shown")
    @classmethod
    def _is_for_every_method(cls, given: dict[str, object]) -> dict[str, object]:
        if given.keys() != OPTIMA.keys():
            raise ValueError(f"expected values for {', '.join(OPTIMA)}")
        return given


@one_thread()
def investigate(settings: Settings, context: ExperimentContext) -> Frames:
    """Curves and spectra to draw; checks of GWI, GFSVI, FSP-Laplace and SGLD; errors of estimated scores."""

    def load(dataset: str, splits: int = 1) -> list[Task]:
        return [load_problem(dataset, split, context.data_dir) for split in range(splits)]

    (toy,) = load("toy")
    problems = [load(dataset)[0] for dataset in settings.datasets]
    values, chains, scores = settings.values, settings.chains, settings.scores
    runs = [
        run_chains(load(dataset, splits), share, chains.chains, chains.rounds)
        for (dataset, splits), share in product(chains.datasets.items(), chains.shares)
    ]
    return judged(
        sweeps=pd.concat(sweep(each, name, values[name], settings.seeds) for each in problems for name in OPTIMA),
        bands=bands(toy, settings.shown),
        data=pd.DataFrame({"x": toy.X[:, 0], "y": toy.y}),
        spectra=pd.concat(spectra(each, settings.shown) for each in problems),
        gwi=pd.concat(check_gwi(each, values["gwi"]) for each in problems),
        gfsvi=pd.concat(
            check_gfsvi(each, values["gfsvi"]) for name in settings.datasets for each in load(name, settings.splits)
        ),
        contexts=pd.concat(check_fsp_laplace(each, values["fsp-laplace"]) for each in problems),
        chains=pd.concat(runs),
        estimates=pd.concat(compare_estimators(each, scores.M, scores.S, scores.seeds) for each in problems),
    )


def judged(**frames: pd.DataFrame) -> Frames:
    """The frames, and those that claims and tables need besides."""
    bands, estimates = frames["bands"], frames["estimates"]
    contexts, spectra = frames["contexts"], frames["spectra"]
    place = ["dataset", "S", "seed"]
    spectral = estimates[estimates["estimator"] == "ssge"].set_index(place)[["slope", "error"]].add_suffix("_ssge")
    against = estimates.join(spectral, on=place)
    others = against[against["estimator"] != "ssge"]
    exact = spectra[spectra["method"] == "exact"].groupby("dataset", sort=False)["variance"]
    means = estimates.groupby(["dataset", "S", "estimator"], sort=False)
    errors = intervals(means["error"]).join(means[["slope", "rank"]].mean()).reset_index()
    for each in (spectra, errors):  # the figure has three panels of each
        names = list(each["dataset"].unique())
        each.insert(0, "panel", each["dataset"].map(names.index))
        each.attrs.update(zip(("first", "second", "third"), [*names, "", "", ""], strict=False))
    runs = frames["chains"].groupby(["dataset", "split", "share"], sort=False)
    return {
        **frames,
        "shown": bands[bands["method"] != "exact"].groupby("method", sort=False).first().reset_index(),
        "exact spectra": (exact.max() / exact.min()).rename("ratio").reset_index(),
        "full contexts": contexts[contexts["full"]],
        "other contexts": contexts[~contexts["full"] & (contexts["truncation"] == "none")],
        "chain runs": runs[["steps", "z_correlations", "kl", "kl_error", "closed_form", "z_kl"]].first().reset_index(),
        "others": others.assign(
            ratio=others["error"] / others["error_ssge"], gain=others["slope"] - others["slope_ssge"]
        ),
        "errors": errors,
    }
