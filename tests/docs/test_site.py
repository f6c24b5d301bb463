"""The documentation site: built without a warning, readable on a phone, searched without a server or a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.requirements import skip_or_fail

pytestmark = pytest.mark.slow
AXE = Path(os.environ.get("FSVI_BENCH_AXE", ROOT / "tests/browser/node_modules/axe-core/axe.min.js"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    return folder


@pytest.fixture
def page(browser):
    page = browser.new_page(viewport={"width": 400, "height": 800})
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    yield page
    page.close()
    assert asked
    assert all(url.startswith(("file:", "data:", "blob:")) for url in asked)


def test_the_search_needs_no_server(site, page):
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto((site / "index.html").as_uri())
    page.click(".md-search__input")
    page.keyboard.type("objective_gap")
    page.wait_for_selector(".md-search-result__item")


NAMES = [
    "index",
    "get-started",
    "concepts/scores",
    "how-to/method",
    "reproductions/index",
    "reference/cli",
    "reference/api",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_accessible_and_fits_a_phone(site, page, name):
    if not AXE.is_file():
        skip_or_fail("axe-core is not there; run `npm ci --prefix tests/browser`")
    page.goto((site / f"{name}.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, { preload: false })")["violations"]
    assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == []


def test_the_references_come_from_the_code(site):
    assert "measurement-points" in (site / "reference/cli.html").read_text(encoding="utf-8")
    assert "max_steps" in (site / "reference/api.html").read_text(encoding="utf-8")
