"""Figure 1 of Burt et al. (2020): every method on the toy problem, compared with the exact posterior."""

from __future__ import annotations

import pandas as pd
import torch

from fsvi_bench.errors import InputError
from fsvi_bench.maths.blr import predictive_variance
from fsvi_bench.papers.burt2020.cells import frame_of, in_words, problem_of, settings_in_words, title_of
from fsvi_bench.papers.experiment import ExperimentContext, Frames
from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.running.options import Request
from fsvi_bench.running.store import load_posterior
from fsvi_bench.tasks.task import Task

LIMITS = -3.4, 3.6  #: of the figure's panels, as in its file


def compare_curves(request: Request, context: ExperimentContext) -> Frames:
    """Mean and standard deviation of f (without noise) under every posterior, and the training data.

    Raises:
        InputError: the task is not in the cache, a posterior is missing from the folder, or there is none.
    """
    records, root = context.cells.records, context.workspace.root
    problem, cells = problem_of(records[0], None), frame_of(context.cells)
    curves = {
        record.cell: curve(problem, load_posterior(record, root, problem.frozen))
        for record in records
        if record.status == "ok"
    }
    if not curves:
        raise InputError("no run of the toy problem ended in a posterior; run them without --no-compute")
    of_cells = cells[["cell", "method", "kl_jitter"]]
    drawn = pd.concat(curves, names=["cell", None]).reset_index("cell").merge(of_cells, on="cell")
    panels = _panels(cells, drawn)
    drawn = drawn.merge(panels[["method", "panel"]], on="method")
    exact, others = drawn[drawn["method"] == "exact"], panels.loc[panels["method"] != "exact", ["panel"]]
    frames = {
        "panels": panels,
        "curves": drawn.assign(jittered=drawn["kl_jitter"] > 0),
        "exact": exact[["x", "mean", "low", "high"]].merge(others, how="cross"),
        "data": pd.DataFrame({"x": problem.X[:, 0], "y": problem.y}).merge(panels[["panel"]], how="cross"),
        "cells": cells,
    }
    panels.attrs.update(settings_in_words(cells, context.workspace.scale))
    return frames


def curve(problem: Task, q: Posterior) -> pd.DataFrame:
    """f under q, without noise, at the toy problem's test inputs in ascending order: mean, sd, and mean ± 2 sd."""
    x, order = problem.X_test[:, 0].sort()
    Phi, no_noise = problem.Phi_test[order], torch.zeros((), dtype=torch.float64)
    deviation = predictive_variance(Phi, q.covariance_tril(), no_noise).sqrt()
    found = pd.DataFrame({"x": x, "mean": Phi @ q.mean, "sd": deviation})
    return found.assign(low=found["mean"] - 2 * found["sd"], high=found["mean"] + 2 * found["sd"])


def _nats(kl: float) -> str:
    """Three digits, and 0 for rounding."""
    return "0" if abs(kl) < 1e-9 else f"{float(f'{kl:.3g}'):,g}"


def _panels(cells: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """Each method's title with KLs, and the range of its curves if it exceeds the panel."""
    panels = []
    for method, rows in cells.groupby("method", sort=False):
        own = rows.sort_values("kl_jitter", kind="stable")  # cells without a record come last
        kls = own["kl"].map(_nats).where(own["status"] == "ok", own["status"])
        jitters = " (jitter " + own["kl_jitter"].map(in_words) + ": " + kls + ")"
        drawn = curves[curves["method"] == method]
        ends = drawn["low"].min(), drawn["high"].max()
        inside = not len(drawn) or (LIMITS[0] <= ends[0] and ends[1] <= LIMITS[1])
        reach = "" if inside else f"reaches {ends[0]:.2g} and {ends[1]:.2g}".replace("-", "−")
        kl = f"= {kls.iloc[0]} nats" if own["status"].iloc[0] == "ok" else kls.iloc[0]
        words = f"{title_of(str(method))}: KL {kl}{jitters[own['kl_jitter'] > 0].sum() or ''}"
        panels.append({"method": method, "x": curves["x"].quantile(0.17), "panel": words, "reach": reach})
    return pd.DataFrame(panels)
