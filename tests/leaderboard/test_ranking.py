"""Tables against loops, and what must not move them: order, broken entries, entries without a rank."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import fmean

import pytest
from scipy.stats import t as student_t

from fsvi_bench.leaderboard.ranking import EXACT, HEADLINES, MAP, rank_across, rank_track
from fsvi_bench.seeds import derived_generator
from tests.leaderboard.boards import entry, references, rerun, verification, verified_cells

DATASETS = {"wine": 3, "energy": 4, "yacht": 2}  # none of them is one to tune on
TABLE = references(DATASETS)
FAMILIES = {"full": ["full"], "ffg": ["ffg"], "singular": ["bernoulli", "spike-slab"]}
tracks = pytest.mark.parametrize("track", FAMILIES)


def rivals(track, count=6, **cells):
    """Entries of one track with drawn scores."""
    families = FAMILIES[track]
    return [entry(f"rival-{n}", TABLE, families[n % len(families)], **cells) for n in range(count)]


def by_name(table):
    return {line.name: line for line in table.lines}


def ranked(table):
    return [line for line in table.lines if line.unranked is None]


def without_entries(table):
    """Lines that can be compared however they were made."""
    return replace(table, lines=[replace(line, entry=None) for line in table.lines])


# --- Slow twins -------------------------------------------------------------------------------------------------------


def score_of(cell, task, score):
    if cell.status != "ok":
        return math.inf
    if score == "kl_above_floor":
        return cell.scores.kl - task.ffg_floor
    value = getattr(cell.scores, score)
    return math.inf if value is None else value


def splits_of(each, dataset, score, table=TABLE):
    tasks = {task.place: task for task in table.tasks}
    cells = each.verification.cells
    return [score_of(cell, tasks[cell.dataset, cell.split], score) for cell in cells if cell.dataset == dataset]


def slow_ranks(entries, score):
    """Name -> data set -> 1 + how many are better + half of how many others are equal."""
    means = {each.name: {d: fmean(splits_of(each, d, score)) for d in DATASETS} for each in entries}
    ranks = {}
    for name, own in means.items():
        others = [other for rival, other in means.items() if rival != name]
        ranks[name] = {
            d: 1 + sum(o[d] < own[d] for o in others) + 0.5 * sum(o[d] == own[d] for o in others) for d in DATASETS
        }
    return ranks


def corrected(values, ratio):
    """Nadeau and Bengio's interval, by their formula."""
    J, mean = len(values), fmean(values)
    variance = sum((value - mean) ** 2 for value in values) / (J - 1)
    half = student_t.ppf(0.975, J - 1) * math.sqrt((1 / J + ratio) * variance)
    return mean - half, mean + half


@tracks
def test_ranks_scores_and_intervals_are_those_of_loops(track):
    entries, score = rivals(track), HEADLINES[track]
    table, expected = rank_track(entries, TABLE, track), slow_ranks(entries, score)
    assert (table.track, table.score, table.datasets) == (track, score, list(DATASETS))
    assert {line.name for line in ranked(table)} == set(expected)
    for line in ranked(table):
        assert line.ranks == expected[line.name]
        assert line.mean_rank == pytest.approx(fmean(line.ranks.values()), rel=1e-15)
        assert line.place == 1 + sum(other.mean_rank < line.mean_rank for other in ranked(table))
        for dataset in DATASETS:
            values = splits_of(line.entry, dataset, score)
            assert line.scores[dataset] == pytest.approx(fmean(values), rel=1e-14)
            # 5 test points for 45: the ratio of every synthetic task.
            assert line.spread[dataset] == pytest.approx(corrected(values, 5 / 45), rel=1e-12)
    assert [line.mean_rank for line in ranked(table)] == sorted(line.mean_rank for line in ranked(table))


@pytest.mark.parametrize("score", ["predictive_kl_box", "predictive_kl_test"])
def test_all_tracks_are_ranked_together_by_a_predictive_kl(score):
    entries = [replace_name(each, f"{track}-{each.name}") for track in FAMILIES for each in rivals(track, 3)]
    table, expected = rank_across(entries, TABLE, score), slow_ranks(entries, score)
    assert (table.track, table.score) == (None, score)
    assert {line.name: line.ranks for line in ranked(table)} == expected
    assert {line.track for line in ranked(table)} == {"full", "ffg", "singular"}
    assert by_name(table)[EXACT].scores == dict.fromkeys(DATASETS, 0.0)
    point_mass = by_name(table)[MAP]
    assert point_mass.place is None
    for dataset in DATASETS:
        values = [getattr(task, f"map_{score}") for task in TABLE.tasks if task.dataset == dataset]
        assert point_mass.scores[dataset] == pytest.approx(fmean(values), rel=1e-14)


def replace_name(each, name):
    """The same under another name: scores stay those that its old name drew."""
    words = each.manifest.model_copy(update={"name": name})
    return replace(each, manifest=words)


def submitted(table):
    """Lines of entries, without the references' own."""
    return [line for line in table.lines if line.name not in (EXACT, MAP)]


# --- Order and company ------------------------------------------------------------------------------------------------


@tracks
def test_the_order_of_entries_changes_nothing(track):
    entries = [*rivals(track), entry("late", TABLE, FAMILIES[track][0], again=False)]
    table = rank_track(entries, TABLE, track)
    across = rank_across(entries, TABLE, "predictive_kl_box")
    assert any(line.interval and line.interval[0] < line.interval[1] for line in table.lines)
    for seed in range(5):
        shuffled = entries[:]
        random.Random(seed).shuffle(shuffled)
        assert rank_track(shuffled, TABLE, track) == table
        assert rank_across(shuffled, TABLE, "predictive_kl_box") == across


@tracks
def test_what_has_no_rank_moves_nobody(track):
    family = FAMILIES[track][0]
    entries = rivals(track)
    plain = without_entries(rank_track(entries, TABLE, track))
    unranked = [
        entry("aaa-misses-a-cell", TABLE, family, missing=[("energy", 1)], predictive_kl_box=0.0),
        entry("misses-a-data-set", TABLE, family, missing=["yacht"]),
        entry("not-run-again", TABLE, family, again=False),
        entry("not-verified", TABLE, family, verified=False),
        entry("the-truth", TABLE, family, words={"reference": True}),
    ]
    table = without_entries(rank_track(entries + unranked, TABLE, track))
    kept = [line for line in table.lines if line.name.startswith("rival") or line.name in (EXACT, MAP)]
    assert kept == plain.lines
    lines = by_name(table)
    assert lines["aaa-misses-a-cell"].missing == ["energy"]
    assert lines["aaa-misses-a-cell"].scores["energy"] is None
    assert lines["aaa-misses-a-cell"].scores["yacht"] is not None
    assert lines["misses-a-data-set"].missing == ["yacht"]
    for name in ("aaa-misses-a-cell", "misses-a-data-set"):
        line = lines[name]
        assert (line.predictive_kl_test, line.predictive_kl_box, line.nlpd_gap, line.log_ratio) == (None,) * 4
        assert line.overconfidence is None
    # References first, then by how near to a rank.
    names = [line.name for line in submitted(table) if line.unranked is not None]
    assert names == ["the-truth", "not-run-again", "aaa-misses-a-cell", "misses-a-data-set", "not-verified"]
    for name in names:
        line = lines[name]
        assert (line.place, line.mean_rank, line.interval, line.group, line.ranks) == (None, None, None, None, {})
    assert lines["not-run-again"].label == "re-scored only"
    assert lines["not-verified"].label == "not verified"
    assert lines["not-verified"].missing == list(DATASETS)
    assert lines["the-truth"].label == "re-run"


@tracks
def test_infinity_is_last_and_shared(track):
    family = FAMILIES[track][0]
    entries = [
        *rivals(track, 3),
        entry("broken-a", TABLE, family, diverged=[("energy", 0)]),
        entry("broken-b", TABLE, family, diverged=[("energy", 0), ("energy", 2)]),
    ]
    lines = by_name(rank_track(entries, TABLE, track))
    for name in ("broken-a", "broken-b"):
        assert lines[name].unranked is None
        assert lines[name].ranks["energy"] == 4.5
        assert lines[name].scores["energy"] == math.inf
        assert lines[name].spread["energy"] is None
        assert lines[name].spread["wine"] is not None
        assert lines[name].predictive_kl_test == math.inf
        assert lines[name].nlpd_gap == math.inf
    assert lines["broken-a"].overconfidence.cells == len(TABLE.tasks) - 1


def test_a_mixture_too_spread_out_to_be_summed_counts_as_infinite():
    spread_out = {"predictive_kl_box": None, "predictive_kl_test": None, "nlpd_gap": None}
    entries = [*rivals("singular", 2), entry("wide", TABLE, "spike-slab", **spread_out)]
    line = by_name(rank_track(entries, TABLE, "singular"))["wide"]
    assert (line.place, line.mean_rank, line.predictive_kl_box) == (3, 3.0, math.inf)
    assert line.nlpd_gap is None
    assert line.missing == []


def test_equal_scores_share_a_place_and_titles_may_be_equal():
    entries = [entry(name, TABLE, kl=kl) for name, kl in (("a", 3.0), ("b", 2.0), ("c", 3.0), ("d", 9.0))]
    table = rank_track(entries, TABLE, "full")
    lines = submitted(table)
    assert len({line.title for line in lines}) == 1
    assert [(line.name, line.place, line.mean_rank) for line in lines] == [
        ("b", 1, 1.0), ("a", 2, 2.5), ("c", 2, 2.5), ("d", 4, 4.0),
    ]  # fmt: skip
    assert [line.interval for line in lines] == [(1.0, 1.0), (2.5, 2.5), (2.5, 2.5), (4.0, 4.0)]
    # Nemenyi's critical difference of four methods on three data sets is 2.71 (Demšar 2006, table 5a): 3 is beyond it.
    assert [line.group for line in lines] == [1, 1, 1, 2]


def test_scores_that_are_zero_to_rounding_share_a_place():
    """On one data set two methods hit the truth: which of them is nearer to it is rounding."""

    def hits(noise):
        return lambda task: noise if task.dataset == "wine" else 3.0

    entries = [entry("a", TABLE, kl=hits(3e-7)), entry("b", TABLE, kl=hits(-2e-10)), entry("c", TABLE, kl=4.0)]
    assert [(line.name, line.place) for line in submitted(rank_track(entries, TABLE, "full"))] == [
        ("a", 1), ("b", 1), ("c", 3),
    ]  # fmt: skip


# --- Who has a rank ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["full", "ffg"])
def test_the_closed_form_has_no_rank(family):
    """1e-6 nats above the truth, or above the factorised floor, on every cell; one cell farther away is a method's."""
    floor = (lambda task: 0.0) if family == "full" else (lambda task: task.ffg_floor)
    entries = [
        entry("copied", TABLE, family, kl=lambda task: floor(task) + 9e-7),
        entry("copied-and-not-run", TABLE, family, again=False, kl=lambda task: floor(task) - 1e-9),
        entry("nearly", TABLE, family, kl=lambda task: floor(task) + (2e-6 if task.place == ("yacht", 1) else 0.0)),
        entry("method", TABLE, family),
    ]
    table = rank_track(entries, TABLE, family)
    lines = submitted(table)
    assert [(line.name, line.place) for line in lines] == [
        ("nearly", 1), ("method", 2), ("copied", None), ("copied-and-not-run", None),
    ]  # fmt: skip
    assert {line.unranked for line in lines[2:]} == {"equals the closed form to rounding"}
    across = by_name(rank_across(entries, TABLE, "predictive_kl_box"))
    assert across["copied"].place is None


def test_the_floor_alone_is_no_closed_form_in_the_full_track():
    line = submitted(rank_track([entry("mean-field", TABLE, kl=lambda task: task.ffg_floor)], TABLE, "full"))[0]
    assert line.unranked is None


def test_a_rerun_needs_official_cells_and_withheld_tasks():
    cells = verified_cells("a", TABLE)
    whole = rerun(derived_generator("a"), cells)
    lines = []
    for changes in ({}, {"withheld": ()}, {"official": ()}):
        part = whole.model_copy(update=changes)
        lines += submitted(rank_track([entry("a", TABLE, again=part)], TABLE, "full"))
    assert [line.label for line in lines] == ["re-run", *["re-scored only"] * 2]
    assert [line.place for line in lines] == [1, None, None]


def withheld(*statuses):
    (one,) = rerun(derived_generator("a"), verified_cells("a", TABLE)).withheld
    return tuple(one.model_copy(update={"status": status}) for status in statuses)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tolerance": 2e-4}, "re-run under a tolerance of 0.0002, wider than 0.0001"),
        ({"tolerance": math.nan}, "re-run under a tolerance of nan, wider than 0.0001"),
        ({"isolated": False}, "re-run without isolation"),
        ({"withheld": withheld("ok", "failed")}, "its source finished 1 of 2 withheld tasks"),
        ({"withheld": withheld("diverged", "diverged")}, "its source finished 0 of 2 withheld tasks"),
        ({"withheld": withheld("diverged", "ok")}, None),
    ],
)
def test_a_rerun_that_proves_too_little_earns_no_rank(changes, words):
    """Answers by heart fail on tasks that nobody has seen; a method that diverges now and then is a method."""
    again = rerun(derived_generator("a"), verified_cells("a", TABLE)).model_copy(update=changes)
    line = submitted(rank_track([entry("a", TABLE, again=again)], TABLE, "full"))[0]
    assert (line.label, line.unranked, line.place) == ("re-run", words, None if words else 1)


def test_data_sets_to_tune_on_are_shown_and_do_not_count():
    """a wins boston and concrete by far, b the rest."""
    table = references({"boston": 3, "concrete": 2, **DATASETS})
    tuned = {"boston", "concrete"}
    entries = [
        entry("a", table, kl=lambda task: 0.1 if task.dataset in tuned else 3.0),
        entry("b", table, kl=lambda task: 90.0 if task.dataset in tuned else 2.0),
        entry("c", table, kl=lambda task: 1.0, missing=["boston"]),
    ]
    found = rank_track(entries, table, "full")
    assert (found.datasets, found.ranked) == ([*table.datasets], [*DATASETS])
    assert [(line.name, line.place, line.unranked) for line in submitted(found)] == [
        ("c", 1, None), ("b", 2, None), ("a", 3, None),
    ]  # fmt: skip
    lines = by_name(found)
    assert set(lines["a"].ranks) == set(DATASETS)
    assert lines["a"].scores["boston"] == pytest.approx(0.1)
    assert (lines["c"].missing, lines["c"].scores["boston"]) == (["boston"], None)
    without = by_name(
        rank_track(
            [entry(each.name, TABLE, kl=kl) for each, kl in zip(entries, (3.0, 2.0, 1.0), strict=True)], TABLE, "full"
        )
    )
    for name in "abc":
        line = lines[name]
        assert (line.mean_rank, line.interval, line.group) == (
            without[name].mean_rank,
            without[name].interval,
            without[name].group,
        )
    assert lines["b"].predictive_kl_box == pytest.approx(
        fmean(fmean(splits_of(entries[1], d, "predictive_kl_box", table)) for d in DATASETS)
    )
    assert (lines["a"].overconfidence.cells, lines["a"].overconfidence.of) == (9, 9)


def test_groups_of_methods_that_are_equal_in_truth_are_one_but_for_the_tests_error():
    """60 tables of six exchangeable methods on five data sets: by pairwise intervals alone most have several groups."""
    table = references({f"set-{n}": 2 for n in range(5)})
    several = 0
    for draw in range(60):
        rng = derived_generator("exchangeable", draw)
        drawn = {(name, task.place): rng.random() for name in "abcdef" for task in table.tasks}
        entries = [
            entry(name, table, kl=lambda task, name=name, drawn=drawn: 1 + drawn[name, task.place]) for name in "abcdef"
        ]
        several += len({line.group for line in submitted(rank_track(entries, table, "full"))}) > 1
    # Nemenyi's test errs in 5 % of tables at most, and is conservative: 60 tables have more than 8 with odds of 1 in 300.
    assert several <= 8


def test_scores_of_other_tasks_are_no_scores():
    other = references(task_sha256="e" * 64)
    line = submitted(rank_track([entry("a", other)], TABLE, "full"))[0]
    assert line.unranked == "verified on other tasks than these"
    assert set(line.scores.values()) == {None}


def test_numbers_that_no_score_can_be_are_missing():
    entries = rivals("full", 3)
    plain = without_entries(rank_track(entries, TABLE, "full"))
    forged = [entry("forged-a", TABLE, kl=-math.inf), entry("forged-b", TABLE, kl=math.nan)]
    forged.append(entry("forged-c", TABLE, predictive_kl_test=math.nan))
    table = without_entries(rank_track(entries + forged, TABLE, "full"))
    assert submitted(table)[:3] == submitted(plain)
    assert all(line.missing == list(DATASETS) for line in submitted(table)[3:])
    assert [line.place for line in ranked(rank_across(entries + forged, TABLE, "predictive_kl_test"))] == [1, 2, 3]


@pytest.mark.parametrize(("datasets", "some"), [(1, False), (2, False), (3, True)])
def test_few_data_sets_have_no_intervals(datasets, some):
    few = references(dict(list(DATASETS.items())[:datasets]))
    table = rank_track([entry(name, few) for name in "abcd"], few, "full")
    lines = submitted(table)
    assert [line.interval is not None for line in lines] == [some] * 4
    assert [line.group is not None for line in lines] == [some] * 4
    assert ("No intervals" in table.note) is not some
    assert all(line.place is not None for line in lines)


def test_entries_for_tuning_only_say_so():
    both = references({"boston": 2, "concrete": 2})
    assert submitted(rank_track([entry("a", both)], both, "full"))[0].development_only
    table = references({"boston": 2, **DATASETS})
    part = entry("b", table, missing=["wine", "energy", "yacht"])
    other = entry("c", table, missing=["boston"])
    lines = by_name(rank_track([part, other, entry("d", table, verified=False)], table, "full"))
    assert [lines[name].development_only for name in "bcd"] == [True, False, False]


def test_an_empty_board_has_empty_tables():
    assert rank_track([], TABLE, "ffg").lines == []
    assert [line.name for line in rank_track([], TABLE, "full").lines] == [EXACT]
    assert [line.name for line in rank_track([], TABLE, "singular").lines] == [MAP]
    assert verification("a", verified_cells("a", TABLE)).label == "re-run"
