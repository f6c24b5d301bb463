"""Ranks within runs: ties, last places, and what copies do."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fsvi_bench.leaderboard.board import read_board
from fsvi_bench.leaderboard.edition import write_edition
from fsvi_bench.leaderboard.ranked_tasks import runs
from fsvi_bench.leaderboard.ranking import (
    BOUND,
    HEADLINES,
    TIE,
    Spread,
    _training,
    comparison,
    paired,
    rank,
    ranks_with_map,
    run_frame,
    spreads,
    variation,
)
from fsvi_bench.leaderboard.result import result_path, write_result
from fsvi_bench.statistics.ranks import signed_rank_test, tied_ranks
from fsvi_bench.statistics.resampled_t import corrected_interval
from tests.leaderboard.boards import DATASETS, JOINT, edition, entry, make_board, result, write_entry


def naive_ranks(scores):
    """Groups by going through the sorted scores one at a time."""
    groups: list[list[float]] = []
    for score in sorted(scores):
        if groups and (score - groups[-1][0] <= TIE or score == groups[-1][0]):
            groups[-1].append(score)
        else:
            groups.append([score])
    ranks, before = {}, 0
    for group in groups:
        for score in group:
            ranks[score] = before + (len(group) + 1) / 2
        before += len(group)
    return [ranks[score] for score in scores]


@pytest.mark.parametrize(
    ("scores", "ranks"),
    [
        ([0.0, 1.0, 2.0], [1, 2, 3]),
        ([0.0, TIE, 2 * TIE], [1.5, 1.5, 3]),  # a group starts at its smallest score: no chains
        ([math.inf, 1.0, math.inf], [2.5, 1, 2.5]),
        ([5.0], [1]),
        ([-1e-12, 1e-9, 0.5], [1.5, 1.5, 3]),
    ],
)
def test_ties(scores, ranks):
    assert tied_ranks(np.array(scores), np.full(len(scores), TIE)).tolist() == ranks


@given(st.lists(st.floats(0, 0.1) | st.just(math.inf), min_size=1, max_size=12))
def test_ranks_equal_those_of_a_naive_implementation(scores):
    assert tied_ranks(np.array(scores), np.full(len(scores), TIE)).tolist() == naive_ranks(scores)


def test_only_the_margin_of_the_smallest_score_counts():
    """A large margin of a bad score ties it with nothing better."""
    assert tied_ranks(np.array([0.1, 0.3, 0.5]), np.array([0.1, 1.0, 9.0])).tolist() == [1, 2.5, 2.5]


def table(root, kls, of=None, name="posterior", **more):
    """The lines of a table of entries with these KLs."""
    return {line.name: line for line in rank(read_board(make_board(root, kls, of, **more)), name).lines}


def ranks(*given, **more):
    return {name: line.mean_rank for name, line in table(*given, **more).items()}


def kl(value):
    return lambda place, seed: value


@pytest.mark.parametrize(("honest", "dishonest"), [(4, 1), (3, 2), (1, 1)])
def test_memorised_official_answers_gain_nothing_and_are_flagged(tmp_path, honest, dishonest):
    def by_heart(place, seed):
        return 0.0 if place.kind == "official" else 200.0

    others = {f"m{i}": kl(10.0 * (i + 1)) for i in range(honest)}
    cheats = {f"by-heart-{i}": by_heart for i in range(dishonest)}
    lines = table(tmp_path, {**others, **cheats})
    for name in cheats:
        assert lines[name].place == honest + 1
        assert lines[name].suspicion == pytest.approx(math.log10(200.001 / 0.001))
    assert all(lines[name].suspicion is None for name in others)


@pytest.mark.parametrize(("a", "b"), [(-1e-3, 1.0), (1.0, math.inf)])
def test_scores_below_their_floor_and_infinite_ones_do_not_stop_a_board(tmp_path, a, b):
    assert ranks(tmp_path, {"a": kl(a), "b": kl(b)}) == {"a": 1, "b": 2}


def test_further_seeds_of_a_task_narrow_no_interval(tmp_path):
    """The same scores with each of three seeds say no more than with one."""
    values = lambda shift: lambda place, seed: 1.0 + (place.number + shift) % 3 + len(place.dataset) % 2  # noqa: E731
    entries = {"a": values(0), "b": values(1), "c": values(2)}
    once, thrice = (table(tmp_path / str(seeds), entries, edition(DATASETS, seeds=seeds)) for seeds in (1, 3))
    assert {name: line.interval for name, line in once.items()} == {
        name: line.interval for name, line in thrice.items()
    }


def test_a_task_with_several_seeds_counts_once(tmp_path):
    """Its score is the median over them: medians over tasks are 3 here, and 8 over runs."""
    kl = lambda place, seed: 8.0 + seed if place.number == 0 else float(place.number)  # noqa: E731
    of = edition(DATASETS, seeds=4, replicated_tasks=1)
    lines = table(tmp_path, {"a": kl, "b": lambda place, seed: 100.0}, of)
    spread = Spread(median=3.0, low=2.0, high=4.0, mean=(9.5 + 1 + 2 + 3 + 4) / 5)
    assert lines["a"].spreads["kl"] == lines["a"].by_dataset["yacht"]["kl"] == spread
    assert (lines["a"].finished, lines["a"].runs) == (4 * 8, 4 * 8)
    found = comparison(read_board(tmp_path), *read_board(tmp_path).standings)
    assert {each.a for each in found.differences} == {(3.0,)}


def test_the_variation_of_seeds_and_tasks_is_that_of_an_analysis_of_variance():
    """F is the mean square between tasks, n s_tasks² + s_seeds², over that within them, s_seeds²."""
    logs = {name: np.random.default_rng(place).normal(1, [[0.1], [0.3]][place], (5, 3)) + np.arange(5)[:, None]
            for place, name in enumerate(("yacht", "wine"))}  # fmt: skip
    of = edition(["boston", *logs], seeds=3)
    cells = result(
        entry("a"),
        of,
        lambda place, seed: 10 ** logs[place.dataset][place.number, seed] if place.dataset in logs else 1e9,
    ).cells
    squares = {"within": [], "between": []}
    for name, each in logs.items():
        own = variation(cells, "kl", [name])
        assert stats.f_oneway(*each).statistic == pytest.approx((3 * own.tasks**2 + own.seeds**2) / own.seeds**2)
        squares["within"].append(np.mean([statistics.variance(row) for row in each.tolist()]))
        squares["between"].append(own.tasks**2)
        assert own.seeds**2 == pytest.approx(squares["within"][-1])
    both = variation(cells, "kl", [*logs])
    assert both[:2] == pytest.approx((np.mean(squares["within"]) ** 0.5, np.mean(squares["between"]) ** 0.5))
    widest = {name: 10 ** np.ptp(each, axis=1).max() for name, each in logs.items()}
    assert (both.factor, both.dataset) == (pytest.approx(max(widest.values())), max(widest, key=widest.get))


def test_the_variation_is_unbiased_if_one_task_alone_is_replicated():
    """The mean of a task with n seeds has 1/n of their variance, which differs from task to task."""
    seeds, tasks, rng = 0.4, 0.6, np.random.default_rng(0)
    datasets = ["airfoil", "elevators", "energy", "kin40k", "kin8nm", "naval", "parkinsons", "pol", "power", "protein"]
    of = edition(datasets, seeds=3, replicated_tasks=1)
    places = runs(of)

    def drawn():
        means = {place: rng.normal(1.0, tasks) for place, _ in places}
        kls = {run: 10 ** rng.normal(means[run[0]], seeds) for run in places}
        cells = result(entry("a"), of, lambda place, seed: kls[place, seed], places).cells
        return np.square(variation(cells, "kl", datasets)[:2])

    found = [drawn() for _ in range(100)]
    mean, error = np.mean(found, 0), np.std(found, 0) / 10
    assert (error < [0.007, 0.02]).all()  # subtracting the seeds' variance as if all had 3 seeds would add 0.085
    assert (np.abs(mean - [seeds**2, tasks**2]) < 4 * error).all()


@pytest.mark.parametrize(
    ("seeds", "kl", "found"),
    [
        (1, lambda place, seed: 1.0 + place.number, None),  # nothing to compare
        (2, lambda place, seed: math.inf if place.number else 1.0, None),
        (2, lambda place, seed: None if place.number else 1.0, None),  # diverged
        (2, lambda place, seed: TIE / (1 + place.number + seed), (0, 0, 1, "yacht")),  # a tie
    ],
)
def test_without_scores_or_seeds_there_is_no_variation(seeds, kl, found):
    cells = result(entry("a"), edition(["yacht"], seeds=seeds), kl).cells
    assert variation(cells, "kl", ["yacht"]) == found


def test_what_diverges_on_a_ranked_task_is_last_there(tmp_path):
    def sometimes(place, seed):
        return None if (place.kind, place.dataset) == ("ranked", "wine") else 1.0

    lines = table(tmp_path, {"sometimes": sometimes, "worse": kl(2.0)})
    assert lines["sometimes"].ranks == {"boston": 1, "diabetes": 1, "energy": 1, "wine": 2, "yacht": 1}
    assert lines["sometimes"].by_dataset["wine"]["kl"].median == math.inf
    assert (lines["sometimes"].finished, lines["sometimes"].runs) == (15, 20)


def test_data_sets_to_tune_on_do_not_count(tmp_path):
    def tuned(place, seed):
        return 0.0 if place.dataset == "boston" else 2.0

    assert ranks(tmp_path, {"tuned": tuned, "honest": kl(1.0)}) == {"honest": 1, "tuned": 2}


def board_of(root, entries):
    """A board of entries with these families and KLs, and further scores."""
    of = edition(DATASETS)
    write_edition(root, of)
    for name, (family, kl, more) in entries.items():
        each = entry(name, family=family)
        write_entry(root, each)
        found = result(each, of, lambda place, seed, kl=kl: kl)
        cells = [
            cell.model_copy(update={"scores": cell.scores.model_copy(update=more)}) if cell.scores else cell
            for cell in found.cells
        ]
        write_result(result_path(root, of.name, name), found.model_copy(update={"cells": tuple(cells)}))
    return read_board(root)


def names(board, key):
    return [line.name for line in rank(board, key).lines]


def test_every_q_is_ranked_by_what_it_has(tmp_path):
    """A factor has a density if its KL is finite; what diverged everywhere is last in its family's tables."""
    infinite = {"kl": math.inf}
    board = board_of(
        tmp_path,
        {
            "full": ("full", 1.0, {}), "ffg": ("ffg", 2.0, {}), "lost": ("full", None, {}),
            "whole": ("factor", 3.0, {}), "flat": ("factor", 4.0, infinite), "dropout": ("bernoulli", 5.0, infinite),
            "points": ("particles", 6.0, infinite),
        },
    )  # fmt: skip
    assert names(board, "joint") == ["full", "ffg", "whole", "flat", "dropout", "points", "lost"]
    assert names(board, "posterior") == ["full", "ffg", "whole", "lost"]
    assert names(board, "particles") == ["points"]
    (line,) = (line for line in rank(board, "posterior").lines if line.name == "ffg")
    assert (line.by_dataset["yacht"]["kl"].median, line.by_dataset["yacht"]["ffg_floor"].median) == (2.0, 0.5)


def test_the_joint_rank_is_the_mean_of_those_on_test_and_on_box_inputs(tmp_path):
    """The size of box scores does not matter, only their order."""

    def of(test, box):
        return {"joint_predictive_kl_test": test, "joint_predictive_kl_box": box}

    board = board_of(
        tmp_path,
        {"a": ("full", 1.0, of(0.1, 900.0)), "b": ("full", 1.0, of(0.3, 2.0)), "c": ("full", 1.0, of(0.2, 1.0))},
    )
    assert {line.name: line.mean_rank for line in rank(board, "joint").lines} == {"a": 2.0, "b": 2.5, "c": 1.5}


@pytest.mark.parametrize(("other", "expected"), [(0.029, [1.5, 1.5]), (0.031, [1, 2])])
def test_particles_tie_within_two_standard_errors_of_exact_draws(tmp_path, other, expected):
    board = board_of(
        tmp_path,
        {
            "a": ("particles", 1.0, {"mmd2": 0.02, "mmd2_deviation": 0.005}),
            "b": ("particles", 1.0, {"mmd2": other, "mmd2_deviation": 0.5}),
        },
    )
    assert [line.mean_rank for line in rank(board, "particles").lines] == expected


@pytest.mark.parametrize(
    ("gap", "converged", "median"),
    [
        (0.1, True, 0.1),
        (0.11, False, 0.11),
        (math.inf, False, math.inf),
        (None, None, None),
        (-0.1, True, -0.1),
        (-0.11, None, -0.11),
    ],
)
def test_an_entry_has_converged_if_its_median_gap_is_small(tmp_path, gap, converged, median):
    (line,) = rank(board_of(tmp_path, {"a": ("full", 1.0, {"objective_gap": gap})}), "joint").lines
    assert (line.converged, line.gap) == (converged, median)


def test_gaps_on_both_sides_of_zero_do_not_show_convergence():
    runs = pd.DataFrame({"objective_gap": [-2.0, -1.0, 0.05, 1.0, 2.0], "seconds": 1.0, "status": "ok"})
    found = _training(runs)
    assert (found["converged"], found["gap"]) == (None, 0.05)


@pytest.mark.parametrize(
    ("gaps", "status", "expected"),
    [
        ([0.01, None, None], "ok ok ok", (None, None)),  # most are not known: the time for them ran out
        ([0.01, 0.02, None], "ok ok ok", (True, 0.015)),
        ([0.01, 0.02, None, None], "ok ok diverged diverged", (False, math.inf)),
        ([None, None], "diverged diverged", (None, None)),
    ],
)
def test_unknown_gaps_are_no_evidence_and_diverged_runs_are(gaps, status, expected):
    runs = pd.DataFrame({"objective_gap": gaps, "seconds": 1.0, "status": status.split()})
    found = _training(runs)
    assert (found["converged"], found["gap"]) == expected


def test_runs_without_a_gap_count_against_convergence(tmp_path):
    """Where the gap is known at all: what diverges on most runs has not converged on the others."""

    def mostly_lost(place, seed):
        return None if place.number < 3 else 1e-3

    (line,) = rank(read_board(make_board(tmp_path, {"a": mostly_lost})), "joint").lines
    assert (line.converged, line.gap) == (False, math.inf)


@given(st.lists(st.floats(0, 9) | st.just(math.inf) | st.just(math.nan), min_size=1, max_size=9))
def test_quartiles_and_means_of_runs(values):
    (found,) = spreads(np.array(values)[:, None])
    known = np.array([value for value in values if not math.isnan(value)])
    if not len(known):
        assert all(map(math.isnan, (found.median, found.low, found.high, found.mean)))
        return
    if np.isfinite(known).all():
        expected = np.quantile(known, [0.5, 0.25, 0.75], method="midpoint")
        assert (found.median, found.low, found.high) == pytest.approx(tuple(expected))
    assert found.low <= found.median <= found.high
    assert found.median == pytest.approx(statistics.median(known))
    assert found.mean == pytest.approx(known.mean())


def test_the_order_of_entries_does_not_matter_and_intervals_hold_the_mean(tmp_path):
    def noisy(level):
        return lambda place, seed: level + (hash((place.dataset, place.number, level)) % 7)

    board = read_board(make_board(tmp_path, {f"m{i}": noisy(i) for i in range(4)}))
    first = rank(board, "posterior").lines
    board.standings.reverse()
    assert repr(rank(board, "posterior").lines) == repr(first)  # NaN equals nothing
    assert all(line.interval[0] <= line.mean_rank <= line.interval[1] for line in first)


def test_two_entries_are_compared_by_bounded_log_ratios(tmp_path):
    def outlying(place, seed):
        return 1e7 if place.number == 0 else 1.0

    board = read_board(make_board(tmp_path, {"a": outlying, "b": kl(2.0), "c": kl(math.inf)}))
    a, b, c = board.standings
    found = comparison(board, a, b)
    expected = (1.0 + 4 * math.log10(0.5)) / 5
    assert [each.log_ratio for each in found.differences] == pytest.approx([expected] * 5)
    assert found.p_value == 2 ** (1 - 4)  # four data sets count, and say the same
    against = comparison(board, b, c)
    assert {each.log_ratio for each in against.differences} == {-1.0}
    swapped = comparison(board, b, a)
    assert [each.log_ratio for each in swapped.differences] == pytest.approx([-expected] * 5)


def test_without_a_density_joint_predictive_kls_are_compared(tmp_path):
    """The mean over test and box inputs, of which the larger cannot outweigh the other."""
    closer = {"kl": math.inf, "joint_predictive_kl_test": 0.5, "joint_predictive_kl_box": 1e6}
    board = board_of(tmp_path, {"a": ("bernoulli", 1.0, closer), "b": ("full", 10.0, {})})
    found = comparison(board, *board.standings)
    assert found.scores == ("joint_predictive_kl_test", "joint_predictive_kl_box")
    assert [each.log_ratio for each in found.differences] == pytest.approx([(math.log10(0.5) + 1) / 2] * 5)
    assert (found.differences[0].a, found.differences[0].b) == ((0.5, 1e6), (1.0, 1.0))


def test_a_comparison_equals_that_of_a_naive_implementation(tmp_path):
    """The mean over tasks of a bounded log ratio, its corrected t interval, cut off at the bounds, and Wilcoxon's p."""
    rng = np.random.default_rng(0)
    a, b = ({(d, n): float(10 ** rng.normal()) for d in DATASETS for n in range(5)} for _ in range(2))

    def kl(scores):
        return lambda place, seed: scores.get((place.dataset, place.number), 1.0)

    board = read_board(make_board(tmp_path, {"a": kl(a), "b": kl(b)}))
    found = comparison(board, *board.standings)
    counted = []
    for each in found.differences:
        ratios = [max(-1.0, min(1.0, math.log10(a[each.dataset, n] / b[each.dataset, n]))) for n in range(5)]
        mean, low, high = corrected_interval(ratios, 0.25)
        assert each.log_ratio == pytest.approx(mean, rel=1e-12)
        assert each.interval == pytest.approx((max(low, -1), min(high, 1)), rel=1e-12)
        assert each.a == (sorted(a[each.dataset, n] for n in range(5))[2],)
        counted += [mean] if each.dataset != "boston" else []
    assert found.p_value == signed_rank_test(counted)


@pytest.mark.parametrize("replicated", [None, 2])
def test_mean_ranks_equal_those_of_a_naive_implementation(tmp_path, replicated):
    """Within each ranked task and seed, then averaged over seeds, tasks, and the data sets that count."""
    of, rng = edition(DATASETS, seeds=2, replicated_tasks=replicated), np.random.default_rng(1)
    drawn = {name: {} for name in "abcd"}
    for name in drawn:
        for run in runs(of):
            drawn[name][run] = float(rng.uniform(0, 0.05)) if rng.random() > 0.1 else None
    kls = {name: partial(lambda scores, place, seed: scores[place, seed], scores) for name, scores in drawn.items()}
    means = {name: [] for name in drawn}
    for dataset in ("diabetes", "yacht", "wine", "energy"):
        of_tasks = {}
        for run in runs(of):
            if (run[0].kind, run[0].dataset) == ("ranked", dataset):
                row = naive_ranks([math.inf if scores[run] is None else scores[run] for scores in drawn.values()])
                of_tasks.setdefault(run[0], []).append(row)
        rows = [[sum(column) / len(column) for column in zip(*each, strict=True)] for each in of_tasks.values()]
        for name, column in zip(drawn, zip(*rows, strict=True), strict=True):
            means[name].append(sum(column) / len(column))
    assert ranks(tmp_path, kls, of) == pytest.approx({name: sum(each) / 4 for name, each in means.items()}, rel=1e-12)


def test_the_map_ranks_as_an_entry_with_its_scores_would(tmp_path):
    """Its joint predictive KLs are 0.25 on all tasks of these boards, a tenth of such an entry's KL."""
    of, rng = edition(["boston", "wine", "yacht"], seeds=2, replicated_tasks=1), np.random.default_rng(3)
    drawn = {name: {run: float(rng.uniform(2.3, 2.7)) for run in runs(of)} for name in "abcd"}
    kls = {name: partial(lambda scores, place, seed: scores[place, seed], scores) for name, scores in drawn.items()}
    board = read_board(make_board(tmp_path / "without", kls, of))
    found = ranks_with_map(run_frame(board.standings), HEADLINES["joint"])
    entered = table(tmp_path / "with", kls | {"e": kl(2.5)}, of, "joint")
    for name, line in entered.items():
        assert found["" if name == "e" else name].to_dict() == pytest.approx(line.ranks, rel=1e-12)
    assert len(set(entered["e"].ranks.values())) == 3
    of_before = [replace(each, result=without_map(each.result)) for each in board.standings]
    assert ranks_with_map(run_frame(of_before), HEADLINES["joint"]).isna().all(axis=None)


def without_map(result):
    """A result whose tasks lack the MAP's scores."""
    lost = dict.fromkeys(f"map_{name}" for name in JOINT)
    tasks = (each.task.model_copy(update=lost) for each in result.cells)
    cells = (each.model_copy(update={"task": task}) for each, task in zip(result.cells, tasks, strict=True))
    return result.model_copy(update={"cells": tuple(cells)})


def test_ratios_count_from_the_margin_of_ties():
    """Two tasks and three seeds; the margin of a pair is that of the smaller score."""
    index = pd.MultiIndex.from_product([["yacht"], [0, 1], [0, 1, 2]], names=["dataset", "number", "seed"])
    scores = pd.DataFrame({"a": 0.002, "b": 0.008, "c": -1.0, "d": math.inf}, index)
    margins = pd.DataFrame({"a": 0.004, "b": 0.001, "c": 0.004, "d": math.nan}, index)
    found = paired([(scores, margins)], "a", ["b", "c", "d"], ["yacht"], 0.8)
    assert found[:, 0, 0] == pytest.approx([math.log10(0.004 / 0.008), 0.0, -BOUND])
    assert found[:, 0, 1:] == pytest.approx(found[:, 0, :1].repeat(2, 1))  # all tasks alike


def test_who_outranks_whom_depends_on_the_ranked_data_sets_alone(tmp_path):
    """b is worse on all six, and better on the two for tuning."""
    ranked = ["energy", "kin8nm", "naval", "power", "wine", "yacht"]
    b = lambda place, seed: 2.0 if place.dataset in ranked else 0.5  # noqa: E731

    def outranked(of):
        board = read_board(make_board(tmp_path / of.sha256, {"a": lambda place, seed: 1.0, "b": b}, of))
        return [(line.name, line.outranked_by) for line in rank(board, "posterior").lines]

    assert outranked(edition(["boston", "concrete", *ranked])) == [("a", []), ("b", ["a"])]
    assert outranked(edition(["boston", "concrete", *ranked[1:]])) == [("a", None), ("b", None)]


def test_equal_ranks_from_other_runs_tie_in_spite_of_rounding(tmp_path):
    """On every data set, the mean ranks of a and b are 28/15, in other sums: 1.8666666666666665 and …67."""
    orders = list(permutations((1.0, 2.0, 3.0)))
    runs = [orders[each] for each in (0, 2, 4, 2, 5, 5, 1, 5, 0, 0, 3, 0, 2, 2, 1)]  # five tasks, three seeds
    seeds: dict[Any, list[int]] = {}

    def of(column):
        def kl(place, seed):
            of_task = seeds.setdefault(place, [])
            of_task += [] if seed in of_task else [seed]
            return runs[3 * place.number + of_task.index(seed)][column]

        return kl

    board = read_board(
        make_board(tmp_path, {name: of(column) for column, name in enumerate("abc")}, edition(DATASETS, seeds=3))
    )
    lines = rank(board, "posterior").lines
    assert lines[0].ranks == lines[1].ranks == pytest.approx(dict.fromkeys(lines[0].ranks, 28 / 15), abs=1e-9)
    assert [line.place for line in lines] == [1, 1, 3]
