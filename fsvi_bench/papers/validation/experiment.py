"""The exact posterior on the standard splits, compared with external results: MC dropout and GPflow's sparse GP."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from fsvi_bench.errors import InputError, TaskRefused
from fsvi_bench.maths.blr import predictive_variance
from fsvi_bench.papers.claims import Verdict
from fsvi_bench.papers.experiment import ExperimentContext, Frames, Scale
from fsvi_bench.papers.pages import render
from fsvi_bench.presenting.frames import formula
from fsvi_bench.resources import resource_dir
from fsvi_bench.scoring.predictive import Predictive, exact_predictive
from fsvi_bench.strict import Plain
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.certificate import CertifiedTask
from fsvi_bench.tasks.official import official_splits, read_official
from fsvi_bench.tasks.task import Task, bind_task

LESS_JITTER = 0.1
TEMPLATE = Path(__file__).with_name("validation.md.j2")
GAPS = """
bound_gap = bound - gpflow_bound
bound_shortfall = gpflow_bound - bound
nlpd_gap = titsias_nlpd - gpflow_nlpd
rmse_gap = rmse - gpflow_rmse
"""


class Settings(Plain):
    """Data sets with reference values, and the largest number of splits used of each."""

    datasets: list[str] = Field(min_length=1)
    splits: int = Field(ge=2)


def investigate(settings: Settings, context: ExperimentContext) -> Frames:
    """Every official task of these data sets, compared with external results on the same rows.

    Raises:
        InputError: none of the data sets has official tasks, or raw data are missing.
    """
    places = [(name, s) for name in settings.datasets for s in official_splits(load_card(name).name)[: settings.splits]]
    if not places:
        raise InputError("none of the data sets has official tasks; install the package again")
    tasks = (read_official(*place) for place in places)
    splits = pd.DataFrame([compare(each, bind_task(each.task, context.data_dir)) for each in tasks])
    missing = [name for name in settings.datasets if name not in set(splits["dataset"])]
    return findings(splits.merge(gpflow(), "left", ["dataset", "split"]), missing)


def compare(official: CertifiedTask, problem: Task) -> dict[str, Any]:
    """One official task: NLPD [nats per test point] and RMSE [target's unit], exact and of the sparse GP behind it."""
    task, fit = official.task, official.certificate.fit
    if fit is None:
        raise ValueError(f"{task.dataset} split {task.split} was not fitted")
    exact = exact_predictive(problem, problem.Phi_test)
    missing, variance = titsias_variance(problem)
    return {
        "dataset": task.dataset,
        "split": task.split,
        "task_sha256": task.sha256,
        "converged": fit.converged,  # within the maximum number of iterations
        "nlpd": exact.nlpd(problem),
        "rmse": exact.rmse(problem),  # also of Titsias's GP
        "titsias_nlpd": Predictive(exact.mean, variance).nlpd(problem),
        "bound": fit.bound_per_point,
        "noise": float(task.noise_variance),
        "missing_share": float((missing / variance).mean()),
        "nlpd_with_less_jitter": _nlpd_with_less_jitter(problem),
    }


def titsias_variance(problem: Task) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """At the test inputs, k(x,x) − φᵀφ ≥ 0, the part of the GP's prior variance that the features do not represent; and
    the variance of y in Titsias's (2009, eq. 6) approximate GP, including the noise.

    Its q(u) is the exact posterior of the weights w = L⁻¹u, N(μ, FFᵀ), and f given u has the GP's conditional variance,
    which gives k(x,x) − φᵀφ + φᵀFFᵀφ + σ². The linear model has φᵀFFᵀφ + σ² only. In terms of Quiñonero-Candela and
    Rasmussen (2005), with equal parameters, the linear model predicts as SoR and Titsias's GP as DTC (their eqs. 16b
    and 20b); the means φᵀμ are the same.
    """
    Phi = problem.Phi_test
    missing = problem.frozen.outputscale - Phi.square().sum(-1)
    return missing, missing + predictive_variance(Phi, problem.truth.covariance_tril, problem.noise_variance)


def _nlpd_with_less_jitter(problem: Task) -> float:
    """The exact posterior's NLPD with features from a tenth of the jitter; NaN if k(Z,Z) cannot be factorised then."""
    task = replace(problem.frozen, jitter=LESS_JITTER * problem.frozen.jitter)
    try:
        other = replace(problem, frozen=task, feature_map=problem.feature_map.of(task))
    except TaskRefused:
        return math.nan
    return exact_predictive(other, other.Phi_test).nlpd(other)


# --- Published numbers ------------------------------------------------------------------------------------------------


def gpflow() -> pd.DataFrame:
    """GPflow 2.11.2's SGPR from the paper's initial values, with 100 independently drawn inducing points; one row per
    split."""
    names = {
        "elbo_per_point": "gpflow_bound",
        "noise_variance": "gpflow_noise",
        "titsias_nlpd_original_units": "gpflow_nlpd",
        "rmse_original_units": "gpflow_rmse",
    }
    return _published("gpflow_sgpr.csv").rename(columns=names)[["dataset", "split", *names.values()]]


def dropout() -> pd.DataFrame:
    """MC dropout in Gal and Ghahramani (2016), table 1: NLPD and RMSE with their ± as printed; one row per data set."""
    return _published("gal2016_table_1.csv").assign(dropout_nlpd=lambda table: -table.pop("log_likelihood"))


def _published(name: str) -> pd.DataFrame:
    path = resource_dir("conf") / "reproductions" / "validation" / name
    try:
        return pd.read_csv(path, comment="#")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; install the package again") from error


# --- Tables and figure ------------------------------------------------------------------------------------------------


def findings(splits: pd.DataFrame, missing: Sequence[str]) -> Frames:
    """Frames from the results of `compare` and `gpflow` by split; `missing` are data sets without official tasks."""
    splits = formula(splits, GAPS)
    datasets = _means(splits).merge(dropout(), "left", "dataset")
    datasets["dropout_excess"] = datasets["nlpd"] - datasets["dropout_nlpd"]
    datasets["band"] = datasets.index
    datasets.attrs["missing"] = missing
    gpflow = _means(splits.dropna(subset="gpflow_bound"))
    return {"splits": splits, "datasets": datasets, "gpflow": gpflow, "points": _points(splits, datasets)}


def page(frames: Frames, verdicts: Sequence[Verdict], scale: Scale) -> str:
    """The Markdown page."""
    return render(TEMPLATE, **frames, missing=frames["datasets"].attrs["missing"], scale=scale, verdicts=verdicts)


def _means(splits: pd.DataFrame) -> pd.DataFrame:
    """One row per data set: means over splits, standard errors (`_error`) and the number of splits (`splits`)."""
    by = splits.drop(columns="split").groupby("dataset", sort=False)
    errors = by.sem(numeric_only=True).add_suffix("_error")
    return by.mean(numeric_only=True).join(errors).assign(splits=by.size()).reset_index()


def _points(splits: pd.DataFrame, datasets: pd.DataFrame) -> pd.DataFrame:
    """The figure's points, one row per split (for MC dropout, per data set): the NLPD minus the exact posterior's and
    the RMSE divided by it, with both ends of their ± (`_low`, `_high`)."""
    band = datasets.set_index("dataset")["band"]
    parts = []
    for source, (rows, name, shift) in {
        "MC dropout, as published": (datasets, "dropout", -0.28),
        "GPflow's sparse GP": (splits, "gpflow", 0.0),
        "Titsias prediction of our task": (splits, "titsias", 0.28),  # its RMSE is the exact posterior's
    }.items():
        place = rows["dataset"].map(band) + shift
        part = rows[["dataset"]].assign(cell=rows.index, source=source, place=place)
        for score, combined in {"nlpd": operator.sub, "rmse": operator.truediv}.items():
            value, spread = (rows.get(f"{name}_{score}{of}", math.nan) for of in ("", "_spread"))
            for end, shown in {"": value, "_low": value - spread, "_high": value + spread}.items():
                part[f"{score}{end}"] = combined(shown, rows[score])
        parts.append(part)
    return pd.concat(parts)
