"""The study's page: made from its tables alone, its numbers those of the tables, nothing averaged unseen."""

import gzip
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.papers.burt2020.study.claims import StudyClaim, judge_study, verdict_table
from fsvi_bench.papers.burt2020.study.reproduction import is_published
from fsvi_bench.papers.burt2020.study.summary import courses
from fsvi_bench.papers.burt2020.study.table import CELLS_FILE, CURVES_FILE, Tables, read_tables, write_tables
from fsvi_bench.papers.registry import REPRODUCTIONS
from fsvi_bench.papers.workspace import Workspace
from fsvi_bench.running.progress import Silent
from fsvi_bench.running.runner import Resources
from fsvi_bench.statistics.resampled_t import corrected_interval
from tests.papers.burt2020.synthetic_study import (
    CLAIMS,
    FILE,
    changed,
    curve,
    frames,
    pivot,
    text_of,
    whole,
    with_holes,
)

DOCS = Path(__file__).resolve().parents[3] / "docs"


def line(method, family="full", dataset="boston", M=80, jitter=0.0):
    def where(cells):
        own = (cells["method"] == method) & (cells["family"] == family) & (cells["dataset"] == dataset)
        return own & cells["M"].fillna(80).eq(M) & cells["kl_jitter"].fillna(0.0).eq(jitter)

    return where


def test_tables_survive_their_files_and_writing_again_changes_no_byte(tmp_path):
    tables = with_holes()
    write_tables(tables, tmp_path / "a")
    back = read_tables(tmp_path / "a")
    write_tables(back, tmp_path / "b")
    for name in (CELLS_FILE, CURVES_FILE):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    pd.testing.assert_frame_equal(back.cells, tables.cells, rtol=1e-9)  # ten digits are kept
    pd.testing.assert_frame_equal(back.curves, tables.curves, rtol=1e-5)
    assert (back.cells["kl_at_objective_optimum"] == math.inf).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("kl_mean_term", "kl_mean", 1), "its columns are not those of this version"),
        (lambda text: text.replace(",ok,", ",fine,", 1), "a status is not one of ok"),
        (lambda text: text.replace(",full,", ",half,", 1), "a family is not one of full"),
        (lambda text: text.rsplit(",", 4)[0], "a cell with status ok has no spectrum_"),
        (lambda text: text.replace("a machine,", "a machine,more,", 1), "is not a study's table"),
        (lambda text: text.replace(",0.7,", ",nan,", 1), "is not a study's table"),
        (lambda text: text.replace(",0.01,0.06,", ",0.01,,", 1), "a cell with status ok has no spectrum_5"),
        (lambda text: text.replace(",80,", ",80.5,", 1), "is not a study's table"),
        (lambda text: re.sub(r"\n(\w+),0,", r"\n\1,99999999999999999999,", text, count=1), "is not a study's table"),
    ],
)
def test_a_damaged_table_is_refused_in_one_sentence(tmp_path, change, message):
    path, _ = write_tables(whole(), tmp_path)
    path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()).decode()).encode()))
    with pytest.raises(InputError, match=message):
        read_tables(tmp_path)


def test_what_is_no_archive_is_refused(tmp_path):
    path, curves = write_tables(whole(), tmp_path)
    archive = path.read_bytes()
    for content in (b"no archive", archive[:-9]):
        path.write_bytes(content)
        with pytest.raises(InputError, match="is not a study's table"):
            read_tables(tmp_path)
    path.write_bytes(archive)
    curves.unlink()
    with pytest.raises(InputError, match=r"there is no .*curves"):
        read_tables(tmp_path)


def reproduce(root):
    return REPRODUCTIONS["burt2020-study"].make(Workspace(root, "paper", Resources(), Silent(), compute=False))


@pytest.mark.slow
def test_the_committed_page_is_that_of_the_committed_tables():
    """And its sentences are about these tables; its pictures are all there."""
    page, tables = (DOCS / "study.md").read_text(encoding="utf-8"), read_tables(DOCS / "study")
    assert is_published(tables, FILE)
    links = re.findall(r"\]\(study/([a-z0-9-]+)\.png\)", page)
    assert all((DOCS / "study" / f"{name}.png").is_file() for name in links)
    figures = [name for name in links if not name.startswith("burt2020-")]
    assert text_of(tables, sorted(figures)) == page
    assert page.count("\n") <= 250


def test_results_are_medians_and_means_of_the_tables_cells():
    overview = pivot(whole(), "overview")
    assert overview.loc["FIXEDA full", "boston"] == "66"
    assert "EXACT full" not in overview.index
    cells, curves = whole()
    larger_A = cells["dataset"].eq("naval") & cells["M"].gt(80)
    largest = pivot(Tables(cells[~larger_A], curves), "largest")
    assert (largest.loc["RANDA full", "boston"], list(largest)) == ("6.05", ["boston"])
    spreads = frames(whole(), CLAIMS[:1])["spreads"]
    (row,) = spreads[line("fixed-a")(spreads) & (spreads["score"] == "kl")].to_dict("records")
    values = [60.0, 66.0, 72.0]
    assert [row[name] for name in ("median", "lower", "upper", "mean")] == pytest.approx([66.0, 63.0, 69.0, 66.0])
    assert row["error"] == pytest.approx(np.std(values, ddof=1) / math.sqrt(3))


def test_medians_count_what_diverged_as_infinite_and_rounding_as_nothing():
    tables = changed(lambda c: line("ssge", "ffg", "naval")(c) & (c["split"] > 0), status="diverged", kl=np.nan)
    tables = changed(line("exact", "ffg", "naval"), tables, kl=-3e-15)
    overview = pivot(tables, "overview")
    assert (overview.loc["SSGE ffg", "naval"], overview.loc["EXACT ffg", "naval"]) == ("∞", "0")


def test_optima_are_medians_of_the_splits_where_they_are_known():
    tables = changed(lambda c: line("rand-a")(c) & (c["split"] > 0), kl_at_objective_optimum=np.nan)
    optimum = pivot(tables, "optimum")
    assert optimum.loc["RANDA full", "boston"] == "3.67 (of 1)"  # 11 / 3
    assert optimum.loc["FIXEDA ffg", "boston"] == "∞"
    medians = frames(tables, CLAIMS[:1])["medians"]
    medians = medians[medians["dataset"].eq("boston") & medians["M"].eq(80) & medians["kl_jitter"].eq(0)]
    elsewhere = medians.set_index("line")["kl_without_known_optimum"]
    assert elsewhere["RANDA full"] == pytest.approx((12.1 + 13.2) / 2)  # of splits 1 and 2
    assert math.isnan(elsewhere["RANDA ffg"])


def test_courses_are_told_by_their_least_and_last_kl_after_the_first_step():
    def course(*kls):
        (row,) = courses(curve("boston", "rand-a", "full", 80, kls).assign(line="RANDA full")).to_dict("records")
        return [row[name] for name in ("least_kl", "at_step", "last_kl", "last_step", "rise", "fall")]

    assert course(5.0, 50.0, 10.0, 40.0) == [10.0, 10, 40.0, 100, 4.0, 0.25]
    assert course(99.0, 12.0, 4.0, math.inf) == [4.0, 10, math.inf, 100, math.inf, 3.0]
    assert math.isnan(course(0.5, 8.0, 1e-12, 3.0)[4])  # of a rise from nothing there is no ratio
    assert course(*[math.inf] * 4)[0] == math.inf


def test_jitter_is_paired_by_split():
    tables = changed(lambda c: line("ssge", jitter=1e-6)(c) & (c["split"] == 0), kl=1e9, code="f" * 12)
    table = pivot(tables, "jitter")
    assert list(table) == ["boston"]
    assert set(table["boston"]) == {"1.25"}
    pairs = frames(tables, CLAIMS[:1])["jitter by line"].set_index("line")
    assert pairs.loc["SSGE full", "ratio_max"] == pytest.approx(1e9 / 300)
    assert pairs.loc["SSGE full", "same_version_mean"] == pytest.approx(2 / 3)
    assert pairs.loc["RANDA full", "same_version_mean"] == 1.0


def claim(statistic, side="above"):
    return StudyClaim(statistic=statistic, says="it is so", side=side, threshold=0.0, interval="splits")


def judged(tables, statistic, side="above"):
    found = judge_study(tables.cells, [claim(statistic, side)])
    return {(row.dataset, row.kl_jitter): row for row in found.itertuples()}


def outcomes(*args):
    return {place: row.outcome for place, row in judged(*args).items()}


PLACES = [("boston", 0.0), ("boston", 1e-6), ("naval", 0.0)]
SSGE_LAST = "log KL: ssge full - rand-a full"


def test_claims_are_judged_by_paired_differences_with_the_corrected_interval():
    found = judged(whole(), SSGE_LAST)
    assert list(found) == PLACES
    assert all((row.splits, row.planned, row.outcome) == (3, 3, "held") for row in found.values())
    assert found["boston", 0.0].value == pytest.approx(math.log(300 / 11), rel=1e-12)
    assert set(outcomes(whole(), SSGE_LAST, "below").values()) == {"did not hold"}
    excess = judged(whole(), "training log likelihood above exact's: ssge ffg")["boston", 0.0]
    assert (excess.value, excess.low, excess.high) == corrected_interval([5.0, 6.0, 7.0], 1 / 9)
    assert excess.agreeing == 3
    on_naval = claim(SSGE_LAST).model_copy(update={"datasets": ("naval",)})
    assert judge_study(whole().cells, [on_naval])["dataset"].tolist() == ["naval"]


def test_no_verdict_is_based_on_surviving_splits_only():
    """What is missing leaves a claim open; what diverged is infinitely far, or tells nothing."""
    found = judged(with_holes(), SSGE_LAST)
    naval, boston = found["naval", 0.0], found["boston", 0.0]
    assert (naval.splits, naval.planned, naval.outcome) == (1, 3, "incomplete")
    assert math.isnan(naval.value)
    assert (boston.splits, boston.agreeing, boston.outcome) == (3, 3, "held")  # one of three is infinite
    assert (boston.value, boston.low, boston.high) == (math.inf, math.inf, math.inf)
    assert outcomes(with_holes(), "training log likelihood above exact's: ssge full")["boston", 0.0] == "not judged"
    table = verdict_table(judge_study(with_holes().cells, CLAIMS)).set_index("claim")
    ends = next(says for says in table.index if "SSGE ends" in says and "(full)" in says)
    assert table.loc[ends, "incomplete"] == "naval 1/1 of 3"


def test_a_diverged_cell_outweighs_the_others_however_they_stand():
    """RANDA is ahead by a little on two splits, SSGE diverged on the third: SSGE is not the nearer one."""
    tables = changed(lambda c: c["method"] == "ssge", kl=1.0)
    tables = changed(lambda c: c["method"] == "rand-a", tables, kl=1.1)
    tables = changed(lambda c: (c["method"] == "ssge") & (c["split"] == 2), tables, status="diverged", kl=np.nan)
    boston = judged(tables, SSGE_LAST)["boston", 0.0]
    assert (boston.outcome, boston.agreeing, boston.splits) == ("undecided", 1, 3)


def test_every_claim_of_the_file_is_planned_somewhere_and_an_unknown_one_refused():
    found = judge_study(whole().cells, CLAIMS)
    assert {*found["statistic"]} == {each.statistic for each in CLAIMS}
    by_size = found[found["statistic"].str.contains("M = 160")]
    assert {*zip(by_size["dataset"], by_size["kl_jitter"], strict=True)} == {("boston", 0.0), ("naval", 0.0)}
    assert found.loc[found["statistic"].str.contains(": exact ffg"), "kl_jitter"].isna().all()
    for name in ("log kl: ssge full - rand-a full", "something: ssge full"):
        with pytest.raises(InputError, match=f"there is no statistic '{name}'"):
            judge_study(whole().cells, [claim(name)])


@pytest.mark.parametrize("change", [{}, {"max_steps": 500}, {"seed": 1}])
def test_splits_are_not_counted_twice_by_other_steps_or_seeds(tmp_path, change):
    cells, curves = whole()
    again = cells[cells["method"] == "rand-a"].iloc[:1].assign(**change)
    write_tables(Tables(pd.concat([cells, again]), curves), tmp_path / "study")
    with pytest.raises(InputError, match="contains boston split 0 rand-a twice"):
        reproduce(tmp_path)


def test_a_folder_with_neither_records_nor_tables_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"contains neither records nor study/scores\.csv\.gz"):
        reproduce(tmp_path)
    assert list(tmp_path.iterdir()) == []
