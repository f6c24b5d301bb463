"""Figure 1 of Burt et al. (2020): every method on the toy problem, beside the exact posterior."""

from __future__ import annotations

import pandas as pd

from fsvi_bench.errors import InputError
from fsvi_bench.papers.burt2020.cells import frame_of, in_words, settings_in_words, title_of
from fsvi_bench.papers.experiment import Experiment, Findings, Laboratory
from fsvi_bench.presenting.cell_files import load_posterior
from fsvi_bench.presenting.figures import curve
from fsvi_bench.running.cell import Record
from fsvi_bench.running.plan import Request
from fsvi_bench.tasks.official import find_task
from fsvi_bench.tasks.task import Task, bind_task


def compare_curves(request: Request, laboratory: Laboratory) -> Findings:
    """Mean and standard deviation of f (without noise) under every posterior, and the training data.

    Raises:
        InputError: the task is not in the cache, or a posterior is missing from the folder.
    """
    records, root = laboratory.cells.records, laboratory.parts.workshop.root
    problem, cells = _toy_problem(records[0]), frame_of(laboratory.cells)
    curves = {
        record.cell: pd.DataFrame(vars(curve(problem, load_posterior(record, root, problem.frozen))))
        for record in records
        if record.status == "ok"
    }
    drawn = pd.concat(curves, names=["cell", None]).reset_index("cell")
    drawn = drawn.assign(low=drawn["mean"] - 2 * drawn["sd"], high=drawn["mean"] + 2 * drawn["sd"])
    panels = _panels(cells, drawn)
    drawn = drawn.merge(cells[["cell", "method", "kl_jitter"]], on="cell").merge(panels[["method", "panel"]], on="method")
    exact, others = drawn[drawn["method"] == "exact"], panels.loc[panels["method"] != "exact", ["panel"]]
    frames = {
        "panels": panels,
        "curves": drawn.assign(jittered=drawn["kl_jitter"] > 0),
        "exact": exact[["x", "mean", "low", "high"]].merge(others, how="cross"),
        "data": pd.DataFrame({"x": problem.X[:, 0], "y": problem.y}).merge(panels[["panel"]], how="cross"),
        "cells": cells,
    }
    frames["panels"].attrs = settings_in_words(cells, laboratory.quick)
    return Findings(frames=frames)


def _toy_problem(record: Record) -> Task:
    found = find_task(record.dataset, record.split)
    if found is None:
        raise InputError(f"the task of {record.dataset} split {record.split} is not in the cache; run again")
    return bind_task(found.task)


def _panels(cells: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """Each method's name, KLs and the range of its curves."""
    panels = []
    for method, own in cells.groupby("method", sort=False):
        kls = own["kl"].map("{:.3g}".format).where(own["status"] == "ok", own["status"])
        jitters = [f" (jitter {in_words(jitter)}: {kl})" for jitter, kl in zip(own["kl_jitter"], kls, strict=True) if jitter > 0]
        drawn = curves[curves["cell"].isin(own["cell"])]
        reach = f"reaches {drawn['low'].min():.2g} and {drawn['high'].max():.2g}".replace("-", "−")
        panels.append((method, curves["x"].quantile(0.2), f"{title_of(method)}: KL = {kls.iloc[0]} nats{''.join(jitters)}", reach))
    return pd.DataFrame(panels, columns=["method", "x", "panel", "reach"])


BURT2020_FIG1 = Experiment("burt2020-fig1", Request, compare_curves)
