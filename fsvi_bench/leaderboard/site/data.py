"""Everything that the pages show, as JSON: Infinity is the word, as in records."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import Any, get_args

from fsvi_bench.leaderboard.entries import Entry
from fsvi_bench.leaderboard.rows import by_dataset, column, verified_cells
from fsvi_bench.leaderboard.site.material import Material
from fsvi_bench.leaderboard.tables import Line, Score, TrackTable

_BRIEF = ("kl", "predictive_kl_box", "predictive_kl_test", "nlpd", "nlpd_gap", "rmse")


def leaderboard_json(material: Material) -> bytes:
    """All tables, the references, each entry's verified scores; the rest of them stands in `data/<name>.json`."""
    document = {
        "format": "fsvi-leaderboard/1",
        "references": material.references.model_dump(mode="json"),
        "tables": {key: _table(table) for key, table in material.tables.items()},
        "entries": [_brief(entry) for entry in material.entries],
        "unreadable": [{"name": each.name, "problem": each.problem} for each in material.unreadable],
    }
    return _json(document)


def entry_json(material: Material, entry: Entry) -> bytes:
    """One entry: what its authors say, where it stands, and what the verifier found."""
    document = {
        "format": "fsvi-leaderboard-entry/1",
        "submission": plain(entry.manifest.model_dump(mode="json", by_alias=True)),
        "note": entry.note,
        "standings": {
            key: _line(line) for (key, name), line in material.lines.items() if name == entry.name and line.entry
        },
    }
    # Its own writer is ten times faster than one that walks through every score.
    verification = "null" if entry.verification is None else entry.verification.model_dump_json()
    return _json(document).rstrip()[:-1] + f',"verification":{verification}}}\n'.encode()


def entry_script(material: Material, entry: Entry) -> bytes:
    """What the compare page reads of an entry: a script, since pages opened from disk may not fetch files.

    Scores by data set, split by split of the references: null is missing.
    """
    references, cells = material.references, verified_cells(entry, material.references)
    scores = {name: by_dataset(column(cells, references, name), references) for name in get_args(Score)}
    datasets = {
        dataset: {name: plain(found[dataset].tolist()) for name, found in scores.items()}
        for dataset in material.datasets
    }
    document = {"name": entry.name, "title": entry.manifest.title, "track": entry.manifest.track, "datasets": datasets}
    return b"fsviBenchEntry(" + _json(document).rstrip() + b");\n"


def _brief(entry: Entry) -> dict[str, Any]:
    manifest, verification = entry.manifest, entry.verification
    cells = [
        {"dataset": cell.dataset, "split": cell.split, "status": cell.status}
        | ({} if cell.scores is None else {score: plain(getattr(cell.scores, score)) for score in _BRIEF})
        for cell in (verification.cells if verification else ())
    ]
    return {
        "name": entry.name,
        "title": manifest.title,
        "method": manifest.method,
        "track": manifest.track,
        "label": "not verified" if verification is None else verification.label,
        "submission_sha256": None if verification is None else verification.submission_sha256,
        "cells": cells,
    }


def _table(table: TrackTable) -> dict[str, Any]:
    own = {field.name: plain(getattr(table, field.name)) for field in fields(TrackTable) if field.name != "lines"}
    return own | {"lines": [_line(line) for line in table.lines]}


def _line(line: Line) -> dict[str, Any]:
    own = {field.name: plain(getattr(line, field.name)) for field in fields(Line) if field.name != "entry"}
    return own | {"reference_row": line.entry is None}


def plain(value: Any) -> Any:
    """Numbers as they are written in JSON (infinity as a word), dataclasses as objects."""
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value)
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _json(document: Any) -> bytes:
    return (json.dumps(document, allow_nan=False, sort_keys=True, separators=(",", ":")) + "\n").encode()
