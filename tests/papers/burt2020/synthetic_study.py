"""A study's tables made up from formulas, whole or with holes."""

import math
from functools import cache

import pandas as pd

from fsvi_bench.papers.burt2020.study.claims import judge_study
from fsvi_bench.papers.burt2020.study.reproduction import page_of
from fsvi_bench.papers.burt2020.study.summary import frames_of
from fsvi_bench.papers.burt2020.study.table import CELLS, CURVES, SPECTRUM, Tables
from fsvi_bench.papers.registry import REPRODUCTIONS
from fsvi_bench.papers.workspace import planned_cells
from fsvi_bench.running.plan import Request, make_plan

DATASETS, SPLITS = ("boston", "naval"), "0-2"
FILE = REPRODUCTIONS["burt2020-study"].file
CLAIMS = FILE.claims
LEVEL = {"exact": 0.5, "fixed-a": 60.0, "rand-a": 11.0, "rand-a-ngd": 9.0, "ssge": 300.0}


def kl(place):
    """Exact full has 0; more with the split, less with M."""
    if place.method == "exact" and place.family == "full":
        return 0.0
    size = place.hyperparameters.get("M", 80)
    return LEVEL[place.method] * (2.0 if place.family == "ffg" else 1.0) * (1 + 0.1 * place.split) * 80 / size


def without(place, status, reason=""):
    settings = {name: place.hyperparameters.get(name) for name in ("M", "kl_jitter", "max_steps")}
    own = {name: getattr(place, name) for name in ("dataset", "split", "method", "family", "seed")}
    return {**own, **settings, "status": status, "reason": reason}


def cell(place, **changes):
    value, jitter = kl(place), place.hyperparameters.get("kl_jitter")
    numbers = {
        "kl": value * (1.25 if jitter else 1.0), "kl_mean_term": value / 2, "kl_cov_term": value / 2,
        "reverse_kl": value / 4, "predictive_kl_test": value / 100, "predictive_kl_box": value / 50,
        "nlpd": 2.0 + 0.01 * place.split, "nlpd_gap": 0.01, "rmse": 3.0,
        "kl_at_objective_optimum": math.inf if place.method == "fixed-a" else value / 3, "objective_gap": 0.7,
        "log_likelihood_excess": 5.0 + place.split, "mean_log_likelihood_excess": 2.0 + place.split,
        "log_variance_ratio": -0.3 + 0.01 * place.split,
        "cell": f"{place.split:024x}", "code": f"{len(place.method):012x}", "task": f"{place.split:012x}",
        "hardware": "a machine", "gradients": 300, "train_seconds": 1.5,
    }  # fmt: skip
    spectrum = {f"spectrum_{percent}": 0.01 * (1 + percent) for percent in SPECTRUM}
    return without(place, "ok") | numbers | spectrum | changes


def frame(rows):
    words = {name: "" for name, kind in CELLS.items() if kind == "str"}
    return pd.DataFrame([words | row for row in rows], columns=list(CELLS)).astype(CELLS)


@cache
def study_places():
    return tuple(planned_cells(make_plan(Request(protocol="burt2020", datasets=DATASETS, splits=SPLITS))))


def curve(dataset, method, family, M, kls, cells=3):
    line = {"dataset": dataset, "method": method, "family": family, "M": M, "kl_jitter": 0.0, "cells": cells}
    rows = [
        line | {"steps": n, "seconds": 0.01 * n, "kl_lower_quartile": v / 2, "kl": v, "kl_upper_quartile": 2 * v}
        for n, v in zip((0, 1, 10, 100), kls, strict=True)
    ]
    return pd.DataFrame(rows, columns=list(CURVES)).astype(CURVES)


def curves_of(dataset):
    ends = [(method, family) for method in ("fixed-a", "rand-a") for family in ("full", "ffg")]
    return pd.concat(
        [curve(dataset, m, family, 80, (1000.0, 500.0, 10.0, 40.0 if m == "fixed-a" else 11.0)) for m, family in ends],
        ignore_index=True,
    )


@cache
def whole():
    curves = pd.concat([curves_of(dataset) for dataset in DATASETS], ignore_index=True)
    return Tables(frame([cell(place) for place in study_places()]), curves)


def with_holes():
    """RANDA full on naval has one split, SSGE full on boston diverged on split 2, EXACT is all there."""
    rows = []
    for place in study_places():
        what = (place.dataset, place.method, place.family)
        if what == ("naval", "rand-a", "full") and place.split > 0:
            rows.append(without(place, "missing"))
        elif what == ("boston", "ssge", "full") and place.split == 2:
            rows.append(without(place, "diverged", f"the loss is | nan at step {place.hyperparameters['M']}"))
        else:
            rows.append(cell(place))
    return Tables(frame(rows), whole().curves)


def changed(where, tables=None, **changes):
    """The whole study with other values in some cells; `where` tells them from the frame of all."""
    cells, curves = tables or whole()
    cells = cells.copy()
    for name, value in changes.items():
        cells.loc[where(cells), name] = value
    return Tables(cells, curves)


def text_of(tables, figures=()):
    """The page."""
    return page_of(tables, frames(tables), FILE, figures=list(figures), folder="study", scale="paper")


def frames(tables, claims=CLAIMS):
    return frames_of(tables, judge_study(tables.cells, claims))


def pivot(tables, name):
    """A table of the page, by method."""
    return frames(tables, CLAIMS[:1])[name].set_index("method")
