"""The page's numbers are those of the records, by way of the summary and the statistics; what is foreign is escaped."""

import math
import os

import numpy as np
import pytest
from scipy import stats

from fsvi_bench.errors import InputError
from fsvi_bench.presenting.report.page import duration, write_report
from fsvi_bench.presenting.report.sections import closest
from fsvi_bench.presenting.report.study import read_study
from fsvi_bench.presenting.summary import SHOWN, cells_of, format_mean, format_spread, summary_of
from tests.presenting.studies import Page, cells, curve, record, save


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0123, "0.0123 s"), (42, "42.0 s"), (6500, "108 min"), (7100, "118 min"), (9000, "2.50 h"), (1e7, "116 days")],
)
def test_durations_have_three_digits(seconds, text):
    assert duration(seconds) == text


RNG = np.random.default_rng(0)
CLOSE = (3.0 + 0.01 * RNG.standard_normal(10)).tolist()
FAR = (9.0 + 0.01 * RNG.standard_normal(10)).tolist()
NOISY = [2.0, 30.0, 4.0, 1.0, 2.0, 50.0, 3.0, 2.0, 1.0, 9.0]
RECORDS = [*cells("exact", [0.0] * 10), *cells("rand-a", CLOSE), *cells("ssge", FAR, nlpd=None)]
RECORDS += [*cells("rand-a", NOISY, family="ffg"), *cells("ssge", CLOSE, family="ffg")]
RECORDS += [*cells("spike-and-slab", FAR, family="spike-slab"), record("fixed-a", 0, None)]
RECORDS += cells("bernoulli-dropout", [math.inf] * 10, family="bernoulli")
#: A seed that failed leaves its split in the mean, by the other seed, and out of an interval of whole splits.
RECORDS += [*cells("fixed-a", CLOSE, family="ffg"), *cells("fixed-a", [*FAR[:9], None], family="ffg", seed=1)]
RECORDS += [*cells("rand-a", FAR, dataset="yacht"), *cells("ssge", CLOSE, dataset="yacht")]
RECORDS += [record("ssge", 3, None, dataset="yacht", family="ffg", status="diverged", reason="NaN\nat step 12")]
TRACES = {r.cell: curve([9.0, 5.0, r.scores.kl_moment_matched]) for r in RECORDS[10:30] + RECORDS[-5:-1]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = save(tmp_path_factory.mktemp("results"), RECORDS, TRACES)
    return write_report(root, root / "report").parent


@pytest.fixture(scope="module")
def page(folder):
    return Page((folder / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def shown(page):
    return page.results("boston")


def test_the_table_shows_the_summarys_numbers_and_sorts_by_all_their_digits(shown):
    for _, number in summary_of(cells_of(RECORDS)).iterrows():
        if number["dataset"] == "yacht" or number["score"] not in SHOWN or not number["ok"]:
            continue
        cell = shown[number["method"], number["family"]][SHOWN[number["score"]]["heading"]]
        if math.isnan(number["mean"]):
            assert (cell["text"], cell["v"]) == ("–", "")
            continue
        assert cell["text"] == ("=" if number["repeats_kl"] else format_spread(number))
        assert float(cell["v"]) == number["median"]
        assert cell["ci"].partition("\n")[0] == format_mean(number)
    assert shown["bernoulli-dropout", "bernoulli"]["KL(q‖P_D)"]["v"] == "Infinity"
    assert shown["ssge", "full"]["NLPD"]["text"] == "–"
    assert shown["rand-a", "full"]["train, s"]["v"] == "2.0"
    splits = [shown[key]["splits"]["text"] for key in (("rand-a", "full"), ("fixed-a", "ffg"), ("fixed-a", "full"))]
    assert splits == ["10", "10 (1 not ok)", "0 (1 not ok)"]
    assert shown["fixed-a", "full"]["KL(q‖P_D)"]["text"] == "failed"


def test_intervals_are_corrected_for_the_splits_overlap(shown):
    low, high = map(float, shown["rand-a", "full"]["KL(q‖P_D)"]["ci"].partition("\n")[2].split(" to "))
    # Nadeau and Bengio: s²(1/J + n_test/n_train); boston's splits have 455 training and 51 test points.
    half = stats.t.ppf(0.975, 9) * np.std(CLOSE, ddof=1) * math.sqrt(1 / 10 + 51 / 455)
    assert (low, high) == pytest.approx((np.mean(CLOSE) - half, np.mean(CLOSE) + half), abs=6e-4)  # three decimals
    assert high - low > 1.9 * stats.sem(CLOSE) * stats.t.ppf(0.975, 9)  # a plain interval is far narrower
    assert "\n" not in shown["fixed-a", "ffg"]["KL(q‖P_D)"]["ci"]


def test_only_what_the_splits_support_is_bold(shown):
    """ssge ffg has the lower mean, but not by more than rand-a ffg varies; spike-slab has no rival; exact is none."""
    assert {key for key, line in shown.items() if line["KL(q‖P_D)"]["bold"]} == {("rand-a", "full")}


def test_closest_methods_by_data_set_and_family(page):
    (table,) = [t for t in page.tables if "closest" in t["class"]]
    texts = [[cell["text"] for cell in row] for row in table["rows"]]
    kl, noisy = (format_spread(summary_of(cells_of(cells("rand-a", each))).iloc[0]) for each in (CLOSE, NOISY))
    assert texts[0] == ["data set", "full", "ffg", "bernoulli", "spike-slab"]
    assert texts[1][:3] == ["boston", f"rand-a {kl}", f"rand-a {noisy}"]  # its mean is above ssge's
    assert texts[1][3].endswith("*")
    assert texts[2] == ["yacht", f"ssge {kl}", "–", "–", "–"]
    assert [cell["bold"] for cell in table["rows"][1]] == ["", "rand-a", "", "", ""]


def test_a_method_that_failed_somewhere_is_not_the_closest():
    """It may have failed where the others have large KLs."""
    failed = [each.model_copy(update={"status": "failed"}) for each in cells("rand-a", CLOSE)[:2]]
    refused = [record(method, 10) for method in ("rand-a", "ssge")]  # a task that no method has
    lines = summary_of(cells_of([*failed, *cells("rand-a", CLOSE)[2:], *cells("ssge", FAR), *refused]))
    assert [line.method for line in closest(lines.assign(entry=lines["method"])).values()] == ["ssge"]
    lines = summary_of(cells_of([*cells("rand-a", CLOSE), *cells("ssge", FAR), *refused]))
    assert [line.method for line in closest(lines.assign(entry=lines["method"])).values()] == ["rand-a"]


def test_a_method_whose_seeds_failed_on_a_split_is_not_the_closest():
    """The seed that failed may have been the one far away."""
    lost = [each.model_copy(update={"status": "failed"}) for each in cells("rand-a", CLOSE, seed=1)[:1]]
    rand_a = [*cells("rand-a", CLOSE), *lost, *cells("rand-a", CLOSE, seed=1)[1:]]
    lines = summary_of(cells_of([*rand_a, *cells("ssge", FAR)]))
    assert [line.method for line in closest(lines.assign(entry=lines["method"])).values()] == ["ssge"]


def test_methods_on_different_splits_have_no_closest_one():
    """As many splits each, and none in common."""
    elsewhere = [record("ssge", split, 1e-3) for split in range(len(CLOSE), 2 * len(CLOSE))]
    lines = summary_of(cells_of([*cells("rand-a", CLOSE), *elsewhere]))
    assert closest(lines.assign(entry=lines["method"])) == {}


@pytest.mark.parametrize("more", [True, False])
def test_settings_that_labels_leave_out_are_in_the_tables_and_the_page_says_so(tmp_path, more):
    settings = [{"lr": lr} | ({"S": int(10 * lr)} if more else {}) for lr in (0.1, 0.2)]
    records = [record("rand-a", 0, 1.0, hyperparameters=of) for of in settings]
    page = Page(write_report(save(tmp_path, records), tmp_path / "report").read_text())
    words = {f"full {' '.join(f'{name}={value}' for name, value in of.items())}" for of in settings}
    assert {variant for _, variant in page.results("boston")} == words
    for section in ("summary", "scores", "curves"):
        assert ("“…” after a name: more settings differ" in page.said[section]) == more


def test_what_comes_from_outside_is_text(tmp_path):
    evil = "<script>alert(1)<img src=x.invalid onerror=alert(2)> $\\frac{"
    name = evil.replace("\\", "")  # which no name may hold
    records = [record(method, split, 1.0, dataset=name) for split in range(2) for method in (name, "ssge")]
    records.append(record("ssge", 4, None, dataset=name, reason=evil))
    # Names this long and slashed are no folders; the page is made from records in whatever folders they lie.
    for place, each in enumerate(records):
        path = tmp_path / "results" / "cells" / "a" / "b" / str(place) / "record.json"
        path.parent.mkdir(parents=True)
        path.write_text(each.model_dump_json())
    text = write_report(tmp_path / "results", tmp_path / "report").read_text()
    assert text.count("<script>") == 1
    page = Page(text)
    assert not [tag for tag, _ in page.elements if tag == "img"]
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert evil in page.said["failures"]
    assert (name, "full") in page.results(name)
    assert "alert(1)" in (tmp_path / "report" / "kl.svg").read_text()


def test_equal_results_give_equal_files_and_the_page_names_no_others(folder, page, tmp_path):
    stems = ["calibration", "curves-1", "curves-2", "kl", "nlpd", "spectrum"]
    figures = {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")}
    assert {path.name for path in folder.iterdir()} == figures | {"report.html"}
    write_report(folder.parent, tmp_path)
    assert all(path.read_bytes() == (folder / path.name).read_bytes() for path in tmp_path.iterdir())
    attributes = [of for _, of in page.elements]
    links = [of[name] for of in attributes for name in ("src", "href", "action") if name in of]
    assert {link for link in links if not link.startswith(("#", "data:"))} == figures
    identities = [of["id"] for of in attributes if "id" in of]
    assert len(identities) == len(set(identities))
    assert {link[1:] for link in links if link.startswith("#")} <= set(identities)


def test_figures_of_an_earlier_report_are_removed_and_nothing_else_is(folder, tmp_path):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    for mine in ("kl-7.png", "notes.svg"):  # no report wrote these
        (tmp_path / mine).write_text("mine")
    write_report(save(tmp_path / "small", [record("ssge", 0, None)]), tmp_path)
    page = Page((tmp_path / "report.html").read_text())
    assert page.results("boston")["ssge", "full"]["NLPD"]["text"] == "failed"
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "kl-7.png", "notes.svg", "small"}


def test_a_trace_that_is_gone_is_none(tmp_path):
    each = record("rand-a", 0, 1.0)
    root = save(tmp_path, [each], {each.cell: curve([9.0, 1.0])})
    assert set(read_study(root).of_cells) == {each.cell}
    (trace,) = root.rglob("trace.csv")
    trace.write_text("no trace")
    with pytest.raises(InputError, match="not a trace"):
        read_study(root)
    trace.unlink()  # as a --rerun does
    assert read_study(root).of_cells == {}


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "does not exist"), ({}, "contains neither records"), ({"cells/x/y/z/record.json": "{}"}, "not a valid")],
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


@pytest.mark.usefixtures("no_figures")
def test_a_folder_may_have_any_name(tmp_path):
    """On Linux a name is bytes, which need not be UTF-8."""
    root = save(tmp_path / os.fsdecode(b"r\xff"), RECORDS[:10])
    assert "r\\udcff" in write_report(root, root / "report").read_text(encoding="utf-8")
