"""The study's two tables, from which all else is made: `scores.csv.gz`, a row per planned cell, finished or not, and
`curves.csv.gz`, the medians of the traces.

They are small enough to be committed: ten digits of each number (six of a curve's), nothing where a score does not
apply. Continuing a study in several sittings, or on several machines, puts two pairs of tables together.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from fsvi_bench.errors import InputError, plain
from fsvi_bench.files import write_atomically
from fsvi_bench.papers.burt2020.cells import LINE
from fsvi_bench.papers.burt2020.study.closeness import Closeness

SPECTRUM = (0, 5, 25, 50, 75, 95, 100)  #: percent: the quantiles of S*^(-1/2) S S*^(-1/2) that are kept
#: As in `scoring.scores`.
SCORES = (
    "kl", "kl_mean_term", "kl_cov_term", "reverse_kl", "predictive_kl_test", "predictive_kl_box", "nlpd", "nlpd_gap",
    "rmse", "kl_at_objective_optimum", "objective_gap",
)  # fmt: skip
CLOSENESS = Closeness._fields
RATIOS = tuple(f"spectrum_{percent}" for percent in SPECTRUM)
#: What every Gaussian that was scored has.
ALWAYS = ["kl", "kl_mean_term", "nlpd", "rmse", *CLOSENESS, *RATIOS]
CELLS = {
    "dataset": "str", "split": "int64", "method": "str", "family": "str", "M": "Int64", "kl_jitter": "float64",
    "max_steps": "Int64", "seed": "int64", "status": "str", "reason": "str",
    "cell": "str",  # the first 24 digits of the record's key
    "code": "str",  # the first 12 of the hash of the sources that decide its numbers
    "task": "str",  # of its task's hash, likewise
    "hardware": "str",
    "gradients": "Int64",  # that were computed; a line search takes more than one for a step
    "train_seconds": "float64",  # the batch's, over its size
    **dict.fromkeys((*SCORES, *CLOSENESS, *RATIOS), "float64"),
}  # fmt: skip
#: KL after so many steps over `cells` traces, and the median of the seconds they took.
CURVES = {
    **{name: CELLS[name] for name in LINE},
    "steps": "int64", "cells": "int64", "seconds": "float64",
    "kl_lower_quartile": "float64", "kl": "float64", "kl_upper_quartile": "float64",
}  # fmt: skip
WORDS = [name for name, kind in CELLS.items() if kind == "str"]
KNOWN = {"family": ("full", "ffg"), "status": ("ok", "diverged", "failed", "missing")}
PLACE = ["split", *LINE, "max_steps", "seed"]  #: what was planned: all but what became of it
CELLS_FILE, CURVES_FILE = "scores.csv.gz", "curves.csv.gz"


class Tables(NamedTuple):
    """What the page is made from."""

    cells: pd.DataFrame
    curves: pd.DataFrame


def write_tables(tables: Tables, folder: Path) -> list[Path]:
    """Writes both files, the cells last: where they are, the curves are. Equal tables give equal bytes.

    Raises:
        InputError: the folder cannot be written.
    """
    texts = {CURVES_FILE: as_text(tables.curves, 6), CELLS_FILE: as_text(tables.cells)}
    for name, text in texts.items():
        write_atomically(folder / name, gzip.compress(text.encode(), mtime=0))
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
        InputError: one is missing or is not what its name says, a cell stands twice, or a split has two tasks.
    """
    tables = Tables(_read(folder / CELLS_FILE, CELLS), _read(folder / CURVES_FILE, CURVES))
    require_one_cell_each(tables.cells)
    return tables


def require_one_cell_each(cells: pd.DataFrame) -> None:
    """Refuses a table in which a cell stands twice (with other steps or another seed, too), or a split has two tasks:
    splits are what is averaged and paired here.

    Raises:
        InputError: it does.
    """
    for twice in cells[cells.duplicated(["split", *LINE])].itertuples():
        raise InputError(
            f"the study's table holds {twice.dataset} split {twice.split} {twice.method} twice; make it again"
        )
    tasks = cells[cells["task"] != ""].groupby(["dataset", "split"])["task"].nunique()
    for dataset, split in tasks.index[tasks > 1]:
        raise InputError(f"the study's table holds {dataset} split {split} on two tasks; keep the records of one")


def _read(path: Path, columns: dict[str, str]) -> pd.DataFrame:
    numbers = {name: [""] for name, kind in columns.items() if kind != "str"}  # "nan" is no number here
    try:
        frame = pd.read_csv(path, dtype=columns, keep_default_na=False, na_values=numbers)
        _require_whole(frame, columns)
    except FileNotFoundError as error:
        raise InputError(f"there is no {path}; give the folder of a study's records with --out") from error
    except (OSError, EOFError, ValueError) as error:
        raise InputError(
            f"{path} is not a study's table ({plain(str(error))}); put one there that is, or delete it and make it "
            "again from the records, where all of them are here"
        ) from error
    return frame


def _require_whole(frame: pd.DataFrame, columns: dict[str, str]) -> None:
    if list(frame) != list(columns):
        raise ValueError("its columns are others")
    for name in KNOWN.keys() & columns.keys():
        if not frame[name].isin(KNOWN[name]).all():
            raise ValueError(f"a {name} is none of {', '.join(KNOWN[name])}")
    required = frame.loc[frame["status"] == "ok", ALWAYS] if columns is CELLS else frame.drop(columns=LINE)
    lacking = required.isna().any()
    if lacking.any():
        raise ValueError(f"a cell that is ok has no {lacking.idxmax()}")


def continued(found: Tables, earlier: Tables) -> Tables:
    """What was found, and from the earlier tables the cells that are missing there.

    A cell found here is taken from here, whatever the earlier table has. A curve is a median over cells and cannot be
    put together from two: of each line that keeps cells the one of more cells is taken, of equal ones that found here.

    Raises:
        InputError: the two are not of the same tasks.
    """
    both = pd.concat([found.cells, earlier.cells])
    best = both.iloc[both["status"].eq("missing").argsort(kind="stable")].drop_duplicates(PLACE)
    cells = found.cells[PLACE].merge(best, on=PLACE)[list(CELLS)]  # as the planned cells stand
    require_one_cell_each(cells)
    kept = cells.loc[(found.cells["status"] == "missing") & (cells["status"] != "missing"), LINE].drop_duplicates()
    curves = pd.concat([found.curves.assign(here=1), earlier.curves.merge(kept, on=LINE).assign(here=0)])
    fullest = curves.sort_values(["cells", "here"], ascending=False).drop_duplicates(LINE)[[*LINE, "here"]]
    lines = cells[LINE].drop_duplicates().merge(fullest, on=LINE)
    return Tables(cells, lines.merge(curves, on=[*LINE, "here"])[list(CURVES)])


def kept_words(found: Tables, earlier: Tables) -> str:
    """How many lines of the earlier table stay, and how many do not fit anywhere; nothing if it had none."""
    known = earlier.cells.loc[earlier.cells["status"] != "missing", PLACE]
    here = known.merge(found.cells[[*PLACE, "status"]], "left", PLACE)["status"]
    counts = {
        "cells without a record here keep their lines": here.eq("missing").sum(),
        "lines are of no planned cell and are left out": here.isna().sum(),
    }
    return "; ".join(f"{count:,} {words}" for words, count in counts.items() if count)
