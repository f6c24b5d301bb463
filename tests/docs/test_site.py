"""The documentation site: built without a warning, readable on a phone, searched without a server or a network, and
served below any path."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.docs.pages import ROOT
from tests.requirements import skip_or_fail

pytestmark = pytest.mark.slow
AXE = Path(os.environ.get("FSVI_BENCH_AXE", ROOT / "tests/browser/node_modules/axe-core/axe.min.js"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """CI has built the same before."""
    if built := os.environ.get("FSVI_BENCH_SITE"):
        return Path(built)
    folder = tmp_path_factory.mktemp("site")
    # Not with `--quiet`, which hides warnings from `--strict`.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    return folder


@pytest.fixture(scope="module")
def novel(site):
    """Pages with elements of a kind that no page before them has; an element's colours depend on its tag and classes."""
    found, seen = set(), set()
    for name in [*NAMES, *OUTSIDE]:
        content = (site / f"{name}.html").read_text(encoding="utf-8")
        if kinds := set(re.findall(r'<(\w+)[^>]*?\bclass="([^"]*)"', content)) - seen:
            found.add(name)
            seen |= kinds
    return found


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


OUTSIDE = [
    "404",
    *(f"reference/{page}" for page in ("benchmarks", "changelog", "contributing", "defaults", "glossary")),
]
NAMES = [page.relative_to(ROOT / "docs").with_suffix("").as_posix() for page in sorted((ROOT / "docs").rglob("*.md"))]


def test_every_page_is_looked_at(site):
    assert sorted(page.relative_to(site).with_suffix("").as_posix() for page in site.rglob("*.html")) == sorted(
        [*NAMES, *OUTSIDE]
    )


#: Colour scheme, its palette, a width, and the rules that the scheme may break: contrast depends on it, others do not.
#: In the second, novel pages are looked at.
VISITS = [("light", "default", 400, {}), ("dark", "slate", 1280, {"runOnly": ["color-contrast"]})]


@pytest.mark.parametrize("name", [*NAMES, *OUTSIDE])
def test_a_page_is_accessible_and_fits_a_screen_and_a_phone(site, browser, novel, name):
    if not AXE.is_file():
        skip_or_fail("axe-core is not there; run `npm ci --prefix tests/browser`")
    for scheme, palette, width, rules in VISITS[: 1 + (name in novel)]:
        # Each is another visitor: the theme remembers the colours of the first visit.
        visit = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        asked = []
        visit.on("request", lambda request, asked=asked: asked.append(request.url))
        visit.goto((site / f"{name}.html").as_uri())
        assert visit.evaluate("document.documentElement.scrollWidth") <= width
        assert visit.locator("body").get_attribute("data-md-color-scheme") == palette
        # tables.js makes what scrolls reachable after the first layout, which on a busy machine is later than the load.
        visit.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        visit.evaluate(AXE.read_text(encoding="utf-8"))
        found = visit.evaluate("rules => axe.run(document, { preload: false, ...rules })", rules)["violations"]
        visit.close()
        assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == [], scheme
        assert asked
        assert all(url.startswith(("file:", "data:", "blob:")) for url in asked)


def test_the_references_come_from_the_code(site):
    assert "measurement-points" in (site / "reference/cli.html").read_text(encoding="utf-8")
    assert "max_steps" in (site / "reference/api.html").read_text(encoding="utf-8")


def test_inline_code_does_not_break_after_a_hyphen(site, page):
    page.goto((site / "get-started.html").as_uri())
    lines = (
        "each => [each.textContent, each.getClientRects().length, each.offsetHeight / each.parentElement.offsetHeight]"
    )
    words = page.eval_on_selector_all(".md-content p code > span", f"all => all.map({lines})")
    options = [(rects, height) for word, rects, height in words if word.startswith("--")]
    assert len(options) >= 3
    assert all(rects == 1 and height < 1.5 for rects, height in options)


@pytest.fixture
def server(site):
    """The site below a path, with its page for addresses that do not exist; yields the site's address."""

    class Handler(SimpleHTTPRequestHandler):
        def translate_path(self, path):
            return str(site / path.partition("?")[0].removeprefix("/below/"))

        def send_error(self, code, message=None, explain=None):
            content = (site / "404.html").read_bytes()
            self.send_response(code)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}/below/"
        listening.shutdown()


@pytest.mark.parametrize("missing", ["nothing.html", "how-to/nothing.html", "reference/a/b/"])
def test_a_missing_page_finds_the_site_below_a_path(browser, server, missing):
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    assert page.goto(server + missing).status == 404
    assert page.eval_on_selector(".md-content a", "each => each.href") == f"{server}index.html"
    sheets = page.evaluate("[...document.styleSheets].filter(each => each.href).map(each => each.href)")
    assert f"{server}assets/site.css" in sheets
    page.click(".md-search__input")
    page.keyboard.type("objective_gap")
    page.wait_for_selector(".md-search-result__item")
    page.close()
