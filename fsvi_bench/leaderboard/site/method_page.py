"""A page per entry: what it is, what the verifier found, and how to make it again."""

from __future__ import annotations

from dataclasses import dataclass

from fsvi_bench.leaderboard.entries import Entry
from fsvi_bench.leaderboard.site.commands import reproduction, verification_command
from fsvi_bench.leaderboard.site.material import Material
from fsvi_bench.leaderboard.site.pictures import along_the_way, spectrum_strips
from fsvi_bench.leaderboard.site.render import render
from fsvi_bench.leaderboard.site.tables import SCORES, TABS, status, withheld
from fsvi_bench.leaderboard.site.words import digits, fixed, full, ordinal, signed
from fsvi_bench.leaderboard.submission import DEVELOPMENT_DATASETS
from fsvi_bench.leaderboard.tables import HEADLINES, Line, Score
from fsvi_bench.leaderboard.verification import OfficialRerun, Rerun, VerifiedCell, WithheldRerun
from fsvi_bench.scoring.scores import Scores

#: Of a table of splits: heading, and what it means.
SPLIT_COLUMNS = {
    "kl": ("KL", "KL(q ‖ exact posterior), nats"),
    "above": ("above floor", "KL minus that of the best factorised q, nats"),
    "test": ("predictive KL, test", "mean KL from the exact predictive to q’s over the test inputs, nats"),
    "box": ("predictive KL, box", "the same over 1,000 inputs of the training box, nats"),
    "nlpd": ("NLPD", "nats per test point in the target’s own unit"),
    "gap": ("NLPD gap", "NLPD minus the exact posterior’s"),
    "rmse": ("RMSE", "in the target’s own unit"),
    "coverage": ("95 % coverage", "share of the test targets within q’s central 95 % intervals"),
}


@dataclass(frozen=True)
class Number:
    """As a page shows it, and in full."""

    text: str
    full: str


@dataclass(frozen=True)
class SplitRow:
    """One official task; no numbers where there is no posterior, but a reason."""

    split: int
    status: str
    reason: str
    numbers: list[Number]


@dataclass(frozen=True)
class DatasetRow:
    """One data set of the entry's track."""

    dataset: str
    development: bool
    score: float | None
    spread: tuple[float, float] | None
    rank: float | None
    splits: list[SplitRow]


@dataclass(frozen=True)
class Compared:
    """An official cell, submitted and run again."""

    cell: OfficialRerun
    what: str
    difference: str


def method_page(material: Material, entry: Entry) -> bytes:
    """What the authors say, what the verifier found, and the commands that make it again."""
    manifest, verification = entry.manifest, entry.verification
    rerun = None if verification is None else verification.rerun
    line = material.lines[manifest.track, entry.name]
    score = HEADLINES[manifest.track]
    datasets = _datasets(material, entry, line)
    return render(
        "method.html.j2",
        1,
        entry=entry,
        manifest=manifest,
        line=line,
        score=SCORES[score],
        status=status(line),
        standing=standings(material, entry),
        datasets=datasets,
        columns=_columns(manifest.track),
        verification=verification,
        rerun=rerun,
        compared=[] if rerun is None else _compared(rerun),
        withheld=[] if rerun is None else [_withheld(each, score) for each in rerun.withheld],
        spectrum=spectrum_strips(entry, material.datasets),
        curves=along_the_way(entry, score, _floors(material)),
        made_by=reproduction(entry, material),
        partial=_partial(entry, material.datasets),
        unfinished=withheld(entry),
        verify=verification_command(entry),
    )


def standings(material: Material, entry: Entry) -> list[str]:
    """A sentence per table in which the entry is ranked."""
    found = []
    for key in (entry.manifest.track, "across", "across-test"):
        line, table = material.lines.get((key, entry.name)), material.tables[key]
        if line is None or line.place is None or line.mean_rank is None:
            continue
        of = sum(other.place is not None for other in table.lines)
        between = line.interval and f", 95 % interval {fixed(line.interval[0], 1)} to {fixed(line.interval[1], 1)}"
        group = f", tie group {line.group}" if line.group is not None else ""
        at = f"{fixed(line.mean_rank, 2)}{between or ''}{group}"
        found.append(f"{TABS[key]}: {ordinal(line.place)} of {of} by mean rank ({at}).")
    return found


def _floors(material: Material) -> dict[tuple[str, int], float]:
    return {task.place: task.ffg_floor for task in material.references.tasks}


def _datasets(material: Material, entry: Entry, line: Line) -> list[DatasetRow]:
    cells = entry.verification.cells if entry.verification else ()
    floors = _floors(material)
    rows = []
    for dataset in material.datasets:
        own = [cell for cell in cells if cell.dataset == dataset]
        rows.append(
            DatasetRow(
                dataset=dataset,
                development=dataset in DEVELOPMENT_DATASETS,
                score=line.scores.get(dataset),
                spread=line.spread.get(dataset),
                rank=line.ranks.get(dataset),
                splits=[_split(cell, entry.manifest.track, floors.get((dataset, cell.split))) for cell in own],
            )
        )
    return rows


def _partial(entry: Entry, datasets: list[str]) -> list[str]:
    """Data sets on which some cells have no posterior, with how many have one."""
    found = []
    for dataset in datasets:
        own = [cell for cell in (entry.verification.cells if entry.verification else ()) if cell.dataset == dataset]
        scored = sum(cell.scores is not None for cell in own)
        found += [f"{scored} of {len(own)} cells of {dataset}"] if scored < len(own) else []
    return found


def _columns(track: str) -> list[tuple[str, str]]:
    return [words for key, words in SPLIT_COLUMNS.items() if key != "above" or track == "ffg"]


def _split(cell: VerifiedCell, track: str, floor: float | None) -> SplitRow:
    if cell.scores is None:
        return SplitRow(cell.split, cell.status, cell.reason or "no reason was given", [])
    values = _values(cell.scores, floor)
    shown = [
        Number(signed(value) if key == "gap" else digits(value), full(value))
        for key, value in values.items()
        if key != "above" or track == "ffg"
    ]
    return SplitRow(cell.split, cell.status, "", shown)


def _values(scores: Scores, floor: float | None) -> dict[str, float | None]:
    return {
        "kl": scores.kl,
        "above": None if scores.kl is None or floor is None else scores.kl - floor,
        "test": scores.predictive_kl_test,
        "box": scores.predictive_kl_box,
        "nlpd": scores.nlpd,
        "gap": scores.nlpd_gap,
        "rmse": scores.rmse,
        "coverage": None if scores.coverage is None else scores.coverage["95"],
    }


def _compared(rerun: Rerun) -> list[Compared]:
    words = {"kl": "KL", "predictive_kl_box": "predictive KL, box"}
    return [Compared(cell, words[cell.score], _difference(cell)) for cell in rerun.official]


def _difference(cell: OfficialRerun) -> str:
    if cell.submitted is None and cell.rerun is None:
        return "no score in either"
    if cell.submitted is None or cell.rerun is None:
        return "no score in one of them"
    if cell.submitted == cell.rerun:
        return "none"
    return f"{digits(abs(cell.rerun - cell.submitted) / max(abs(cell.submitted), 1e-300), 2)} of it"


def _withheld(task: WithheldRerun, score: Score) -> tuple[WithheldRerun, Number]:
    value = None
    if task.scores is not None:
        value = task.scores.predictive_kl_box if score == "predictive_kl_box" else task.scores.kl
        if value is not None and score == "kl_above_floor":
            value -= task.ffg_floor
    return task, Number(digits(value), full(value))
