"""Templates and tables of the site. Its security policy permits only scripts and styles from the site's own files."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import compress
from pathlib import Path
from typing import Any

from jinja2 import Environment, Undefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from fsvi_bench.leaderboard.ranking import FEWEST_DATASETS, REFERENCES
from fsvi_bench.presenting.looks import ASSETS as SHARED
from fsvi_bench.presenting.looks import colour_variable, look
from fsvi_bench.presenting.plots import digits
from fsvi_bench.presenting.report.page import environment
from fsvi_bench.presenting.tables import Table, Written
from fsvi_bench.resources import read_yaml
from fsvi_bench.statistics.all_pairs import FEWEST_SIGNS

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = (SHARED / "page.js", ASSETS / "site.js", ASSETS / "compare.js")
WORDS: dict[str, Any] = read_yaml(ASSETS / "words.yaml")  # type: ignore[assignment]


@cache
def templates() -> Environment:
    """The templates of the site, with their shared globals and filters."""
    found = environment(ASSETS, SHARED)
    found.finalize = visible
    found.globals.update(WORDS, table=_table, written=_written, look=look, variable=colour_variable, columns=REFERENCES)
    found.globals.update(intervals_from=FEWEST_DATASETS, tests_from=FEWEST_SIGNS)
    found.filters.update(digits=digits, interval=interval)
    found.globals["cells"] = found.get_template("cells.html.j2").module
    return found


def asset_files() -> dict[str, bytes]:
    """The style sheet and scripts by their paths in the site; the style of reports comes first."""
    shared = templates().get_template("style.css.j2").render()
    style = f"{shared}\n{(ASSETS / 'site.css').read_text(encoding='utf-8')}"
    return {"assets/style.css": style.encode()} | {f"assets/{path.name}": path.read_bytes() for path in SCRIPTS}


@pass_context
def _table(
    context: Context, name: str, rows: Collection[Any], label: str, scores: Sequence[str] = (), **attributes: str
) -> Markup:
    """Renders a table of `words.yaml`, with a line per `row` of `rows`. Columns are expressions; `*` stands for all
    data sets, and `+` for all of `scores`. Columns without any value are left out. What is `drawn` stands above a
    column."""
    spec, shared = WORDS["tables"][name], context.get_all() | {"scores": scores}
    edition = shared["edition"]
    several = {"*": {f"{each}{' (dev)' * (each not in edition.ranked_datasets)}": each for each in edition.datasets},
               "+": {WORDS["headings"][each]: each for each in scores}}  # fmt: skip
    columns = dict(_columns(spec["columns"], several))
    expression = _expression(", ".join(columns.values()))
    cells = [[*map(_value, expression({**shared, "row": row, "rows": rows}))] for row in rows]
    kept = [not cells or any(_known(row[place]) for row in cells) for place in range(len(columns))]
    found = Table(columns=[*compress(columns, kept)], rows=[[*compress(row, kept)] for row in cells])
    groups = {each: group for group, of in spec.get("groups", {}).items() for each, _ in _columns(of, several)}
    groups |= {each: Markup(_expression(of)(shared)[0]) for each, of in spec.get("drawn", {}).items()}
    content = found.html(WORDS["meanings"], reference=WORDS["map"], form=shown, groups=groups, by=spec.get("by", ""))
    return Markup(shared["cells"].framed(label, content, {"class": "results"} | attributes))


def _columns(columns: Mapping[str, str], several: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """Headings and expressions of columns; in those of `*` and `+`, `each` is replaced by each of the names."""
    for heading, of in columns.items():
        for own, name in several.get(heading, {heading: "each"}).items():
            yield own, re.sub(r"\beach\b", repr(name) if heading in several else name, of)


@cache
def _expression(text: str) -> Callable[[Mapping[str, Any]], Sequence[Any]]:
    found: Any = templates().compile_expression(f"({text},)")
    return found  # type: ignore[no-any-return]


def _value(value: Any) -> Any:
    """A value with untrusted text made visible; None if it is undefined."""
    return None if isinstance(value, Undefined) else visible(value)


def _written(value: Any, text: str) -> Written:
    """A cell with a text, which is sorted by its value."""
    return Written(_value(value), text)


def _known(cell: Any) -> bool:
    """Whether a cell has a value."""
    value = cell.value if isinstance(cell, Written) else cell
    return value is not None and value == value  # not NaN


def shown(value: str | float | None) -> str:
    """The text of a cell: floats as in `digits`, integers in full."""
    return value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else digits(value)


def interval(ends: Sequence[float] | None) -> str:
    """`1.20 to 3.40`."""
    return "–" if ends is None else " to ".join(map(digits, ends))


def visible(value: Any) -> Any:
    """Untrusted text with invisible and reordering characters written as escapes: U+202E as `\\u202e`.

    Every value in a page passes through this function before it is escaped for HTML.
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in value)
