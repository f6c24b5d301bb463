"""The tables of the first page: what stands in each column, what it is sorted by, and what it means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from fsvi_bench.leaderboard.entries import Entry
from fsvi_bench.leaderboard.rows import FRACTIONS
from fsvi_bench.leaderboard.site.drawings import rank_bar
from fsvi_bench.leaderboard.site.material import Material
from fsvi_bench.leaderboard.site.words import MISSING, digits, fixed, full, interval, join, signed
from fsvi_bench.leaderboard.submission import DEVELOPMENT_DATASETS
from fsvi_bench.leaderboard.tables import Line, Score, TrackTable

TABS = {
    "full": "Full covariance",
    "ffg": "Factorised (FFG)",
    "singular": "Singular",
    "across": "Across tracks: box inputs",
    "across-test": "Across tracks: test inputs",
}
SCORES: dict[Score, str] = {
    "kl": "KL(q ‖ exact posterior), nats",
    "kl_above_floor": "KL above the floor of factorised q, nats",
    "predictive_kl_box": "predictive KL on box inputs, nats",
    "predictive_kl_test": "predictive KL on test inputs, nats",
}
DESCRIPTIVE = "descriptive, ranks nothing"
VERSUS = "median of log10((score + 0.001)/(RANDA’s + 0.001)); 0: as RANDA"
VERSUS_SINGULAR = f"{VERSUS}; that is RANDA with full covariance, in predictive KL on box inputs"
VARIANCE = "variance of q over the exact one, median direction; below 1 overconfident"


@dataclass(frozen=True)
class Column:
    """A heading and what it means; columns of one `group` stand under a heading of their own.

    `sortable`: whether it can order the rows, which numbers that compare no two entries cannot.
    """

    key: str
    heading: str
    meaning: str
    kind: Literal["number", "text"] = "number"
    group: str = ""
    development: bool = False
    sortable: bool = True


@dataclass(frozen=True)
class Cell:
    """`sort` is a number in full, `Infinity`, or empty where there is none; `part` says of what it is not all."""

    text: str
    sort: str
    title: str = ""
    interval: str = ""
    part: str = ""
    drawing: Markup | None = None


@dataclass(frozen=True)
class Row:
    """A line of the table; `search` is what the filter looks in, in small letters."""

    line: Line
    cells: list[Cell]
    status: str
    search: str


@dataclass(frozen=True)
class Panel:
    """One table, its place in the page and the words about it."""

    key: str
    tab: str
    table: TrackTable
    columns: list[Column]
    rows: list[Row]
    ranked: int

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Headings above several columns, with their widths; empty ones in between."""
        found: list[tuple[str, int]] = []
        for column in self.columns:
            if found and found[-1][0] == column.group:
                found[-1] = (column.group, found[-1][1] + 1)
            else:
                found.append((column.group, 1))
        return found


def make_panels(material: Material) -> list[Panel]:
    """One per table."""
    return [_panel(key, material.tables[key]) for key in TABS]


def _panel(key: str, table: TrackTable) -> Panel:
    ranked = sum(line.place is not None for line in table.lines)
    columns = _columns(table)
    rows = [_row(line, [_cell(line, column, ranked) for column in columns]) for line in table.lines]
    return Panel(key, TABS[key], table, columns, rows, ranked)


def _columns(table: TrackTable) -> list[Column]:
    first = [
        Column("mean-rank", "mean rank", "mean over data sets of the rank there, 1 the closest; bar: 95 % interval"),
        Column("group", "tie group", "only different groups are told apart; 1 leads; bars beside the places show them"),
    ]
    if table.track is None:
        first.insert(0, Column("track", "track", "full, ffg or singular", kind="text"))
    else:
        first.append(Column("log-ratio", "vs RANDA", VERSUS_SINGULAR if table.track == "singular" else VERSUS))
    datasets = [
        Column(name, name, f"mean over splits on {name}", group=SCORES[table.score], development=_develops(name))
        for name in table.datasets
    ]
    return [*first, *datasets, *_further(table)]


def _develops(dataset: str) -> bool:
    return dataset in DEVELOPMENT_DATASETS


def _further(table: TrackTable) -> list[Column]:
    words = "mean KL from the exact predictive to q’s over"
    test = Column("test", "test", f"{words} the test inputs, nats", group="predictive KL")
    box = Column("box", "box", f"{words} 1,000 inputs of the training box, nats", group="predictive KL")
    gap = Column("nlpd-gap", "NLPD gap", "NLPD minus the exact posterior’s", group=DESCRIPTIVE)
    spread = Column("variance", "variance ratio", VARIANCE, group=DESCRIPTIVE)
    if table.track is None:
        return [box if table.score == "predictive_kl_test" else test, gap, spread]
    words = "score of the verifier’s re-runs after a part of their steps; each entry’s are of its own cells, so that "
    words += "two entries cannot be compared, nor the column sorted"
    along = Column("budgets", "at 1 %, 10 %, all steps", words, group=DESCRIPTIVE, sortable=False)
    return [test, box, gap, spread, along]


def _row(line: Line, cells: list[Cell]) -> Row:
    names = [line.title, line.name, line.track, line.label]
    if line.entry is not None:
        manifest = line.entry.manifest
        names += [manifest.method, manifest.family, *manifest.authors]
    return Row(line, cells, status(line), " ".join(names).lower())


def status(line: Line) -> str:
    """Why there is no rank, and what is missing, in words; the label is said beside it."""
    words = [line.unranked.removeprefix(f"{line.label}: ")] if line.unranked and line.unranked != line.label else []
    if line.missing and line.label != "not verified" and not any("missing" in word for word in words):
        words.append(f"missing: {join(line.missing)}")
    if (unfinished := withheld(line.entry)) and not any("withheld" in word for word in words):
        words.append(unfinished)
    return "; ".join(words)


def _cell(line: Line, column: Column, ranked: int) -> Cell:
    """`ranked`: how many lines of the table have a rank."""
    if column.group in SCORES.values():
        return _score(line, column.key)
    match column.key:
        case "track":
            return Cell(line.track, line.track)
        case "mean-rank":
            return _mean_rank(line, ranked)
        case "group":
            return Cell(MISSING if line.group is None else str(line.group), full(line.group))
        case "log-ratio":
            return Cell(_ratio(line.log_ratio), full(line.log_ratio), full(line.log_ratio))
        case "test":
            return _number(line.predictive_kl_test)
        case "box":
            return _number(line.predictive_kl_box)
        case "nlpd-gap":
            return Cell(signed(line.nlpd_gap), full(line.nlpd_gap), full(line.nlpd_gap))
        case "variance":
            return _variance(line)
        case _:
            return _along(line)


def withheld(entry: Entry | None) -> str:
    """How many of its withheld tasks an entry finished; empty if all, or if there were none."""
    rerun = entry.verification.rerun if entry and entry.verification else None
    tasks = rerun.withheld if rerun else ()
    finished = sum(task.status == "ok" for task in tasks)
    return "" if finished == len(tasks) else f"withheld: {finished} of {len(tasks)} finished"


def _number(value: float | None) -> Cell:
    return Cell(digits(value), full(value), full(value))


def _ratio(value: float | None) -> str:
    return fixed(value, 2) if value is None or value <= 0 else f"+{fixed(value, 2)}"


def _score(line: Line, dataset: str) -> Cell:
    value = line.scores.get(dataset)
    if value is None:
        return Cell("missing", "")
    ends = line.spread.get(dataset)
    between = interval(ends)
    return Cell(
        digits(value), full(value), f"{full(value)}, 95 % interval {between}" if between else full(value), between
    )


def _mean_rank(line: Line, ranked: int) -> Cell:
    if line.mean_rank is None:
        return Cell(MISSING, "")
    text = fixed(line.mean_rank, 2)
    if line.interval is None:
        return Cell(text, full(line.mean_rank))
    low, high = line.interval
    between = f"{fixed(low, 1)} to {fixed(high, 1)}"
    return Cell(
        text, full(line.mean_rank), f"95 % interval {between}", between, rank_bar(line.mean_rank, low, high, ranked)
    )


def _variance(line: Line) -> Cell:
    spectrum = line.overconfidence
    if spectrum is None:
        return Cell(MISSING, "")
    ends = f"{digits(spectrum.smallest, 2)} to {digits(spectrum.largest, 2)}"
    title = f"least and greatest direction: {ends}; medians over the cells that have a posterior"
    part = "" if spectrum.cells == spectrum.of else f"{spectrum.cells} of {spectrum.of} cells"
    return Cell(digits(spectrum.median, 2), full(spectrum.median), title, ends, part)


def _along(line: Line) -> Cell:
    if not line.budgets:
        return Cell(MISSING, "")
    scores = {point.fraction: point.score for point in line.budgets}
    text = " · ".join(digits(scores.get(fraction), 2) for fraction in FRACTIONS)
    title = "; ".join(f"{fraction:.0%}: {full(scores.get(fraction)) or 'none'}" for fraction in FRACTIONS)
    return Cell(text, "", title)
