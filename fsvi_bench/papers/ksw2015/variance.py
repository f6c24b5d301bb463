"""Kingma, Salimans and Welling (2015), tables 1 and 2, eq. 5, appendix F and the paragraph on speed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from pydantic import PositiveInt, model_validator
from scipy.stats import gmean

from fsvi_bench.papers.claims import intervals
from fsvi_bench.papers.experiment import ExperimentContext, Frames
from fsvi_bench.papers.ksw2015.data import ImageSource, OfImages
from fsvi_bench.papers.ksw2015.measuring import (
    NOISES,
    Law,
    MinibatchLawSettings,
    TimingSettings,
    VarianceSettings,
    fit_law,
    time_steps,
    train_and_measure,
)
from fsvi_bench.papers.ksw2015.networks import TrainSettings
from fsvi_bench.papers.side_by_side import side_by_side
from fsvi_bench.presenting.frames import formula

PLACE: list[Any] = ["table", "network"]
CELL = ["table", "parameter", "layer", "epochs"]
COMPARED = (
    ("per-point", "local"),
    ("per-minibatch", "per-point"),
    ("per-minibatch", "local"),
    ("local", "no-noise"),
)
OF_LAWS = """
seen = variance / V_of_passes
law = predicted / V_of_passes
printed = printed_bound / predicted
corrected = corrected_bound / predicted
bounded = 2 * M < N
"""


class Settings(OfImages):
    """`networks` of each kind, trained until the last checkpoint, and the values printed in the paper."""

    networks: PositiveInt
    width: PositiveInt
    training: TrainSettings
    variance: VarianceSettings
    law: MinibatchLawSettings
    timing: TimingSettings
    published: list[dict[str, str | int | float]]
    published_seconds: dict[str, float]

    @model_validator(mode="after")
    def _early_and_late(self) -> Settings:
        if sum(epochs > 0 for epochs in set(self.variance.checkpoints)) < 2:
            raise ValueError("expected at least two checkpoints above 0 epochs, since a claim compares early with late")
        return self


def investigate(settings: Settings, context: ExperimentContext) -> Frames:
    images = ImageSource.find(context, settings.images)
    grid = {"table": NOISES, "networks": side_by_side(range(settings.networks), context.device)}
    chosen = {name: getattr(settings, name) for name in ("width", "training", "variance", "law")}
    networks = context.table(train_and_measure, grid, images=images, **chosen)
    # Run alone, so that other parts do not affect the times.
    timed = context.table(time_steps, {}, settings=settings.timing, images=images)
    found = findings(networks, pd.DataFrame(timed["rounds"][0]), settings)
    found["ratios"]["images"] = images.name
    return found


def findings(networks: pd.DataFrame, rounds: pd.DataFrame, settings: Settings) -> Frames:
    """Measurements by table and network, and summaries over networks."""
    found: Any = networks.to_dict("records")
    variances, sizes = (pd.json_normalize(found, name, "table") for name in ("variances", "sizes"))
    errors = networks[["table", "networks", "test_errors"]].explode(["networks", "test_errors"], ignore_index=True)
    frames = {
        "networks": errors.set_axis([*PLACE, "test_error"], axis=1),
        **frames_of_gradients(variances, pd.DataFrame(settings.published)),
        **frames_of_laws(sizes),
        **frames_of_times(rounds, settings.published_seconds),
    }
    return frames | aggregates(frames)


def aggregates(frames: Frames) -> dict[str, pd.DataFrame]:
    """Statistics of claims about more than one row, by network."""
    local = frames["means"].query("parameter == 'theta'").pivot(index="network", columns="table", values="local")
    return {"by_network": pd.DataFrame({"over_table_1": local["table 2"] / local["table 1"]})}


def frames_of_gradients(variances: pd.DataFrame, published: pd.DataFrame) -> Frames:
    """A table's cells by network, with ratios between estimators, and means over cells and over networks."""
    cells = variances.pivot(index=[*CELL, "network"], columns="estimator", values="variance").reset_index()
    compared = {f"{above} over {below}": cells[above] / cells[below] for above, below in COMPARED}
    cells = cells.assign(**compared, trained=cells["epochs"] > 0)
    trained = cells[cells["trained"]]
    by_time = trained.groupby(["table", "layer", "parameter", "network"])["per-minibatch over per-point"]
    # θ comes before log α; estimators keep their order, with local first.
    variances = variances.sort_values(CELL, ascending=[True, False, True, True])
    local = variances.groupby([*CELL, "network"])["variance"].transform(lambda entries: entries.iloc[0])
    variances = variances.assign(to_local=variances["variance"] / local)
    return {
        "variances": variances,
        "cells": cells,
        "means": trained.groupby(["table", "parameter", "network"])[["local", *compared]].agg(gmean).reset_index(),
        "early": by_time.agg(lambda values: values.iloc[0] / values.iloc[-1]).reset_index(name="first over last"),
        "ratios": ratios(variances, published),
    }


def ratios(variances: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """Each cell's geometric mean over networks, and its ratio to local with a 95% interval and the paper's value."""
    groups = variances.groupby([*CELL, "estimator"], sort=False)
    found = intervals(groups["to_local"], geometric=True).assign(variance=groups["variance"].agg(gmean)).reset_index()
    printed = published.set_index(["table", "epochs", "layer"])
    printed = printed.div(printed["local"], axis=0).melt(ignore_index=False, var_name="estimator", value_name="paper")
    found = found.merge(printed.assign(parameter="theta").reset_index(), how="left")
    return found.assign(
        paper=found["paper"].astype("Float64"),  # values not printed there are shown as a dash in tables, not as NaN
        place=found.groupby(["layer", "epochs"]).ngroup(),
        column=found["epochs"].astype(str) + "\n" + found["layer"],
    )


def frames_of_laws(sizes: pd.DataFrame) -> Frames:
    """Eq. 5 and appendix F by network and over networks.

    Eq. 5 is an identity, so whether it holds is for tests. The log likelihoods of a trained network have tails so heavy
    that its variances at small M, from hundreds of minibatches, are decided by single images.

    The covariance exceeds V from the M with (M − 1) C = V. The paper states its bound for M < N/2.
    """
    cases = sizes.groupby([*PLACE, "sampling", "estimator"], sort=False)
    fits = cases[["M", "variance", "expected_error"]].apply(lambda case: pd.Series(fit_law(*case.to_numpy().T)))
    laws = cases[["V_of_passes", *Law._fields]].first().join(fits).assign(sizes=cases.size()).reset_index()
    laws = laws.assign(C_over_V=laws["C"] / laws["V"], takes_over=laws["V_of_passes"] / laws["shared"] + 1)
    sizes = formula(sizes, OF_LAWS)
    groups = sizes.groupby(["sampling", "estimator", "M", "bounded"], sort=False)
    shown = [
        intervals(groups[name], geometric=True).add_prefix(f"{name}_") for name in ("seen", "printed", "corrected")
    ]
    return {"laws": laws, "sizes": sizes, "by_size": pd.concat([groups["law"].mean(), *shown], axis=1).reset_index()}


def frames_of_times(rounds: pd.DataFrame, published: Mapping[str, float]) -> Frames:
    """Seconds relative to local: medians of rounds, one row per repeat; and over repeats, with the paper's values."""
    seconds = rounds.set_index("repeat")
    repeats = seconds.div(seconds["local"], axis=0).groupby("repeat").median()
    times = intervals(repeats.melt(var_name="estimator").groupby("estimator", sort=False)["value"])
    times["seconds"] = seconds.groupby("repeat").median().median()
    times["paper"] = (pd.Series(published) / published["local"]).astype("Float64")
    return {"rounds": rounds, "repeats": repeats, "times": times.reset_index()}
