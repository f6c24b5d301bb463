"""Tables as plain data: specified over tidy frames, rendered for a terminal, in HTML, in Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from pydantic import BaseModel, ConfigDict
from rich import box
from rich.table import Table as Terminal
from rich.text import Text

ASSETS = Path(__file__).parent / "assets"
Frames = Mapping[str, pd.DataFrame]  #: by name; each row is one observation


@dataclass(frozen=True)
class Written:
    """A cell that is not written as its value alone would be; `best` is bold."""

    value: str | float | None  #: what a page sorts by, and CSV has
    text: str
    note: str = ""  #: behind the text, such as a standard error; quieter where that can be
    interval: str = ""  #: on pages only, where a reader asks for it
    best: bool = False

    def __str__(self) -> str:
        return f"{self.text} {self.note}".strip()


Cell = str | int | float | None | Written


def in_words(value: str | float | None, digits: int = 4) -> str:
    """A number to so many digits, infinity as its sign, and a dash for what does not apply."""
    if value is None:
        return "–"
    return f"{value:.{digits}g}".replace("inf", "∞") if isinstance(value, float) else str(value)


class Table(BaseModel):
    """Numbers and words; None stands for what does not apply."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def terminal(self, caption: str = "", sections: bool = False) -> Terminal:
        """Numbers to four digits, to the right; words to the left. With `sections` a line follows where the first
        column changes."""
        table = Terminal(box=box.SIMPLE_HEAD, title=self.title, caption=caption, pad_edge=False)
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
        """Head and bodies for a `<table>`, which a page's script sorts. What is `Markup` in a cell stays as it is.

        Args:
            meanings: heading -> what it means.
            marker: what stands before a row's name, which is its first cell.
            reference: the name of rows that stand apart, above the others.
            form: how cells are written that are no `Written` ones.
            groups: heading -> what stands above it, and above the headings beside it that have the same.
            by: the heading that the rows are already sorted by.
        """
        template = Environment(loader=FileSystemLoader(ASSETS), autoescape=True, trim_blocks=True, lstrip_blocks=True)
        columns = list(zip(self.columns, self._of_words(), strict=True))
        rows = [[_written(cell, form) for cell in row] for row in self.rows]
        above = [
            (name, len(list(same))) for name, same in groupby(self.columns, lambda heading: groups.get(heading, ""))
        ]
        context = {"meanings": meanings, "marker": marker, "reference": reference, "above": groups and above, "by": by}
        return Markup(template.get_template("table.html.j2").render(context, columns=columns, rows=rows))

    def markdown(self) -> str:
        """Columns of numbers to the right; a bar within words would end a cell."""
        lines = [self.columns, ["---" if words else "---:" for words in self._of_words()]]
        lines += [[f"**{cell}**" if cell.best else str(cell) for cell in map(_written, row)] for row in self.rows]
        return "\n".join("| " + " | ".join(word.replace("|", "\\|") for word in line) + " |" for line in lines)

    def _of_words(self) -> list[bool]:
        return [
            all(isinstance(_written(row[place]).value, str | None) for row in self.rows)
            for place in range(len(self.columns))
        ]


def facts(lines: Mapping[str, str], title: str = "") -> Terminal:
    """A table of one statement per line, without headings."""
    table = Table(title=title, columns=("", " "), rows=tuple(lines.items())).terminal()
    table.show_header = False
    return table


class TableSpec(BaseModel):
    """Which rows and columns of a frame a table shows.

    Args:
        title: `{name}` stands for what the frame's `attrs` have by this name, or a column in its first row.
        where: column -> the value, or the values, that its rows have.
        optional: whether there may be no such row in a frame that has others.
        columns: heading -> column; None: all of the frame's, as they are called.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    title: str
    frame: str
    where: dict[str, Any] = {}
    optional: bool = False
    columns: dict[str, str] | None = None

    def of(self, frames: Frames) -> Table:
        """Raises KeyError for a frame or a column that is not there, and as `select` does."""
        frame = select(frames[self.frame], self.where, self.optional)
        frame = frame.astype(dict.fromkeys(frame.select_dtypes("string"), "string"))  # whose missing words are no NaN
        columns = self.columns or {name: name for name in frame.columns}
        rows = [tuple(map(_plain, row)) for row in frame[list(columns.values())].itertuples(index=False, name=None)]
        return Table(title=worded(self.title, frame), columns=tuple(columns), rows=tuple(rows))


def select(frame: pd.DataFrame, where: Mapping[str, Any], optional: bool = False) -> pd.DataFrame:
    """The rows that have a value, or one of several, in each of these columns.

    Raises:
        KeyError: no column is called so, or the frame has rows and none of them is like this, unless it is `optional`.
    """
    found = frame
    for name, value in where.items():
        found = found[found[name].isin(value if isinstance(value, list) else [value])]
    if found.empty and not frame.empty and not optional:
        raise KeyError(f"no row has {dict(where)}; columns: {', '.join(map(str, frame.columns))}")
    return found


def worded(text: str, frame: pd.DataFrame) -> str:
    """Text in which `{name}` stands for what the frame's `attrs` have by this name, or for a column's first value.

    What names neither stays, such as TeX.
    """
    known = {**(frame.iloc[0].to_dict() if len(frame) else {}), **frame.attrs}

    def value(found: re.Match[str]) -> str:
        name, form = found.groups(default="")
        return format(known[name], form) if name in known else found[0]

    return re.sub(r"\{(\w*)(?::([^{}]*))?\}", value, text)


def as_csv(tables: Sequence[Table]) -> str:
    """All tables one after the other, each under its title."""
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


def _plain(value: Any) -> Cell:
    """Python's own kinds: a column of objects holds what was put there, others NumPy's scalars."""
    plain = value.item() if hasattr(value, "item") else value
    return None if plain is pd.NA else plain
