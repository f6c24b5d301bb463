"""`fsvi-bench leaderboard build`: a leaderboard's folder in, a static site out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from math import isnan
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from fsvi_bench.leaderboard.board import Board, Standing, read_board
from fsvi_bench.leaderboard.comparing import Comparison, comparisons
from fsvi_bench.leaderboard.ranking import HEADLINES, Line, score_frame
from fsvi_bench.leaderboard.site.output import write_site
from fsvi_bench.leaderboard.site.pages import Site, compare_page, dataset_page, first_page, method_page
from fsvi_bench.leaderboard.site.render import asset_files
from fsvi_bench.leaderboard.site.words import SCORES, digits, interval, signed

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
        yield f"data/{name}.js", b"fsviBenchCompared(" + to_json({"name": name, "beside": found}) + b");\n"


def _pairs(site: Site) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each entry beside every other, by the score that both have, in the words of the page."""
    frames = {score: score_frame(site.shown, score) for score in HEADLINES.values()} if site.shown else {}
    for a in site.shown:
        own, across = HEADLINES[a.track], HEADLINES["singular"]
        same = [each.name for each in site.shown if each.track == a.track]
        others = [a.name, *(each.name for each in site.shown if each.track != a.track)]
        found = comparisons(site.board, frames[own][same], a.name, own)
        found |= comparisons(site.board, frames[across][others], a.name, across)
        yield a.name, {name: _in_words(found[name]) for name in sorted(found)}


def _in_words(comparison: Comparison) -> dict[str, Any]:
    rows = [
        (each.dataset, digits(each.a), digits(each.b), signed(each.log_ratio), interval(each.interval))
        for each in comparison.differences
    ]
    return {"score": SCORES[comparison.score], "p": digits(comparison.p_value, 2), "rows": rows}


def _leaderboard_json(site: Site) -> bytes:
    """Everything that the pages show: infinity is the word, and null what does not apply."""
    document = {
        "format": "fsvi-leaderboard/2",
        "edition": site.board.edition,
        "tables": {
            key: {"score": table.score, "ranked": table.ranked, "lines": [_line(line) for line in table.lines]}
            for key, table in site.tables.items()
        },
        "entries": [_entry(each) for each in site.board.standings],
        "refused": site.board.refused,
    }
    return to_json(document, inf_nan_mode="strings", by_alias=True, indent=1) + b"\n"


def _line(line: Line) -> dict[str, Any]:
    own = {field.name: getattr(line, field.name) for field in fields(Line) if field.name != "standing"}
    medians = {name: None if isnan(value) else value for name, value in line.medians.items()}
    return {"name": line.name, **own, "medians": medians}


def _entry(standing: Standing) -> dict[str, Any]:
    entry = standing.entry
    source = None if entry.source is None else entry.source.decode()
    facts = {"manifest": entry.manifest, "sha256": entry.sha256, "source": source}
    return {"name": entry.name, **facts, "signer": standing.signer, "stale": standing.stale, "result": standing.result}
