"""`fsvi-bench leaderboard build`: a leaderboard's folder in, a static site out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pydantic_core import to_json

from fsvi_bench.leaderboard.board import Board, read_board
from fsvi_bench.leaderboard.comparing import p_value, paired
from fsvi_bench.leaderboard.ranking import ACROSS, HEADLINES, run_frame, score_frame
from fsvi_bench.leaderboard.site.output import write_site
from fsvi_bench.leaderboard.site.pages import Site, compare_page, dataset_page, first_page, method_page
from fsvi_bench.leaderboard.site.render import WORDS, asset_files
from fsvi_bench.presenting.plots import digits

SITE = "site"  #: folder beneath a leaderboard's, unless another is named


def build_site(root: Path, out: Path, edition: str | None = None) -> tuple[Board, list[str]]:
    """Reads a leaderboard's folder and writes its site; returns the board, and the site's files.

    Equal folders give equal files, byte for byte, whatever the order in which they are read.

    Raises:
        InputError: `root` holds no entries or editions, or `out` cannot be written.
    """
    board = read_board(root, edition)
    return board, write_site(out, dict(site_files(Site.of(board, root))))


def site_files(site: Site) -> Iterator[tuple[str, bytes]]:
    """Every file of the site: its path there and its content."""
    yield from asset_files().items()
    yield "index.html", first_page(site)
    yield "compare.html", compare_page(site)
    yield "leaderboard.json", _leaderboard_json(site)
    for dataset in site.board.edition.datasets:
        yield f"datasets/{dataset}.html", dataset_page(site, dataset)
    for standing in site.board.standings:
        yield f"methods/{standing.name}.html", method_page(site, standing)
    for name, found in _pairs(site):
        # A script, since a page that was opened from disk may not fetch files.
        yield f"data/{name}.js", b"fsviBenchCompared(" + to_json(found) + b");\n"


def _pairs(site: Site) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each entry's medians, and what it is beside every later one: p, then log ratios and intervals in hundredths.

    The earlier of two has the pair, which takes half the room: seen from the later one, signs are the other way round.
    """
    runs, datasets = run_frame([*site.shown.values()]), site.board.edition.datasets
    frames = {score: score_frame(runs, score) for score in {*HEADLINES.values()}}
    medians = {score: frame.groupby("dataset").median() for score, frame in frames.items()}
    waiting = [*site.shown.values()]
    while waiting:
        a = waiting.pop(0)
        found: dict[str, Any] = {"name": a.name, "track": a.track, "beside": {}}
        for key, score in (("same", HEADLINES[a.track]), ("other", ACROSS)):
            words = [(digits(median), median) for median in medians[score].loc[datasets, a.name]]
            found[key] = {"score": WORDS["scores"][score], "medians": words}
            names = [b.name for b in waiting if (b.track == a.track) == (key == "same")]
            pairs = paired(frames[score][[a.name, *names]], a.name, datasets) if names else ()
            for name, pair in zip(names, pairs, strict=True):
                hundredths = np.rint(100 * pair).astype(int).ravel().tolist()
                found["beside"][name] = [digits(p_value(site.board, pair), 2), *hundredths]
        yield a.name, found


def _leaderboard_json(site: Site) -> bytes:
    """Everything that the pages show: infinity and NaN are the words."""
    document = {
        "format": "fsvi-leaderboard/2",
        "edition": site.board.edition,
        "tables": site.tables,
        "entries": [
            {"name": each.name, "sha256": each.entry.sha256, **vars(each.entry), **vars(each), "entry": None}
            for each in site.board.standings
        ],
        "refused": site.board.refused,
    }
    return to_json(document, inf_nan_mode="strings", by_alias=True, indent=1) + b"\n"
