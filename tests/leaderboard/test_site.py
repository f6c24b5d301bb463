"""The site without a browser: what it says, and that nothing in it is anybody's markup."""

from __future__ import annotations

import json
import math
import posixpath
import random
import warnings
from dataclasses import replace
from urllib.parse import urldefrag

import pytest

from fsvi_bench.leaderboard.entries import Unreadable
from fsvi_bench.leaderboard.site.build import site_files
from fsvi_bench.leaderboard.site.material import make_material
from fsvi_bench.leaderboard.submission import Source
from tests.leaderboard.boards import entry, references, verification, verified_cells
from tests.leaderboard.sites import HOSTILE, Page, every_kind


@pytest.fixture(scope="module")
def table():
    return references()


@pytest.fixture(scope="module")
def material(table):
    return make_material(every_kind(table), [], table)


@pytest.fixture(scope="module")
def files(material):
    return dict(site_files(material))


@pytest.fixture(scope="module")
def pages(files):
    return {name: Page(content) for name, content in files.items() if name.endswith(".html")}


def rows(page, tab):
    """Rows of a table of the first page: name in small letters -> what stands in them."""
    content = page.split(f'id="table-{tab}"')[1].split("</table>")[0]
    return [Page(f"<table><tr {row}</table>".encode()).words for row in content.split("<tr ")[1:] if "data-text" in row]


def test_a_method_that_blew_up_breaks_no_page(table):
    """Divergences so large that their squares, or what stands beside them on an axis, are no numbers any more."""
    entries = [entry("plain", table), entry("huge", table, kl=1e251), entry("largest", table, kl=1.7e308)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pages = dict(site_files(make_material(entries, [], table)))
    assert "10²⁵¹" in pages["index.html"].decode()
    for dataset in table.datasets:
        assert "nan" not in pages[f"datasets/{dataset}.html"].decode().lower().split()


def test_every_row_says_what_it_is(files):
    full = rows(files["index.html"].decode(), "full")
    by_title = {title: row for row in full for title in TITLES if title in row}
    assert by_title.keys() == set(TITLES)
    for title, words in TITLES.items():
        for word in words:
            assert word in by_title[title], (title, word)
    assert [row.startswith("–") for row in full] == [False] * 3 + [True] * 5  # ranked ones first
    assert "The exact posterior closed form" in " ".join(full)
    assert "MAP, a point mass closed form" in " ".join(rows(files["index.html"].decode(), "singular"))
    assert len(rows(files["index.html"].decode(), "across")) == 11  # nine entries, the exact posterior and the MAP


TITLES = {
    "RANDA, as it is": ["re-run"],
    "Spectral Stein": ["re-run"],
    "Diverges on yacht": ["re-run", "∞"],
    "Only files": ["re-scored only", "its source was not run again"],
    "Without energy": ["re-run", "missing: energy", "missing"],
    "Handed in to compare with": ["a reference, shown to compare with"],
    "Just handed in": ["not verified", "it has not been verified"],
}


def test_numbers_are_the_tables_own(files, material):
    page = files["index.html"].decode()
    for line in material.tables["full"].lines:
        for value in line.scores.values():
            if value is not None and math.isfinite(value):
                assert f'data-v="{value!r}"' in page
    assert 'data-v="Infinity"' in page


def test_json_holds_all_that_the_pages_show(files, material):
    board = json.loads(files["leaderboard.json"])
    assert [line["name"] for line in board["tables"]["full"]["lines"]] == [
        line.name for line in material.tables["full"].lines
    ]
    gamma = next(each for each in board["entries"] if each["name"] == "gamma")
    assert [cell["status"] for cell in gamma["cells"]].count("diverged") == 1
    own = json.loads(files["data/alpha.json"])
    assert own["verification"]["cells"][0]["scores"]["kl"] == material.entries[0].verification.cells[0].scores.kl
    assert own["standings"]["full"]["place"] == material.lines["full", "alpha"].place
    assert own["submission"]["title"] == "RANDA, as it is"
    assert json.loads(files["data/theta.json"])["verification"] is None
    script = files["data/eta.js"].decode()
    assert json.loads(script.removeprefix("fsviBenchEntry(").removesuffix(");\n"))["datasets"]["yacht"]["kl"] == [
        "Infinity",
        "Infinity",
    ]


def test_a_method_page_tells_settings_re_runs_and_how_to_make_it_again(pages, material):
    page = pages["methods/alpha.html"]
    run = material.entries[0].verification.rerun.official[0]
    assert "A. Author, B. Author" in page.words
    assert {"href": "https://example.org/a?b=c", "rel": "nofollow noopener"} in page.all("a")
    assert f"{run.rerun:.6g}"[:6] in page.words
    for dataset, splits in (("boston", "0-2"), ("energy", "0-3"), ("yacht", "0-1")):
        where = f"--dataset {dataset} --splits {splits}"
        assert f"--method submissions/alpha/mine.py:Mine --family full {where} --set lr=0.01" in page.words
    assert "draws others than the submission did under the name rand-a" in page.words
    assert "fsvi-bench verify submissions/alpha --rerun 2" in page.words
    assert "class Mine: pass" in page.words
    assert "the covariance lost its rank" in pages["methods/gamma.html"].words
    assert "There is no re-run" in pages["methods/delta.html"].words
    assert "it has not been verified" in pages["methods/theta.html"].words
    assert "Missing: energy." in pages["methods/epsilon.html"].words


def test_a_data_sets_page_has_its_card_tasks_and_every_entry(pages, table):
    page = pages["datasets/boston.html"]
    assert "Harrison, D. and Rubinfeld" in page.words
    assert "A development data set" in page.words
    assert "development" not in pages["datasets/energy.html"].words
    for task in table.tasks:
        found = [each["title"] for each in pages[f"datasets/{task.dataset}.html"].all("code") if "title" in each]
        assert task.task_sha256 in found
    for title in (*TITLES, "Factorised", "Dropout", "MAP, a point mass"):
        assert title in page.words


def hostile_entry(table, name="alpha"):
    """A stranger's texts wherever one could stand, past what submissions are checked for."""
    plain = entry(name, table)
    hyperparameters = {"lr": HOSTILE, HOSTILE: 1.0}
    words = {
        "title": HOSTILE, "method": HOSTILE, "authors": [HOSTILE], "licence": HOSTILE, "hardware": HOSTILE,
        "notes": HOSTILE, "link": "javascript:alert(3)", "hyperparameters": hyperparameters,
        "source": Source.model_construct(file=HOSTILE, class_=HOSTILE),
    }  # fmt: skip
    found = plain.verification
    rerun = found.rerun.model_copy(
        update={
            "isolation": HOSTILE,
            "hardware": HOSTILE,
            "withheld": tuple(each.model_copy(update={"reason": HOSTILE}) for each in found.rerun.withheld),
        }
    )
    cells = tuple(
        cell.model_copy(update={"status": "failed", "scores": None, "reason": HOSTILE}) for cell in found.cells[:1]
    )
    verification = found.model_copy(update={"rerun": rerun, "cells": cells + found.cells[1:], "fsvi_bench": HOSTILE})
    manifest = plain.manifest.model_copy(update=words)
    return replace(plain, manifest=manifest, verification=verification, source=HOSTILE + "\u202e\x1b[31m")


def test_strangers_texts_are_texts_everywhere(table):
    unread = replace(entry("beta", table, verified=False), note=HOSTILE)
    stranger = make_material([hostile_entry(table), unread], [Unreadable(HOSTILE, HOSTILE)], table)
    plain = make_material([entry("alpha", table), entry("beta", table, verified=False)], [], table)
    allowed = {name: set(map(str.lower, tags)) for name, tags in elements(plain).items()}
    for name, content in site_files(stranger):
        if not name.endswith(".html"):
            continue
        page = Page(content)
        assert {tag for tag, _ in page.elements} <= allowed[name] | {"ul", "li", "code", "span"}, name
        for tag, attributes in page.elements:
            assert not any(each.startswith("on") for each in attributes), (name, tag)
            assert not attributes.get("href", "").lower().startswith("javascript"), name
            assert tag != "script" or attributes.get("src", "").endswith(".js"), name  # none within a page
        assert b"<b>bold" not in content
        assert "\u202e" not in content.decode()
        assert "\x1b" not in content.decode()
    source = Page(dict(site_files(stranger))["methods/alpha.html"])
    assert HOSTILE + "\\u202e\\u001b[31m" in "".join(source.text)
    assert "failed : " + HOSTILE in source.words


def elements(material):
    return {
        name: {tag for tag, _ in Page(content).elements}
        for name, content in site_files(material)
        if name.endswith(".html")
    }


def test_every_link_leads_to_a_file_of_the_site_and_nothing_is_fetched_from_elsewhere(files, pages):
    for name, page in pages.items():
        assert len(set(page.ids)) == len(page.ids), name
        for tag, attributes in page.elements:
            for key in ("href", "src"):
                target = attributes.get(key)
                if target is None or target == "data:,":
                    continue
                if target.startswith("https://"):
                    assert (tag, attributes["rel"]) == ("a", "nofollow noopener")
                    continue
                path, fragment = urldefrag(target)
                at = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
                assert at in files, (name, target)
                if fragment and "=" not in fragment:
                    assert fragment in pages[at].ids, (name, target)
            assert "style" not in attributes, (name, tag)  # the page's own policy would refuse it
    style = files["assets/style.css"].decode()
    assert "url(" not in style
    assert "@import" not in style
    assert b"http" not in files["assets/site.js"] + files["assets/compare.js"]


def test_a_policy_stands_before_anything_that_it_rules(pages):
    for page in pages.values():
        tags = [tag for tag, _ in page.elements]
        policy = page.all("meta")[1]
        assert policy["http-equiv"] == "Content-Security-Policy"
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy["content"]
        assert "unsafe" not in policy["content"]
        assert tags.index("meta") < min(tags.index("script"), tags.index("link"))


def test_the_same_whatever_the_order_of_entries(table, files):
    shuffled = every_kind(table)
    random.Random(1).shuffle(shuffled)
    assert dict(site_files(make_material(shuffled, [], table))) == files


def test_without_any_entry_there_is_a_site_all_the_same(table):
    page = Page(dict(site_files(make_material([], [], table)))["index.html"])
    assert page.words.count("There is no entry in this track yet.") == 5  # three tracks, two tables across them
    assert "The exact posterior" in page.words
    assert "MAP, a point mass" in page.words


def test_the_first_tab_is_one_with_an_entry(table):
    """The references' own rows are no reason to look at a table."""
    text = dict(site_files(make_material([entry("zeta", table, "ffg", kl=9.0)], [], table)))["index.html"].decode()
    assert [part[:5] for part in text.split('<section class="panel current" id="')[1:]] == ['ffg" ']


@pytest.mark.parametrize("datasets", [("energy", "yacht"), ("energy", "yacht", "wine")])
def test_the_first_page_tells_of_intervals_where_there_are_any(datasets):
    few = references(dict.fromkeys(datasets, 2))
    page = Page(dict(site_files(make_material([entry(name, few) for name in "abc"], [], few)))["index.html"])
    there = len(datasets) == 3
    assert ("its bar the 95 % interval of that" in page.words.replace("\xa0", " ")) is there
    assert ("The bar is the 95 % interval" in page.words.replace("\xa0", " ")) is there
    assert ("it has no interval yet, and no rows are told apart" in page.words) is not there


def test_a_score_of_another_task_is_not_compared(table):
    """A verification of other tasks than the references' has nothing to say about these."""
    cells = tuple(cell.model_copy(update={"task_sha256": "f" * 64}) for cell in verified_cells("alpha", table))
    other = replace(entry("alpha", table), verification=verification("alpha", cells))
    script = dict(site_files(make_material([other], [], table)))["data/alpha.js"].decode()
    assert json.loads(script[len("fsviBenchEntry(") : -3])["datasets"]["boston"]["kl"] == [None] * 3
