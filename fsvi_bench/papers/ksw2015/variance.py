"""Kingma, Salimans and Welling (2015), tables 1 and 2, eq. 5, appendix F and the paragraph on speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from pydantic import Field, model_validator
from scipy.stats import chi2, gmean

from fsvi_bench.papers.claims import Statistic, Values
from fsvi_bench.papers.experiment import Experiment, Findings, Laboratory
from fsvi_bench.papers.ksw2015.data import ImageSource
from fsvi_bench.papers.ksw2015.gradient_variance import NO_NOISE, VarianceSettings
from fsvi_bench.papers.ksw2015.layers import NoiseSettings
from fsvi_bench.papers.ksw2015.measuring import Measured, Training, train_and_measure
from fsvi_bench.papers.ksw2015.minibatch_law import MinibatchLawSettings
from fsvi_bench.papers.ksw2015.network import NetworkSettings
from fsvi_bench.papers.ksw2015.timing import Timed, Timing, TimingSettings, time_steps
from fsvi_bench.papers.ksw2015.train import TrainSettings
from fsvi_bench.papers.parts import Plain
from fsvi_bench.seeds import derive_seed

NOISES = {  # one α for each weight, or input
    "table 1": NoiseSettings(kind="variational-b", granularity="weight"),
    "table 2": NoiseSettings(kind="variational-a", granularity="unit"),
}
CELL = ["table", "parameter", "epochs", "layer"]
LOCAL, POINT, BATCH = "local", "per-point", "per-minibatch"


class Settings(Plain):
    """`networks` of each kind, trained for as many epochs as the last checkpoint asks for; what the paper printed."""

    networks: int = Field(ge=1)
    width: int = Field(ge=1)
    hidden_layers: int = Field(ge=1)
    training: TrainSettings
    variance: VarianceSettings
    law: MinibatchLawSettings
    timing: TimingSettings
    published: list[dict[str, str | int | float]]
    published_seconds: dict[str, float]

    @model_validator(mode="after")
    def _early_and_late(self) -> Settings:
        if sum(epochs > 0 for epochs in set(self.variance.checkpoints)) < 2:
            raise ValueError("checkpoints need two numbers of epochs above 0, since a claim compares early with late")
        return self


def investigate(settings: Settings, laboratory: Laboratory) -> Findings:
    images, device = ImageSource.find(laboratory), laboratory.device
    trainings = list(_trainings(settings, images, device))
    measured = laboratory.parts.compute(train_and_measure, trainings, Measured)
    timing = Timing(settings=settings.timing, images=images, hidden_layers=settings.hidden_layers, device=device)
    (timed,) = laboratory.parts.compute(time_steps, [timing], Timed)  # alone, so that no other part disturbs it
    frames = {**tidy(trainings, measured), "rounds": rounds_of(timed)}
    cells = ratios(frames["variances"], pd.DataFrame(settings.published)).assign(images=images.name)
    summaries = {
        "ratios": cells,
        "relative": _relative(frames["sizes"]),
        "bounds": _bounds(frames["sizes"]),
        "times": _times(frames["rounds"], settings.published_seconds),
    }
    return Findings(
        frames=frames | summaries, statistics=statistics(frames), drawings={"columns": partial(_columns, at=cells)}
    )


def _trainings(settings: Settings, images: ImageSource, device: str) -> Iterator[Training]:
    for table, network in product(NOISES, range(settings.networks)):
        seed = derive_seed("ksw2015-variance", network) % 2**31
        yield Training(
            table=table,
            network=network,
            images=images,
            settings=NetworkSettings(noise=NOISES[table], width=settings.width, hidden_layers=settings.hidden_layers),
            training=settings.training.model_copy(update={"seed": seed}),
            variance=settings.variance,
            law=settings.law if table == "table 1" else None,
            device=device,
        )


# --- Frames -----------------------------------------------------------------------------------------------------------


def tidy(trainings: list[Training], measured: list[Measured]) -> dict[str, pd.DataFrame]:
    """What was measured, by table and network: gradients' variances, laws, and the laws by minibatch size."""
    found = [
        training.model_dump(include={"table", "network"}) | each.model_dump()
        for training, each in zip(trainings, measured, strict=True)
    ]
    place: Any = ["table", "network"]
    variances, laws = (pd.json_normalize(found, name, place) for name in ("variances", "laws"))
    # θ before log α; estimators stay in their order, of which local is the first.
    variances = variances.sort_values(["table", "parameter", "layer", "epochs"], ascending=[True, False, True, True])
    local = variances.groupby([*CELL, "network"])["variance"].transform("first")
    by_size = [name for name in map(str, laws) if name.startswith("sizes.")]
    laws["V"] = laws["law.variance_of_means"] + laws["law.mean_variance"]
    return {
        "networks": pd.DataFrame(found)[[*place, "test_error"]],
        "variances": variances.assign(to_local=variances["variance"] / local),
        "laws": laws.drop(columns=by_size).assign(sizes=laws["sizes.M"].str.len()),
        "sizes": laws.explode(by_size).infer_objects().rename(columns=lambda name: name.removeprefix("sizes.")),
    }


def rounds_of(timed: Timed) -> pd.DataFrame:
    """Seconds: a row for each round of each repeat, a column for each estimator."""
    return pd.DataFrame([{"repeat": n, **each} for n, repeat in enumerate(timed.repeats) for each in repeat])


def time_ratios(rounds: pd.DataFrame) -> pd.DataFrame:
    """Seconds over those of local, medians of rounds: a row for each repeat."""
    seconds = rounds.set_index("repeat")
    return seconds.div(seconds[LOCAL], axis=0).groupby("repeat").median()


def bound_ratios(sizes: pd.DataFrame) -> dict[str, Any]:
    """Appendix F's bound, as printed and corrected, over the exact variance: a row for each estimator and M < N/2, for
    which the paper states its bound, and a column for each network."""
    stated = sizes[(sizes["sampling"] == "without-replacement") & (2 * sizes["M"] < sizes["law.N"])]
    exact, printed, corrected = (
        stated.pivot(index=["estimator", "M"], columns="network", values=name)
        for name in ("predicted", "paper_bound", "corrected_bound")
    )
    return {"printed": printed / exact, "corrected": corrected / exact}


# --- Statistics -------------------------------------------------------------------------------------------------------


def statistics(frames: Mapping[str, pd.DataFrame]) -> dict[str, Values]:
    """For each network (repeat for times); by layer and epochs, or by M and estimator, where all of these count."""
    bounds = bound_ratios(frames["sizes"])
    return {
        **_of_gradients(frames["variances"]),
        **_of_laws(frames["laws"]),
        "appendix F: bound (48) over the variance, least": _cases(bounds["printed"], "{}, M = {}"),
        "appendix F, corrected: bound over the variance, least": _cases(bounds["corrected"], "{}, M = {}"),
        "seconds per step: per point over local": list(time_ratios(frames["rounds"])[POINT]),
    }


def _of_gradients(variances: pd.DataFrame) -> dict[str, Values]:
    at: Any = variances.pivot(index=CELL, columns=["estimator", "network"], values="variance")
    trained = at[at.index.get_level_values("epochs") > 0]

    def ratio(table: str, parameter: str, above: str, below: str, since: int = 1) -> Any:
        """By epochs and layer; the start counts with `since` 0 only."""
        cells = at.loc[table, parameter].loc[since:]
        return cells[above] / cells[below]

    def least(table: str, parameter: str, above: str, below: str, since: int = 1) -> Values:
        return _cases(ratio(table, parameter, above, below, since), "{1} layer after {0} epochs")

    by_layer = ratio("table 1", "theta", BATCH, POINT).groupby("layer")  # in the order of epochs
    local, same = trained[LOCAL], at.loc["table 2"]
    return {
        "table 1, log alpha: per point over local, least": least("table 1", "log_alpha", POINT, LOCAL, 0),
        "table 1, log alpha: per minibatch over per point, least": least("table 1", "log_alpha", BATCH, POINT, 0),
        "table 1, theta: per point over local, least": least("table 1", "theta", POINT, LOCAL),
        "table 1, theta: per minibatch over per point, least": least("table 1", "theta", BATCH, POINT),
        "table 1, theta: per point over local, mean": list(gmean(ratio("table 1", "theta", POINT, LOCAL))),
        "table 1, log alpha: per point over local, mean after training": list(
            gmean(ratio("table 1", "log_alpha", POINT, LOCAL))
        ),
        "table 1, theta: per minibatch over per point, first checkpoint over last, least": _cases(
            by_layer.first() / by_layer.last(), "{}"
        ),
        "table 1, theta: local over no noise, least": least("table 1", "theta", LOCAL, NO_NOISE),
        "table 2: distance of log(per point / local) from 0": list(np.log(same[POINT] / same[LOCAL]).mean()),
        "table 2, theta: per minibatch over local, least": least("table 2", "theta", BATCH, LOCAL),
        "table 2, theta: local over no noise, least": least("table 2", "theta", LOCAL, NO_NOISE),
        "table 2 over table 1, theta, local: mean": list(
            gmean(local.loc["table 2", "theta"] / local.loc["table 1", "theta"])
        ),
    }


def _of_laws(laws: pd.DataFrame) -> dict[str, Values]:
    drawn = laws[laws["sampling"] == "with-replacement"]
    local, shared = (drawn[drawn["estimator"] == name] for name in (LOCAL, BATCH))
    probability = chi2.sf(drawn["fit.chi_square"].sum(), (drawn["sizes"] - 2).sum())
    return {
        "eq. 5: chi-square probability of the law V/M + (1 - 1/M) C": float(probability),
        "eq. 5, local: size of C over V": list(local["fit.C"] / local["fit.V"]),
        "eq. 5, per minibatch: M at which the covariance takes over": list(
            (shared["V"] + shared["law.shared"]) / shared["law.shared"]
        ),
    }


def _cases(rows: Any, words: str) -> dict[str, list[float]]:
    """What is in each row, by its index in words."""
    return {words.format(*np.atleast_1d(index)): list(row) for index, row in rows.iterrows()}


# --- Tables and figure ------------------------------------------------------------------------------------------------

PLACES = {POINT: -0.27, BATCH: 0.0, NO_NOISE: 0.27}  #: within a column of the figure, one for each layer and checkpoint


def ratios(variances: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """Each cell's geometric mean over networks, and its ratio to local with a 95% interval beside the paper's."""
    cells = variances.groupby([*CELL, "estimator"], sort=False)
    found: Any = cells["variance"].agg(gmean).to_frame()
    found[["to_local", "low", "high"]] = [
        np.exp(Statistic.of_mean(np.log(list(ratio)).tolist())) for _, ratio in cells["to_local"]
    ]
    printed = published.set_index(["table", "epochs", "layer"])
    printed = printed.div(printed[LOCAL], axis=0).melt(ignore_index=False, var_name="estimator", value_name="paper")
    found = found.reset_index().merge(printed.assign(parameter="theta").reset_index(), how="left")
    column = found.groupby(["layer", "epochs"]).ngroup() + found["estimator"].map(PLACES)
    place = column + 0.09 * (found["parameter"] == "log_alpha")
    return found.assign(place=place, place_of_paper=place - 0.09).replace({"paper": {np.nan: None}})


def _relative(sizes: pd.DataFrame) -> pd.DataFrame:
    """To the variance of one point; means over networks, and their standard errors of what was measured."""
    drawn = sizes[sizes["sampling"] == "with-replacement"]
    each = drawn.assign(seen=drawn["variance"] / drawn["V"], law=drawn["predicted"] / drawn["V"])
    groups = each.groupby(["estimator", "M"], sort=False)
    means, error = groups[["seen", "law"]].mean(), groups["seen"].sem()
    return means.assign(low=means["seen"] - error, high=means["seen"] + error).reset_index()


def _bounds(sizes: pd.DataFrame) -> pd.DataFrame:
    found: Any = [np.exp(_intervals(np.log(of))).add_prefix(f"{name}_") for name, of in bound_ratios(sizes).items()]
    return pd.concat(found, axis=1).reset_index()


def _times(rounds: pd.DataFrame, published: Mapping[str, float]) -> pd.DataFrame:
    """Medians over repeats, and the ratio to local beside the paper's."""
    times: Any = _intervals(time_ratios(rounds).T).assign(seconds=rounds.groupby("repeat").median().median())
    times = times.rename_axis("estimator").reset_index()
    times["paper"] = times["estimator"].map(published) / published[LOCAL]
    return times.replace({"paper": {np.nan: None}})


def _intervals(repetitions: Any) -> Any:
    """Of the mean over columns."""
    return pd.DataFrame([Statistic.of_mean(row) for row in repetitions.to_numpy().tolist()], repetitions.index)


def _columns(axes: Axes, at: pd.DataFrame) -> None:
    """Epochs below each column, and the layer below the middle one of its half."""
    columns = at[["layer", "epochs"]].drop_duplicates().to_numpy().tolist()
    half = len(columns) // 2
    words = [
        f"{epochs}\n{layer if place % half == half // 2 else ' '}" for place, (layer, epochs) in enumerate(columns)
    ]
    axes.set_xticks(range(len(columns)), words)
    axes.axvline(half - 0.5, color="0.8", linewidth=0.8)
    axes.sharey(axes.figure.axes[0])
    axes.autoscale(axis="y")


KSW2015_VARIANCE = Experiment("ksw2015-variance", Settings, investigate)
