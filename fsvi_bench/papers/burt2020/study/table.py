"""The study's table, `scores.csv`: a line per planned cell, finished or not, from which all else is made.

With `curves.csv`, the medians of the traces, it is small enough to be committed: ten digits of each number (six of a
curve's), infinity as a word, nothing where a score does not apply.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from fsvi_bench.errors import InputError, plain
from fsvi_bench.files import write_atomically
from fsvi_bench.posteriors.base import Family

SPECTRUM = (0, 5, 25, 50, 75, 95, 100)  #: percent: the quantiles that are kept
SCORES = (
    "kl", "kl_mean_term", "kl_cov_term", "reverse_kl", "predictive_kl_test", "predictive_kl_box", "nlpd", "nlpd_gap",
    "rmse", "kl_at_objective_optimum", "objective_gap",
)  # fmt: skip
#: What every Gaussian that was scored has.
ALWAYS = ("kl", "kl_mean_term", "nlpd", "rmse", "log_likelihood_excess", "mean_log_likelihood_excess",
          "log_variance_ratio", *(f"spectrum_{percent}" for percent in SPECTRUM))  # fmt: skip


class Entry(NamedTuple):
    """What makes one line of the page's tables on a data set; None for what a method does not have."""

    method: str
    family: Family
    M: int | None
    kl_jitter: float | None


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")

    @model_validator(mode="after")
    def _no_nan(self) -> Self:
        unknown = [name for name, value in self if isinstance(value, float) and math.isnan(value)]
        if unknown:
            raise ValueError(f"{unknown[0]} is not a number")
        return self


class StudyCell(_Line):
    """One planned cell. Scores as in `scoring.scores`; what it has none of is None."""

    dataset: str
    split: int
    method: str
    family: Family
    M: int | None
    kl_jitter: float | None
    max_steps: int | None
    seed: int
    status: Literal["ok", "diverged", "failed", "missing"]
    reason: str = ""
    cell: str = ""  #: the record's cell key, its first 24 digits
    code: str = ""  #: of the hash of the sources that decide its numbers, the first 12 digits
    task: str = ""  #: of its task's hash, likewise
    hardware: str = ""
    gradients: int | None = None  #: that were computed; a line search takes more than one for a step
    train_seconds: float | None = None  #: the batch's, over its size
    kl: float | None = None
    kl_mean_term: float | None = None
    kl_cov_term: float | None = None
    reverse_kl: float | None = None
    predictive_kl_test: float | None = None
    predictive_kl_box: float | None = None
    nlpd: float | None = None
    nlpd_gap: float | None = None
    rmse: float | None = None
    kl_at_objective_optimum: float | None = None
    objective_gap: float | None = None
    log_likelihood_excess: float | None = None  #: see `study.closeness`
    mean_log_likelihood_excess: float | None = None
    log_variance_ratio: float | None = None
    spectrum_0: float | None = None  #: of S*^(-1/2) S S*^(-1/2), at 0 %
    spectrum_5: float | None = None
    spectrum_25: float | None = None
    spectrum_50: float | None = None
    spectrum_75: float | None = None
    spectrum_95: float | None = None
    spectrum_100: float | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        lacking = [name for name in ALWAYS if getattr(self, name) is None]
        if self.status == "ok" and lacking:
            raise ValueError(f"a cell that is ok has no {lacking[0]}")
        return self

    @cached_property
    def entry(self) -> Entry:
        return Entry(self.method, self.family, self.M, self.kl_jitter)


class CurvePoint(_Line):
    """One place of a median curve: KL after so many steps, over `cells` traces, and the seconds they took (median)."""

    dataset: str
    method: str
    family: Family
    M: int | None
    kl_jitter: float | None
    steps: int
    cells: int
    seconds: float
    kl_lower_quartile: float
    kl: float  #: the median
    kl_upper_quartile: float

    @cached_property
    def entry(self) -> Entry:
        return Entry(self.method, self.family, self.M, self.kl_jitter)


class Tables(NamedTuple):
    """What the page is made from."""

    cells: list[StudyCell]
    curves: list[CurvePoint]


CELLS_FILE, CURVES_FILE = "scores.csv", "curves.csv"
Line = TypeVar("Line", StudyCell, CurvePoint)
_INFINITIES = {math.inf: "Infinity", -math.inf: "-Infinity"}


def write_tables(tables: Tables, folder: Path) -> list[Path]:
    """Writes both files, the cells last: where they are, the curves are.

    Raises:
        InputError: the folder cannot be written.
    """
    texts = {CURVES_FILE: _text(tables.curves, CurvePoint, 6), CELLS_FILE: _text(tables.cells, StudyCell, 10)}
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in (CELLS_FILE, CURVES_FILE)]


def read_tables(folder: Path) -> Tables:
    """Reads both files.

    Raises:
        InputError: one is missing or is not what its name says.
    """
    return Tables(_read(folder / CELLS_FILE, StudyCell), _read(folder / CURVES_FILE, CurvePoint))


def of_entry(cells: Iterable[StudyCell], dataset: str, entry: Entry) -> list[StudyCell]:
    """The cells of one line."""
    return [cell for cell in cells if cell.dataset == dataset and cell.entry == entry]


def _text(lines: Sequence[Line], kind: type[Line], digits: int) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = list(kind.model_fields)
    writer.writerow(names)
    writer.writerows([_word(getattr(line, name), digits) for name in names] for line in lines)
    return text.getvalue()


def _word(value: object, digits: int) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return _INFINITIES.get(value, f"{value:.{digits}g}")
    return str(value)


def _read(path: Path, kind: type[Line]) -> list[Line]:
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream)
            if reader.fieldnames != list(kind.model_fields):
                raise ValueError("its columns are others")
            empty = {name: "" if field.annotation is str else None for name, field in kind.model_fields.items()}
            rows = list(reader)
            # Where a line is cut short, what it lacks must not pass for a score that does not apply.
            if any(None in row or None in row.values() for row in rows):
                raise ValueError("a line has too few or too many columns")
            return [kind.model_validate({name: word or empty[name] for name, word in row.items()}) for row in rows]
    except FileNotFoundError as error:
        raise InputError(f"there is no {path}; give the folder of a study's records with --out") from error
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise InputError(
            f"{path} is not a study's table ({plain(why)}); put one there that is, or delete it and make it again from "
            "the records, where all of them are here"
        ) from error
