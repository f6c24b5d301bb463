"""Ranking of entries: within each ranked task and seed, averaged over seeds, tasks and data sets, in this order.

Each table ranks entries by other scores, and editions of networks have a table of their own. Scores up to a margin
above the smallest of a group are tied and share the mean of their ranks, so adding a little noise to a copied method,
or removing it, gains nothing. The margin is `TIE` nats; for MMD² two standard deviations of that of as many draws of
the exact posterior as the smallest has particles; and for energy distances two standard errors of the smallest. Where a
table has two scores, an entry is ranked by each, and the ranks are averaged. Runs that diverged, failed or lack the
score come last. The rank of an entry depends on the other entries; read the scores as well.

Comparisons of two entries are paired over the ranked runs of each data set, with bounded log ratios. The KL of runs
spans many orders of magnitude: if that of one run is 10⁷ times as large as the others, it dominates a t test of
differences, and of logarithms. The comparison therefore uses log10(a/b) of each run, clipped to ±1, so a ratio of
ten or more counts as ten, even if a score is infinite. Scores below the margin of the smaller one count as that margin,
since ranks hardly distinguish them. With two scores, the ratio of a run is the mean over both. The number for a data
set is the mean over its runs; Wilcoxon's signed-rank test on these means, with the data set as the unit, tests whether
a is closer than b over data sets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
from jaxtyping import Float

from fsvi_bench.leaderboard.board import Board, Standing
from fsvi_bench.leaderboard.edition import Edition
from fsvi_bench.leaderboard.ranked_tasks import TRAINING_SHARE
from fsvi_bench.leaderboard.result import Cell, NetworkFacts, ShortNetworkScores, ShortScores, TaskFacts
from fsvi_bench.seeds import derived_generator
from fsvi_bench.statistics.all_pairs import outranked_by, pairwise_p_values
from fsvi_bench.statistics.bootstrap import bootstrap_run_ranks
from fsvi_bench.statistics.ranks import signed_rank_test, tied_ranks
from fsvi_bench.statistics.resampled_t import half_width, paired_differences
from fsvi_bench.tasks.splits import TRAIN_FRACTION

MAP = ""  #: a name that no entry has
TIE = 0.01  #: nats above the smallest score of those that tie
RESAMPLES = 1000
FEWEST_DATASETS = 3  #: for intervals; with fewer data sets almost all resamples are equal
OUTLYING = 1.0  #: log10: ten times
BOUND = 1.0  #: maximum size of a run's log10 ratio
CONVERGED = 0.1  #: nats; the largest median size of the objective gap of an entry that has converged
FLAT = 1e-3  #: nats added to numerator and denominator of a log ratio; smaller differences do not matter

Score = Literal["joint_predictive_kl_test", "joint_predictive_kl_box", "kl", "mmd2", "energy_distance_20_test",
                "energy_distance_20_box"]  # fmt: skip
SCORES: tuple[Score, ...] = get_args(Score)
#: Table -> the scores that it is ranked by. All entries are in the first; in an edition of networks, only in the last.
HEADLINES: dict[str, tuple[Score, ...]] = {
    "joint": ("joint_predictive_kl_test", "joint_predictive_kl_box"), "posterior": ("kl",), "particles": ("mmd2",),
    "networks": ("energy_distance_20_test", "energy_distance_20_box"),
}  # fmt: skip
#: Score -> the standard deviation of its estimate, two of which tie.
ESTIMATED: dict[Score, str] = {
    "mmd2": "mmd2_deviation", **{score: f"{score}_error" for score in HEADLINES["networks"]}
}  # fmt: skip
COMPARED = ("posterior", "joint", "networks")  #: two entries are compared by the first of these that both are in
REFERENCES: dict[Score, str] = {"kl": "ffg_floor", "mmd2": "mmd2_of_draws"}  #: shown beside a score
SHOWN = (*SCORES, *REFERENCES.values(), "predictive_kl_test", "predictive_kl_box", "nlpd_gap",
         "variance_ranks_test", "smallest_variance_ratio", "median_variance_ratio",
         "largest_variance_ratio")  # fmt: skip


def tables_of(standing: Standing) -> list[str]:
    """The tables that an entry is in. A family is no proof of a density: a factor may have full rank or not."""
    if any(isinstance(cell.task, NetworkFacts) for cell in standing.cells):
        return ["networks"]
    family = standing.entry.manifest.family
    kls = (cell.scores.kl for cell in standing.cells if isinstance(cell.scores, ShortScores) and cell.kind == "ranked")
    dense = family in ("full", "ffg") or any(map(math.isfinite, kls))
    belongs = {"joint": True, "posterior": dense, "particles": family == "particles"}
    return [table for table, inside in belongs.items() if inside]


def run_frame(standings: Iterable[Standing]) -> pd.DataFrame:
    """One row per run of each entry, with its scores, if any, and the facts of its task."""
    rows = [
        dict(cell.task) | dict(cell.scores or ()) | dict(cell) | {"entry": each.name}
        for each in standings
        for cell in each.cells
    ]
    models = (Cell, TaskFacts, NetworkFacts, ShortScores, ShortNetworkScores)
    columns = dict.fromkeys(name for model in models for name in model.model_fields)
    return pd.DataFrame(rows, columns=[*columns, "entry"])


def score_frame(runs: pd.DataFrame, score: str, kind: str = "ranked") -> pd.DataFrame:
    """Runs of one kind in rows, entries in columns. A run that diverged, failed or lacks the score has infinity if
    entries are ranked by it, or else NaN."""
    of_kind = runs[runs["kind"] == kind].astype({score: float})
    found = of_kind.pivot(index=["dataset", "number", "seed"], columns="entry", values=score)
    return found.fillna(math.inf) if score in SCORES else found


def by_task(scores: pd.DataFrame) -> pd.DataFrame:
    """The medians of `score_frame` over the seeds of each task, so that every task counts once."""
    return scores.groupby(["dataset", "number"]).median()


@dataclass(frozen=True)
class Spread:
    """Median, quartiles and mean of a score over tasks; NaN if no task has it."""

    median: float
    low: float
    high: float
    mean: float


def spreads(scores: Float[np.ndarray, "tasks M"]) -> list[Spread]:
    """The spread of each entry's scores. Quartiles between two tasks are the mean of both, like medians: one may be
    infinite."""
    ordered = np.sort(scores, 0)  # NaN last
    count = (~np.isnan(ordered)).sum(0)
    places = np.array([[0.5], [0.25], [0.75]]) * np.maximum(count - 1, 0)
    low, high = (np.take_along_axis(ordered, end(places).astype(int), 0) for end in (np.floor, np.ceil))
    mean = np.where(count, np.nansum(ordered, 0) / np.maximum(count, 1), math.nan)
    return [Spread(*each) for each in np.vstack([(low + high) / 2, mean]).T.tolist()]


Spreads = dict[str, Spread]  #: by score


@dataclass(frozen=True)
class Line:
    """An entry's line of a table."""

    name: str
    place: int  #: 1 is the best; equal mean ranks share one
    mean_rank: float
    interval: tuple[float, float] | None  #: 95%, of the mean rank over other data sets and tasks
    outranked_by: list[str] | None  #: the entries that are significantly better; None if not tested
    ranks: Mapping[Any, float]  #: by data set
    by_dataset: Mapping[Any, Spreads]
    spreads: Spreads  #: over the tasks of the ranked data sets
    gap: float | None  #: median objective gap of these runs, nats; None if unknown
    converged: bool | None  #: whether training reached the optimum of the objective; None if not known
    seconds: float  #: median duration of a run, by the verifier's clock
    finished: int
    runs: int
    suspicion: float | None  #: log10 gain on official tasks over ranked ones, if it is an outlier


@dataclass(frozen=True, eq=False)
class Table:
    """Entries by mean rank."""

    scores: tuple[Score, ...]
    lines: list[Line]


def rank(board: Board, table: str) -> Table:
    """One of the tables of `HEADLINES`; every complete entry is ranked, including the exact posterior."""
    edition, scores = board.edition, HEADLINES[table]
    standings = [each for each in board.standings if each.result and table in tables_of(each)]
    stream = derived_generator("leaderboard", f"{edition.name} {table}")
    lines = _lines(run_frame(standings), scores, edition.ranked_datasets, stream) if standings else []
    return Table(scores, lines)


def run_ranks(runs: pd.DataFrame, score: Score) -> pd.DataFrame:
    """Ranks of the entries within each ranked run."""
    scores, margins = scores_and_margins(runs, score)
    ranks = [tied_ranks(*each) for each in zip(scores.to_numpy(), margins.to_numpy(), strict=True)]
    return pd.DataFrame(ranks, scores.index, scores.columns)


def ranks_with_map(runs: pd.DataFrame, scores: Sequence[Score]) -> pd.DataFrame:
    """Mean ranks by data set (rows) if the MAP, a point mass at the exact mean, were entered as `MAP`.

    Its scores are among the facts of a task; all ranks are NaN on a data set where one is missing.
    """
    found = []
    for score in scores:
        of_entries, margins = scores_and_margins(runs, score)
        of_runs = runs[runs["kind"] == "ranked"].groupby(of_entries.index.names)[f"map_{score}"].first()
        together = of_entries.assign(**{MAP: of_runs.astype(float)})
        ranks = [
            tied_ranks(*row) for row in zip(together.to_numpy(), margins.assign(**{MAP: TIE}).to_numpy(), strict=True)
        ]
        frame = pd.DataFrame(ranks, together.index, together.columns)
        found.append(frame.where(together[MAP].notna().groupby("dataset").transform("all"), axis=0))
    by_run = sum(found[1:], found[0]) / len(scores)
    return by_run.groupby(["dataset", "number"]).mean().groupby("dataset").mean()


def scores_and_margins(runs: pd.DataFrame, score: Score) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`score_frame`, and for each of its scores how far above it others tie with it."""
    scores = score_frame(runs, score)
    if score in ESTIMATED:
        return scores, 2 * score_frame(runs, ESTIMATED[score])
    return scores, pd.DataFrame(TIE, scores.index, scores.columns)


def _lines(
    runs: pd.DataFrame, scores: Sequence[Score], ranked: Sequence[str], stream: np.random.Generator
) -> list[Line]:
    """The lines of a table, by mean rank."""
    of_scores = [run_ranks(runs, score) for score in scores]
    by_run = sum(of_scores[1:], of_scores[0]) / len(scores)
    ranks = by_run.groupby(["dataset", "number"]).mean()  # seeds of one task do not count as separate tasks
    # Rounded: equal ranks that were added in another order are ties, for places and for the tests.
    by_dataset, suspicion = ranks.groupby("dataset").mean().round(9), outliers(runs, scores)
    mean_ranks, intervals = _mean_ranks(ranks, ranked, stream)
    of_ranked = by_dataset.loc[[*ranked]].to_numpy().T
    outranked = outranked_by(of_ranked, pairwise_p_values(of_ranked))
    of_datasets, over_datasets = _spreads(runs, scores, ranked)
    counted = dict(iter(runs.query("kind == 'ranked' and dataset in @ranked").groupby("entry")))
    lines = [
        Line(
            name=name,
            place=1 + int((mean_ranks < mean_rank - 1e-9).sum()),
            mean_rank=float(mean_rank),
            interval=interval,
            outranked_by=None if better is None else [str(ranks.columns[each]) for each in better],
            ranks=by_dataset[name].to_dict(),
            by_dataset=of_datasets[name],
            spreads=over_datasets[name],
            **_training(counted[name]),
            suspicion=suspicion.get(name),
        )
        for name, mean_rank, interval, better in zip(map(str, ranks), mean_ranks, intervals, outranked, strict=True)
    ]
    return sorted(lines, key=attrgetter("mean_rank", "name"))


def _mean_ranks(
    ranks: pd.DataFrame, ranked: Sequence[str], stream: np.random.Generator
) -> tuple[Float[np.ndarray, " M"], list[tuple[float, float] | None]]:
    """Mean ranks over data sets, and their intervals, None from too few data sets."""
    bootstrap = bootstrap_run_ranks({name: ranks.loc[name].to_numpy().T for name in ranked}, stream, RESAMPLES)
    if len(ranked) < FEWEST_DATASETS:
        return bootstrap.mean_rank, [None] * ranks.shape[1]
    return bootstrap.mean_rank, [interval and interval[1:] for interval in bootstrap.intervals()]


def _spreads(
    runs: pd.DataFrame, scores: Sequence[Score], ranked: Sequence[str]
) -> tuple[dict[str, dict[str, Spreads]], dict[str, Spreads]]:
    """By entry: the spreads on each data set of what its table shows there, and those over the ranked data sets."""
    shown_there = {*scores, *(REFERENCES[score] for score in scores if score in REFERENCES)}
    of_datasets: dict[str, dict[str, Spreads]] = {}
    over_datasets: dict[str, Spreads] = {}
    for score in SHOWN:
        frame = by_task(score_frame(runs, score))
        names, datasets = list(map(str, frame)), frame.index.get_level_values("dataset")
        for name, spread in zip(names, spreads(frame[datasets.isin(ranked)].to_numpy()), strict=True):
            over_datasets.setdefault(name, {})[score] = spread
        for dataset in datasets.unique() if score in shown_there else ():
            for name, spread in zip(names, spreads(frame.loc[dataset].to_numpy()), strict=True):
                of_datasets.setdefault(name, {}).setdefault(str(dataset), {})[score] = spread
    return of_datasets, over_datasets


def _training(runs: pd.DataFrame) -> dict[str, Any]:
    """The fields of a line about the optimiser and the cost of an entry's runs.

    The gap of a run that did not finish is infinite. The median is not known unless those of most finished runs are.
    A gap far below 0 shows that the lowest known value is not the optimum, so it is no evidence of convergence.
    """
    finished = runs["status"] == "ok"
    gaps = runs["objective_gap"].astype(float)
    known = gaps[finished].notna().mean() > 0.5
    gaps = gaps.where(finished, math.inf).dropna()
    gap = float(gaps.median()) if known else None
    near = known and float(gaps.abs().median()) <= CONVERGED
    return {
        "gap": gap,
        "converged": True if near else False if gap is not None and gap > CONVERGED else None,
        "seconds": float(runs["seconds"].median()),
        "finished": int(finished.sum()),
        "runs": len(runs),
    }


class Variation(NamedTuple):
    """Standard deviations of log10 scores: between seeds of a task, and between tasks of a data set beyond that."""

    seeds: float
    tasks: float
    factor: float  #: the largest ratio between the scores of two seeds of a task
    dataset: str  #: where it is


def variation(cells: Iterable[Cell], score: Score, ranked: Sequence[str]) -> Variation | None:
    """How much of the spread of an entry's ranked runs comes from its seeds, and how much from the tasks.

    By a one-way analysis of variance within each ranked data set, averaged over data sets. Tasks that differ in their
    number of seeds have the same weight. As in comparisons, scores below `TIE` count as `TIE`. None with one seed, or
    if a run lacks the score or it is infinite.
    """
    rows = [
        (cell.dataset, cell.number, cell.seed, getattr(cell.scores, score, None))
        for cell in cells
        if cell.kind == "ranked" and cell.dataset in ranked
    ]
    frame = pd.DataFrame(rows, columns=["dataset", "number", "seed", "score"])
    logs = frame["score"].astype(float).clip(lower=TIE).map(math.log10)
    if frame["seed"].nunique() < 2 or not np.isfinite(logs).all():
        return None
    tasks = logs.groupby([frame["dataset"], frame["number"]]).agg(["mean", "var", "count", np.ptp])
    of_datasets = tasks.assign(share=1 / tasks["count"]).groupby("dataset")
    within = of_datasets["var"].mean()  # tasks with one seed have none
    between = of_datasets["mean"].var() - within * of_datasets["share"].mean()
    widest = of_datasets["ptp"].max()
    return Variation(
        math.sqrt(within.mean()),
        math.sqrt(max(0.0, between.mean())),
        factor=10 ** float(widest.max()),
        dataset=str(widest.idxmax()),
    )


def outliers(runs: pd.DataFrame, scores: Iterable[Score]) -> dict[str, float]:
    """Entries whose official scores are better than their ranked ones by far more than for others, as log10 ratios.

    The official tasks are public, so a method could contain their answers. The gain of an entry is the median over
    data sets of log10(ranked/official); an outlier has more than ten times the median gain of the other entries, by
    any of the scores.
    """
    found: dict[str, float] = {}
    for score in scores:
        of_kinds = [
            by_task(score_frame(runs, score, kind)).groupby("dataset").median() for kind in ("ranked", "official")
        ]
        logs = [(medians.clip(lower=0) + FLAT).map(math.log10) for medians in of_kinds]
        gains = logs[0].sub(logs[1]).median()
        beyond = {str(name): gain for name, gain in gains.items() if gain > gains.drop(name).median() + OUTLYING}
        found |= {name: max(float(gain), found.get(name, 0.0)) for name, gain in beyond.items()}
    return found


@dataclass(frozen=True)
class Difference:
    """Two entries on one data set: the medians of their scores, and how much closer a is."""

    dataset: str
    a: tuple[float, ...]  #: by score
    b: tuple[float, ...]
    log_ratio: float  #: mean over runs of log10(a/b), each clipped to ±`BOUND`; negative if a is closer
    interval: tuple[float, float]  #: Nadeau and Bengio's 95% interval, since the tasks share rows


@dataclass(frozen=True)
class Comparison:
    """Comparison of a with b; lower scores are better."""

    scores: tuple[Score, ...]
    differences: tuple[Difference, ...]
    p_value: float | None  #: two-sided, over the ranked data sets; None if there are fewer than three


def shared_scores(a: Standing, b: Standing) -> tuple[Score, ...]:
    """The scores that two entries are compared by: the KL if both have densities, or the joint predictive KLs; on
    networks the energy distances."""
    return next(HEADLINES[key] for key in COMPARED if key in tables_of(a) and key in tables_of(b))


def comparison(board: Board, a: Standing, b: Standing) -> Comparison:
    """Compares two entries."""
    names, scores = board.edition.datasets, shared_scores(a, b)
    frames = [scores_and_margins(run_frame([a, b]), score) for score in scores]
    (ratios,) = paired(frames, a.name, [b.name], names, training_share(board.edition))
    own, others = (dataset_medians(frames, each.name, names) for each in (a, b))
    differences = tuple(
        Difference(name, of_a, of_b, ratio, (low, high))
        for name, of_a, of_b, (ratio, low, high) in zip(names, own, others, ratios.tolist(), strict=True)
    )
    return Comparison(scores, differences, p_value(board, ratios))


def training_share(edition: Edition) -> float:
    """The share of a data set's rows that a ranked task trains on; network tasks have those of official splits."""
    return TRAIN_FRACTION if edition.is_networks else TRAINING_SHARE


Frames = Iterable[tuple[pd.DataFrame, pd.DataFrame]]  #: `scores_and_margins`, for each score of a table


def dataset_medians(frames: Frames, entry: str, datasets: Sequence[str]) -> list[tuple[float, ...]]:
    """An entry's medians on each data set, one for each score."""
    columns = [by_task(scores)[entry].groupby("dataset").median()[[*datasets]].tolist() for scores, _ in frames]
    return [*zip(*columns, strict=True)]


def p_value(board: Board, ratios: Float[np.ndarray, "D 3"]) -> float | None:
    """The p-value of two entries' log ratios over the ranked data sets; None if fewer than `FEWEST_DATASETS`."""
    counts = [name in board.edition.ranked_datasets for name in board.edition.datasets]
    return signed_rank_test(ratios[counts, 0]) if sum(counts) >= FEWEST_DATASETS else None


def paired(
    frames: Frames, a: str, others: Sequence[str], datasets: Sequence[str], share: float
) -> Float[np.ndarray, "B D 3"]:
    """One entry compared with each of B others: the log ratio on each data set, and its interval.

    `share` is that of the rows of a data set that a task trains on.

    The log ratio of a run is the mean over the scores of log10(a/b) clipped to ±`BOUND`; equal infinities tie.
    """
    parts = [_log_ratios(scores, margins, a, others) for scores, margins in frames]
    ratios = pd.concat(parts, keys=range(len(parts))).groupby(["dataset", "number"]).mean()
    by_dataset = [ratios.loc[name].to_numpy().T for name in datasets]  # [B, tasks] each
    means = np.stack([tasks.mean(1) for tasks in by_dataset], 1)
    half = np.stack([half_width(tasks, (1 - share) / share) for tasks in by_dataset], 1)
    return np.stack([means, (means - half).clip(-BOUND), (means + half).clip(max=BOUND)], 2)


def _log_ratios(scores: pd.DataFrame, margins: pd.DataFrame, a: str, others: Sequence[str]) -> pd.DataFrame:
    of_a, of_b = scores[[a]].to_numpy(), scores[[*others]].to_numpy()
    margin_a, margin_b = margins[[a]].to_numpy(), margins[[*others]].to_numpy()
    least = np.fmax(np.where(of_a <= of_b, margin_a, margin_b), np.finfo(float).tiny)
    differences = paired_differences(np.log10(np.fmax(of_a, least)), np.log10(np.fmax(of_b, least)))
    return pd.DataFrame(differences.clip(-BOUND, BOUND), scores.index)
