"""The site in headless Chromium, from disk: how it looks, sorts and compares, and that it asks for nothing outside."""

import os
from itertools import takewhile
from pathlib import Path

import pytest

from fsvi_bench.leaderboard.board import read_board
from fsvi_bench.leaderboard.ranking import comparison
from fsvi_bench.leaderboard.site.build import Site, build_site, site_files
from fsvi_bench.leaderboard.site.output import write_site
from fsvi_bench.presenting.plots import digits
from tests.leaderboard.boards import edition, make_board
from tests.leaderboard.sites import PAGES, kls, save_board
from tests.requirements import skip_or_fail

pytestmark = pytest.mark.slow
AXE = Path(os.environ.get("FSVI_BENCH_AXE", Path(__file__).parents[1] / "browser/node_modules/axe-core/axe.min.js"))
OWN = Path(__file__).parents[2] / "leaderboard"
MANY = ["boston", "concrete", "energy", "kin8nm", "naval", "power", "wine", "yacht"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return save_board(tmp_path_factory.mktemp("board"))


@pytest.fixture(scope="module")
def site(root):
    build_site(root, root / "site")
    return root / "site"


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    """The first page of 120 entries, more than twice what shows at first, with densities, on eight data sets."""
    folder = tmp_path_factory.mktemp("big")
    make_board(folder, {f"entry-{i:03d}": kls(1 + i * 7919 % 503 / 10) for i in range(120)}, edition(MANY))
    files = dict(takewhile(lambda file: file[0] != "compare.html", site_files(Site(read_board(folder)))))
    write_site(folder, files)
    return folder


@pytest.fixture
def visit(browser, site):
    """Opens a page; at the end, only files of the site may have been asked for, and nothing may have complained."""
    complaints, requests, contexts, roots = [], [], [], ["data:,"]

    def call(name="index.html", width=1280, folder=site, **options):
        roots.append(folder.as_uri())
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("requestfailed", lambda request: complaints.append(f"failed: {request.url}"))
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{folder.as_uri()}/{name}")
        page.wait_for_load_state("networkidle")
        return page

    yield call
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(tuple(roots))] == []


def hundredths(number):
    """A log ratio as the page writes it."""
    text = f"{number:+.2f}".replace("-", "−")
    return "0.00" if float(text.replace("−", "-")) == 0 else text


def column(page, heading):
    """What a column of the first table is sorted by, row by row."""
    place = page.locator("#table-posterior th").filter(has_text=heading).last.evaluate("th => th.cellIndex")
    return page.locator("#table-posterior .rivals tr").evaluate_all(
        f"rows => rows.map(row => row.cells[{place}].dataset.v)"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_pages_work_with_a_screen_reader_and_a_keyboard(visit, name, scheme):
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


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_headings_sort_and_the_filter_says_how_many_rows_pass(visit, key):
    page = visit()
    heading = page.locator("#table-posterior th").filter(has_text="KL")
    assert page.locator("#table-posterior [aria-sort=ascending]").all_inner_texts() == ["mean rank"]
    for order in ("ascending", "descending"):
        heading.get_by_role("button").press(key)
        values = [float(value) for value in column(page, "KL")]
        assert heading.get_attribute("aria-sort") == order
        assert values == sorted(values, reverse=order == "descending")
    page.get_by_label("Filter").fill("ADA near")
    assert page.locator("#table-posterior .rivals tr:visible").count() == 1
    assert page.locator("#kept").inner_text() == "2 of 11 rows"  # of two tables
    page.get_by_label("Filter").fill("")
    page.get_by_label("Family").select_option("ffg")
    assert page.locator("#table-posterior .rivals tr:visible th a").all_inner_texts() == ["factors"]
    assert page.locator("#table-particles .rivals tr:visible").count() == 0
    for each in page.locator("#posterior summary").all():
        each.click()
    assert page.locator("#posterior details tr:visible th a").all_inner_texts() == ["factors"] * 2
    page.get_by_label("Family").select_option("")
    assert page.locator("#kept").inner_text() == ""


def test_with_120_entries_it_sorts_and_filters_all_and_shows_them_when_asked(visit, big):
    page = visit(folder=big)
    rows = page.locator("#table-posterior .rivals tr:visible")
    assert rows.count() == 50
    page.locator("#table-posterior th").filter(has_text="KL").get_by_role("button").click()
    values = column(page, "KL")
    assert values == sorted(values, key=float)  # all 120 were sorted, not those that showed
    assert len(values) == 120
    page.get_by_label("Filter").fill("entry-11")
    assert rows.count() == 10
    page.get_by_label("Filter").fill("")
    page.locator("#posterior").get_by_role("button", name="Show all").click()
    assert rows.count() == 120
    assert page.evaluate("document.activeElement.closest('tr').sectionRowIndex") == 50


def test_a_comparison_is_chosen_by_lists_or_address_and_leads_nowhere_else(visit, root):
    board = read_board(root)
    by_name = {each.name: each for each in board.standings}
    page = visit("compare.html#a=../index&b=far")
    assert page.locator("#b").input_value() == "far"
    assert page.locator("#a").input_value() == Site(board).to_compare[1][0]  # as without an address
    page.locator("#a").select_option("factors")
    page.locator("#compared").wait_for()
    assert page.url.endswith("compare.html#a=factors&b=far")
    expected = comparison(board, by_name["factors"], by_name["far"])
    shown = page.locator("#compared tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(c => c.textContent))"
    )
    assert [[row[0].split()[0], *row[1:4]] for row in shown] == [  # a data set to tune on says so behind its name
        [each.dataset, *(" / ".join(map(digits, of)) for of in (each.a, each.b)), hundredths(each.log_ratio)]
        for each in expected.differences
    ]
    assert f"p = {digits(expected.p_value, 2)} (Wilcoxon)" in page.locator("#said").inner_text()
    page.locator("#b").select_option("factors")
    page.get_by_text("Choose two different entries").wait_for()
    one, two = Site(board).to_compare[1]
    for name, other in (("exact-full", two), (one, two), (two, one)):  # an entry's own link names the first alone
        page = visit(f"compare.html#a={name}")
        page.locator("#compared").wait_for()
        assert (page.locator("#a").input_value(), page.locator("#b").input_value()) == (name, other)


@pytest.mark.parametrize(("width", "stacked"), [(1000, True), (1280, False)])
def test_scores_by_data_set_are_not_cut_off_where_there_is_room(visit, width, stacked):
    page = visit("methods/far.html", width=width)
    first, *_, last = page.locator("#scores .scroll").all()
    assert (last.bounding_box()["x"] == first.bounding_box()["x"]) == stacked
    assert last.evaluate("each => each.scrollWidth <= each.clientWidth")


def test_entries_of_an_edition_of_networks_are_compared_by_energy_distances(visit, tmp_path):
    """With two ranked networks there is no p-value."""
    board, _ = build_site(OWN, tmp_path, "networks-v1")
    a, b = (next(each for each in board.standings if each.name == name) for name in ("rand-a-full", "svgd-particles"))
    expected = comparison(board, a, b)
    assert expected.p_value is None
    page = visit("compare.html#a=rand-a-full&b=svgd-particles", folder=tmp_path)
    page.locator("#compared").wait_for()
    shown = page.locator("#compared tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].slice(1, 4).map(c => c.textContent))"
    )
    assert shown == [
        [*(" / ".join(map(digits, of)) for of in (each.a, each.b)), hundredths(each.log_ratio)]
        for each in expected.differences
    ]
    said = page.locator("#said").inner_text()
    assert said == "Score: energy distance at 20 test inputs / energy distance at 20 box inputs."


def test_the_policy_would_stop_scripts_even_unescaped(browser, site, tmp_path):
    injected = "<script>document.title = 'ran'</script><img src=x onerror=\"document.title='ran'\"><h1>"
    (tmp_path / "page.html").write_text((site / "compare.html").read_text().replace("<h1>", injected))
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_load_state("networkidle")
    assert page.title() == "Compare two entries: fsvi-bench leaderboard"
    page.close()
