"""The study's tables and lists: courses of KLs, optima, jitter, what has not begun, and other experiments' numbers."""

from __future__ import annotations

import json
import math

import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.papers.burt2020.study.along import falling_words, risen_words
from fsvi_bench.papers.burt2020.study.claims import judge_study
from fsvi_bench.papers.burt2020.study.progress import _in_groups, unbegun_table
from fsvi_bench.papers.burt2020.study.table import Tables
from fsvi_bench.papers.burt2020.study.verdicts import judgement_table, unseen_words
from tests.papers.burt2020.synthetic_study import CLAIMS, curve, page_of, rows_of, study_places, whole, without


def begun_where(begun):
    """The study with the cells that are begun, by data set, method, family, M and jitter."""
    cells = [
        c if begun(c) else without(place, "missing") for c, place in zip(whole().cells, study_places(), strict=True)
    ]
    return Tables(cells, [])


def test_the_optimum_table_says_of_how_many_splits_the_optimum_is_known():
    page = page_of(whole())
    optimum = {(row["data set"], row["method"]): row for row in rows_of(page, "KL at the optimum")}
    assert optimum["power", "FIXEDA ffg"]["KL at the optimum"] == "∞"
    assert optimum["power", "SSGE full"]["KL at the optimum"] == "110"  # 330 / 3
    assert optimum["power", "SSGE full"]["optimum known"] == "3 of 3"
    assert ("power", "EXACT full") not in optimum

    def unknown(c):
        """SSGE's optimum is known on split 0 alone, RANDA's nowhere."""
        return c.method == "rand-a" or (c.method == "ssge" and c.split > 0)

    cells = [c.model_copy(update={"kl_at_objective_optimum": None}) if unknown(c) else c for c in whole().cells]
    rows = {(r["data set"], r["method"]): r for r in rows_of(page_of(Tables(cells, [])), "KL at the optimum")}
    columns = ("optimum known", "KL", "KL at the optimum", "objective above it [nats]", "KL on the other splits")
    assert [rows["power", "SSGE full"][c] for c in columns] == ["1 of 3", "300", "100", "0.7", "345"]
    assert [rows["power", "RANDA full"][c] for c in columns] == ["0 of 3", "12.1", "–", "≥ 0.7", "–"]
    assert rows["power", "FIXEDA full"]["KL on the other splits"] == "–"


def test_optima_at_other_sizes_stand_apart():
    page = page_of(whole())
    assert "M" not in rows_of(page, "KL at the optimum")[0]
    assert "against the best that was found" not in page
    other = rows_of(page[page.index("FIXEDA's is known") :], "KL at the optimum")
    assert [row["M"] for row in other if row["method"] == "SSGE full"] == ["20", "40", "160"]
    assert {row["data set"] for row in other} == {"boston"}
    assert next(row["KL at the optimum"] for row in other if row["method"] == "SSGE full") == "440"  # 330 / 3 * 80 / 20
    cells = [c.model_copy(update={"kl_at_objective_optimum": None if c.M == 20 else 4e-10}) for c in whole().cells]
    page = page_of(Tables(cells, []))
    assert "(≥: against the best that was found)" in page
    other = rows_of(page[page.index("FIXEDA's is known") :], "KL at the optimum")
    columns = ("optimum known", "KL at the optimum", "objective above it [nats]")
    assert [[row[c] for c in columns] for row in other if row["method"] == "SSGE full"] == [
        ["0 of 3", "–", "≥ 0.7"], ["3 of 3", "0", "0.7"], ["3 of 3", "0", "0.7"],
    ]  # fmt: skip


def test_the_jitter_table_pairs_splits():
    ratio = "KL over that without: median [quartiles]"
    jitter = {(row["data set"], row["method"]): row for row in rows_of(page_of(whole()), ratio)}
    assert jitter["boston", "RANDA full"][ratio] == "1.25 [1.25, 1.25]"
    assert {name for name, _ in jitter} == {"boston"}


def test_the_jitter_table_shows_what_a_median_hides_and_what_else_parts_a_pair():
    cells = []
    for cell in whole().cells:
        here = (cell.dataset, cell.method, cell.family) == ("boston", "ssge", "full") and cell.kl_jitter
        changes = {0: {"kl": 1e9}, 1: {"code": "f" * 12}, 2: {"hardware": "another"}}[cell.split] if here else {}
        cells.append(cell.model_copy(update=changes))
    rows = {r["method"]: r for r in rows_of(page_of(Tables(cells, [])), "least to most")}
    assert rows["SSGE full"]["least to most"] == "1.25 to 3.33e6"  # 1e9 / 300
    assert rows["SSGE full"]["same code and machine"] == "1 of 3"
    assert rows["RANDA full"]["least to most"] == "1.25 to 1.25"
    assert rows["RANDA full"]["same code and machine"] == "3 of 3"


@pytest.mark.parametrize(("infinite", "words"), [(0, "20"), (1, "22 (∞ on 1)"), (2, "∞ (finite on 1)"), (3, "∞")])
def test_optima_some_of_which_lie_at_infinity_are_not_one_median(infinite, words):
    """FIXEDA, factorised: 18, 20 and 22 nats, the lowest of them replaced."""

    def optimum(c):
        value = math.inf if c.split < infinite else 18.0 + 2 * c.split
        return c.model_copy(update={"kl_at_objective_optimum": value}) if c.method == "fixed-a" else c

    rows = rows_of(page_of(Tables([optimum(c) for c in whole().cells], [])), "KL at the optimum")
    found = {row["KL at the optimum"] for row in rows if row["method"] == "FIXEDA ffg"}
    assert found == {words}


def test_the_page_begins_with_medians_by_method_and_data_set():
    def change(c, place):
        if (c.dataset, c.method, c.family) == ("power", "ssge", "ffg") and c.split:
            return without(place, "diverged", "the loss is nan")
        return without(place, "missing") if (c.dataset, c.method, c.split) == ("boston", "rand-a", 2) else c

    cells = [change(c, place) for c, place in zip(whole().cells, study_places(), strict=True)]
    rows = {row["method"]: row for row in rows_of(page_of(Tables(cells, [])), "method", "boston", "power")}
    assert "EXACT full" not in rows
    assert (rows["EXACT ffg"]["boston"], rows["EXACT ffg"]["power"]) == ("1.1", "1.1")
    assert (rows["SSGE ffg"]["boston"], rows["SSGE ffg"]["power"]) == ("660", "∞")
    assert (rows["RANDA full"]["boston"], rows["RANDA full"]["power"]) == ("11.6 (of 2)", "12.1")


def test_reasons_that_differ_in_a_step_are_told_once():
    reasons = ["no number at step 1204", "no number at step 37", "nan", "no number at step 9"]
    assert _in_groups(reasons) == "no number at steps 9 to 1,204 (3); nan"
    assert _in_groups(["lost at step 7 of 9"] * 2) == "lost at step 7 of 9 (2)"


def test_every_methods_course_is_told_by_its_least_and_its_last_kl():
    page = page_of(whole())
    rows = {(row["data set"], row["method"]): row for row in rows_of(page, "last / least")}
    columns = ("M", "least KL", "at step", "last KL", "last step", "last / least", "splits")
    assert [rows["boston", "FIXEDA full"][c] for c in columns] == ["80", "10", "10", "40", "100", "4", "3 of 3"]
    assert [rows["power", "RANDA ffg"][c] for c in columns] == ["80", "10", "10", "11", "100", "1.1", "3 of 3"]
    assert len(rows) == 2 * 4
    assert "FIXEDA full (boston 4, power 4); FIXEDA ffg (boston 4, power 4)." in page  # not RANDA's 1.1


def test_other_sizes_courses_stand_apart_and_are_not_named():
    curves = [
        *curve("boston", "ssge", "full", 80, (9.0, 8.0, 5.0, 9.9)),
        *curve("boston", "ssge", "full", 20, (9.0, 8.0, 5.0, 100.0)),
    ]
    page = page_of(Tables(whole().cells, curves))
    assert [row["M"] for row in rows_of(page, "last / least")] == ["80"]
    other = page[page.index("The same for the other M") :]
    assert [(row["M"], row["last / least"]) for row in rows_of(other, "last / least")] == [("20", "20")]
    assert risen_words(curves) == []


def test_a_rise_from_nothing_has_no_ratio_and_the_first_point_is_no_least():
    """Step 0 is where all methods start; a KL that is 0 but for rounding is divided by in no ratio."""
    curves = curve("boston", "rand-a", "full", 80, (0.5, 8.0, 1e-12, 3.0))
    (row,) = rows_of(page_of(Tables(whole().cells, curves)), "last / least")
    assert (row["least KL"], row["at step"], row["last / least"]) == ("1e−12", "10", "–")
    assert risen_words(curves) == ["RANDA full (boston ∞)"]
    endless = curve("boston", "rand-a", "full", 80, (0.5, 8.0, 2.0, math.inf))
    assert risen_words(endless) == ["RANDA full (boston ∞)"]


def test_what_was_still_falling_is_named_by_the_last_third_of_its_steps():
    """Steps are 0, 20, 25 and 30: two thirds of the last are 20, not what came before the last point."""

    def late(dataset, method, M, *kls):
        points = curve(dataset, method, "full", M, kls)
        return [point.model_copy(update={"steps": n}) for point, n in zip(points, (0, 20, 25, 30), strict=True)]

    curves = [
        *late("boston", "rand-a", 80, 99.0, 5.0, 4.5, 4.0),
        *late("boston", "ssge", 80, 99.0, 4.9, 8.0, 4.0),
        *late("boston", "fixed-a", 20, 99.0, 8.0, 8.0, 4.0),
        *late("power", "rand-a", 80, 99.0, 12.0, 5.0, 4.0),
        *late("power", "ssge", 80, 99.0, 4.0, 4.0, 0.0),
    ]
    assert falling_words(curves) == ["RANDA full (boston 1.25, power 3)"]
    turned = late("boston", "rand-a", 80, 99.0, 8.0, 3.9, 4.0)
    assert falling_words(turned) == []
    diverged = late("boston", "rand-a", 80, 99.0, 8.0, 4.0, math.inf)  # by 20 of 25 steps, of which 16 are two thirds
    assert falling_words(diverged) == []
    earlier = curve("boston", "rand-a", "full", 80, (99.0, 12.0, 4.0, math.inf))
    assert falling_words(earlier) == ["RANDA full (boston 3, then diverged)"]
    assert falling_words(curve("boston", "rand-a", "full", 80, (99.0, math.inf, math.inf, math.inf))) == []
    page = page_of(Tables(whole().cells, curves))
    assert "that is 1.25 or more: RANDA full (boston 1.25, power 3)." in page


def test_what_has_not_begun_is_a_line_per_data_set():
    def begun(c):
        return c.dataset == "boston" and c.M in (None, 80) and not c.kl_jitter and c.method != "ssge"

    tables = begun_where(begun)
    assert unbegun_table(tables.cells).rows == (
        (
            "boston",
            "34 of 42",
            "M = 20; M = 40; M = 80: SSGE full, SSGE ffg; M = 80 with jitter 1e-6; M = 160",
        ),
        ("power", "10 of 10", "all"),
    )
    page = page_of(tables)
    with pytest.raises(StopIteration):
        rows_of(page, "reasons")  # no line that is begun lacks anything
    assert unbegun_table(whole().cells).rows == ()
    assert page_of(whole()).rstrip().endswith("Nothing.")


def test_verdicts_without_a_split_are_counted_by_data_set_and_stand_in_no_table():
    judged = judge_study(begun_where(lambda c: c.dataset == "boston" and c.M in (None, 80)).cells, CLAIMS)
    sized = sum("M = 160" in claim.statistic for claim in CLAIMS)
    assert unseen_words(judged) == [f"boston: {sized} without jitter", "power: all"]
    assert {row[1] for row in judgement_table(judged).rows} == {"boston"}
    assert not any("M = 160" in str(row[0]) for row in judgement_table(judged).rows)
    assert unseen_words(judge_study(whole().cells, CLAIMS)) == []


def test_sizes_are_compared_where_more_than_one_has_results():
    page = page_of(begun_where(lambda c: c.M in (None, 80)))
    with pytest.raises(StopIteration):
        rows_of(page, "M = 80", "method")
    page = page_of(begun_where(lambda c: c.M == 80 or (c.M == 20 and c.method == "ssge")))
    rows = rows_of(page, "M = 80", "method")
    assert [(row["method"], row["M = 20"]) for row in rows] == [("SSGE full", "1,320"), ("SSGE ffg", "2,640")]
    assert "M = 160" not in rows[0]


def test_numbers_of_other_experiments_stand_in_the_page_once_they_are_there(tmp_path):
    tables = whole()
    assert page_of(tables, tmp_path).count("Not made yet.") == 3
    verdict = {
        "statistic": "KL < 1, greatest of all | data sets", "says": "the root matters", "side": "above", "threshold": 0.5, "value": 12.5, "low": 11.0,
        "high": 14.0, "holds": True,
    }  # fmt: skip
    table = {"title": "KL by root", "columns": ["root", "KL"], "rows": [["Cholesky", 36.5], ["symmetric", None]]}
    long = {"title": "all of it", "columns": ["x"], "rows": [[1.0]] * 41}
    numbers = {
        "figure": "burt2020-roots", "quick": False, "settings": {}, "claims": [verdict], "tables": [table, long], "numbers": {},
    }  # fmt: skip
    (tmp_path / "burt2020-roots.json").write_text(json.dumps(numbers))
    page = page_of(tables, tmp_path)
    assert page.count("Not made yet.") == 2
    told = "the root matters<br><sub>KL &lt; 1, greatest of all \\| data sets</sub>"
    assert f"| {told} | 12.5 [11, 14] | above 0.5 | held |" in page
    assert "| Cholesky | 36.5 |\n| symmetric | – |" in page
    assert "all of it: 41 rows" in page
    (tmp_path / "burt2020-shrinkage.json").write_text(json.dumps(numbers))
    with pytest.raises(InputError, match="holds the numbers of burt2020-roots"):
        page_of(tables, tmp_path)
    (tmp_path / "burt2020-roots.json").write_text("{}")
    with pytest.raises(InputError, match="is not the numbers of burt2020-roots"):
        page_of(tables, tmp_path)
