"""Figures: legible in print, safe for colour-blind readers (Okabe and Ito's palette), without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fsvi_bench.maths.blr import predictive_variance
from fsvi_bench.posteriors.gaussian import GaussianPosterior
from fsvi_bench.reporting.summary import estimate
from fsvi_bench.running.cell import Record
from fsvi_bench.tasks.problem import Problem

BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
PALETTE = (BLUE, VERMILLION, GREEN, PURPLE)


def draw_posteriors(axes: Axes, problem: Problem, posteriors: Mapping[str, GaussianPosterior]) -> None:
    """Training data and, for each posterior, the mean of f with a band of ±2 standard deviations of f (no noise).

    Raises:
        ValueError: the problem's inputs have more than one dimension.
    """
    if problem.X.shape[1] != 1:
        raise ValueError(f"inputs have {problem.X.shape[1]} dimensions, only one can be drawn")
    order = problem.X_test[:, 0].argsort()
    x, Phi = problem.X_test[order, 0].numpy(), problem.Phi_test[order]
    no_noise = torch.zeros((), dtype=torch.float64)
    for (label, q), colour in zip(posteriors.items(), PALETTE, strict=False):
        mean = (Phi @ q.mean).numpy()
        deviation = predictive_variance(Phi, q.covariance_tril(), no_noise).sqrt().numpy()
        axes.fill_between(x, mean - 2 * deviation, mean + 2 * deviation, color=colour, alpha=0.18, linewidth=0)
        for edge in (mean - 2 * deviation, mean + 2 * deviation):
            axes.plot(x, edge, color=colour, linewidth=0.8)
        axes.plot(x, mean, color=colour, linewidth=1.8, label=label)
    axes.plot(problem.X[:, 0], problem.y, ".", color="black", markersize=5, label="training data")
    _tidy(axes)


def draw_score_by_dataset(axes: Axes, records: Sequence[Record], score: str) -> None:
    """One column per data set: a dot per cell, and the mean over splits with its standard error."""
    names = list(dict.fromkeys(record.dataset for record in records))
    for place, name in enumerate(names):
        values = [getattr(r.scores, score) for r in records if r.dataset == name and r.scores is not None]
        spread = np.linspace(-0.18, 0.18, len(values))
        axes.plot(place + spread, values, "o", color=VERMILLION, alpha=0.35, markersize=4, markeredgewidth=0)
        mean = estimate(values)
        axes.errorbar(place, mean.mean, yerr=mean.standard_error, fmt="_", color="black", markersize=16, capsize=3)
    axes.set_xticks(range(len(names)), names)
    _tidy(axes)


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
    axes.title.set_fontsize(11)


def new_figure(
    columns: int, width: float, height: float, ratios: Sequence[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure apart from pyplot's global state, with its axes from left to right."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False, width_ratios=ratios)
    return figure, list(axes[0])
