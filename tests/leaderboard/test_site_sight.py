"""How the site looks in headless Chromium: what is on the first screen, how small letters are, what moves, how fast."""

from __future__ import annotations

import pytest

from fsvi_bench.leaderboard.site.render import asset_files
from tests.leaderboard.sites import PAGES


@pytest.mark.parametrize("width", [400, 1280, 1600])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_sticks_out_of_a_page(visit, name, width):
    page = visit(name, width=width)
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.locator("h1").is_visible()


def test_the_methods_stay_in_sight_while_a_narrow_table_moves(visit):
    page = visit(width=400)
    title = page.locator("#table-full tbody th").first
    place = page.locator("#table-full tbody td.place").first
    before = [each.bounding_box()["x"] for each in (place, title)]
    page.locator("#full .scroll").evaluate("box => { box.scrollLeft = 400 }")
    assert [each.bounding_box()["x"] for each in (place, title)] == pytest.approx(before, abs=3)
    assert before[0] < 40
    assert page.evaluate(
        "document.elementFromPoint(30, document.querySelector('td.place').getBoundingClientRect().y + 9).className"
    ).endswith("place")


def test_the_table_starts_on_a_telephones_first_screen(visit):
    page = visit(width=400)
    row = page.locator("#table-full tbody tr").first.bounding_box()
    assert row["y"] + row["height"] < 800


@pytest.mark.parametrize("name", PAGES)
def test_no_letters_are_too_small_to_be_read(visit, name):
    """A hall's last row, and readers who do not zoom."""
    page = visit(name, width=1280)
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    small = page.evaluate(
        """() => [...document.querySelectorAll('body *')].filter(each =>
            [...each.childNodes].some(node => node.nodeType === 3 && node.data.trim()) && !each.closest('sub, sup')
            && parseFloat(getComputedStyle(each).fontSize) < 11.5).map(each => each.outerHTML.slice(0, 90))"""
    )
    assert small == []


def test_dark_and_light_follow_the_readers_setting(visit):
    grounds = {}
    for scheme in ("light", "dark"):
        page = visit("methods/alpha.html", color_scheme=scheme)
        grounds[scheme] = [
            page.evaluate("getComputedStyle(document.body).backgroundColor"),
            page.locator("svg.figure .dot").first.evaluate("e => getComputedStyle(e).fill"),
        ]
    assert grounds["light"][0] == "rgb(255, 255, 255)"
    assert all(light != dark for light, dark in zip(*grounds.values(), strict=True))


TIMED = """action => { const start = performance.now(); eval(action)(); document.body.offsetHeight; return performance.now() - start }"""


def test_with_500_entries_it_answers_at_once(visit, big):
    """Five times what `benchmarks/site.py` holds it to, since a busy machine must not decide a test."""
    page = visit(folder=big, bypass_csp=True)
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert paint < 5000
    sorts = [
        page.evaluate(TIMED, "() => document.querySelectorAll('#table-full thead button')[5].click()") for _ in range(3)
    ]
    typed = "() => { const box = document.getElementById('filter'); box.value = 'entry-4'; box.dispatchEvent(new Event('input')) }"
    filters = [page.evaluate(TIMED, typed) for _ in range(3)]
    assert min(sorts) < 500
    assert min(filters) < 500
    assert page.locator("#shown").inner_text() == "100 of 501 rows"  # and the exact posterior


def shifts(page):
    """How much has moved since the page was opened: the sum of Chromium's layout shifts."""
    return page.evaluate(
        """() => new Promise(done => {
            const found = [];
            new PerformanceObserver(list => found.push(...list.getEntries())).observe({ type: 'layout-shift', buffered: true });
            setTimeout(() => done(found.reduce((sum, each) => sum + each.value, 0)), 600);
        })"""
    )


def test_nothing_moves_while_the_page_comes_up(visit, big):
    assert shifts(visit(folder=big)) < 0.02


def test_a_page_that_moves_would_be_seen(visit, big, tmp_path):
    """The same page with a script that puts a block above it a little later."""
    for path in ("index.html", *asset_files()):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes((big / path).read_bytes())
    moves = "const block = document.createElement('p'); block.style.height = '300px'; document.body.prepend(block);"
    with (tmp_path / "assets" / "site.js").open("a") as script:
        script.write(f"\nsetTimeout(() => {{ {moves} }}, 200);\n")
    page = visit(folder=tmp_path)
    page.wait_for_timeout(300)
    assert shifts(page) > 0.1
