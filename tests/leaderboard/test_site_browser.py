"""The site in headless Chromium, from disk: tables, keyboard, the comparison's numbers, and nothing asked for outside."""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path

import pytest

from fsvi_bench.leaderboard.comparing import comparison
from fsvi_bench.leaderboard.site.build import site_files
from fsvi_bench.leaderboard.site.material import make_material
from fsvi_bench.leaderboard.site.output import write_site
from fsvi_bench.leaderboard.site.serve import address, make_server
from tests.leaderboard.sites import FEW, HOSTILE, PAGES, column, heading
from tests.leaderboard.test_site import hostile_entry
from tests.requirements import skip_or_fail

AXE = Path(os.environ.get("FSVI_BENCH_AXE", Path(__file__).parents[1] / "browser/node_modules/axe-core/axe.min.js"))


def test_a_click_sorts_numbers_with_infinity_and_what_is_missing_last(visit):
    page = visit()
    energy = heading(page, "energy")
    place = energy.evaluate("th => th.cellIndex")
    energy.get_by_role("button").click()
    assert energy.get_attribute("aria-sort") == "ascending"
    rising = column(page, place)
    last = ["Infinity"] * 3 + ["", ""]  # `both`, `once` and `mostly` diverged; `epsilon` and `theta` have nothing there
    assert rising[-5:] == last
    numbers = [float(value) for value in rising[:-5]]
    assert numbers == sorted(numbers)
    energy.get_by_role("button").click()
    assert energy.get_attribute("aria-sort") == "descending"
    falling = column(page, place)
    assert falling[-5:] == last
    assert [float(value) for value in falling[:-5]] == numbers[::-1]
    heading(page, "method").get_by_role("button").click()
    assert energy.get_attribute("aria-sort") == "none"
    assert column(page, 1) == sorted(column(page, 1), key=str.lower)


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_the_keyboard_sorts(visit, key):
    page = visit()
    heading(page, "vs RANDA").get_by_role("button").focus()
    page.keyboard.press("Tab")
    page.keyboard.press(key)
    boston = heading(page, "boston")
    assert boston.get_attribute("aria-sort") == "ascending"
    values = column(page, boston.evaluate("th => th.cellIndex"))
    assert values[:-1] == sorted(values[:-1], key=float)


def test_the_filter_says_how_many_rows_pass(visit):
    page = visit()
    rows = page.locator("#table-full tbody tr")
    status = page.locator("#shown")
    assert status.inner_text() == f"{rows.count()} of {rows.count()} rows"
    page.get_by_label("Filter", exact=True).fill("stein SPECTRAL")
    assert [row.get_attribute("data-text")[:8] for row in rows.all() if row.is_visible()] == ["spectral"]
    assert status.inner_text() == f"1 of {rows.count()} rows"
    page.get_by_label("Filter", exact=True).fill("nobody")
    assert page.locator("#full .nothing").is_visible()
    page.get_by_label("Filter", exact=True).fill("")
    page.get_by_label("re-run only").check()
    assert not page.get_by_text("Only files").first.is_visible()
    assert page.get_by_text("Without energy").first.is_visible()
    page.get_by_role("tab", name="Factorised").click()
    assert status.inner_text() == "1 of 1 row"


def test_tabs_go_by_arrows_and_stand_in_the_address(visit, site):
    page = visit()
    first = page.get_by_role("tab", name="Full covariance")
    first.focus()
    page.keyboard.press("ArrowRight")
    assert page.url.endswith("index.html#ffg")
    assert page.evaluate("document.activeElement.id") == "tab-ffg"
    assert page.locator("#table-ffg").is_visible()
    assert not page.locator("#table-full").is_visible()
    page.keyboard.press("End")
    page.keyboard.press("ArrowRight")
    assert first.get_attribute("aria-selected") == "true"
    assert page.locator("[role=tab][tabindex='0']").count() == 1
    other = visit("index.html#singular")
    assert other.locator("#table-singular").is_visible()
    other.goto(f"{site.as_uri()}/index.html#across")
    assert other.locator("#table-across").is_visible()


def test_intervals_can_be_shown(visit):
    page = visit()
    interval = page.locator("#table-full small.ci").first
    assert not interval.is_visible()
    page.get_by_label("show intervals").check()
    assert interval.is_visible()


def shown_numbers(page):
    """Data set -> what the page computed, in full."""
    rows = page.locator("table.compare tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.dataset.v ?? cell.textContent))"
    )
    return {row[0].split()[0]: row[1:] for row in rows}


def number(text):
    return None if text in ("–", "missing") else float(text)


def close(expected):
    """Sums go in another order, and Student's t is good to some 1e-13."""
    return None if expected is None else pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("a", "b"),
    [("alpha", "beta"), ("alike", "far"), ("gamma", "both"), ("alpha", "gamma"), ("alpha", "epsilon"), ("zeta", "eta"),
     ("once", "mostly"), ("mostly", "once"), ("exact", "once"), ("both", "exact")],
)  # fmt: skip
def test_the_comparison_computes_what_the_harness_does(visit, site_material, site_table, a, b):
    page = visit(f"compare.html#a={a}&b={b}")
    page.locator("#result").wait_for()
    by_name = {each.name: each for each in site_material.entries}
    for score in (None, "predictive_kl_box", "predictive_kl_test", "kl", "kl_above_floor"):
        page.locator("#score").select_option(score or "")
        expected = comparison(by_name[a], by_name[b], site_table, score)
        found = shown_numbers(page)
        assert found.keys() == set(FEW)
        for each in expected.differences:
            require_alike(found[each.dataset], each)
        if (a, b, score) == ("alike", "far", None):
            assert found["energy"][-1] == "first"
        if (a, b, score) == ("gamma", "both", None):
            assert math.isinf(number(found["yacht"][0]))
        if (a, b) == ("once", "mostly"):  # both means are infinite
            assert found["energy"][-1] == "first"
        if (a, b, score) == ("exact", "once", None):  # one split diverged, and the others agree with it
            assert (number(found["energy"][2]), found["energy"][-1]) == (-1.0, "first")
        said = page.locator("#said").inner_text()
        require_sentence(said, expected.differences)
        across = score is None and by_name[a].manifest.track != by_name[b].manifest.track
        assert ("since they are of different tracks" in said) is across


def require_sentence(said, differences):
    """Each data set is counted once: told apart one way or the other, not told apart, or not to be compared."""
    lacking = [each.dataset for each in differences if each.p_value is None]
    counts = [sum(each.closer == which for each in differences) for which in ("a", "b", None)]
    counts[2] -= len(lacking)
    first, second, neither = counts
    assert f"First closer on {first}, second on {second}, not told apart on {neither} of 4 data sets" in said
    assert said.endswith(f"lacks a cell: {', '.join(lacking)}." if lacking else "of 4 data sets.")


def require_alike(shown, expected):
    a, b, log_ratio, interval, p, adjusted, closer = shown
    assert [number(a), number(b)] == [close(expected.a), close(expected.b)]
    assert number(log_ratio) == close(expected.log_ratio)
    assert [number(p), number(adjusted)] == [close(expected.p_value), close(expected.adjusted)]
    assert (None if interval == "–" else [float(end) for end in interval.split(",")]) == (
        expected.interval and [close(end) for end in expected.interval]
    )
    assert closer == {"a": "first", "b": "second", None: ""}[expected.closer]


def test_a_comparison_is_chosen_by_lists_or_address_and_leads_nowhere_else(visit):
    page = visit("compare.html#a=../index&b=far")
    page.locator("#result").wait_for()
    assert page.locator("#b").input_value() == "far"
    assert "/" not in page.locator("#a").input_value()
    page.locator("#a").select_option("alike")
    page.get_by_text("first", exact=True).first.wait_for()
    assert page.url.endswith("compare.html#a=alike&b=far")
    page.locator("#b").select_option("alike")
    page.get_by_text("compared with itself").wait_for()


def test_the_compare_link_of_any_entry_opens_it_beside_another(visit):
    plain = visit("compare.html")
    offered = [plain.locator(f"#{key}").input_value() for key in "ab"]
    for name in offered:
        page = visit(f"compare.html#a={name}")
        page.locator("#result").wait_for()
        assert page.locator("#a").input_value() == name
        assert page.locator("#b").input_value() != name
        assert "itself" not in page.locator("#said").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_serious_stands_in_a_screen_readers_or_a_keyboards_way(visit, browser, name, scheme):
    if not AXE.is_file():
        skip_or_fail("axe-core is not there; run `npm ci --prefix tests/browser`")
    # axe comes in past the page's own policy, which is what the tests beside this one are about.
    page = visit(name, color_scheme=scheme, bypass_csp=True)
    page.add_script_tag(content=AXE.read_text(encoding="utf-8"))
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    found = page.evaluate("axe.run(document, { preload: false })")
    serious = [
        (each["id"], [node["html"][:200] for node in each["nodes"]][:3])
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == []
    assert found["passes"]  # it did look


def test_how_a_table_is_sorted_is_told_from_the_start_and_when_it_changes(visit):
    page = visit()
    sorted_by = page.locator("#table-full [aria-sort=ascending]")
    assert sorted_by.all_inner_texts() == ["place"]
    places = column(page, 0)
    ranked = [float(place) for place in places if place]
    assert ranked == sorted(ranked)
    assert places[len(ranked) :] == [""] * (len(places) - len(ranked))
    told = page.locator("#announced")
    assert told.get_attribute("aria-live") == "polite"
    assert told.inner_text() == ""
    energy = heading(page, "energy")
    energy.get_by_role("button").click()
    assert told.inner_text() == "Sorted by energy, ascending."
    energy.get_by_role("button").click()
    assert told.inner_text() == "Sorted by energy, descending."
    assert sorted_by.count() == 0
    dataset = visit("datasets/energy.html")
    assert dataset.locator("#table-full [aria-sort=ascending]").all_inner_texts() == ["score"]
    scores = [float(value) for value in column(dataset, 1) if value]
    assert scores == sorted(scores)
    heading(dataset, "method").get_by_role("button").click()
    assert dataset.locator("#announced").inner_text() == "Sorted by method, ascending."


def test_without_scripts_every_table_stands_there(visit):
    page = visit(java_script_enabled=False)
    for key in ("full", "ffg", "singular", "across", "across-test"):
        assert page.locator(f"#table-{key}").is_visible()


def test_printed_with_every_table_and_section(visit):
    page = visit()
    page.emulate_media(media="print")
    assert page.locator("#table-across").is_visible()
    assert not page.locator(".tools").is_visible()
    method = visit("methods/alpha.html")
    method.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert method.locator("details:not([open])").count() == 0


def test_strangers_texts_run_nothing(visit, site_table, tmp_path):
    write_site(tmp_path, site_files(make_material([hostile_entry(site_table)], [], site_table)))
    for name in PAGES:
        page = visit(name, folder=tmp_path)
        assert page.locator("b, img, [onerror]").count() == 0, name
    assert visit("methods/alpha.html", folder=tmp_path).locator("h1").inner_text().strip() == HOSTILE


def test_the_pages_policy_would_stop_them_even_unescaped(browser, site, tmp_path):
    page_of_ours = (site / "compare.html").read_text()
    (tmp_path / "assets").mkdir()
    injected = page_of_ours.replace(
        "<h1>", "<script>document.title = 'ran'</script><img src=x onerror=\"document.title='ran'\"><h1>"
    )
    (tmp_path / "index.html").write_text(injected)
    page = browser.new_page()
    page.goto((tmp_path / "index.html").as_uri())
    page.wait_for_load_state("networkidle")
    assert page.title() == "Compare two: fsvi-bench leaderboard"
    page.close()


def test_served_it_works_as_from_disk(browser, site):
    server = make_server(site, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    complaints = []
    page = browser.new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    try:
        page.goto(f"{address(server)}compare.html#a=alike&b=far")
        page.get_by_text("first", exact=True).first.wait_for()
    finally:
        page.close()
        server.shutdown()
        server.server_close()
    assert complaints == []


@pytest.mark.slow
def test_rows_beyond_the_first_fifty_come_when_asked_for(visit, big):
    page = visit(folder=big)
    rows = page.locator("#table-full tbody tr:visible")
    assert rows.count() == 50
    boston = heading(page, "boston")
    boston.get_by_role("button").click()
    assert rows.count() == 50
    values = column(page, boston.evaluate("th => th.cellIndex"))
    assert values == sorted(values, key=float)  # all 500 were sorted, not those that showed
    page.get_by_role("button", name="Show all").first.click()
    assert rows.count() == 501  # and the exact posterior
    assert page.evaluate("document.activeElement.closest('tr').rowIndex") == 52  # two rows of headings above
