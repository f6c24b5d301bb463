"""How long a leaderboard's site of many entries takes to build, to show, to sort and to filter.

    python benchmarks/site.py [FOLDER] [--entries 500] [--whole]

Builds the first page of synthetic entries (those of the tests: run it from the repository's root) on eight data sets,
all with full covariances, or the whole site, and opens the first page from disk in headless Chromium at 1280 pixels.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import Page, sync_playwright

from fsvi_bench.leaderboard.board import read_board
from fsvi_bench.leaderboard.site.build import Site, site_files
from fsvi_bench.leaderboard.site.output import write_site
from fsvi_bench.leaderboard.site.render import asset_files
from tests.leaderboard.boards import edition, make_board
from tests.leaderboard.sites import kls

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
    parser.add_argument("--whole", action="store_true")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="site-"))
    root = Path(tempfile.mkdtemp(prefix="board-"))
    make_board(root, {f"entry-{i:03d}": kls(1 + i / 100) for i in range(arguments.entries)}, edition(list(DATASETS)))
    start = time.perf_counter()
    site = Site(read_board(root))
    ranked = time.perf_counter()
    made = site_files(site)
    files = dict(made if arguments.whole else islice(made, len(asset_files()) + 1))
    write_site(folder, files)
    written, size = time.perf_counter(), sum(map(len, files.values()))
    print(
        f"{arguments.entries} entries: read and ranked {ranked - start:.1f} s, {len(files)} files {written - ranked:.1f} s, "
        f"{size / 1e6:.0f} MB; the first page {len(files['index.html']) / 1e6:.2f} MB, in {folder}"
    )
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
        for table in ("posterior", "joint"):
            columns = (1, 2, 5, 8, 5)
            show(f"sort, {table}", [page.evaluate(TIMED, SORT.format(table=table, column=place)) for place in columns])
            texts = ("entry-4", "entry-3", "nobody", "a", "")
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
