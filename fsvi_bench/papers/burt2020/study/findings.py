"""What came out of the study, in sentences made from its tables: at M = 80 and without jitter, unless they say else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, median
from typing import NamedTuple

from fsvi_bench.papers.burt2020.numbers import title_of
from fsvi_bench.papers.burt2020.study.along import courses_of
from fsvi_bench.papers.burt2020.study.summary import (
    Cells,
    Value,
    are_alike,
    at_another_size,
    at_the_papers_setting,
    datasets_of,
    entries_of,
    kl_ratio,
    number,
    pairs_of,
    rounded_to_zero,
    words_of,
)
from fsvi_bench.papers.burt2020.study.table import CurvePoint, Entry, StudyCell, Tables, of_entry
from fsvi_bench.presenting.figures import NO_LOGARITHM
from fsvi_bench.presenting.tables import Table

THE_PAPERS = ("fixed-a", "rand-a", "ssge")
CARRIED = 10.0  #: a mean so many medians high is made by splits whose KL is as far above
REACHED = 1e-6  #: nats: if an objective's optimum is no further off, it is the posterior but for the search's remainder
MOVED = 2.0  #: a pair with and without jitter is named if one KL is more than so many times the other


class _Group(NamedTuple):
    """The finished cells of one line on one data set, of which none is missing."""

    dataset: str
    entry: Entry
    cells: Cells

    @property
    def name(self) -> str:
        return words_of(self.entry)[0]

    def median(self, value: Value) -> float | None:
        """None where no cell knows it."""
        known = [each for cell in self.cells if (each := value(cell)) is not None]
        return median(known) if known else None

    @property
    def median_kl(self) -> float:
        """What diverged or failed is infinitely far."""
        return median([_kl(cell) for cell in self.cells])

    @property
    def mean_kl(self) -> float:
        return fmean([_kl(cell) for cell in self.cells])


def findings(tables: Tables) -> list[tuple[str, str]]:
    """Sentences, each with a word or two for what it is about; of complete lines only, and none of what has no such."""
    groups = list(_complete(tables.cells))
    said = {
        "Who is nearest": _nearest(groups),
        "What means hide": _carried(groups),
        "Where A sees every weight": _all_seen(tables.cells),
        "Steps": _steps(tables.curves),
        "Jitter": _jitter(tables.cells),
    }
    return [(about, words) for about, words in said.items() if words]


def _complete(cells: Cells, keep: Callable[[Entry], bool] = at_the_papers_setting) -> Iterator[_Group]:
    for entry in entries_of(cells, keep):
        for dataset in datasets_of(cells):
            group = of_entry(cells, dataset, entry)
            if group and all(cell.status != "missing" for cell in group):
                yield _Group(dataset, entry, group)


def _kl(cell: StudyCell) -> float:
    return math.inf if cell.kl is None else max(cell.kl, 0.0)


def _nearest(groups: Sequence[_Group]) -> str:
    """Which of the paper's three methods has the least median KL, by family and data set."""
    told = []
    for family, name in (("full", "full covariances"), ("ffg", "factorised")):
        winners: dict[str, list[str]] = {}
        for dataset in sorted({group.dataset for group in groups}):
            here = {g.entry.method: g.median_kl for g in groups if (g.dataset, g.entry.family) == (dataset, family)}
            three = {method: kl for method, kl in here.items() if method in THE_PAPERS}
            if len(three) == len(THE_PAPERS) and min(three.values()) < math.inf:
                winners.setdefault(title_of(min(three, key=three.__getitem__)), []).append(dataset)
        if winners:
            told.append(f"{name}: " + ", ".join(f"{who} on {', '.join(where)}" for who, where in winners.items()))
    if not told:
        return ""
    lost = [f"{group.name} on {group.dataset} ({words})" for group in groups if (words := _divergence(group))]
    words = f"of the paper's three methods by the median KL, {'; '.join(told)}."
    return words + (f" Infinitely far at this learning rate, having diverged: {'; '.join(lost)}." if lost else "")


def _divergence(group: _Group) -> str:
    """On how many splits a line of which half or more is lost diverged."""
    diverged = [cell for cell in group.cells if cell.status == "diverged"]
    return f"{len(diverged)} of {len(group.cells)} splits" if 2 * len(diverged) >= len(group.cells) else ""


def _carried(groups: Sequence[_Group]) -> str:
    """Means that few splits make, and the order of RANDA and SSGE where these turn it round."""
    lines = []
    for group in groups:
        middle = group.median_kl
        if not NO_LOGARITHM < middle < math.inf or not CARRIED * middle < group.mean_kl < math.inf:
            continue
        high = [cell for cell in group.cells if _kl(cell) > CARRIED * middle]
        numbers = f"mean {number(group.mean_kl)}, median {number(middle)}; {_carriers(high)}"
        lines.append(f"{group.name} on {group.dataset} ({numbers})")
    if not lines:
        return ""
    words = (
        "the paper's figures are of means. A few splits make these more than ten times their median, by the part of "
        f"the KL that the means of q and of the posterior make, or by that of the covariances: {'; '.join(lines)}."
    )
    turned = [f"{dataset} {family}" for dataset, family in _turned(groups)]
    return words + (f" By means SSGE is nearer than RANDA on {', '.join(turned)}, by medians not." if turned else "")


def _carriers(high: Cells) -> str:
    """The splits, by which part is more than half of their KL."""
    by_mean = [cell for cell in high if 2 * (cell.kl_mean_term or 0.0) > _kl(cell)]
    by_covariance = [cell for cell in high if cell not in by_mean]
    told = [f"{_splits(by_mean)} by the mean"] if by_mean else []
    if by_covariance:
        widest = number(max(cell.spectrum_100 or 0.0 for cell in by_covariance))
        told.append(f"{_splits(by_covariance)} by the covariance, up to {widest} times the exact variance")
    return ", ".join(told)


def _splits(cells: Cells) -> str:
    return f"split{'s' if len(cells) > 1 else ''} {', '.join(str(cell.split) for cell in cells)}"


def _turned(groups: Sequence[_Group]) -> Iterator[tuple[str, str]]:
    by_place = {(group.dataset, group.entry.family, group.entry.method): group for group in groups}
    for (dataset, family, method), rand_a in by_place.items():
        ssge = by_place.get((dataset, family, "ssge"))
        if method == "rand-a" and ssge and ssge.median_kl > rand_a.median_kl and ssge.mean_kl < rand_a.mean_kl:
            yield dataset, family


def ranges_table(cells: Cells) -> Table:
    """Of each line the least and the greatest median over data sets: what its optimiser left undone, what KL its
    objective asks for (both on splits whose optimum is known), and how sure q is. No medians of survivors: a line is
    told without the data sets on which it diverged."""
    groups = [
        group
        for group in _complete(cells)
        if (group.entry.method, group.entry.family) != ("exact", "full")
        and all(cell.status == "ok" for cell in group.cells)
    ]
    columns: dict[str, Value] = {
        "objective left undone [nats]": lambda cell: (
            None if cell.kl_at_objective_optimum is None else cell.objective_gap
        ),
        "KL where the objective is least": lambda cell: cell.kl_at_objective_optimum,
        "variance of q over the exact one, middle direction": lambda cell: cell.spectrum_50,
    }
    rows = []
    for entry in dict.fromkeys(group.entry for group in groups):
        own = [group for group in groups if group.entry == entry]
        rows.append((words_of(entry)[0], *(_range(own, value) for value in columns.values())))
    title = "Medians, from the least to the most over data sets"
    return Table(title=title, columns=("method", *columns), rows=tuple(rows))


def _range(groups: Sequence[_Group], value: Value) -> str:
    medians = [(found, group.dataset) for group in groups if (found := group.median(value)) is not None]
    if not medians:
        return "–"
    return _from_to(medians)


def _from_to(found: Sequence[tuple[float, str]]) -> str:
    """The least and the greatest with their data sets; of infinities how many there are."""
    least, most = min(found), max(found)
    if least[0] == most[0]:
        return number(least[0])
    endless = sum(value == math.inf for value, _ in found)
    where = f"{endless} of {len(found)}" if endless else most[1]
    return f"{number(least[0])} ({least[1]}) to {number(most[0])} ({where})"


def _all_seen(cells: Cells) -> str:
    """Where methods end whose objective's optimum, over full covariances, is the posterior itself."""
    by_size: dict[int, list[_Group]] = {}
    for group in _complete(cells, lambda entry: at_another_size(entry) and entry.family == "full"):
        optimum = group.median(lambda cell: cell.kl_at_objective_optimum)
        if optimum is not None and optimum <= REACHED:
            by_size.setdefault(group.entry.M or 0, []).append(group)
    told = []
    for size, groups in sorted(by_size.items()):
        datasets = sorted({group.dataset for group in groups})
        ends = []
        for method in dict.fromkeys(group.entry.method for group in groups):
            own = {g.dataset: rounded_to_zero(g.median_kl) or 0.0 for g in groups if g.entry.method == method}
            others = [dataset for dataset in datasets if dataset not in own]
            where = f" (not {', '.join(others)})" if others else ""
            ends.append(f"{title_of(method)} {_from_to([(kl, dataset) for dataset, kl in own.items()])}{where}")
        told.append(f"M = {size} ({', '.join(datasets)}): {', '.join(ends)}")
    if not told:
        return ""
    return (
        "there the posterior itself is what each objective, full, asks for, and what is left is of the optimiser, of "
        f"minibatches and of estimated gradients. Median KLs at {'; '.join(told)}."
    )


def _steps(curves: Sequence[CurvePoint]) -> str:
    """How far the KL of FIXEDA, whose objective has no noise, goes up again."""
    rises = [
        (course.rise, course.dataset)
        for course in courses_of(curves)
        if at_the_papers_setting(course.entry)
        and (course.entry.method, course.entry.family) == ("fixed-a", "full")
        and course.rise is not None
    ]
    risen = [rise for rise in rises if rise[0] > 1]
    at_least = [dataset for rise, dataset in rises if rise <= 1]
    if not risen:
        return ""
    ends = [f"{number(rise)} ({dataset})" for rise, dataset in sorted({min(risen), max(risen)})]
    words = f"FIXEDA's KL, full, passes a least and ends at {' to '.join(ends)} times it"
    return words + (f"; on {', '.join(at_least)} it had its least at the last step." if at_least else ".")


def _jitter(cells: Cells) -> str:
    """The pairs that jitter moves most, and how many there are."""
    moved, count, same, ratios = [], 0, 0, []
    for dataset in datasets_of(cells):
        for entry in entries_of(cells, lambda e: bool(e.kl_jitter)):
            pairs = pairs_of(cells, dataset, entry, entry._replace(kl_jitter=0.0))
            by_split = [(ratio, a) for a, b in pairs if (ratio := kl_ratio(a, b)) is not None]
            count += len(by_split)
            same += sum(are_alike(pair) for pair in pairs if kl_ratio(*pair) is not None)
            ratios += [median([ratio for ratio, _ in by_split])] if by_split else []
            far = [a for ratio, a in by_split if not 1 / MOVED <= ratio <= MOVED]
            moved += [f"{words_of(entry)[0]} on {dataset} ({_splits(far)})"] if far else []
    if not count:
        return ""
    words = f"KLs with it are {number(min(ratios))} to {number(max(ratios))} times those without, medians of pairs"
    apart = f"; more than twofold apart are {'; '.join(moved)}" if moved else ""
    return f"{words}, over {count:,} pairs, {same:,} of them of the same code and machine{apart}."
