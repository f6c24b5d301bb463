"""What the study's page says first: sentences and ranges from its tables, of complete lines alone."""

from __future__ import annotations

import math

from fsvi_bench.papers.burt2020.study.along import stall_words
from fsvi_bench.papers.burt2020.study.findings import findings, ranges_table
from fsvi_bench.papers.burt2020.study.summary import alike_words, rising_words
from fsvi_bench.papers.burt2020.study.table import Tables
from tests.papers.burt2020.synthetic_study import curve, page_of, study_places, whole, with_holes, without


def changed(keep, **changes):
    """The whole study with changes to the cells that are kept."""
    cells = [cell.model_copy(update=changes) if keep(cell) else cell for cell in whole().cells]
    return Tables(cells, whole().curves)


def line(dataset, method, family="full", splits=(0, 1, 2), jitter=0.0):
    def keep(cell):
        place = (cell.dataset, cell.method, cell.family, cell.M, cell.kl_jitter)
        return place == (dataset, method, family, 80, jitter) and cell.split in splits

    return keep


def said(tables):
    return dict(findings(tables))


def test_who_is_nearest_is_told_by_median_and_family():
    """RANDA's 11 nats are less than FIXEDA's 60 and SSGE's 300; three splits of power are put beneath."""
    tables = changed(line("power", "ssge", "ffg"), kl=1.0)
    assert said(tables)["Who is nearest"] == (
        "of the paper's three methods by the median KL, full covariances: RANDA on boston, power; factorised: RANDA on "
        "boston, SSGE on power."
    )
    places = zip(whole().cells, study_places(), strict=True)
    lost = [without(p, "diverged", "nan") if line("boston", "rand-a", splits=(0, 1))(c) else c for c, p in places]
    words = said(Tables(lost, []))["Who is nearest"]
    assert "full covariances: FIXEDA on boston, RANDA on power;" in words
    assert words.endswith(
        "Infinitely far at this learning rate, having diverged: RANDA full on boston (2 of 3 splits)."
    )
    places = zip(whole().cells, study_places(), strict=True)
    one = [without(p, "diverged", "nan") if line("boston", "rand-a", splits=(0,))(c) else c for c, p in places]
    assert "diverged" not in said(Tables(one, []))["Who is nearest"]
    nobody = changed(lambda c: c.dataset == "power" and c.family == "full", kl=math.inf)
    assert "full covariances: RANDA on boston; factorised" in said(nobody)["Who is nearest"]


def test_a_line_with_a_missing_cell_is_in_no_sentence():
    """Two of RANDA's three full splits on power are missing, so nobody is nearest there."""
    assert (
        "full covariances: RANDA on boston; factorised: RANDA on boston, power." in said(with_holes())["Who is nearest"]
    )
    nothing = Tables([without(place, "missing") for place in study_places()], [])
    assert findings(nothing) == []
    assert ranges_table(nothing.cells).rows == ()


def test_a_mean_that_one_split_makes_is_told_with_the_split():
    """RANDA full on boston: 11, 12.1 and 13.2 nats."""
    assert "What means hide" not in said(whole())
    tables = changed(line("boston", "rand-a", splits=(2,)), kl=1e6, spectrum_100=7e5)
    words = said(tables)["What means hide"]
    assert words.startswith(
        "the paper's figures are of means. A few splits make these more than ten times their median, "
    )
    assert words.endswith(
        ": RANDA full on boston (mean 333,341, median 12.1; split 2 by the covariance, up to 700,000 times the exact "
        "variance). By means SSGE is nearer than RANDA on boston full, by medians not."
    )
    tables = changed(line("boston", "rand-a", splits=(2,)), kl=1e6, kl_mean_term=5.1e5, spectrum_100=5.0)
    assert "(mean 333,341, median 12.1; split 2 by the mean). By" in said(tables)["What means hide"]
    small = changed(line("boston", "rand-a", splits=(2,)), kl=300.0)
    assert "What means hide" not in said(small)  # a mean of 108 is less than ten medians
    endless = changed(line("boston", "rand-a", splits=(2,)), kl=math.inf)
    assert "What means hide" not in said(endless)  # the tables show that as it is


def test_where_every_weight_is_seen_what_is_left_is_told_by_method():
    """SSGE's objective is put at the posterior, within 1e-6 nats, RANDA's a little further off; factorised ones, those
    with jitter and those at M = 80 do not count. Boston has other sizes alone: 300 nats of SSGE are 600 at M = 40."""
    assert "Where A sees every weight" not in said(whole())
    optima = {"ssge": 0.99e-6, "rand-a": 1.01e-6}

    def near(*sizes, family="full", jitter=0.0):
        return [
            c.model_copy(update={"kl_at_objective_optimum": optima[c.method]})
            if c.method in optima and c.M in sizes and (c.family, c.kl_jitter) == (family, jitter)
            else c
            for c in whole().cells
        ]

    words = said(Tables(near(40, 160), []))["Where A sees every weight"]
    assert words.endswith("Median KLs at M = 40 (boston): SSGE 660; M = 160 (boston): SSGE 165.")
    for others in (near(80), near(160, family="ffg"), near(160, jitter=1e-6)):
        assert "Where A sees every weight" not in said(Tables(others, []))

    places = zip(near(160), study_places(), strict=True)
    lost = [without(p, "missing") if (c.M, c.method, c.split) == (160, "ssge", 2) else c for c, p in places]
    assert "Where A sees every weight" not in said(Tables(lost, []))


def test_where_every_weight_is_seen_on_one_of_two_data_sets_the_other_is_named():
    """Power is given boston's lines at M = 160; RANDA's optimum is the posterior on both, SSGE's on boston alone."""
    boston = [c for c in whole().cells if c.dataset == "boston" and c.M == 160]
    both = [*boston, *(c.model_copy(update={"dataset": "power", "kl": 1e-12}) for c in boston)]

    def reached(c):
        return c.method == "rand-a" or (c.method == "ssge" and c.dataset == "boston")

    cells = [c.model_copy(update={"kl_at_objective_optimum": 0.0}) if reached(c) else c for c in both]
    words = said(Tables(cells, []))["Where A sees every weight"]
    assert words.endswith("M = 160 (boston, power): RANDA 0 (power) to 6.05 (boston), SSGE 165 (not power).")


def test_fixedas_rise_is_told_at_the_papers_setting():
    curves = [
        *curve("boston", "fixed-a", "full", 80, (1000.0, 500.0, 10.0, 40.0)),
        *curve("power", "fixed-a", "full", 80, (1000.0, 500.0, 20.0, 20.0)),
        *curve("power", "fixed-a", "full", 20, (1000.0, 500.0, 10.0, 990.0)),
        *curve("power", "rand-a", "full", 80, (1000.0, 500.0, 10.0, 990.0)),
    ]
    words = (
        "FIXEDA's KL, full, passes a least and ends at 4 (boston) times it; on power it had its least at the last step."
    )
    assert said(Tables(whole().cells, curves))["Steps"] == words
    assert "Steps" not in said(Tables(whole().cells, curves[4:]))
    assert "Steps" not in said(Tables(whole().cells, []))


def test_what_jitter_moves_more_than_twofold_is_named():
    """A KL with jitter is 1.25 times that without, on boston alone: four methods in two families on three splits."""
    assert (
        said(whole())["Jitter"]
        == "KLs with it are 1.25 to 1.25 times those without, medians of pairs, over 24 pairs, 24 of them "
        "of the same code and machine."
    )
    tables = changed(line("boston", "ssge", splits=(0, 2), jitter=1e-6), kl=100.0)
    assert said(tables)["Jitter"] == (
        "KLs with it are 0.333 to 1.25 times those without, medians of pairs, over 24 pairs, 24 of them of the same "
        "code and machine; more than twofold apart are "
        "SSGE full on boston (splits 0, 2)."  # the middle one of 100 of 300, 1.25 and 100 of 360
    )
    endless = said(changed(lambda c: line("boston", "ssge")(c) or line("boston", "ssge", jitter=1e-6)(c), kl=math.inf))
    assert ", over 21 pairs, 21 of them of" in endless["Jitter"]
    other = changed(line("boston", "ssge", splits=(0, 2), jitter=1e-6), hardware="another")
    assert ", over 24 pairs, 22 of them of" in said(other)["Jitter"]


def test_ranges_name_the_data_sets_and_count_infinities():
    tables = changed(line("boston", "rand-a"), objective_gap=7.0, spectrum_50=0.1)
    rows = {row[0]: row[1:] for row in ranges_table(tables.cells).rows}
    assert "EXACT full" not in rows
    assert rows["RANDA full"] == ("0.7 (power) to 7 (boston)", "4.03", "0.1 (boston) to 0.51 (power)")  # 12.1 / 3
    assert rows["FIXEDA full"] == ("0.7", "∞", "0.51")
    rows = ranges_table(changed(line("power", "fixed-a"), kl_at_objective_optimum=5.0).cells).rows
    assert {row[0]: row[2] for row in rows}["FIXEDA full"] == "5 (power) to ∞ (1 of 2)"
    rows = ranges_table(changed(lambda c: c.method == "ssge", objective_gap=None).cells).rows
    assert {row[0]: row[1] for row in rows}["SSGE ffg"] == "–"


def test_ranges_leave_out_optima_that_are_not_known_and_data_sets_with_survivors():
    unknown = changed(line("boston", "rand-a", splits=(1, 2)), kl_at_objective_optimum=None, objective_gap=99.0)
    assert {row[0]: row[1] for row in ranges_table(unknown.cells).rows}["RANDA full"] == "0.7"
    wide = changed(line("boston", "rand-a"), spectrum_50=50.0)
    assert {row[0]: row[3] for row in ranges_table(wide.cells).rows}["RANDA full"] == "0.51 (power) to 50 (boston)"
    places = zip(wide.cells, study_places(), strict=True)
    survived = [without(p, "diverged", "nan") if line("boston", "rand-a", splits=(0,))(c) else c for c, p in places]
    assert {row[0]: row[3] for row in ranges_table(survived).rows}["RANDA full"] == "0.51"


def test_other_sizes_are_said_to_be_of_other_code_or_machines():
    """Boston has four methods in two families at M = 20, 40 and 160, three splits each."""
    assert alike_words(whole().cells) == "M = 20 on 24 of 24, M = 40 on 24 of 24, M = 160 on 24 of 24"
    tables = changed(lambda c: c.M == 40 and c.split == 1, hardware="another")
    assert alike_words(tables.cells) == "M = 20 on 24 of 24, M = 40 on 16 of 24, M = 160 on 24 of 24"
    assert "M = 40 on 16 of 24" in page_of(tables)


def test_a_kl_that_rises_with_the_size_of_a_is_named():
    """KLs are made up to fall like 1/M."""
    assert rising_words(whole().cells) == ""
    assert "It rises with M" not in page_of(whole())

    def up(*splits):
        here = ("boston", "ssge", "ffg", 40)
        return [
            c.model_copy(update={"kl": 9e9})
            if (c.dataset, c.method, c.family, c.M) == here and c.split in splits
            else c
            for c in whole().cells
        ]

    assert rising_words(up(0)) == ""  # one of three moves no median beyond another
    assert rising_words(up(0, 1)) == "SSGE ffg on boston from M = 20 to 40"
    assert "It rises with M in SSGE ffg on boston from M = 20 to 40." in page_of(Tables(up(0, 1), []))
    places = zip(up(0, 1), study_places(), strict=True)
    lost = [without(p, "missing") if (c.method, c.M, c.split) == ("ssge", 40, 2) else c for c, p in places]
    assert rising_words(lost) == ""


def test_a_stretch_in_which_the_machine_stood_still_is_named():
    """Steps 1, 10, 100 and 1,000 at a hundredth of a second each."""

    def timed(*seconds):
        points = curve("power", "rand-a", "full", 80, (9.0, 9.0, 9.0, 9.0))
        first = points[-1].model_copy(update={"steps": 1000})
        steady = [*points, first]
        return [p.model_copy(update={"seconds": s}) for p, s in zip(steady, (0.0, *seconds), strict=True)]

    assert stall_words(timed(0.01, 0.1, 1.0, 10.0)) == []
    assert stall_words(timed(0.01, 0.1, 101.0, 110.0)) == ["RANDA full on power, 101 of 110 s from step 10 to 100"]
    assert stall_words(timed(0.01, 0.1, 5.0, 14.0)) == []  # slow, but less than half of all


def test_the_page_begins_with_the_findings():
    page = page_of(whole())
    begun = page[: page.index("What is not as in the paper")]
    assert "- **Who is nearest**: of the paper's three methods" in begun
    assert "| RANDA full | 0.7 | 4.03 | 0.51 |" in begun
    for name in ("optimum", "claims", "confidence", "time", "along-the-way", "jitter", "roots", "shrinkage"):
        assert f"](#{name})" in begun
        assert page.count(f'<a name="{name}"></a>') == 1
