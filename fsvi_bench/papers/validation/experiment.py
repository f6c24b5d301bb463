"""The exact posterior on the standard splits beside numbers from outside: MC dropout's, and GPflow's sparse GP."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator
from pydantic import BaseModel, ConfigDict, Field

from fsvi_bench.errors import InputError, TaskRefused
from fsvi_bench.papers.claims import Verdict
from fsvi_bench.papers.experiment import Experiment, Findings, Laboratory
from fsvi_bench.papers.validation.sgpr_predictive import missing_variance, titsias_predictive_variance
from fsvi_bench.resources import resource_dir
from fsvi_bench.scoring.predictive import Predictive, exact_predictive
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.certificate import CertifiedTask
from fsvi_bench.tasks.official import official_splits, read_official
from fsvi_bench.tasks.task import Task, bind_task

LESS_JITTER = 0.1
DROPOUT, GPFLOW, TITSIAS = "MC dropout, as published", "GPflow's sparse GP", "Titsias prediction of our task"
LINES = {DROPOUT: -0.28, GPFLOW: 0.0, TITSIAS: 0.28}  #: of a data set's band, whose middle is 0
NLPD_SCALE = {"value": "symlog", "linthresh": 0.1}
NLPD_TICKS = (-10, -3, -1, -0.3, -0.1, 0, 0.1, 0.3, 1, 3, 10)
RMSE_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class Settings(BaseModel):
    """Data sets with reference values, and up to how many of their splits are looked at."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    datasets: list[str] = Field(min_length=1)
    splits: int = Field(ge=2)


def investigate(settings: Settings, laboratory: Laboratory) -> Findings:
    """Every official task of these data sets beside what others report on its rows.

    Raises:
        InputError: none of them has official tasks, or raw data are missing.
    """
    places = [(name, s) for name in settings.datasets for s in official_splits(load_card(name).name)[: settings.splits]]
    if not places:
        raise InputError("none of the data sets has official tasks; install the package again")
    tasks = (read_official(*place) for place in places)
    splits = pd.DataFrame([compare(each, bind_task(each.task, laboratory.data_dir)) for each in tasks])
    missing = [name for name in settings.datasets if name not in set(splits["dataset"])]
    return findings(splits.merge(gpflow(), "left", ["dataset", "split"]), missing, laboratory.quick)


def compare(official: CertifiedTask, problem: Task) -> dict[str, Any]:
    """One official task: NLPD [nats per test point] and RMSE [target's unit], exact and of the sparse GP it is from."""
    task, fit = official.task, official.certificate.fit
    if fit is None:
        raise ValueError(f"{task.dataset} split {task.split} was not fitted")
    Phi = problem.Phi_test
    exact = exact_predictive(problem, Phi)
    variance = titsias_predictive_variance(Phi, problem.truth.covariance_tril, task.noise_variance, task.outputscale)
    return {
        "dataset": task.dataset,
        "split": task.split,
        "task_sha256": task.sha256,
        "converged": fit.converged,  # before its iterations were used up
        "nlpd": exact.nlpd(problem),
        "rmse": float((problem.y_test - exact.mean).square().mean().sqrt() * task.target_std),  # Titsias's too
        "titsias_nlpd": Predictive(exact.mean, variance).nlpd(problem),
        "bound": fit.bound_per_point,
        "noise": float(task.noise_variance),
        # Of the Titsias predictive variance, what the features lack.
        "missing_share": float((missing_variance(Phi, task.outputscale) / variance).mean()),
        "nlpd_with_less_jitter": _nlpd_with_less_jitter(problem),
    }


def _nlpd_with_less_jitter(problem: Task) -> float:
    """The exact posterior's, were the features made with a tenth of the jitter; NaN if k(Z,Z) has no factor then."""
    task = replace(problem.frozen, jitter=LESS_JITTER * problem.frozen.jitter)
    try:
        other = replace(problem, frozen=task, feature_map=problem.feature_map.of(task))
    except TaskRefused:
        return math.nan
    return exact_predictive(other, other.Phi_test).nlpd(other)


# --- Published numbers ------------------------------------------------------------------------------------------------


def gpflow() -> pd.DataFrame:
    """GPflow 2.11.2's SGPR from the paper's start, with 100 inducing points of its own drawing, a row a split."""
    names = {
        "elbo_per_point": "gpflow_bound",
        "noise_variance": "gpflow_noise",
        "titsias_nlpd_original_units": "gpflow_nlpd",
        "rmse_original_units": "gpflow_rmse",
    }
    return _published("gpflow_sgpr.csv").rename(columns=names)[["dataset", "split", *names.values()]]


def dropout() -> pd.DataFrame:
    """MC dropout in Gal and Ghahramani (2016), table 1, a row a data set: NLPD and RMSE with their ± as printed."""
    return _published("gal2016_table_1.csv").assign(dropout_nlpd=lambda table: -table.pop("log_likelihood"))


def _published(name: str) -> pd.DataFrame:
    path = resource_dir("conf") / "reproductions" / "validation" / name
    try:
        return pd.read_csv(path, comment="#")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; install the package again") from error


# --- What is shown ----------------------------------------------------------------------------------------------------


def findings(splits: pd.DataFrame, missing: Sequence[str], quick: bool) -> Findings:
    """Of what `compare` and `gpflow` say, split by split; `missing` are data sets without official tasks."""
    splits = splits.assign(
        bound_gap=splits["bound"] - splits["gpflow_bound"],
        nlpd_gap=splits["titsias_nlpd"] - splits["gpflow_nlpd"],
        rmse_gap=splits["rmse"] - splits["gpflow_rmse"],
    )
    shared = _means(splits[splits["gpflow_bound"].notna()])
    datasets = _means(splits).merge(dropout(), "left", "dataset")
    gaps, by_name = shared.set_index("dataset"), datasets.set_index("dataset")
    names = list(by_name.index)
    frames = {"splits": splits, "datasets": datasets, "gpflow": shared}
    return Findings(
        frames={**frames, **_points(splits, datasets)},
        statistics={
            "GPflow: a data set's largest mean shortfall of our bound [nats per point]": dict(-gaps["bound_gap"]),
            "GPflow: a data set's largest mean difference in Titsias NLPD [nats]": dict(gaps["nlpd_gap"].abs()),
            "MC dropout: a data set's largest excess of our mean NLPD over the published one [nats]": dict(
                by_name["nlpd"] - by_name["dropout_nlpd"]
            ),
        },
        drawings={
            "nlpd": partial(_draw_bands, names=names, scale=NLPD_SCALE, ticks=NLPD_TICKS, signed=True),
            "rmse": partial(_draw_bands, names=names, scale={"value": "log"}, ticks=RMSE_TICKS),
        },
        page=partial(_page, frames, missing, quick),
    )


def _means(splits: pd.DataFrame) -> pd.DataFrame:
    """A row a data set: means over its splits, their standard errors (`_error`), and how many there are (`splits`)."""
    by = splits.drop(columns="split").groupby("dataset", sort=False)
    errors = by.sem(numeric_only=True).add_suffix("_error")
    return by.mean(numeric_only=True).join(errors).assign(splits=by.size()).reset_index()


def _points(splits: pd.DataFrame, datasets: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The figure's points, a row a split, of MC dropout's means a data set; and both ends of the ± of these."""
    bands = {name: band for band, name in enumerate(datasets["dataset"])}

    def beside(source: str, rows: pd.DataFrame, nlpd: pd.Series[float], rmse: pd.Series[float] | float) -> pd.DataFrame:
        return pd.DataFrame({
            "source": source,
            "dataset": rows["dataset"],
            "cell": rows.index,
            "nlpd_less_exact": nlpd - rows["nlpd"],
            "rmse_over_exact": rmse / rows["rmse"],
            "place": rows["dataset"].map(bands) + LINES[source],
        })  # fmt: skip

    low, mean, high = (
        beside(
            DROPOUT,
            datasets,
            datasets["dropout_nlpd"] + sign * datasets["dropout_nlpd_spread"],
            datasets["dropout_rmse"] + sign * datasets["dropout_rmse_spread"],
        )
        for sign in (-1, 0, 1)
    )
    of_gpflow = beside(GPFLOW, splits, splits["gpflow_nlpd"], splits["gpflow_rmse"])
    of_titsias = beside(TITSIAS, splits, splits["titsias_nlpd"], math.nan)  # its RMSE is the exact posterior's
    return {"points": pd.concat([mean, of_gpflow, of_titsias]), "spread": pd.concat([low, high])}


def _draw_bands(
    axes: Axes, names: Sequence[str], scale: dict[str, Any], ticks: Sequence[float], signed: bool = False
) -> None:
    """A band per data set, and ticks as far as the points reach."""
    axes.set_xscale(**scale)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:+g}" if signed and x else f"{x:g}")
    axes.minorticks_off()
    axes.set_yticks(range(len(names)), names)
    axes.set_yticks(np.arange(1, len(names)) - 0.5, minor=True)
    axes.tick_params(axis="y", which="both", length=0)
    axes.grid(axis="y", which="minor", color="0.85", linewidth=0.6)
    axes.set_ylim(len(names) - 0.5, -0.5)


def _page(frames: dict[str, pd.DataFrame], missing: Sequence[str], quick: bool, verdicts: Sequence[Verdict]) -> str:
    """The page in Markdown; its figure lies beside it."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["fill"] = _fill
    page = environment.get_template("validation.md.jinja")
    return page.render(**frames, missing=missing, quick=quick, verdicts=verdicts)


def _fill(text: str) -> str:
    """A paragraph, its lines filled anew: numbers have other lengths than their places in the template."""
    return textwrap.fill(" ".join(text.split()), 118, break_long_words=False, break_on_hyphens=False) + "\n"


VALIDATION = Experiment("validation", Settings, investigate)
