"""The study's page: made from its table alone, its numbers those of the table, nothing averaged unseen."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.papers.base import Workshop
from fsvi_bench.papers.burt2020.study import summary
from fsvi_bench.papers.burt2020.study.claims import StudyClaim, judge_study
from fsvi_bench.papers.burt2020.study.page import EXPERIMENTS, markdown, render
from fsvi_bench.papers.burt2020.study.reproduction import BURT2020_STUDY
from fsvi_bench.papers.burt2020.study.table import CELLS_FILE, CURVES_FILE, StudyCell, Tables, read_tables, write_tables
from fsvi_bench.papers.burt2020.study.verdicts import verdict_table
from fsvi_bench.running.progress import Silent
from fsvi_bench.running.runner import Resources
from fsvi_bench.statistics.resampled_t import corrected_interval
from tests.papers.burt2020.synthetic_study import (
    CLAIMS,
    cell,
    page_of,
    rows_of,
    study_places,
    whole,
    with_holes,
    without,
)

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_tables_survive_their_files_and_writing_again_changes_no_byte(tmp_path):
    tables = with_holes()
    first, second = tmp_path / "a", tmp_path / "b"
    write_tables(tables, first)
    back = read_tables(first)
    write_tables(back, second)
    for name in (CELLS_FILE, CURVES_FILE):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    assert len(back.cells) == len(tables.cells)
    for one, other in zip(tables.cells, back.cells, strict=True):
        for name in StudyCell.model_fields:
            value, read = getattr(one, name), getattr(other, name)
            # Ten digits are kept.
            assert read == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), name
    assert any(each.kl_at_objective_optimum == math.inf for each in back.cells)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("kl_mean_term", "kl_mean", 1), "its columns are others"),
        (lambda text: text.replace(",ok,", ",fine,", 1), "is not a study's table"),
        (lambda text: text.replace(",full,", ",half,", 1), "is not a study's table"),
        (lambda text: text.rsplit(",", 60)[0], "a line has too few or too many columns"),
        (lambda text: text.rsplit(",", 4)[0], "a line has too few or too many columns"),
        (lambda text: text.replace(",ok,", ",ok,more,", 1), "a line has too few or too many columns"),
        (lambda text: text.replace(",0.7,", ",nan,", 1), "objective_gap is not a number"),
        (lambda text: text.replace(",0.01,0.06,", ",0.01,,", 1), "a cell that is ok has no spectrum_5"),
    ],
)
def test_a_damaged_table_is_refused_in_one_sentence(tmp_path, change, message):
    path, _ = write_tables(whole(), tmp_path)
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match=message) as caught:
        read_tables(tmp_path)
    assert "\n" not in str(caught.value)


def reproduce(root):
    return BURT2020_STUDY.make(Workshop(root, False, Resources(), Silent(), compute=False))


@pytest.mark.slow
def test_the_page_is_made_from_the_table_alone_byte_for_byte(tmp_path):
    for name in ("a", "b"):
        write_tables(with_holes(), tmp_path / name / "study")
        outcome = reproduce(tmp_path / name)
        assert outcome.missing == 2
        assert (tmp_path / name / "study.md") in outcome.files
    for path in (
        "study.md",
        "study/scores-1.png",
        "study/spectrum.png",
        "study/steps.png",
        "study/time.png",
        "study/drift.png",
    ):
        assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes(), path
    page = (tmp_path / "a" / "study.md").read_text()
    for link in re.findall(r"\]\((study/[^)]*)\)", page):
        assert (tmp_path / "a" / link).is_file()
    assert "{{" not in page


def test_the_committed_page_is_that_of_the_committed_table():
    """Without a table there is no page, and the other way round: no number stands there that nobody can make again."""
    table, page = DOCS / "study" / CELLS_FILE, DOCS / "study.md"
    assert table.is_file() == page.is_file()
    if page.is_file():
        tables = read_tables(table.parent)
        figures = re.findall(r"\]\(study/([a-z0-9-]+)\.png\)", page.read_text(encoding="utf-8"))
        own = [name for name in figures if not name.startswith("burt2020-")]
        text = render(tables, judge_study(tables.cells, CLAIMS), own, table.parent, False)
        assert text == page.read_text(encoding="utf-8")


def test_every_block_of_numbers_has_its_command_beside_it():
    page = page_of(whole())
    tables = [match.end() for match in re.finditer(r"(?m)^\|.*\n(?!\|)", page)]
    assert len(tables) >= 9
    for place in tables[1:]:  # the first is introduced by the command
        following = page[place:].lstrip().split("\n")[0]
        assert following.startswith("`fsvi-bench reproduce burt2020-study --out DIR`"), following
    for name in EXPERIMENTS:
        section = page[page.index(f"### {EXPERIMENTS[name]}") :].splitlines()
        assert section[2] == f"Everything in this section is made by `fsvi-bench reproduce {name} --out DIR/study`."


def test_what_is_missing_is_said_and_stands_in_no_mean():
    tables = with_holes()
    page = page_of(tables)
    assert f"2 of {len(tables.cells)} cells are missing" in page
    counts = {row["data set"]: row for row in rows_of(page, "planned", "diverged")}
    planned = sum(c.dataset == "boston" for c in tables.cells)
    assert [counts["boston"][c] for c in ("planned", "ok", "diverged", "missing")] == [
        str(planned), str(planned - 5), "5", "0",
    ]  # fmt: skip
    results = {(row["data set"], row["method"]): row for row in rows_of(page, "KL, mean ± s.e.")}
    assert results["power", "RANDA full"]["splits"] == "1 of 3"
    assert results["power", "RANDA full"]["KL, mean ± s.e."] == "11"  # split 0 alone, and so no standard error
    assert results["boston", "SSGE full"]["splits"] == "2 of 3"
    lacking = {(row["data set"], row["method"], row["M"], row["jitter"]): row for row in rows_of(page, "reasons")}
    assert lacking["power", "RANDA full", "80", "0"]["missing"] == "2"
    assert lacking["boston", "SSGE full", "80", "1e-6"]["diverged or failed"] == "1"
    assert lacking["boston", "SSGE full", "20", "0"]["reasons"] == "the loss is ¦ nan"
    assert len(lacking) == 6


def test_results_are_medians_and_means_of_the_tables_cells():
    tables = whole()
    rows = {(row["data set"], row["method"]): row for row in rows_of(page_of(tables), "KL, mean ± s.e.")}
    values = [60.0, 66.0, 72.0]
    error = np.std(values, ddof=1) / math.sqrt(3)
    assert rows["boston", "FIXEDA full"]["KL, median [quartiles]"] == "66 [63, 69]"
    assert rows["boston", "FIXEDA full"]["KL, mean ± s.e."] == f"66 ± {error:.3g}"
    assert len(rows) == 2 * 10  # lines at M = 80 without jitter
    sizes = {(row["data set"], row["method"]): row for row in rows_of(page_of(tables), "M = 160")}
    assert [sizes["boston", "RANDA full"][f"M = {size}"] for size in (20, 40, 80, 160)] == [
        "48.4",
        "24.2",
        "12.1",
        "6.05",
    ]
    assert not [name for name, _ in sizes if name == "power"]  # which has one size
    rounding = [c.model_copy(update={"kl": -3e-15}) if c.method == "exact" else c for c in tables.cells]
    rows = {(row["data set"], row["method"]): row for row in rows_of(page_of(Tables(rounding, [])), "KL, mean ± s.e.")}
    assert rows["boston", "EXACT full"]["KL, mean ± s.e."] == "0 ± 0"


def claim(statistic, side="above"):
    return StudyClaim(statistic=statistic, says="it is so", side=side, threshold=0.0)


def outcomes(judged):
    return {(each.dataset, each.kl_jitter): each.outcome for each in judged}


def test_claims_are_judged_by_paired_differences_with_the_corrected_interval():
    tables = whole()
    statistic = "log KL: ssge full - rand-a full"
    (boston, jittered, power) = judge_study(tables.cells, [claim(statistic)])
    assert [(e.dataset, e.kl_jitter, e.splits, e.planned) for e in (boston, jittered, power)] == [
        ("boston", 0.0, 3, 3), ("boston", 1e-6, 3, 3), ("power", 0.0, 3, 3),
    ]  # fmt: skip
    assert boston.verdict is not None
    assert boston.verdict.value == pytest.approx(math.log(300 / 11), rel=1e-12)
    assert set(outcomes(judge_study(tables.cells, [claim(statistic)])).values()) == {"held"}
    assert set(outcomes(judge_study(tables.cells, [claim(statistic, "below")])).values()) == {"did not hold"}

    excess = judge_study(tables.cells, [claim("training log likelihood above exact's: ssge ffg")])[0]
    assert excess.verdict is not None
    assert (excess.verdict.value, excess.verdict.low, excess.verdict.high) == corrected_interval([5.0, 6.0, 7.0], 1 / 9)
    assert excess.agreeing == 3
    on_power = claim(statistic).model_copy(update={"datasets": ("power",)})
    assert [each.dataset for each in judge_study(tables.cells, [on_power])] == ["power"]


def test_a_claim_whose_interval_holds_its_threshold_is_undecided():
    cells = [
        each.model_copy(update={"log_variance_ratio": 0.1 * (each.split - 1)})
        if each.method == "ssge" and each.family == "full"
        else each
        for each in whole().cells
    ]
    (boston, *_) = judge_study(cells, [claim("log variance ratio in the box: ssge full", "below")])
    assert (boston.outcome, boston.agreeing, boston.splits) == ("undecided", 1, 3)


def test_no_verdict_stands_on_survivors():
    """What is missing leaves a claim open; what diverged is infinitely far, or tells nothing."""
    judged = judge_study(with_holes().cells, [claim("log KL: ssge full - rand-a full")])
    by_place = {(each.dataset, each.kl_jitter): each for each in judged}
    power, boston = by_place["power", 0.0], by_place["boston", 0.0]
    assert (power.splits, power.finished, power.planned, power.outcome) == (1, 1, 3, "incomplete")
    assert (boston.splits, boston.agreeing, boston.outcome) == (3, 3, "held")  # one of three is infinite
    assert boston.verdict is not None
    assert (boston.verdict.value, boston.verdict.low, boston.verdict.high) == (math.inf, math.inf, math.inf)
    likelihood = judge_study(with_holes().cells, [claim("training log likelihood above exact's: ssge full")])
    assert outcomes(likelihood)["boston", 0.0] == "not judged"
    page = page_of(with_holes())
    row = next(
        row
        for row in rows_of(page, "held, of data sets", "incomplete")
        if "worse than" in row["claim"] or "SSGE ends" in row["claim"]
    )
    assert "power 1/1 of 3" in row["incomplete"]


def test_what_diverged_everywhere_is_not_called_missing():
    cells = [
        c.model_copy(update={"status": "diverged", "log_likelihood_excess": None}) if c.method == "ssge" else c
        for c in whole().cells
    ]
    rows = rows_of(page_of(Tables(cells, [])), "held, of data sets", "not judged")
    row = next(r for r in rows if "E_q[log p" in r["claim"] and "SSGE, full" in r["claim"])
    assert (row["not judged"], row["held, of data sets"]) == ("boston 0/0, power 0/0", "–")
    boston = [c.model_copy(update={"log_likelihood_excess": 1.0}) if c.dataset == "power" else c for c in cells]
    rows = rows_of(page_of(Tables(boston, [])), "held, of data sets", "not judged")
    assert next(r for r in rows if r["claim"] == row["claim"])["held, of data sets"] == "1 of 1"
    assert "incomplete" not in row


def test_a_data_set_counts_once_and_jitter_is_told_where_the_outcome_is_another():
    """With jitter RANDA's KL is put above SSGE's on one split of boston: one infinite difference of three is below 0."""

    def moved(c):
        return (c.dataset, c.method, c.split, c.kl_jitter) == ("boston", "rand-a", 1, 1e-6)

    cells = [c.model_copy(update={"kl": math.inf}) if moved(c) else c for c in whole().cells]
    rows = {row["claim"]: row for row in rows_of(page_of(Tables(cells, [])), "another outcome with jitter")}
    turned = rows["section 4, of methods in general: SSGE ends further from the posterior than RANDA (full)"]
    assert (turned["held, of data sets"], turned["held"]) == ("2 of 2", "boston 3/3, power 3/3")
    assert turned["another outcome with jitter"] == "boston (1e-6) 2/3: undecided"
    page = page_of(Tables(cells, []))
    assert "those of boston,\nwhich were run with jitter too" in page
    others = [row for row in rows.values() if "log p" in row["claim"]]
    assert {row["another outcome with jitter"] for row in others} == {"–"}
    plain = [c for c in whole().cells if not c.kl_jitter]
    assert "with jitter too" not in page_of(Tables(plain, []))
    assert "another outcome with jitter" not in page_of(Tables(plain, []))
    for part in (lambda c: c.kl_jitter, lambda c: c.kl_jitter == 0):  # what is not all there has no outcome to compare
        some = [
            without(place, "missing") if part(c) and c.method == "rand-a" and c.split else c
            for c, place in zip(whole().cells, study_places(), strict=True)
        ]
        table = verdict_table(judge_study(some, CLAIMS))
        assert {row[-1] for row in table.rows} == {"–"}
        assert ("incomplete" in table.columns) == any(not c.kl_jitter and c.status == "missing" for c in some)


def test_a_factorised_variance_is_judged_against_the_best_factorised_one_too():
    """Its own is a tenth of the exact one's logarithm lower on every split than EXACT ffg's."""
    values = {"exact": -0.5, "rand-a": -0.6}
    cells = [
        c.model_copy(update={"log_variance_ratio": values[c.method] - 0.01 * c.split}) if c.method in values else c
        for c in whole().cells
    ]
    judged = judge_study(cells, [claim("log variance ratio in the box: rand-a ffg - exact ffg", "below")])
    assert outcomes(judged) == {("boston", 0.0): "held", ("boston", 1e-6): "held", ("power", 0.0): "held"}
    assert [each.verdict and each.verdict.value for each in judged] == pytest.approx([-0.1] * 3, rel=1e-9)
    against = judge_study(cells, [claim("log variance ratio in the box: ssge ffg - exact ffg", "below")])
    assert set(outcomes(against).values()) == {"did not hold"}


def test_a_variance_ratio_beneath_rounding_is_said_to_be_so():
    cells = [c.model_copy(update={"spectrum_0": 1.7e-36}) if c.method == "ssge" else c for c in whole().cells]
    rows = {(r["data set"], r["method"]): r for r in rows_of(page_of(Tables(cells, [])), "0 %", "95 %")}
    assert rows["boston", "SSGE full"]["0 %"] == "< 1e−30"
    assert rows["boston", "RANDA full"]["0 %"] == "0.01"


@pytest.mark.parametrize(
    ("ssge", "rand_a", "outcome"),
    [(math.inf, 1.0, "held"), (1.0, math.inf, "did not hold"), (math.inf, math.inf, "did not hold")],
)
def test_infinite_divergences_are_judged_by_their_signs(ssge, rand_a, outcome):
    """Where both are infinite there is no difference, and a claim of one is refuted."""
    kls = {"ssge": ssge, "rand-a": rand_a}
    cells = [c.model_copy(update={"kl": kls[c.method]}) if c.method in kls else c for c in whole().cells]
    assert set(outcomes(judge_study(cells, [claim("log KL: ssge full - rand-a full")])).values()) == {outcome}
    ratio = "KL over that without: median [quartiles]"
    jitter = rows_of(page_of(Tables(cells, whole().curves)), ratio)
    told = {row["method"]: row[ratio] for row in jitter}
    assert told["SSGE full"] == ("–" if ssge == math.inf else "1 [1, 1]")


def test_a_diverged_cell_outweighs_the_others_however_they_stand():
    """RANDA is ahead by a little on two splits, SSGE diverged on the third: SSGE is not the nearer one."""
    cells = []
    for c in whole().cells:
        if c.method == "ssge" and c.split == 2:
            cells.append(c.model_copy(update={"status": "diverged", "kl": None}))
        else:
            cells.append(c.model_copy(update={"kl": 1.0 if c.method == "ssge" else 1.1}))
    (boston, *_) = judge_study(cells, [claim("log KL: ssge full - rand-a full")])
    assert (boston.outcome, boston.agreeing, boston.splits) == ("undecided", 1, 3)


def test_versions_of_the_code_are_counted():
    cells = [
        c.model_copy(update={"code": "f" * 12}) if c.method == "ssge" and c.split == 0 else c for c in whole().cells
    ]
    rows = {row["method"]: row for row in rows_of(page_of(Tables(cells, [])), "sources (cells)")}
    assert rows["SSGE full"]["sources (cells)"] == f"{4:012x} (12), {'f' * 12} (6)"
    assert rows["RANDA full"]["sources (cells)"] == f"{6:012x} (18)"


def test_every_claim_of_the_file_is_planned_somewhere_and_an_unknown_one_refused():
    judged = judge_study(whole().cells, CLAIMS)
    assert {each.claim.statistic for each in judged} == {each.statistic for each in CLAIMS}
    by_size = [each for each in judged if "M = 160" in each.claim.statistic]
    assert {(each.dataset, each.kl_jitter) for each in by_size} == {("boston", 0.0)}
    assert {each.kl_jitter for each in judged if ": exact ffg" in each.claim.statistic} == {None}
    for name in ("log kl: ssge full - rand-a full", "log KL: ssge full", "something: ssge full"):
        with pytest.raises(InputError, match=f"there is no statistic '{name}'"):
            judge_study(whole().cells, [claim(name)])


def test_a_table_with_a_cell_twice_is_refused(tmp_path):
    tables = whole()
    write_tables(Tables([*tables.cells, tables.cells[0]], tables.curves), tmp_path / "study")
    with pytest.raises(InputError, match="holds boston split 0 exact twice"):
        reproduce(tmp_path)


@pytest.mark.parametrize("change", [{"max_steps": 500}, {"seed": 1}])
def test_splits_are_not_counted_twice_by_other_steps_or_seeds(tmp_path, change):
    tables = whole()
    again = next(c for c in tables.cells if c.method == "rand-a").model_copy(update=change)
    write_tables(Tables([*tables.cells, again], tables.curves), tmp_path / "study")
    with pytest.raises(InputError, match="holds boston split 0 rand-a twice"):
        reproduce(tmp_path)


def test_a_split_on_two_tasks_is_refused(tmp_path):
    (first, *others), curves = whole()
    write_tables(Tables([first.model_copy(update={"task": "f" * 12}), *others], curves), tmp_path / "study")
    with pytest.raises(InputError, match="holds boston split 0 on two tasks"):
        reproduce(tmp_path)


def test_a_folder_with_neither_records_nor_tables_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"holds neither records nor study/scores\.csv"):
        reproduce(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_study_of_which_nothing_is_there_still_has_a_page(tmp_path):
    cells = [without(place, "missing") for place in study_places()]
    write_tables(Tables(cells, []), tmp_path / "study")
    reproduce(tmp_path)
    page = (tmp_path / "study.md").read_text()
    assert f"{len(cells)} of {len(cells)} cells are missing" in page
    assert {tuple(row.values())[1:] for row in rows_of(page, "held, of data sets", "held")} == {("–",) * 4}
    assert "- boston, power: all\n" in page
    with pytest.raises(StopIteration):
        rows_of(page, "M = 160", "method")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.0, "0"), (-0.0, "0"), (999.7, "1,000"), (-1e6, "−1e6"), (-1.42e-14, "−1.42e−14"), (12.345, "12.3"), (1234.5, "1,234"), (7611625.0, "7.61e6"),
        (math.inf, "∞"), (-math.inf, "−∞"), (math.nan, "–"), (0.00012345, "0.000123"),
    ],
)  # fmt: skip
def test_numbers_in_words(value, words):
    assert summary.number(value) == words


def test_markdown_keeps_a_bar_within_its_cell_and_infinities_numbers():
    table = summary.Table(title="t", columns=("a", "b"), rows=(("x|y", None), (1.5, 2), (math.inf, -math.inf)))
    table = summary.Table.model_validate_json(table.model_dump_json())  # as an experiment's table is read
    assert markdown(table) == "| a | b |\n| --- | --- |\n| x\\|y | – |\n| 1.5 | 2 |\n| ∞ | −∞ |"


def test_cells_of_a_study_are_the_protocols():
    places = study_places()
    assert len(places) == 3 * (10 + 24 + 8) + 3 * 10  # boston with sizes and jitter, power without
    assert cell(places[0]).entry.method == "exact"
