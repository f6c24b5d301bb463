"""Tables as plain data, rendered for a terminal, as HTML, Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, Template
from markupsafe import Markup
from rich import box
from rich.table import Table as Terminal
from rich.text import Text

from fsvi_bench.strict import Plain

ASSETS = Path(__file__).parent / "assets"
#: A smaller score is 0 up to rounding, whose size depends on the processor: it is shown as 0, and not on log axes.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Written:
    """A cell whose text differs from that of its value; `best` is bold."""

    value: str | float | None  #: for sorting, and for CSV
    text: str
    note: str = ""  #: follows the text, such as quartiles; de-emphasised if possible
    interval: str = ""  #: shown on pages on request
    best: bool = False

    def __str__(self) -> str:
        return f"{self.text} {self.note}".strip()


Cell = str | int | float | None | Written


def in_words(value: str | float | None, digits: int = 4) -> str:
    """A number to this many digits, `∞` for infinity, and a dash for None."""
    if value is None:
        return "–"
    return f"{value:.{digits}g}".replace("inf", "∞") if isinstance(value, float) else str(value)


def rounded_off(score: float | None) -> float | None:
    """A score, or 0 if it is 0 up to rounding."""
    return 0.0 if score is not None and abs(score) < ROUNDING else score


class Table(Plain):
    """Rows of numbers and text; None means not applicable."""

    title: str = ""
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def terminal(self, sections: bool = False) -> Terminal:
        """A table for the terminal: numbers with four digits, right-aligned; text left-aligned. With `sections`, a rule
        separates rows with different first columns."""
        table = Terminal(box=box.SIMPLE_HEAD, title=self.title, pad_edge=False)
        table.title_justify = table.caption_justify = "left"
        for heading, words in zip(self.columns, self._of_words(), strict=True):
            table.add_column(heading, justify="left" if words else "right", overflow="fold")
        for row, following in zip_longest(self.rows, self.rows[1:]):
            cells = [Text(str(cell), "bold" if cell.best else "") for cell in map(_written, row)]
            table.add_row(*cells, end_section=sections and (following is None or following[0] != row[0]))
        return table

    def html(
        self,
        meanings: Mapping[str, str],
        marker: Callable[[str], str] = lambda name: "",
        reference: str = "",
        form: Callable[[str | float | None], str] = in_words,
        groups: Mapping[str, str] = {},
        by: str = "",
    ) -> Markup:
        """Head and bodies of a `<table>`, sortable by the script of the page. `Markup` in a cell is not escaped.

        Args:
            meanings: heading -> its meaning.
            marker: markup before a row's name, which is its first cell.
            reference: name of rows that are shown separately, above the others.
            form: how to write cells that are not `Written`.
            groups: heading -> group heading, shared by neighbouring headings.
            by: heading that the rows are sorted by already.
        """
        columns = list(zip(self.columns, self._of_words(), strict=True))
        rows = [[_written(cell, form) for cell in row] for row in self.rows]
        above = [
            (name, len(list(same))) for name, same in groupby(self.columns, lambda heading: groups.get(heading, ""))
        ]
        context = {"meanings": meanings, "marker": marker, "reference": reference, "above": groups and above, "by": by}
        return Markup(_template().render(context, columns=columns, rows=rows))

    def markdown(self) -> str:
        """A Markdown table: numbers are right-aligned, and `|` within text is escaped."""
        lines = [self.columns, ["---" if words else "---:" for words in self._of_words()]]
        lines += [[f"**{cell}**" if cell.best else str(cell) for cell in map(_written, row)] for row in self.rows]
        return "\n".join("| " + " | ".join(word.replace("|", "\\|") for word in line) + " |" for line in lines)

    def _of_words(self) -> list[bool]:
        values = [[_written(cell).value for cell in column] for column in zip(*self.rows, strict=True)]
        of_words = [any(column) and all(isinstance(value, str | None) for value in column) for column in values]
        return of_words or [False] * len(self.columns)


def templates(*folders: Path, **options: Any) -> Environment:
    """Templates from these folders; a line with only a block tag leaves no blank line."""
    return Environment(loader=FileSystemLoader(folders), trim_blocks=True, lstrip_blocks=True, **options)


@cache
def _template() -> Template:
    return templates(ASSETS, autoescape=True).get_template("table.html.j2")


def facts(lines: Mapping[str, str], title: str = "") -> Terminal:
    """A table with one name and value per line, without headings."""
    table = Table(title=title, columns=("", " "), rows=list(lines.items())).terminal()
    table.show_header = False
    return table


def as_csv(tables: Sequence[Table]) -> str:
    """All tables as CSV, each below its title."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for place, table in enumerate(tables):
        if place:
            writer.writerow([])
        writer.writerow([f"# {table.title}"])
        writer.writerow(table.columns)
        writer.writerows([_written(cell).value for cell in row] for row in table.rows)
    return text.getvalue()


def _written(cell: Cell, form: Callable[[str | float | None], str] = in_words) -> Written:
    return cell if isinstance(cell, Written) else Written(cell, form(cell))
