"""The study's two tables, from which everything else is made: `scores.csv.gz`, a row per planned cell, finished or not,
and `curves.csv.gz`, the medians of the traces.

They are small enough to be committed: each number has ten digits (six for curves), and scores that do not apply are
empty. If a study is run in several sessions or on several machines, its tables are combined.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from fsvi_bench.errors import InputError, plain
from fsvi_bench.files import replace_together
from fsvi_bench.papers.burt2020.cells import LINE
from fsvi_bench.papers.burt2020.study.closeness import Closeness

SPECTRUM = (0, 5, 25, 50, 75, 95, 100)  #: percent; quantiles of S*^(-1/2) S S*^(-1/2) in the table
#: As in `scoring.scores`.
SCORES = (
    "kl", "kl_mean_term", "kl_cov_term", "reverse_kl", "predictive_kl_test", "predictive_kl_box", "nlpd", "nlpd_gap",
    "rmse", "kl_at_objective_optimum", "objective_gap",
)  # fmt: skip
CLOSENESS = Closeness._fields
RATIOS = tuple(f"spectrum_{percent}" for percent in SPECTRUM)
#: Columns that every scored Gaussian has.
ALWAYS = ["kl", "kl_mean_term", "nlpd", "rmse", *CLOSENESS, *RATIOS]
CELLS = {
    "dataset": "str", "split": "int64", "method": "str", "family": "str", "M": "Int64", "kl_jitter": "float64",
    "max_steps": "Int64", "seed": "int64", "status": "str", "reason": "str",
    "cell": "str",  # the first 24 digits of the record's key
    "code": "str",  # the first 12 digits of the hash of the sources that determine its result
    "task": "str",  # the first 12 digits of the task's hash
    "hardware": "str",
    "gradients": "Int64",  # number of gradients computed; a line search needs several per step
    "train_seconds": "float64",  # the batch's time divided by its size
    **dict.fromkeys((*SCORES, *CLOSENESS, *RATIOS), "float64"),
}  # fmt: skip
#: KL after `steps` steps over `cells` traces, and their median seconds.
CURVES = {
    **{name: CELLS[name] for name in LINE},
    "steps": "int64", "cells": "int64", "seconds": "float64",
    "kl_lower_quartile": "float64", "kl": "float64", "kl_upper_quartile": "float64",
}  # fmt: skip
WORDS = [name for name, kind in CELLS.items() if kind == "str"]
KNOWN = {"family": ("full", "ffg"), "status": ("ok", "diverged", "failed", "missing")}
PLACE = ["split", *LINE, "max_steps", "seed"]  #: the columns that identify a planned cell
CELLS_FILE, CURVES_FILE = "scores.csv.gz", "curves.csv.gz"


class Tables(NamedTuple):
    """The tables from which the page is made."""

    cells: pd.DataFrame
    curves: pd.DataFrame


def write_tables(tables: Tables, folder: Path) -> list[Path]:
    """Replaces both files together. Equal tables give equal bytes.

    Raises:
        InputError: the folder cannot be written.
    """
    curves, cells = as_text(tables.curves, 6), as_text(tables.cells)
    packed = [gzip.compress(text.encode(), mtime=0) for text in (curves, cells)]
    replace_together(folder, {CURVES_FILE: packed[0]}, CELLS_FILE, packed[1])
    return [folder / CELLS_FILE, folder / CURVES_FILE]


def as_text(frame: pd.DataFrame, digits: int = 10) -> str:
    """A table as CSV."""
    word = f"{{:.{digits}g}}".format
    return frame.to_csv(
        index=False, lineterminator="\n", float_format=lambda value: word(value).replace("inf", "Infinity")
    )


def read_tables(folder: Path) -> Tables:
    """Reads both files.

    Raises:
        InputError: a file is missing or invalid, a cell occurs twice, or a split has two tasks.
    """
    tables = Tables(_read(folder / CELLS_FILE, CELLS), _read(folder / CURVES_FILE, CURVES))
    require_one_cell_each(tables.cells)
    return tables


def require_one_cell_each(cells: pd.DataFrame) -> None:
    """Requires that no cell occurs twice (even with other steps or another seed) and no split has two tasks, since
    splits are averaged and paired.

    Raises:
        InputError: a cell occurs twice, or a split has two tasks.
    """
    for twice in cells[cells.duplicated(["split", *LINE])].itertuples():
        raise InputError(
            f"the study's table contains {twice.dataset} split {twice.split} {twice.method} twice; rebuild it"
        )
    tasks = cells[cells["task"] != ""].groupby(["dataset", "split"])["task"].nunique()
    for dataset, split in tasks.index[tasks > 1]:
        raise InputError(f"the study's table contains two tasks for {dataset} split {split}; keep the records of one")


def _read(path: Path, columns: dict[str, str]) -> pd.DataFrame:
    numbers = {name: [""] for name, kind in columns.items() if kind != "str"}  # "nan" is not accepted as a number
    try:
        frame = pd.read_csv(path, dtype=columns, keep_default_na=False, na_values=numbers)
        _require_whole(frame, columns)
    except FileNotFoundError as error:
        raise InputError(f"there is no {path}; give the folder of a study's records with --out") from error
    except (OSError, EOFError, ValueError, TypeError, OverflowError) as error:
        raise InputError(
            f"{path} is not a study's table ({plain(str(error))}); replace it, or delete it and rebuild it from a "
            "folder with all records"
        ) from error
    return frame


def _require_whole(frame: pd.DataFrame, columns: dict[str, str]) -> None:
    if list(frame) != list(columns):
        raise ValueError("its columns are not those of this version")
    for name in KNOWN.keys() & columns.keys():
        if not frame[name].isin(KNOWN[name]).all():
            raise ValueError(f"a {name} is not one of {', '.join(KNOWN[name])}")
    required = frame.loc[frame["status"] == "ok", ALWAYS] if columns is CELLS else frame.drop(columns=LINE)
    lacking = required.isna().any()
    if lacking.any():
        raise ValueError(f"a {'cell with status ok' if columns is CELLS else 'curve'} has no {lacking.idxmax()}")


def continued(found: Tables, earlier: Tables) -> Tables:
    """The tables found, with missing cells taken from the earlier tables.

    A cell found here always replaces the earlier one. A curve is a median over cells, so two curves cannot be combined:
    for a line with earlier cells the curve over more cells is used, and the one found here if both have equally many.

    Raises:
        InputError: the tables are of different tasks.
    """
    both = pd.concat([found.cells, earlier.cells])
    best = both.iloc[both["status"].eq("missing").argsort(kind="stable")].drop_duplicates(PLACE)
    cells = found.cells[PLACE].merge(best, on=PLACE)[list(CELLS)]  # in the order of the planned cells
    require_one_cell_each(cells)
    kept = cells.loc[(found.cells["status"] == "missing") & (cells["status"] != "missing"), LINE].drop_duplicates()
    curves = pd.concat([found.curves.assign(here=1), earlier.curves.merge(kept, on=LINE).assign(here=0)])
    fullest = curves.sort_values(["cells", "here"], ascending=False).drop_duplicates(LINE)[[*LINE, "here"]]
    lines = cells[LINE].drop_duplicates().merge(fullest, on=LINE)
    return Tables(cells, lines.merge(curves, on=[*LINE, "here"])[list(CURVES)])


def kept_words(found: Tables, earlier: Tables) -> str:
    """The numbers of earlier lines that are kept and that match no planned cell, as text; empty if there are none."""
    known = earlier.cells.loc[earlier.cells["status"] != "missing", PLACE]
    here = known.merge(found.cells[[*PLACE, "status"]], "left", PLACE)["status"]
    counts = {
        "cells without a record here keep their lines": here.eq("missing").sum(),
        "lines match no planned cell and are left out": here.isna().sum(),
    }
    return "; ".join(f"{count:,} {words}" for words, count in counts.items() if count)
