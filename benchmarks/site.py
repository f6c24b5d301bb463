"""How long a leaderboard's site of many entries takes to build, to show, to sort and to filter.

    python benchmarks/site.py [FOLDER] [--entries 500] [--splits 20]

Builds the site of synthetic entries (those of the tests: run it from the repository's root) on eight data sets, all in
one track, and opens its first page from disk in headless Chromium at 1280 pixels.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import Page, sync_playwright

from fsvi_bench.leaderboard.site.build import site_files
from fsvi_bench.leaderboard.site.material import make_material
from fsvi_bench.leaderboard.site.output import write_site
from tests.leaderboard.boards import entry, references

DATASETS = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "wine", "yacht")
REPEATS = 5
#: Until the browser has painted what the action changed.
TIMED = """action => new Promise(done => {
    const start = performance.now();
    eval(action)();
    requestAnimationFrame(() => {
        const channel = new MessageChannel();
        channel.port1.onmessage = () => done(performance.now() - start);
        channel.port2.postMessage(0);
    });
})"""
SORT = "() => document.querySelectorAll('#table-{table} thead button')[{column}].click()"
FILTER = """() => {{
    const box = document.getElementById('filter'); box.value = '{text}'; box.dispatchEvent(new Event('input'));
}}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--entries", type=int, default=500)
    parser.add_argument("--splits", type=int, default=20)
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="site-"))
    table = references(dict.fromkeys(DATASETS, arguments.splits))
    entries = [entry(f"entry-{i:03d}", table, words={"title": f"Method number {i}"}) for i in range(arguments.entries)]
    start = time.perf_counter()
    material = make_material(entries, [], table)
    ranked = time.perf_counter()
    names = write_site(folder, site_files(material))
    written = time.perf_counter()
    size = sum((folder / name).stat().st_size for name in names)
    print(
        f"{len(entries)} entries: tables {ranked - start:.1f} s, {len(names)} files {written - ranked:.1f} s, {size / 1e6:.0f} MB"
    )
    print(f"first page {(folder / 'index.html').stat().st_size / 1e6:.2f} MB, in {folder}")
    look_at(folder)


def look_at(folder: Path) -> None:
    """Prints medians and the worst, in milliseconds."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        context = chromium.new_context(viewport={"width": 1280, "height": 900}, bypass_csp=True)
        page = context.new_page()
        views = [first_view(page, folder) for _ in range(REPEATS)]
        show("first contentful paint", [paint for paint, _ in views])
        show("whole page loaded", [load for _, load in views])
        for table in ("full", "across"):
            page.evaluate(f"document.getElementById('tab-{table}').click()")
            columns = (1, 2, 5, 8, 5)
            show(f"sort, {table}", [page.evaluate(TIMED, SORT.format(table=table, column=place)) for place in columns])
            texts = ("number 4", "entry-3", "nobody", "a", "")
            show(f"filter, {table}", [page.evaluate(TIMED, FILTER.format(text=text)) for text in texts])
        chromium.close()


def first_view(page: Page, folder: Path) -> tuple[float, float]:
    page.goto((folder / "index.html").as_uri())
    page.wait_for_load_state("load")
    page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
    found: list[float] = page.evaluate(
        "[performance.getEntriesByName('first-contentful-paint')[0].startTime,"
        " performance.getEntriesByType('navigation')[0].loadEventEnd]"
    )
    return found[0], found[1]


def show(what: str, milliseconds: list[float]) -> None:
    print(f"{what:>24}: median {statistics.median(milliseconds):.0f} ms, most {max(milliseconds):.0f} ms")


if __name__ == "__main__":
    main()
