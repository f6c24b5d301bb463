"""Ranks within runs: ties, last places, and what copies do."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsvi_bench.leaderboard.board import read_board
from fsvi_bench.leaderboard.ranked_tasks import runs
from fsvi_bench.leaderboard.ranking import TIE, comparison, rank
from fsvi_bench.statistics.ranks import signed_rank_test, tied_ranks
from fsvi_bench.statistics.resampled_t import corrected_interval
from tests.leaderboard.boards import DATASETS, edition, make_board


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
    assert tied_ranks(np.array(scores), TIE).tolist() == ranks


@given(st.lists(st.floats(0, 0.1) | st.just(math.inf), min_size=1, max_size=12))
def test_ranks_equal_those_of_a_naive_implementation(scores):
    assert tied_ranks(np.array(scores), TIE).tolist() == naive_ranks(scores)


def table(root, kls, of=None, name="full", **more):
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


def test_what_diverges_on_a_ranked_task_is_last_there(tmp_path):
    def sometimes(place, seed):
        return None if (place.kind, place.dataset) == ("ranked", "wine") else 1.0

    lines = table(tmp_path, {"sometimes": sometimes, "worse": kl(2.0)})
    assert lines["sometimes"].ranks == {"boston": 1, "diabetes": 1, "energy": 1, "wine": 2, "yacht": 1}
    assert lines["sometimes"].scores["wine"] == math.inf
    assert (lines["sometimes"].finished, lines["sometimes"].runs) == (15, 20)


def test_data_sets_to_tune_on_do_not_count(tmp_path):
    def tuned(place, seed):
        return 0.0 if place.dataset == "boston" else 2.0

    assert ranks(tmp_path, {"tuned": tuned, "honest": kl(1.0)}) == {"honest": 1, "tuned": 2}


def test_factorised_posteriors_are_ranked_above_their_floor(tmp_path):
    lines = table(tmp_path, {"a": kl(0.5), "b": kl(0.7)}, name="ffg", family="ffg")
    assert [line.scores["yacht"] for line in lines.values()] == pytest.approx([0.0, 0.2])


def test_the_order_of_entries_does_not_matter_and_intervals_hold_the_mean(tmp_path):
    def noisy(level):
        return lambda place, seed: level + (hash((place.dataset, place.number, level)) % 7)

    board = read_board(make_board(tmp_path, {f"m{i}": noisy(i) for i in range(4)}))
    first = rank(board, "full").lines
    board.standings.reverse()
    assert rank(board, "full").lines == first
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
        assert each.a == sorted(a[each.dataset, n] for n in range(5))[2]
        counted += [mean] if each.dataset != "boston" else []
    assert found.p_value == signed_rank_test(counted)


def test_ranks_over_all_tracks_equal_those_of_a_naive_implementation(tmp_path):
    """Within each ranked task and seed, then averaged over these, then over the data sets that count."""
    of, rng = edition(DATASETS, seeds=2), np.random.default_rng(1)
    drawn = {name: {} for name in "abcd"}
    for name in drawn:
        for run in runs(of):
            drawn[name][run] = float(rng.uniform(0, 0.05)) if rng.random() > 0.1 else None
    kls = {name: partial(lambda scores, place, seed: scores[place, seed], scores) for name, scores in drawn.items()}
    means = {name: [] for name in drawn}
    for dataset in ("diabetes", "yacht", "wine", "energy"):
        rows = [
            naive_ranks([math.inf if scores[run] is None else scores[run] for scores in drawn.values()])
            for run in runs(of)
            if (run[0].kind, run[0].dataset) == ("ranked", dataset)
        ]
        for name, column in zip(drawn, zip(*rows, strict=True), strict=True):
            means[name].append(sum(column) / len(column))
    assert ranks(tmp_path, kls, of) == pytest.approx({name: sum(each) / 4 for name, each in means.items()}, rel=1e-12)
