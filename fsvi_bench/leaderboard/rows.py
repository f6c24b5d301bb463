"""From verifications to the numbers of a table: scores cell by cell, what is told beside the ranks, and who has a rank.

Scores come as one vector over the tasks of the references, in their order: NaN is a cell that is missing, Infinity one
that diverged, failed, or has no such score (a mixture too dear to integrate over).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from fsvi_bench.leaderboard.entries import Entry
from fsvi_bench.leaderboard.references import References, TaskReference
from fsvi_bench.leaderboard.submission import Track
from fsvi_bench.leaderboard.tables import HEADLINES, BudgetPoint, Label, Score, Spectrum
from fsvi_bench.leaderboard.verification import OfficialRerun, Verification, VerifiedCell, Waypoint
from fsvi_bench.tasks.official import Place

#: Rows that the references give; no submission can have these names.
EXACT = "EXACT (closed form)"
MAP = "MAP (point mass)"
REFERENCE = "a reference, shown to compare with"
CLOSED_FORM = 1e-6  #: nats; nearer to the truth than this on every cell, a posterior is its closed form to rounding
FLAT = 1e-3  #: nats added to both sides of a log ratio: below it, differences do not matter
FRACTIONS = (0.01, 0.1, 1.0)  #: of a re-run's steps, where its score is shown

Column = Score | Literal["nlpd_gap"]
COLUMNS: tuple[Column, ...] = (*get_args(Score), "nlpd_gap")


@dataclass(frozen=True, eq=False)
class Row:
    """One line's numbers, before it is ranked."""

    entry: Entry | None  #: None: a row of the references' own
    name: str
    title: str
    track: Track
    label: Label
    unranked: str | None  #: why it has no rank
    order: int  #: among those without a rank
    columns: Mapping[Column, Float[np.ndarray, " T"]]
    spectrum: Spectrum | None
    budgets: tuple[BudgetPoint, ...]

    @property
    def headline(self) -> Float[np.ndarray, " T"]:
        """The score of the row's own track."""
        return self.columns[HEADLINES[self.track]]


def row_of(entry: Entry, references: References) -> Row:
    """An entry's row."""
    cells = verified_cells(entry, references)
    columns = {name: column(cells, references, name) for name in COLUMNS}
    order, unranked = _why_unranked(entry, references, columns)
    return Row(
        entry=entry,
        name=entry.name,
        title=entry.manifest.title,
        track=entry.manifest.track,
        label=label_of(entry.verification),
        unranked=unranked,
        order=order,
        columns=columns,
        spectrum=_spectrum(cells, references),
        budgets=_budgets(entry, references),
    )


def exact_row(references: References) -> Row:
    """The exact posterior, at no distance from itself; a submission would only repeat what each task's file decides."""
    zero = np.zeros(len(references.tasks))
    columns: dict[Column, Float[np.ndarray, " T"]] = {
        "kl": zero,
        "kl_above_floor": -np.array([task.ffg_floor for task in references.tasks]),
        "predictive_kl_box": zero,
        "predictive_kl_test": zero,
        "nlpd_gap": zero,
    }
    return _given(references, EXACT, "The exact posterior", "full", columns, variance=1.0)


def map_row(references: References) -> Row:
    """The point mass at the exact posterior's mean. It has no density, so that its KL is infinite."""
    tasks = references.tasks
    infinite = np.full(len(tasks), math.inf)
    columns: dict[Column, Float[np.ndarray, " T"]] = {
        "kl": infinite,
        "kl_above_floor": infinite,
        "predictive_kl_box": np.array([task.map_predictive_kl_box for task in tasks]),
        "predictive_kl_test": np.array([task.map_predictive_kl_test for task in tasks]),
        "nlpd_gap": np.array([task.map_nlpd - task.nlpd_exact for task in tasks]),
    }
    return _given(references, MAP, "MAP, a point mass", "singular", columns, variance=0.0)


def _given(
    references: References,
    name: str,
    title: str,
    track: Track,
    columns: Mapping[Column, Float[np.ndarray, " T"]],
    variance: float,
) -> Row:
    """A row of the references' own, whose variance over the exact one is the same in all directions."""
    counted = sum(map(len, references.counted.values()))
    spectrum = Spectrum(smallest=variance, median=variance, largest=variance, cells=counted, of=counted)
    return Row(None, name, title, track, "closed form", REFERENCE, 0, columns, spectrum, ())


def label_of(verification: Verification | None) -> Label:
    """What was done with an entry."""
    return "not verified" if verification is None else verification.label


def verified_cells(entry: Entry, references: References) -> dict[Place, VerifiedCell]:
    """The cells of an entry on exactly the tasks of the references, by place."""
    cells = () if entry.verification is None else entry.verification.cells
    known = references.by_place
    by_place = {(cell.dataset, cell.split): cell for cell in cells}
    return {
        place: cell
        for place, cell in by_place.items()
        if place in known and known[place].task_sha256 == cell.task_sha256
    }


def column(cells: Mapping[Place, VerifiedCell], references: References, name: Column) -> Float[np.ndarray, " T"]:
    """One score of every task."""
    return np.array([_value(cells.get(task.place), task, name) for task in references.tasks])


def _value(cell: VerifiedCell | None, task: TaskReference, name: Column) -> float:
    if cell is None:
        return math.nan
    if cell.scores is None:
        return math.inf
    value: float | None = getattr(cell.scores, "kl" if name == "kl_above_floor" else name)
    if value is None:
        return math.nan if name == "nlpd_gap" else math.inf
    # No score of ours is -Infinity, and one from a forged file must not stop the others.
    value = value if value > -math.inf else math.nan
    return value - task.ffg_floor if name == "kl_above_floor" else value


def _why_unranked(
    entry: Entry, references: References, columns: Mapping[Column, Float[np.ndarray, " T"]]
) -> tuple[int, str | None]:
    """Why an entry has no rank, None if it has one, and its order among those without."""
    if entry.manifest.reference:
        return 0, REFERENCE
    if entry.verification is None:
        return 5, f"not verified: {entry.note}" if entry.note else "not verified"
    known = references.by_place
    places = [((cell.dataset, cell.split), cell.task_sha256) for cell in entry.verification.cells]
    if any(place in known and known[place].task_sha256 != sha256 for place, sha256 in places):
        return 4, "verified on other tasks than these"
    headline = columns[HEADLINES[entry.manifest.track]]
    present = headline[~np.isnan(headline)]
    if entry.manifest.track != "singular" and present.size and bool((present <= CLOSED_FORM).all()):
        return 1, "equals the closed form to rounding"
    if (shortfall := entry.verification.shortfall) is not None:
        return 2, shortfall
    lacking = missing_datasets(columns, references)
    if any(name in references.counted for name in lacking):
        return 3, f"missing: {', '.join(lacking)}"
    return 0, None


def missing_datasets(columns: Mapping[Column, Float[np.ndarray, " T"]], references: References) -> list[str]:
    """Data sets of which a cell is missing, in the references' order."""
    absent = np.logical_or.reduce([np.isnan(columns[name]) for name in get_args(Score)])
    return [dataset for dataset, places in references.splits.items() if bool(absent[places].any())]


def by_dataset(scores: Float[np.ndarray, " T"], references: References) -> dict[str, Float[np.ndarray, " J"]]:
    """The scores of each data set's splits."""
    return {dataset: scores[places] for dataset, places in references.splits.items()}


def mean_over_datasets(scores: Float[np.ndarray, " T"], references: References) -> float | None:
    """Mean over the data sets that count of the mean over splits, so that each weighs the same; None if a cell of
    theirs is missing."""
    means = [float(scores[places].mean()) for places in references.counted.values()]
    return None if any(map(math.isnan, means)) else fmean(means)


def log_ratio(row: Row, references: References) -> float | None:
    """Median over cells of log10((score + 1e-3)/(RANDA's + 1e-3)), both by the headline of the row's track.

    In the factorised track both are KLs above the family's floor. Singular posteriors are held against the full RANDA's
    `predictive_kl_box`. It is taken over the cells of the data sets that count, where a frozen RANDA is there: the same
    for every row. None if there are none, or if the row lacks any cell of these data sets.
    """
    counted = [place for places in references.counted.values() for place in places]
    against = np.array([_rand_a(references.tasks[place], row.track) for place in counted], dtype=float)
    own = row.headline[counted]
    if bool(np.isnan(own).any()) or bool(np.isnan(against).all()):
        return None
    frozen = ~np.isnan(against)
    # Rounding may put a score some 1e-9 below 0; anything below −1e-3 is a defect, and not a number here.
    with np.errstate(invalid="ignore"):
        found = float(np.median(np.log10((own[frozen] + FLAT) / (against[frozen] + FLAT))))
    return None if math.isnan(found) else found


def _rand_a(task: TaskReference, track: Track) -> float | None:
    if track == "full":
        return task.rand_a_full
    if track == "singular":
        return task.rand_a_predictive_kl_box
    return None if task.rand_a_ffg is None else task.rand_a_ffg - task.ffg_floor


def _spectrum(cells: Mapping[Place, VerifiedCell], references: References) -> Spectrum | None:
    """Over the data sets that count; None if a cell of theirs is missing or none has a posterior."""
    counted = [references.tasks[place].place for places in references.counted.values() for place in places]
    own = [cells[place] for place in counted if place in cells]
    found = [cell.scores.overconfidence for cell in own if cell.scores is not None]
    if len(own) < len(counted) or not found:
        return None
    numbers = [[each.smallest, each.median, each.largest] for each in found]
    smallest, median, largest = np.median(np.array(numbers), axis=0).tolist()
    return Spectrum(smallest, median, largest, cells=len(found), of=len(counted))


def _budgets(entry: Entry, references: References) -> tuple[BudgetPoint, ...]:
    """Where the re-runs stood after each fraction of their steps, if all of them have a waypoint within it.

    Of re-runs on the references' tasks: an entry may have been run on others, too.
    """
    rerun, known = None if entry.verification is None else entry.verification.rerun, references.by_place
    runs = [run for run in (() if rerun is None else rerun.official) if (run.dataset, run.split) in known]
    if not runs:
        return ()
    points = []
    for fraction in FRACTIONS:
        found = [_waypoint(run, fraction, entry.manifest.budget.steps) for run in runs]
        at = [waypoint for waypoint in found if waypoint is not None]
        if len(at) == len(runs):
            values = [_budget_score(entry, known, run, w, fraction) for run, w in zip(runs, at, strict=True)]
            points.append(_budget_point(fraction, at, values))
    return tuple(points)


def _waypoint(run: OfficialRerun, fraction: float, declared: int) -> Waypoint | None:
    """The last one within this part of the run's steps; a run that diverged would have taken the declared ones."""
    if not run.waypoints:
        return None
    steps = declared if run.rerun is None else max(waypoint.steps for waypoint in run.waypoints)
    # A re-run looks after whole steps; before the first one there is nothing of the method to see.
    within = [waypoint for waypoint in run.waypoints if 0 < waypoint.steps <= max(1, round(fraction * steps))]
    return max(within, key=lambda waypoint: waypoint.steps, default=None)


def _budget_score(
    entry: Entry, known: Mapping[Place, TaskReference], run: OfficialRerun, waypoint: Waypoint, fraction: float
) -> float:
    if run.rerun is None and fraction == 1.0:
        return math.inf
    if entry.manifest.track == "singular":
        return math.inf if waypoint.predictive_kl_box is None else waypoint.predictive_kl_box
    floor = known[run.dataset, run.split].ffg_floor if entry.manifest.track == "ffg" else 0.0
    return waypoint.kl - floor


def _budget_point(fraction: float, at: list[Waypoint], values: list[float]) -> BudgetPoint:
    counts = [waypoint.work for waypoint in at if waypoint.work is not None]
    work = None
    if len(counts) == len(at):
        names = [name for name in counts[0] if all(name in count for count in counts)]
        work = {name: fmean(count[name] for count in counts) for name in names}
    steps, seconds = fmean(waypoint.steps for waypoint in at), fmean(waypoint.seconds for waypoint in at)
    return BudgetPoint(fraction, steps, seconds, fmean(values), work)
