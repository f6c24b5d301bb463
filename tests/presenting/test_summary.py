"""Tables: what is averaged over what, and how numbers are written."""

from __future__ import annotations

import io
import math
import re

import pytest
from rich.console import Console

from fsvi_bench.errors import InputError
from fsvi_bench.presenting.summary import Estimate, estimate, summarise
from fsvi_bench.presenting.table import (
    failures,
    format_estimate,
    format_spread,
    result_table,
    same_as_kl,
    score_table,
)
from fsvi_bench.running.cell import Record
from fsvi_bench.scoring.scores import Overconfidence, Scores


def scores(kl):
    several = {
        "kl_marginals": {},
        "intervals": None,
        "coverage": dict.fromkeys(("50", "90", "95"), 0.5),
        "coverage_exact": dict.fromkeys(("50", "90", "95"), 0.75),
    }
    several["overconfidence"] = Overconfidence(smallest=1, median=1, largest=1, quantiles=(1.0,) * 21)
    single = dict.fromkeys(Scores.model_fields.keys() - several, 1.0) | {"kl": kl, "singular": False}
    return Scores(**single, **several)


def record(split, kl=None, seed=0, dataset="toy", family="full", **hyperparameters):
    ok = kl is not None
    return Record(
        cell="", code_sha256="", dataset=dataset, split=split, method="m", family=family, seed=seed, hyperparameters=hyperparameters,
        task_sha256="", status="ok" if ok else "failed", reason=None if ok else "why", scores=scores(kl) if ok else None,
        seconds=None, provenance={},
    )  # fmt: skip


def test_mean_and_standard_error_over_splits():
    (row,) = summarise([record(0, 1.0), record(1, 2.0), record(2, 6.0)])
    # Sample variance of (1, 2, 6) is 7, so the standard error of the mean is √(7/3).
    assert row.scores["kl"] == Estimate(3.0, pytest.approx(math.sqrt(7 / 3)))


def test_each_split_weighs_the_same_however_many_seeds_it_has():
    (row,) = summarise([record(0, 0.0), record(1, 1.0, seed=0), record(1, 3.0, seed=1), record(1, 5.0, seed=2)])
    assert row.scores["kl"].mean == 1.5
    assert row.splits == 2


def test_families_settings_and_data_sets_are_rows_of_their_own():
    records = [record(0, 1.0), record(0, 2.0, family="ffg"), record(0, 3.0, dataset="yacht"), record(0, 4.0, M=20)]
    rows = summarise(records)
    assert [(row.dataset, row.scores["kl"].mean) for row in rows] == [
        ("toy", 1.0),
        ("toy", 2.0),
        ("toy", 4.0),
        ("yacht", 3.0),
    ]


def test_failures_are_counted_and_listed_never_averaged_away():
    records = [record(0, 1.0), record(1)]
    (row,) = summarise(records)
    assert (row.cells, row.finished) == (2, 1)
    assert list(failures(records)) == ["toy split 1 m full seed 0: failed: why"]
    console = Console(width=100, record=True)
    console.print(result_table([row], 100))
    assert "1 (1 not ok)" in console.export_text()


def test_a_table_of_one_split_promises_no_quartiles():
    def told(*records):
        console = Console(width=200, record=True)
        console.print(result_table(summarise(records), 200))
        return console.export_text()

    assert "Of one split each. KL in nats" in told(record(0, 1.0))
    assert "quartiles" not in told(record(0, 1.0))
    assert "Median and quartiles over splits" in told(record(0, 1.0), record(1, 2.0))


@pytest.mark.parametrize(
    ("statuses", "word"),
    [(("failed", "failed"), "failed"), (("diverged", "diverged"), "diverged"), (("failed", "diverged"), "not ok")],
)
def test_a_row_without_scores_says_what_became_of_it(statuses, word):
    (row,) = summarise([record(k).model_copy(update={"status": status}) for k, status in enumerate(statuses)])
    console = Console(width=200, record=True)
    console.print(result_table([row], 200))
    (line,) = [line.split() for line in console.export_text().splitlines() if line.startswith(" toy")]
    assert line[:6] == ["toy", "m", "full", "0", "(2", "not"]
    assert " ".join(line[7:]) == " ".join([word] * 6)


def test_a_gaussians_moments_are_not_told_twice():
    gaussian = record(0, 1.0)  # as are all its scores
    (own,), (singular,) = summarise([gaussian]), summarise([record(0, math.inf)])
    assert [same_as_kl(row, "kl_moment_matched") for row in (own, singular)] == [True, False]
    assert not same_as_kl(own, "kl")


def test_infinity_makes_the_mean_infinite():
    assert estimate([1.0, math.inf]) == Estimate(math.inf, None)
    assert estimate([2.0]) == Estimate(2.0, None)


@pytest.mark.parametrize(
    ("mean", "error", "text"),
    [
        (36.713, 0.4167, "36.71 ± 0.42"),
        (2.4534, 0.0698, "2.453 ± 0.070"),
        (151.2, 12.4, "151 ± 12"),
        (1.7594e-5, 3.1e-7, "(1.759 ± 0.031)e-5"),
        (-1.4e-14, 3e-15, "-1e-14"),
        (37.71165, None, "37.71"),
        (5957.2, None, "5957"),
        (59572.0, None, "5.957e+04"),
        (0.0, None, "0"),
        (0.0, 2.8e-14, "0"),
        (0.0, 0.5, "0.00 ± 0.50"),
        (math.inf, None, "∞"),
        (7611645.2, 7611625.4, "7611645 ± 7611625"),
        (1.3e103, 4.1e102, "(1.30 ± 0.41)e103"),
        (1.2e251, math.inf, "1.200e+251"),
    ],
)
def test_numbers_are_written_to_two_digits_of_their_error(mean, error, text):
    assert format_estimate(Estimate(mean, error)) == text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            [20.1, 19.4, 7.6e6],
            "20.1 [19.8, 3.80e6]",
        ),  # one split far off moves neither the median nor the lower quartile
        ([1.0, math.inf, math.inf], "∞ [∞, ∞]"),
        ([2.0, 2.0], "2.00"),
        ([5.0], "5.00"),
        ([1.1e-14, 2.4e-15], "7e-15"),
        ([0.00012345, 0.0001], "1.12e-4 [1.06e-4, 1.18e-4]"),
        ([0.0, 0.0], "0"),
        ([0.02345, 1234.5], "617 [309, 926]"),
    ],
)
def test_a_table_leads_with_medians_and_quartiles(values, text):
    (row,) = summarise([record(split, value) for split, value in enumerate(values)])
    assert format_spread(row.spreads["kl"]) == text


def told_at(width, records):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(result_table(summarise(records), width))
    return console.export_text()


@pytest.mark.parametrize(("width", "kl"), [(54, "12347 "), (80, "12347 [12346, 12347]"), (160, "12347 [12346, 12347]")])
def test_no_number_is_cut_off(width, kl):
    text = told_at(width, [record(split, 12345.678 + split, dataset="concrete", family="ffg") for split in range(3)])
    assert kl in text
    assert "…" not in text
    text = " ".join(text.split())
    assert ("columns all scores are shown" in text) == (width < 100)
    assert ("quartiles over splits" in text) == (width > 54)


def needed_for(text, what):
    return int(re.search(rf"At (\d+) columns all {what} are shown", " ".join(text.split()))[1])


def test_all_scores_stay_as_long_as_they_fit_and_quartiles_go_before_them():
    records = [record(split, 12345.678 + split, dataset="concrete", family="ffg") for split in range(3)]
    records = [r.model_copy(update={"scores": r.scores.model_copy(update={"rmse": float(r.split)})}) for r in records]
    for_scores = needed_for(told_at(54, records), "scores")
    for_quartiles = needed_for(told_at(for_scores, records), "quartiles")
    assert for_scores < for_quartiles
    assert "mean term" not in told_at(for_scores - 1, records)
    for width in range(for_scores, for_quartiles):
        text = told_at(width, records)
        assert "mean term" in text
        assert "[0.500, 1.50]" not in text
    assert "[0.500, 1.50]" in told_at(for_quartiles, records)
    assert "columns all" not in told_at(for_quartiles, records)


def test_a_split_that_diverged_has_an_infinite_kl_in_medians_and_is_no_part_of_means():
    diverged = [record(split).model_copy(update={"status": "diverged"}) for split in (3, 4)]
    (row,) = summarise([record(0, 1.0), record(1, 2.0), record(2, 3.0), *diverged])
    assert row.scores["kl"].mean == 2.0
    assert format_spread(row.spreads["kl"]) == "3.00 [2.00, ∞]"
    assert format_spread(row.spreads["nlpd"]) == "1.00"
    text = told_at(200, [record(0, 1.0), record(1, 2.0), *diverged])
    assert "2 (2 not ok)" in text
    assert "∞ [1.75, ∞]" in text
    assert "Splits that diverged count as infinite KLs." in text
    assert "diverged" not in told_at(200, [record(0, 1.0), record(1, 2.0), record(2)])


def test_a_seed_that_diverged_makes_its_split_infinite():
    seeds = [record(1, 2.0), record(1, seed=1).model_copy(update={"status": "diverged"})]
    (row,) = summarise([record(0, 1.0), *seeds])
    assert (row.spreads["kl"].smallest, row.spreads["kl"].largest) == (1.0, math.inf)
    assert row.splits == 2


def test_two_tasks_or_two_versions_of_one_cell_are_never_mixed():
    first = record(0, 1.0)
    with pytest.raises(InputError, match="two tasks of toy split 0"):
        summarise([first, record(0, 2.0, family="ffg").model_copy(update={"task_sha256": "other"})])
    with pytest.raises(InputError, match="toy split 0 m full seed 0 twice"):
        summarise([first, record(0, 2.0).model_copy(update={"code_sha256": "other"})])


@pytest.mark.parametrize("values", [(1e200, 2e200), (1e308, 1.7e308), (math.inf, -math.inf)])
def test_huge_numbers_do_not_break_a_table(values):
    assert format_estimate(estimate(values))


def test_brackets_from_outside_are_not_markup(capsys):
    from fsvi_bench.cli.console import stderr

    stderr.print("failed: [/x] [bold]", style="red")
    assert "failed: [/x] [bold]" in capsys.readouterr().err


def test_every_kind_of_score_is_written():
    """A flag, an interval, what does not apply, and numbers."""
    scored = scores(1.0).model_copy(update={"singular": None, "intervals": {"nlpd": (0.5, math.inf)}, "qkl": None})
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(score_table(scored))
    text = " ".join(console.export_text().split())
    assert "intervals nlpd 0.5 to ∞" in text
    assert "singular does not apply" in text
    assert "coverage_exact 50 0.75" in text
    assert "overconfidence largest 1" in text
    assert "quantiles" not in text
    console.print(score_table(scores(1.0)))
    assert "singular no" in " ".join(console.export_text().split())


def test_the_moments_have_a_column_where_they_say_something_new():
    def headings(kl):
        table = result_table(summarise([record(0, kl), record(1, kl)]), 1000)
        return [column.header for column in table.columns]

    assert "of its moments" not in headings(2.0)
    assert "of its moments" in headings(math.inf)
