"""Fixtures of the leaderboard's tests: tiny tasks, and a valid submission on them to be tampered with, sites."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fsvi_bench.leaderboard.site.build import site_files
from fsvi_bench.leaderboard.site.first_page import first_page
from fsvi_bench.leaderboard.site.material import make_material
from fsvi_bench.leaderboard.site.output import write_site
from fsvi_bench.leaderboard.site.render import asset_files
from fsvi_bench.tasks.official import TaskSet
from tests.leaderboard.boards import entry, references
from tests.leaderboard.planted import plant_submission, planted_tasks
from tests.leaderboard.sites import FEW, MANY, every_kind


@pytest.fixture(scope="session")
def planted_set() -> TaskSet:
    return planted_tasks()


@pytest.fixture(scope="session")
def template(planted_set, tmp_path_factory) -> Path:
    return plant_submission(tmp_path_factory.mktemp("template"), planted_set)


@pytest.fixture
def folder(template, tmp_path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(template, tmp_path / "planted"))


@pytest.fixture(scope="session")
def site_table():
    return references(FEW)


@pytest.fixture(scope="session")
def site_material(site_table):
    close = entry("alike", site_table, kl=lambda task: 5 + 0.001 * task.split, words={"title": "Alike"})
    far = entry("far", site_table, kl=lambda task: 9 + 0.002 * task.split, words={"title": "Far"})
    both = entry("both", site_table, diverged={("energy", 1), ("yacht", 0)}, words={"title": "Diverges, too"})
    once = entry("once", site_table, diverged={("energy", 0)}, words={"title": "Diverges once"})
    mostly = entry(
        "mostly", site_table, diverged={("energy", split) for split in range(1, 20)}, words={"title": "Mostly"}
    )
    return make_material([*every_kind(site_table), close, far, both, once, mostly], [], site_table)


@pytest.fixture(scope="session")
def site(site_material, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    write_site(folder, site_files(site_material))
    return folder


@pytest.fixture(scope="session")
def big(tmp_path_factory):
    """The first page of 500 entries in one track, on eight data sets."""
    many, folder = references(MANY), tmp_path_factory.mktemp("big")
    entries = [
        entry(f"entry-{i:03d}", many, again=i % 5 > 0, words={"title": f"Method number {i}", "method": f"m{i % 7}"},
              diverged={("yacht", 1)} if i % 50 == 7 else ())
        for i in range(500)
    ]  # fmt: skip
    write_site(folder, [*asset_files().items(), ("index.html", first_page(make_material(entries, [], many)))])
    return folder


@pytest.fixture
def visit(browser, site):
    """Opens a page; at the end, only files of the site may have been asked for, and nothing may have complained."""
    complaints, requests, contexts, roots = [], [], [], []

    def call(name="index.html", width=1280, folder=site, wait=True, **options):
        roots.append(folder.as_uri())
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("requestfailed", lambda request: complaints.append(f"failed: {request.url}"))
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.goto(f"{folder.as_uri()}/{name}")
        page.wait_for_load_state("networkidle")
        return page

    yield call
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith((*roots, "data:,"))] == []
