"""What the site says beside its numbers: of how many cells they are, what did not finish, how to make them again."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest

from fsvi_bench.leaderboard.site.build import site_files
from fsvi_bench.leaderboard.site.commands import reproduction
from fsvi_bench.leaderboard.site.material import make_material
from fsvi_bench.leaderboard.submission import Source
from fsvi_bench.methods import rand_a
from tests.leaderboard.boards import entry, references
from tests.leaderboard.sites import Page, every_kind

TABLE = references()


def pages_of(*entries):
    files = dict(site_files(make_material(list(entries), [], TABLE)))
    return {name: Page(content) for name, content in files.items() if name.endswith(".html")}


def with_rerun(found, **changes):
    """The entry with other official or withheld re-runs."""
    rerun = found.verification.rerun.model_copy(update=changes)
    return replace(found, verification=found.verification.model_copy(update={"rerun": rerun}))


def test_a_variance_ratio_says_over_how_many_cells_it_is():
    pages = pages_of(entry("whole", TABLE), entry("part", TABLE, diverged={("yacht", 1), ("energy", 0)}))
    first = pages["index.html"].words
    assert first.count("4 of 6 cells") == 3  # in its own table, and in two across tracks; boston's are not counted
    assert "6 of 6 cells" not in first
    assert (
        "Only what has a posterior: 3 of 4 cells of energy and 1 of 2 cells of yacht."
        in pages["methods/part.html"].words
    )
    assert "Only what has a posterior" not in pages["methods/whole.html"].words


def test_withheld_tasks_that_were_not_finished_are_told():
    plain = entry("plain", TABLE)
    task = plain.verification.rerun.withheld[0]
    lost = task.model_copy(update={"status": "diverged", "reason": "it blew up", "scores": None})
    some, none = (
        with_rerun(entry(name, TABLE), withheld=tasks)
        for name, tasks in (("some", (task, lost)), ("none", (lost, lost)))
    )
    pages = pages_of(plain, some, none)
    assert "withheld: 1 of 2 finished" in pages["methods/some.html"].words
    assert "withheld: 0 of 2 finished" in pages["methods/none.html"].words
    assert "finished" not in pages["methods/plain.html"].words
    assert pages["index.html"].words.count("withheld: 1 of 2 finished") == 3  # its own table, and two across tracks
    assert pages["index.html"].words.count("its source finished 0 of 2 withheld tasks") == 3  # so that it has no rank


def test_a_budget_without_a_point_has_a_dash_in_its_place():
    plain = entry("plain", TABLE)
    late = tuple(
        run.model_copy(update={"waypoints": tuple(w for w in run.waypoints if w.steps >= 100)})
        for run in plain.verification.rerun.official
    )
    pages = pages_of(with_rerun(plain, official=late))
    cell = next(
        each for tag, each in pages["index.html"].elements if tag == "td" and "1%: none; 10%: " in each.get("title", "")
    )
    assert cell["data-v"] == ""
    assert "– · " in pages["index.html"].words


def test_a_column_that_compares_no_two_entries_cannot_be_sorted_by():
    page = pages_of(entry("a", TABLE))["index.html"]
    budgets = [each for each in page.all("th") if "budgets" in each.get("class", "")]
    assert len(budgets) == 2  # of the full track, and of the singular one, where the MAP stands
    for each in budgets:
        assert "aria-sort" not in each
        assert "two entries cannot be compared" in each["title"]
    titles = [each.get("title", "") for each in page.all("button")]
    assert not [title for title in titles if "a part of their steps" in title]


def test_a_built_in_method_is_made_again_by_its_name():
    words = {"method": "rand-a", "source": Source(**{"file": "rand_a.py", "class": "RandA"})}
    own = replace(entry("own", TABLE, words=words), source=inspect.getsource(rand_a))
    material = make_material([own], [], TABLE)
    made_by = reproduction(own, material)
    assert not made_by.seeds_differ
    assert [command.split(" --set")[0] for command in made_by.commands] == [
        f"fsvi-bench run --method rand-a --family full --dataset {where}"
        for where in ("boston --splits 0-2", "energy --splits 0-3", "yacht --splits 0-1")
    ]
    changed = replace(own, source=own.source + "# changed\n")  # another method under a known name
    file = reproduction(changed, material)
    assert file.seeds_differ
    assert "--method submissions/own/rand_a.py:RandA " in file.commands[0]


@pytest.mark.parametrize(("method", "differ"), [("Mine", False), ("mine", True)])
def test_seeds_are_those_of_the_class(method, differ):
    found = entry("x", TABLE)
    manifest = found.manifest.model_copy(update={"method": method})
    page = pages_of(replace(found, manifest=manifest))["methods/x.html"].words
    assert ("Seeds come from the method’s name" in page) == differ


def test_data_sets_of_equal_splits_share_a_command():
    table = references({"boston": 3, "energy": 3, "yacht": 2})
    found = entry("x", table)
    commands = reproduction(found, make_material([found], [], table)).commands
    assert [command.split("full ")[1].split(" --set")[0] for command in commands] == [
        "--dataset boston --dataset energy --splits 0-2",
        "--dataset yacht --splits 0-1",
    ]


def test_a_data_sets_page_says_of_each_line_what_the_first_page_does():
    page = pages_of(*every_kind(TABLE))["datasets/yacht.html"].words
    for words in (
        "Handed in to compare with re-run · a reference, shown to compare with",
        "Only files re-scored only · its source was not run again",
        "Without energy re-run · missing: energy",
        "Just handed in not verified · it has not been verified",
    ):
        assert words in page


def test_every_page_says_what_is_declared_and_what_is_in_the_json():
    pages = pages_of(entry("a", TABLE), entry("b", TABLE, "bernoulli"))
    for page in pages.values():
        assert "no score here is self-reported. Authors, hardware, settings and budgets are as declared" in page.words
        assert "All tables as JSON" in page.words
    first = pages["index.html"]
    assert "symmetric about the mean, and so may go below 0" in first.words
    titles = [each.get("title", "") for each in first.all("button")]
    assert sum("RANDA with full covariance" in title for title in titles) == 1


def test_groups_are_bands_beside_the_places_and_the_leading_one_is_named():
    material = make_material([entry(f"e{i}", TABLE) for i in range(4)], [], TABLE)
    table = material.tables["full"]
    lines = [replace(line, group=group) for line, group in zip(table.lines, (1, 1, 2, None, None), strict=True)]
    material.tables["full"] = replace(table, lines=lines)
    page = dict(site_files(material))["index.html"].decode().split('id="table-full"')[1].split("</table>")[0]
    rows = page.split("<tr ")[1:]
    rows = [row for row in rows if row.startswith("data-text")]
    for line, row in zip(lines, rows, strict=True):
        assert ("group-odd" in row, "group-even" in row) == (line.group == 1, line.group == 2)
        assert ("leading group" in row) == (line.group == 1)
