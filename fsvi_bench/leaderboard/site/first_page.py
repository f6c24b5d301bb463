"""The first page, and the page that compares two entries."""

from __future__ import annotations

import json

from fsvi_bench.leaderboard.comparing import BOUND, LEVEL
from fsvi_bench.leaderboard.rows import CLOSED_FORM
from fsvi_bench.leaderboard.site.material import Material
from fsvi_bench.leaderboard.site.render import render
from fsvi_bench.leaderboard.site.tables import SCORES, TABS, make_panels
from fsvi_bench.leaderboard.submission import DEVELOPMENT_DATASETS
from fsvi_bench.tasks.card import card_names, load_card

#: What stands beneath a table: which row is there for comparison, and what its score leaves out.
EXPLANATIONS = {
    "full": "RANDA, which evaluates the functional KL on fresh random inputs at each step, is the frozen reference of "
    "“vs RANDA”: 0 is as near to the exact posterior as RANDA’s own run, −1 ten times nearer. The exact posterior is a "
    "row of its own, for its predictive scores and as what all others are measured by.",
    "ffg": "No factorised q reaches the exact posterior: what the best one keeps of KL, its floor, depends on the "
    "root of the features that the task fixes as well as on the data, and is subtracted here.",
    "singular": "These posteriors put mass on points and have an infinite KL, so that their predictive distributions "
    "are compared; the MAP as a point mass is a row of its own, since a method that is not better has learned no "
    "more than one good set of weights. “vs RANDA” is against RANDA with full covariance, which the family cannot be.",
    "across": "Posteriors of all tracks by the one distance that each of them has: from the exact predictive "
    "distribution to theirs, at 1,000 inputs drawn evenly from the box that holds the training inputs.",
    "across-test": "The same at the test inputs, which lie where the training inputs do.",
}


def first_page(material: Material) -> bytes:
    """Introduction, tables, data sets."""
    panels = make_panels(material)
    filled = [panel for panel in panels if any(line.entry for line in panel.table.lines)]
    labels = [line.label for key in ("full", "ffg", "singular") for line in material.tables[key].lines if line.entry]
    return render(
        "index.html.j2",
        0,
        panels=panels,
        first=(filled or panels)[0].key,
        explanations=EXPLANATIONS,
        entries=len(material.entries),
        rerun=labels.count("re-run"),
        unreadable=material.unreadable,
        tasks=len(material.references.tasks),
        intervals=any(line.interval for panel in panels for line in panel.table.lines),
        datasets=[_dataset(material, name) for name in material.datasets],
        development=[name for name in material.datasets if name in DEVELOPMENT_DATASETS],
    )


def _dataset(material: Material, name: str) -> dict[str, object]:
    tasks, card = material.tasks[name], load_card(name) if name in card_names() else None
    return {
        "name": name,
        "title": card.title if card else name,
        "D": card.D if card else None,
        "N": tasks[0].N,
        "k": tasks[0].k,
        "splits": len(tasks),
        "development": name in DEVELOPMENT_DATASETS,
    }


def compare_page(material: Material) -> bytes:
    """Two entries side by side; the page's script computes what it shows from their `data/<name>.js`."""
    verified = [entry for entry in material.entries if entry.verification is not None]
    ratios = {name: material.references.test_train_ratio(name) for name in material.datasets}
    best = [line.name for key in TABS for line in material.tables[key].lines if line.place is not None]
    first, second = [*dict.fromkeys([*best, *(entry.name for entry in verified)]), None, None][:2]
    return render(
        "compare.html.j2",
        0,
        entries=sorted(verified, key=lambda entry: (entry.manifest.title.lower(), entry.name)),
        chosen={"a": first, "b": second},
        scores=SCORES,
        ratios=json.dumps(ratios),
        level=LEVEL,
        least=CLOSED_FORM,
        bound=BOUND,
        development=" ".join(name for name in material.datasets if name in DEVELOPMENT_DATASETS),
    )
