"""Tables: what is averaged over what, and how numbers are written."""

import io
import math

import pytest
from rich.console import Console

from fsvi_bench.cli import console, reproduce
from fsvi_bench.cli.console import print_failures, show
from fsvi_bench.cli.reproduce import _show as show_reproduction
from fsvi_bench.cli.score import in_lines
from fsvi_bench.errors import InputError
from fsvi_bench.papers.experiment import Outcome
from fsvi_bench.presenting.summary import (
    cells_of,
    format_mean,
    format_spread,
    posterior_table,
    result_table,
    summary_of,
    three_digits,
)
from tests.presenting import studies


def record(split, kl=None, seed=0, dataset="toy", family="full", **hyperparameters):
    return studies.record("m", split, kl, seed=seed, dataset=dataset, family=family, hyperparameters=hyperparameters)


def summary(records, score="kl"):
    """The lines of one score."""
    lines = summary_of(cells_of(records))
    return lines[lines["score"] == score].reset_index()


def told_at(width, records):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(result_table(records, width))
    return console.export_text()


def test_posterior_files_have_the_columns_of_a_runs_table():
    """The same headings and numbers as `run` shows for a single split; a narrow terminal drops the same columns."""

    def numbers(table):
        shown = {str(column.header).strip(): [str(cell) for cell in column.cells] for column in table.columns[2:]}
        return {heading: cells for heading, cells in shown.items() if heading != "splits"}

    kept = [record(0, 1.0), record(0, math.inf, family="ffg", kl_moment_matched=2.0)]
    posteriors = [("toy 0", f"{place}.safetensors", each.scores) for place, each in enumerate(kept)]
    for width in (200, 40):
        assert numbers(posterior_table(posteriors, width)) == numbers(result_table(kept, width))
    assert "A terminal of" in posterior_table(posteriors, 40).caption


@pytest.mark.parametrize("width", [25, 45, 60])
def test_no_terminal_is_too_narrow_for_a_number(width, monkeypatch):
    """Lines continue on the next line of the terminal."""
    kept = record(0, 12345.0)
    kept = kept.model_copy(update={"scores": kept.scores.model_copy(update={"nlpd": -0.0672, "rmse": 0.623})})
    names = "cells/boston/exact-ffg/split-00-seed-0-e2c181216f4d/posterior.safetensors"
    outcome = Outcome(name="toy", scale="paper", computed=1, reused=0, records=(kept,))
    for printed in (
        lambda: show(False, None, lambda: result_table([kept], width)),
        lambda: show(False, None, lambda: posterior_table([("toy 0", names, kept.scores)], width)),
        lambda: show_reproduction(outcome),
    ):
        terminal = Console(width=width, record=True, file=io.StringIO())
        monkeypatch.setattr(console, "stdout", terminal)
        monkeypatch.setattr(reproduce, "stdout", terminal)
        printed()
        text = terminal.export_text()
        assert all(number in text for number in ("12345", "-0.0672", "0.623"))


def diverged(split, **changes):
    return record(split, **changes).model_copy(update={"status": "diverged"})


def test_mean_and_standard_error_over_splits():
    line = summary([record(0, 1.0), record(1, 2.0), record(2, 6.0)]).loc[0]
    # Sample variance of (1, 2, 6) is 7, so the standard error of the mean is √(7/3).
    assert (line["mean"], line["standard_error"]) == (3.0, pytest.approx(math.sqrt(7 / 3)))


def test_each_split_weighs_the_same_however_many_seeds_it_has():
    records = [record(0, 0.0), record(1, 1.0, seed=0), record(1, 3.0, seed=1), record(1, 5.0, seed=2)]
    assert summary(records).loc[0, ["mean", "median", "splits", "cells"]].tolist() == [1.5, 1.5, 2, 4]


def test_families_settings_and_data_sets_are_rows_of_their_own():
    records = [record(0, 1.0), record(0, 2.0, family="ffg"), record(0, 3.0, dataset="yacht"), record(0, 4.0, M=20)]
    assert summary(records)[["dataset", "family", "words", "mean"]].to_numpy().tolist() == [
        ["toy", "full", "", 1.0],
        ["toy", "ffg", "", 2.0],
        ["toy", "full", "", 4.0],
        ["yacht", "full", "", 3.0],
    ]


def test_settings_are_shown_where_a_methods_rows_differ_and_own_priors_always():
    def words(*settings):
        return summary([record(0, 1.0, **each) for each in settings])["words"].tolist()

    assert words({"M": 20, "lr": 0.1}, {"M": 80, "lr": 0.1}) == ["M=20", "M=80"]
    assert words({"M": None, "prior": "own"}, {"M": 5, "prior": "own"}) == ["M=null (own prior)", "M=5 (own prior)"]
    assert words({"prior": "own"}, {"prior": "task"}) == ["prior=own", "prior=task"]


def test_failures_are_counted_and_listed_never_averaged_away(capsys, tmp_path):
    records = [record(0, 1.0), record(1), diverged(2)]
    assert summary(records).loc[0, ["cells", "ok", "diverged", "failed"]].tolist() == [3, 1, 1, 1]
    print_failures(records[:2], tmp_path)
    assert capsys.readouterr().err == "toy split 1 m full seed 0: failed: RuntimeError: it broke\n"
    assert "1 (2 not ok)" in told_at(100, records)


def test_cells_that_failed_alike_are_one_line_and_a_number(capsys, tmp_path):
    other = record(9).model_copy(update={"reason": "ValueError: another"})
    records = [*(record(k) for k in range(4)), other, diverged(5), diverged(6)]
    assert print_failures(records, tmp_path) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == [
        "toy split 0 m full seed 0: failed: RuntimeError: it broke",
        "and 3 more cells of m failed for the same reason",
        "toy split 9 m full seed 0: failed: ValueError: another",
    ]
    assert lines[3].startswith("toy split 5 m full seed 0: diverged: ")
    assert lines[4:] == ["and 1 more cell of m diverged for the same reason"]


def test_a_table_without_finished_splits_claims_nothing_about_them():
    assert "One split each." in told_at(200, [record(0, 1.0)])
    for records in ([record(0)], [record(0), record(1)], [diverged(0)]):
        assert "split each" not in told_at(200, records)
        assert "KL in nats" in told_at(200, records)


def test_a_network_of_which_nothing_finished_has_no_columns_of_linear_tasks():
    lost = diverged(0).model_copy(update={"dataset": "toy-collapsed-2"})
    network = record(0).model_copy(update={"dataset": lost.dataset})
    for each in (lost, network):
        text = told_at(200, [each])
        assert "NLPD" in text
        assert not any(word in text for word in ("mean term", "RMSE"))


@pytest.mark.parametrize(
    ("statuses", "word"),
    [(("failed", "failed"), "failed"), (("diverged", "diverged"), "diverged"), (("failed", "diverged"), "not ok")],
)
def test_a_row_without_scores_says_what_became_of_it(statuses, word):
    records = [record(k).model_copy(update={"status": status}) for k, status in enumerate(statuses)]
    (line,) = [line for line in told_at(200, records).splitlines() if line.startswith(" toy")]
    assert line.split()[:6] == ["toy", "m", "full", "0", "(2", "not"]
    assert line.count(word) >= 3


def test_a_gaussians_moments_are_not_shown_twice():
    gaussian, singular = [record(0, 1.0)], [record(0, math.inf)]  # of which all other scores are 1
    assert [summary(each, "kl_moment_matched")["repeats_kl"][0] for each in (gaussian, singular)] == [True, False]
    assert not summary(gaussian)["repeats_kl"][0]


def test_infinity_makes_the_mean_infinite_and_one_split_has_no_error():
    for values, mean in (([1.0, math.inf], math.inf), ([2.0], 2.0)):
        line = summary([record(split, value) for split, value in enumerate(values)]).loc[0]
        assert line["mean"] == mean
        assert math.isnan(line["standard_error"])


@pytest.mark.parametrize(
    ("value", "text"),
    [(99.95, "100"), (99.94, "99.9"), (0.9995, "1.00"), (999_999.5, "1.00e6"), (12_345.6, "12346"), (0.00099996, "0.00100")],
)  # fmt: skip
def test_three_digits_are_those_that_are_written(value, text):
    assert three_digits(value) == text


@pytest.mark.parametrize(
    ("mean", "error", "text"),
    [
        (36.713, 0.4167, "36.71 ± 0.42"),
        (2.4534, 0.0698, "2.453 ± 0.070"),
        (151.2, 12.4, "151 ± 12"),
        (1.7594e-5, 3.1e-7, "(1.759 ± 0.031)e-5"),
        (37.71165, None, "37.71"),
        (59572.0, None, "5.957e+04"),
        (0.0, 2.8e-14, "0"),
        (7e-15, 2.8e-14, "0"),
        (7e-15, 1e-3, "0.0000 ± 0.0010"),
        (math.inf, None, "∞"),
        (1.3e103, 4.1e102, "(1.30 ± 0.41)e103"),
        (36.7, 0.0995, "36.70 ± 0.10"),
        (0.00099996, 1e-5, "0.001000 ± 0.000010"),
        (9.96e-4, 1e-4, "0.00100 ± 0.00010"),
        (9.96e9, 1e9, "(1.00 ± 0.10)e10"),
        (999_960_000, 10, "999960000 ± 10"),
        (9.99996e-5, 1e-9, "(9.99996 ± 0.00010)e-5"),
        (0.0004, 0.3, "0.00 ± 0.30"),
    ],
)
def test_numbers_are_written_to_two_digits_of_their_error(mean, error, text):
    line = {"mean": mean, "standard_error": math.nan if error is None else error, "score": "kl"}
    assert format_mean(line) == text


def test_a_small_rmse_is_no_rounding_error():
    """Its unit is the target's, such as metres for lengths of some nanometres."""
    records = [studies.record("m", split, value, rmse=value) for split, value in enumerate((4e-10, 6e-10))]
    kl, rmse = (summary(records, score).loc[0] for score in ("kl", "rmse"))
    assert (format_spread(kl), format_mean(kl)) == ("0", "0")
    assert (format_spread(rmse), format_mean(rmse)) == ("5.00e-10 [4.50e-10, 5.50e-10]", "(5.0 ± 1.0)e-10")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            [20.1, 19.4, 7.6e6],
            "20.1 [19.8, 3.80e6]",
        ),  # one split far off moves neither the median nor the lower quartile
        ([1.0, math.inf, math.inf], "∞ [∞, ∞]"),
        ([5.0], "5.00"),
        ([1.1e-14, -2.4e-15], "0"),
        ([0.00012345, 0.0001], "1.12e-4 [1.06e-4, 1.18e-4]"),
    ],
)
def test_a_table_leads_with_medians_and_quartiles(values, text):
    assert format_spread(summary([record(split, value) for split, value in enumerate(values)]).loc[0]) == text


def test_a_split_that_diverged_has_an_infinite_kl_in_medians_and_is_no_part_of_means():
    lost = [diverged(3), diverged(4)]
    records = [record(0, 1.0), record(1, 2.0), record(2, 3.0), *lost]
    assert summary(records)["mean"][0] == 2.0
    assert format_spread(summary(records).loc[0]) == "3.00 [2.00, ∞]"
    assert format_spread(summary(records, "nlpd").loc[0]) == "1.00"
    records = [studies.record("m", 0, 1.0, dataset="toy", w2_moments=0.5), diverged(1)]
    assert summary(records, "w2_moments").loc[0, ["median", "mean"]].tolist() == [math.inf, 0.5]


def test_a_seed_that_diverged_makes_its_split_infinite():
    line = summary([record(0, 1.0), record(1, 2.0), diverged(1, seed=1)]).loc[0]
    assert line[["smallest", "largest", "splits"]].tolist() == [1.0, math.inf, 2]


def test_two_tasks_or_two_versions_of_one_cell_are_never_mixed():
    first = record(0, 1.0)
    with pytest.raises(InputError, match="two tasks of toy split 0"):
        cells_of([first, record(0, 2.0, family="ffg").model_copy(update={"task_sha256": "other"})])
    with pytest.raises(InputError, match="toy split 0 m full seed 0 twice"):
        cells_of([first, record(0, 2.0).model_copy(update={"code_sha256": "other"})])


def test_brackets_from_outside_are_not_markup(capsys):
    from fsvi_bench.cli.console import stderr

    stderr.print("failed: [/x] [bold]", style="red")
    assert "failed: [/x] [bold]" in capsys.readouterr().err


def test_every_kind_of_score_is_written_by_the_command():
    """Numbers, infinities, a flag, an interval, scores within scores, and what does not apply."""
    changes = {"intervals": {"nlpd": (0.5, math.inf)}, "singular": None, "elbo": -math.inf, "qkl": None}
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(in_lines(studies.scores(math.inf).model_copy(update=changes)))
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    told = {"kl ∞", "elbo -∞", "rmse 1", "qkl does not apply", "singular does not apply", "intervals.nlpd 0.5 to ∞"}
    assert told | {"coverage_exact.50 0.5", "overconfidence.largest 4"} <= set(lines)
