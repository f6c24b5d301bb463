"""`fsvi-bench leaderboard build`: a leaderboard's folder in, a static site out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fsvi_bench.leaderboard.site.data import entry_json, entry_script, leaderboard_json
from fsvi_bench.leaderboard.site.dataset_page import dataset_page
from fsvi_bench.leaderboard.site.first_page import compare_page, first_page
from fsvi_bench.leaderboard.site.material import Material, read_material
from fsvi_bench.leaderboard.site.method_page import method_page
from fsvi_bench.leaderboard.site.output import write_site
from fsvi_bench.leaderboard.site.render import asset_files

SITE = "site"  #: folder beneath a leaderboard's, unless another is named


class Built(NamedTuple):
    """A site that was written."""

    files: list[str]  #: paths within its folder, sorted
    without_scores: list[str]  #: one sentence for each submission that is shown without scores


def build_site(root: Path, out: Path) -> Built:
    """Reads a leaderboard's folder and writes its site.

    Equal folders give equal files, byte for byte, whatever the order in which they are read.

    Raises:
        InputError: `root` holds no submissions or no references, or `out` cannot be written.
    """
    material = read_material(root)
    unverified = [f"{entry.name}: {entry.note}" for entry in material.entries if entry.note is not None]
    files = write_site(out, site_files(material))
    return Built(files, [*unverified, *(f"{each.name}: {each.problem}" for each in material.unreadable)])


def site_files(material: Material) -> Iterator[tuple[str, bytes]]:
    """Every file of the site: its path there and its content."""
    yield from asset_files().items()
    yield "index.html", first_page(material)
    yield "compare.html", compare_page(material)
    yield "leaderboard.json", leaderboard_json(material)
    for dataset in material.datasets:
        yield f"datasets/{dataset}.html", dataset_page(material, dataset)
    for entry in material.entries:
        yield f"methods/{entry.name}.html", method_page(material, entry)
        yield f"data/{entry.name}.json", entry_json(material, entry)
        yield f"data/{entry.name}.js", entry_script(material, entry)
