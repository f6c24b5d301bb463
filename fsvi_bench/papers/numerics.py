"""Do jitter in the functional KL, or the tolerance of a numerical rank, change what the benchmark says?

Neither is in the mathematics: both are choices of an implementation. Every method runs with the default settings and
with others, from the same random numbers. Ratios are of the scores of the same split, to those with the default.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from fsvi_bench.papers.experiment import ExperimentContext, Frames
from fsvi_bench.presenting.summary import FACTS, frame_of
from fsvi_bench.presenting.traces import Spread, spread_of
from fsvi_bench.running.options import Request

SCORES = {"kl": "kl", "joint_predictive_kl_test.10": "joint"}
PANELS = {"kl": ": KL(q‖P_D)", "joint": ": joint predictive KL, test"}
SETTINGS = {"kl_jitter": "jitter", "rank_tolerance": "rank tolerance"}
CELL, OF_ALL = ["dataset", "method", "family", "split", "seed"], ["method", "family", "setting", "score"]
CLEAR = 1.1  #: methods whose medians differ by this factor have an order
SPACE = 0.11  #: between the marks of a data set


def compare_settings(request: Request, context: ExperimentContext) -> Frames:
    """The effect of each setting: on scores, and on the order of methods. Cells without a record count as failed."""
    planned: list[Any] = [*context.cells.records, *context.cells.missing]
    return compared(frame_of(planned).reindex(columns=[*FACTS, *(f"settings.{name}" for name in SETTINGS), *SCORES]))


def compared(cells: pd.DataFrame) -> Frames:
    """The same from a frame of cells; the default is the setting with the smallest jitter and tolerance."""
    jitter, tolerance = (_words(cells[f"settings.{name}"], word) for name, word in SETTINGS.items())
    cells = cells.assign(setting=jitter + tolerance).rename(columns=SCORES)
    values = cells.melt([*CELL, "setting", "status"], list(SCORES.values()), "score", "value")
    values["value"] = values["value"].where(values["status"] != "diverged", np.inf).astype(float)
    ratios = _ratios(values)
    return {"ratios": ratios, "lines": _lines(ratios), "orders": _orders(values), "changes": _changes(ratios)}


def _words(values: pd.Series, name: str) -> pd.Series:
    """`jitter 1e-6`; empty for the smallest value."""
    words = values.map("{:.0e}".format).str.replace("e-0", "e-")
    return (f"{name} " + words).where(values > values.min(), "")


def _ratios(values: pd.DataFrame) -> pd.DataFrame:
    """By cell, setting and score: the ratio to the default; 1 if both diverged, NaN if one failed."""
    usual = values[values["setting"] == ""].drop(columns="setting")
    pairs = values[values["setting"] != ""].merge(usual, on=[*CELL, "score"], suffixes=("", "_usual"))
    both = np.isinf(pairs["value"]) & np.isinf(pairs["value_usual"])
    ratios = pairs.assign(ratio=(pairs["value"] / pairs["value_usual"]).mask(both, 1.0))
    return ratios[[*CELL, "setting", "score", "ratio"]].sort_values("setting", ascending=False, kind="stable")


def _lines(ratios: pd.DataFrame) -> pd.DataFrame:
    """The figure's marks: median and quartiles over splits."""
    by: Any = ratios.groupby(["dataset", *OF_ALL], sort=False)["ratio"]
    spreads = [(*line, *spread_of(of.to_numpy())) for line, of in by]
    found = pd.DataFrame(spreads, columns=["dataset", *OF_ALL, *Spread._fields])
    found = found.rename(columns={"lower_quartile": "low", "median": "ratio", "upper_quartile": "high"})
    slot = 2 * pd.Series(pd.factorize(found["setting"])[0]) + found["family"].ne("full")
    return found.assign(
        place=pd.factorize(found["dataset"], sort=True)[0],
        shift=SPACE * (slot - slot.max() / 2),
        label=found["setting"] + ", " + found["family"],
        panel=found["method"] + found["score"].map(PANELS),
    )


def _orders(values: pd.DataFrame) -> pd.DataFrame:
    """By data set, family, setting and score: the number of pairs of methods whose clear order the setting reverses.

    It is NaN if all cells of a method failed.
    """
    by: Any = values.groupby(["setting", "dataset", "family", "score", "method"])["value"]
    medians = by.median().unstack("method")
    usual = medians.loc[""].reindex(medians.index.droplevel("setting")).set_axis(medians.index)
    swaps = [_ahead(medians, *pair) * _ahead(usual, *pair) < 0 for pair in combinations(medians, 2)]
    known = medians.notna().all(axis=1) & usual.notna().all(axis=1)
    found = pd.concat(swaps, axis=1).sum(axis=1).where(known).reset_index(name="swaps")
    return found[found["setting"] != ""]


def _ahead(medians: pd.DataFrame, one: str, other: str) -> pd.Series:
    """1 where the first method is clearly closer, −1 where it is clearly farther, and 0 without a clear order."""
    return (medians[one] * CLEAR < medians[other]) * 1 - (medians[other] * CLEAR < medians[one]) * 1


def _changes(ratios: pd.DataFrame) -> pd.DataFrame:
    """Geometric means over splits: their median over data sets, the one farthest from 1, and where that is.

    A data set on which a cell failed counts as the farthest, with NaN. There is one row per method, family and setting,
    and a column for each score, such as `kl_farthest`.
    """
    logs = ratios.assign(log=np.log(ratios["ratio"]))
    means = logs.groupby(["dataset", *OF_ALL], sort=False)["log"].mean(skipna=False).reset_index()
    distance = means["log"].abs().fillna(np.inf)
    farthest = means.loc[distance.groupby([means[name] for name in OF_ALL], sort=False).idxmax()]
    farthest = farthest.set_index(OF_ALL).rename(columns={"log": "farthest"})
    medians = means.rename(columns={"log": "median"}).groupby(OF_ALL, sort=False)[["median"]].median().apply(np.exp)
    of_lines: Any = medians.join(farthest)
    found = of_lines.assign(farthest=np.exp(of_lines["farthest"])).unstack("score")
    return found.set_axis([f"{score}_{name}" for name, score in found], axis=1).reset_index()  # type: ignore[no-any-return]
