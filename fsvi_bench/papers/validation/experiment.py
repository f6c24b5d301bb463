"""The exact posterior on the standard splits beside numbers from outside: MC dropout's, and GPflow's sparse GP."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from pydantic import BaseModel, ConfigDict, Field

from fsvi_bench.errors import InputError, TaskRefused
from fsvi_bench.papers.claims import Statistic
from fsvi_bench.papers.experiment import Experiment, Findings, Laboratory
from fsvi_bench.papers.intervals import largest_named
from fsvi_bench.papers.validation.numbers import (
    Numbers,
    Predictions,
    SparseGP,
    SplitNumbers,
    dropout_reference,
    gpflow_reference,
)
from fsvi_bench.papers.validation.page import rank_correlation, render_page, tables
from fsvi_bench.papers.validation.panels import draw
from fsvi_bench.papers.validation.sgpr_predictive import missing_variance, titsias_predictive_variance
from fsvi_bench.scoring.predictive import Predictive, exact_predictive
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.certificate import CertifiedTask
from fsvi_bench.tasks.official import official_splits, read_official
from fsvi_bench.tasks.task import Task, bind_task

LESS_JITTER = 0.1


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
    splits = []
    for name, split in places:
        official = read_official(name, split)
        splits.append(compare(official, bind_task(official.task, laboratory.data_dir)))
    found = {name for name, _ in places}
    numbers = Numbers(splits=tuple(splits), missing=tuple(name for name in settings.datasets if name not in found))
    return Findings(
        figure=draw(numbers),
        tables=tables(numbers),
        statistics=statistics(numbers),
        numbers=numbers.model_dump(mode="json"),
        page=partial(render_page, numbers, laboratory.quick),
    )


def compare(official: CertifiedTask, problem: Task) -> SplitNumbers:
    """One official task beside what others report on its rows."""
    task, fit = official.task, official.certificate.fit
    if fit is None:
        raise ValueError(f"{task.dataset} split {task.split} was not fitted")
    truth, Phi = problem.truth, problem.Phi_test
    exact = exact_predictive(problem, Phi)
    variance = titsias_predictive_variance(Phi, truth.covariance_tril, task.noise_variance, task.outputscale)
    titsias = Predictive(exact.mean, variance)
    rmse = float((problem.y_test - exact.mean).square().mean().sqrt() * task.target_std)
    place = task.dataset, task.split
    return SplitNumbers(
        dataset=task.dataset,
        split=task.split,
        task_sha256=task.sha256,
        converged=fit.converged,
        exact=Predictions(nlpd=exact.nlpd(problem), rmse=rmse),
        titsias=SparseGP(
            bound_per_point=fit.bound_per_point,
            noise_variance=float(task.noise_variance),
            nlpd=titsias.nlpd(problem),
            rmse=rmse,
        ),
        missing_share=float((missing_variance(Phi, task.outputscale) / variance).mean()),
        nlpd_with_less_jitter=_nlpd_with_less_jitter(problem),
        dropout=dropout_reference().get(place),
        gpflow=gpflow_reference().get(place),
    )


def _nlpd_with_less_jitter(problem: Task) -> float | None:
    """The exact posterior's, if the task's features were made with a tenth of its jitter."""
    task = replace(problem.frozen, jitter=LESS_JITTER * problem.frozen.jitter)
    try:
        other = replace(problem, frozen=task, feature_map=problem.feature_map.of(task))
    except TaskRefused:
        return None
    return exact_predictive(other, other.Phi_test).nlpd(other)


def statistics(numbers: Numbers) -> dict[str, Statistic]:
    """What the claims are about, over data sets."""
    theirs = numbers.datasets_of_gpflow
    return {
        "GPflow: a data set's largest mean shortfall of our bound [nats per point]": largest_named(
            (name, -numbers.mean_gap_to_gpflow(name, "bound_per_point")) for name in theirs
        ),
        "GPflow: a data set's largest mean difference in Titsias NLPD [nats]": largest_named(
            (name, abs(numbers.mean_gap_to_gpflow(name, "nlpd"))) for name in theirs
        ),
        "MC dropout: rank correlation of its RMSE with ours over splits, mean over data sets": Statistic.of_mean(
            [rank_correlation(numbers.of(name)) for name in numbers.datasets]
        ),
    }


VALIDATION = Experiment("validation", Settings, investigate)
