"""The page's numbers are those of the records, by way of the summary and the statistics; what is foreign is escaped."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fsvi_bench.errors import InputError
from fsvi_bench.presenting.report.page import write_report
from fsvi_bench.presenting.report.study import read_study
from fsvi_bench.presenting.summary import SHOWN, cells_of, format_mean, summary_of
from tests.presenting.studies import Page, curve, page_of, record, save

RNG = np.random.default_rng(0)
CLOSE = (3.0 + 0.01 * RNG.standard_normal(10)).tolist()
FAR = (9.0 + 0.01 * RNG.standard_normal(10)).tolist()


def cells(method, values, **changes):
    return [record(method, split, value, **changes) for split, value in enumerate(values)]


def test_the_table_shows_the_summarys_numbers_and_sorts_by_all_their_digits(tmp_path):
    records = [*cells("exact", [0.0] * 10), *cells("rand-a", CLOSE), *cells("ssge", FAR, nlpd=None)]
    records += cells("bernoulli-dropout", [math.inf] * 10, family="bernoulli")
    shown = page_of(tmp_path, records)[1].results("boston")
    for _, number in summary_of(cells_of(records)).iterrows():
        line = shown[number["method"], number["family"]]
        assert line["splits"]["text"] == "10"
        if number["score"] not in SHOWN:
            continue
        cell = line[SHOWN[number["score"]]["heading"]]
        if math.isnan(number["mean"]):
            assert (cell["text"], cell["v"]) == ("–", "")
            continue
        assert cell["text"] == ("=" if number["repeats_kl"] else format_mean(number))
        assert float(cell["v"]) == number["mean"]
    assert shown["bernoulli-dropout", "bernoulli"]["KL(q‖P_D)"]["v"] == "Infinity"
    assert shown["ssge", "full"]["NLPD"]["text"] == "–"
    assert shown["rand-a", "full"]["train, s"]["v"] == "2.0"


def test_intervals_are_corrected_for_the_splits_overlap(tmp_path):
    line = page_of(tmp_path, cells("rand-a", CLOSE))[1].results("boston")["rand-a", "full"]
    low, high = (float(end) for end in line["KL(q‖P_D)"]["ci"].split(" to "))
    # Nadeau and Bengio: s²(1/J + n_test/n_train); boston's splits have 455 training and 51 test points.
    half = stats.t.ppf(0.975, 9) * np.std(CLOSE, ddof=1) * math.sqrt(1 / 10 + 51 / 455)
    assert (low, high) == pytest.approx((np.mean(CLOSE) - half, np.mean(CLOSE) + half), abs=6e-4)  # three decimals
    assert high - low > 1.9 * stats.sem(CLOSE) * stats.t.ppf(0.975, 9)  # a plain interval is far narrower


def test_there_is_no_interval_where_its_splits_are_not_the_means(tmp_path):
    """A seed that failed leaves its split in the mean, by the other seed, and out of an interval of whole splits."""
    whole = [*cells("rand-a", CLOSE), *cells("rand-a", FAR, seed=1)]
    for place, (records, there) in enumerate([(whole, True), ([*whole[:-1], record("rand-a", 9, seed=1)], False)]):
        (tmp_path / str(place)).mkdir()
        cell = page_of(tmp_path / str(place), records)[1].results("boston")["rand-a", "full"]["KL(q‖P_D)"]
        assert float(cell["v"]) == summary_of(cells_of(records))["mean"][0]
        assert bool(cell["ci"]) == there


def test_only_what_the_splits_support_is_bold(tmp_path):
    noisy = [2.0, 30.0, 4.0, 1.0, 2.0, 50.0, 3.0, 2.0, 1.0, 9.0]
    records = [*cells("exact", [0.0] * 10), *cells("rand-a", CLOSE), *cells("ssge", FAR)]
    records += [*cells("rand-a", noisy, family="ffg"), *cells("ssge", CLOSE, family="ffg")]
    records += cells("spike-and-slab", FAR, family="spike-slab")
    shown = page_of(tmp_path, records)[1].results("boston")
    bold = {key for key, line in shown.items() if line["KL(q‖P_D)"]["bold"]}
    # ssge ffg has the lower mean, but not by more than rand-a ffg varies; spike-slab has no rival; exact is none.
    assert bold == {("rand-a", "full")}


def test_closest_methods_by_data_set_and_family(tmp_path):
    records = [*cells("rand-a", CLOSE), *cells("ssge", FAR), *cells("ssge", CLOSE, family="ffg")]
    records += [*cells("rand-a", FAR, dataset="yacht"), *cells("ssge", CLOSE, dataset="yacht")]
    page = page_of(tmp_path, records)[1]
    (table,) = [t for t in page.tables if "closest" in t["class"]]
    texts = [[cell["text"] for cell in row] for row in table["rows"]]
    kl = format_mean(summary_of(cells_of(cells("rand-a", CLOSE))).iloc[0])
    assert texts == [
        ["data set", "full", "ffg"],
        ["boston", f"rand-a {kl}", f"ssge {kl}"],
        ["yacht", f"ssge {kl}", "–"],
    ]
    assert [cell["bold"] for cell in table["rows"][1]] == ["", "rand-a", ""]


def test_counts_and_reasons_of_what_did_not_finish(tmp_path):
    records = [*cells("rand-a", CLOSE[:4]), *cells("ssge", [1.0, None, None, 1.0])]
    records.append(record("ssge", 7, None, status="diverged", reason="NaN\nat step 12", family="ffg"))
    page = page_of(tmp_path, records)[1]
    (table,) = [t for t in page.tables if "troubles" in t["class"]]
    assert [[cell["text"] for cell in row] for row in table["rows"][1:]] == [
        ["failed", "2 of 4", "ssge full", "boston 1-2", "RuntimeError: it broke"],
        ["diverged", "1 of 1", "ssge ffg", "boston 7", "NaN at step 12"],
    ]
    shown = page.results("boston")
    assert shown["ssge", "ffg"]["KL(q‖P_D)"]["text"] == "diverged"
    assert shown["ssge", "full"]["splits"]["text"] == "2 (2 not ok)"


def test_what_comes_from_outside_is_text(tmp_path):
    evil = "<script>alert(1)<img src=x.invalid onerror=alert(2)> $\\frac{"
    name = evil.replace("\\", "")  # which no name may hold
    records = [
        *(record(method, split, 1.0 + split, dataset=name) for split in range(3) for method in (name, "ssge")),
        record("ssge", 4, None, dataset=name, reason=evil),
    ]
    # Names this long and slashed are no folders; the page is made from records in whatever folders they lie.
    for place, each in enumerate(records):
        folder = tmp_path / "results" / "cells" / str(place)
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(each.model_dump_json())
    text = write_report(tmp_path / "results", tmp_path / "report").read_text()
    assert text.count("<script>") == 1
    page = Page(text)
    assert not [tag for tag, _ in page.elements if tag == "img"]
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert evil in page.said["troubles"]
    assert (name, "full") in page.results(name)
    assert "alert(1)" in (tmp_path / "report" / "kl.svg").read_text()


def test_equal_results_give_equal_files(tmp_path):
    records = [*cells("rand-a", CLOSE), *cells("ssge", [*FAR[:9], math.inf]), *cells("rand-a", FAR, dataset="yacht")]
    records += cells("ssge", CLOSE, dataset="yacht")
    traces = {each.cell: curve([9.0, 5.0, each.scores.kl_moment_matched]) for each in records}
    root = save(tmp_path / "results", records, traces)
    for name in ("a", "b"):
        write_report(root, tmp_path / name)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    stems = ["calibration", "curves-1", "curves-2", "kl", "nlpd", "spectrum"]
    assert names == sorted(["report.html", *(f"{stem}.{kind}" for stem in stems for kind in ("png", "svg"))])
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_the_page_names_nothing_outside_itself_but_its_figures(tmp_path):
    records = cells("rand-a", CLOSE)
    page = page_of(tmp_path, records, {records[0].cell: curve([9.0, 3.0])})[1]
    links = [
        attributes[name] for _, attributes in page.elements for name in ("src", "href", "action") if name in attributes
    ]
    outside = {link for link in links if not link.startswith(("#", "data:"))}
    assert outside == {path.name for path in (tmp_path / "report").iterdir()} - {"report.html"}
    identities = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(identities) == len(set(identities))
    assert {link[1:] for link in links if link.startswith("#")} <= set(identities)


def test_figures_of_an_earlier_report_are_removed_and_nothing_else_is(tmp_path):
    small = [record("rand-a", 0, 1.0)]
    large = [record("rand-a", 0, 1.0, dataset=f"set-{place}") for place in range(9)]
    folder = tmp_path / "report"
    for name, records in (("large", large), ("small", small)):
        traces = {each.cell: curve([9.0, 1.0]) for each in records}
        write_report(save(tmp_path / name, records, traces), folder)
        if name == "large":
            assert {"kl.png", "calibration.svg", "curves-9.svg"} <= {p.name for p in folder.iterdir()}
            for mine in ("kl-7.png", "notes.svg"):  # no report wrote these
                (folder / mine).write_text("mine")
    stems = ["calibration", "curves-1", "kl", "nlpd", "spectrum"]
    figures = {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")}
    assert {path.name for path in folder.iterdir()} == {"report.html", "kl-7.png", "notes.svg", *figures}


def test_a_trace_that_is_gone_is_none(tmp_path):
    each = record("rand-a", 0, 1.0)
    root = save(tmp_path, [each], {each.cell: curve([9.0, 1.0])})
    assert set(read_study(root).of_cells) == {each.cell}
    next(root.rglob("trace.csv")).unlink()  # as a --rerun does
    assert read_study(root).of_cells == {}
    save(tmp_path, [each], {each.cell: curve([9.0, 1.0])})
    (trace,) = root.rglob("trace.csv")
    trace.write_text("no trace")
    with pytest.raises(InputError, match="not a trace"):
        read_study(root)


def test_a_folder_in_which_nothing_finished_still_has_its_page(tmp_path):
    page = page_of(tmp_path, cells("ssge", [None, None]))[1]
    assert page.results("boston")["ssge", "full"]["NLPD"]["text"] == "failed"


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "there is no folder"), ({}, "holds neither records"), ({"cells/x/record.json": "{}"}, "not a valid")],
)
def test_what_is_no_output_folder_is_refused(tmp_path, content, words):
    root = tmp_path / "results"
    for name, text in (content or {}).items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
    if content == {}:
        root.mkdir()
    with pytest.raises(InputError, match=words):
        write_report(root, tmp_path / "report")
    assert not (tmp_path / "report").exists()
