"""Kingma, Salimans and Welling (2015), figure 2: the KL to the log-uniform prior and its approximations."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fsvi_bench.maths.log_uniform import gaussian_dropout_kl, ksw_cubic_kl, ksw_lower_bound_kl, molchanov_kl
from fsvi_bench.papers.base import ResultTable
from fsvi_bench.papers.claims import Statistic
from fsvi_bench.papers.experiment import Experiment, Findings, Laboratory
from fsvi_bench.presenting.figures import BLUE, GREEN, NORMAL, PAGE_WIDTH, SMALL, VERMILLION, tidy

FORMS: dict[str, tuple[Callable[[Tensor], Tensor], str, str]] = {
    "exact": (gaussian_dropout_kl, "black", "-"),
    "cubic": (ksw_cubic_kl, VERMILLION, "--"),
    "lower bound": (ksw_lower_bound_kl, BLUE, "-."),
    "sigmoid (Molchanov et al. 2017)": (molchanov_kl, GREEN, ":"),
}


class Settings(BaseModel):
    """Drop rates between which α = p/(1−p) runs, and how many values of it there are, evenly in log α."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    lowest_rate: float = Field(gt=0, lt=0.5)
    highest_rate: float = Field(gt=0, le=0.5)
    points: int = Field(ge=2)


def investigate(settings: Settings, laboratory: Laboratory) -> Findings:
    """All forms as the paper draws them: −KL, the constant such that the exact one is 0 at α = 1."""
    low, high = (math.log(p / (1 - p)) for p in (settings.lowest_rate, settings.highest_rate))
    log_alpha = torch.linspace(low, high, settings.points, dtype=torch.float64).clamp(max=0.0)
    at_one = gaussian_dropout_kl(torch.ones(1, dtype=torch.float64))
    negative_kl = {name: at_one - form(log_alpha.exp()) for name, (form, _, _) in FORMS.items()}
    exact = negative_kl["exact"]
    errors = {name: values - exact for name, values in negative_kl.items() if name != "exact"}
    height = float(exact.max() - exact.min())
    return Findings(
        figure=_draw(log_alpha, negative_kl, errors),
        tables=[_table(log_alpha, errors)],
        statistics={
            "cubic: largest error of its shape, share of the height": Statistic.exact(
                float(errors["cubic"].max() - errors["cubic"].min()) / (2 * height)
            ),
            "cubic: largest error, share of the height": Statistic.exact(float(errors["cubic"].abs().max()) / height),
            "lower bound: least distance below the exact -KL": Statistic.exact(float(-errors["lower bound"].max())),
        },
        numbers={
            "log_alpha": log_alpha.tolist(),
            "negative_kl": {name: values.tolist() for name, values in negative_kl.items()},
        },
    )


def _table(log_alpha: Tensor, errors: dict[str, Tensor]) -> ResultTable:
    rows = []
    for name, error in errors.items():
        worst = int(error.abs().argmax())
        rows.append((name, float(error[worst]), float(log_alpha[worst].exp())))
    return ResultTable(
        title="Largest error of -KL over the domain of the figure [nats]",
        columns=("form", "error", "at alpha"),
        rows=tuple(rows),
    )


def _draw(log_alpha: Tensor, negative_kl: dict[str, Tensor], errors: dict[str, Tensor]) -> Figure:
    figure = Figure(figsize=(PAGE_WIDTH, 3.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, (_, colour, style) in FORMS.items():
        left.plot(log_alpha, negative_kl[name], color=colour, linestyle=style, linewidth=1.5, label=name)
        if name in errors:
            right.plot(log_alpha, errors[name], color=colour, linestyle=style, linewidth=1.5)
    right.axhline(0, color="black", linewidth=0.8)
    _label(left, "−KL, 0 at α = 1 [nats]")
    _label(right, "its error [nats]")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=SMALL)
    return figure


def _label(axes: Axes, words: str) -> None:
    axes.set_xlabel("log α", fontsize=NORMAL)
    axes.set_ylabel(words, fontsize=NORMAL)
    tidy(axes, SMALL)


KSW2015_FIG2 = Experiment("ksw2015-fig2", Settings, investigate)
