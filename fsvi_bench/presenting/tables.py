"""Tables as plain data: specified over tidy frames, rendered for a terminal, for Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Container, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import pandas as pd
from pydantic import BaseModel, ConfigDict
from rich import box
from rich.table import Table as Terminal

Frames = Mapping[str, pd.DataFrame]  #: by name; each row is one observation
Cell = str | int | float | None


class Table(BaseModel):
    """Numbers and words; None stands for what does not apply."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def terminal(self, words: Container[str] = (), caption: str = "", sections: bool = False) -> Terminal:
        """Numbers to four digits, to the right; words to the left. With `sections` a line follows where the first
        column changes. Where numbers are written already, `words` names the columns that are none."""
        table = Terminal(box=box.SIMPLE_HEAD, title=self.title, caption=caption, pad_edge=False)
        table.title_justify = table.caption_justify = "left"
        for heading, of_words in zip(self.columns, self._of_words(), strict=True):
            left = heading in words if words else of_words
            table.add_column(heading, justify="left" if left else "right", overflow="fold")
        for row, following in zip_longest(self.rows, self.rows[1:]):
            last = sections and (following is None or following[0] != row[0])
            table.add_row(*map(in_words, row), end_section=last)
        return table

    def markdown(self) -> str:
        """Columns of numbers to the right; a bar within words would end a cell."""
        lines = [self.columns, ["---" if words else "---:" for words in self._of_words()]]
        lines += [[in_words(value) for value in row] for row in self.rows]
        return "\n".join("| " + " | ".join(word.replace("|", "\\|") for word in line) + " |" for line in lines)

    def _of_words(self) -> list[bool]:
        return [all(isinstance(row[place], str | None) for row in self.rows) for place in range(len(self.columns))]


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
        words: pd.DataFrame = frame.select_dtypes("string").astype(object)  # in which pandas has NaN for None
        frame = frame.assign(**words.where(words.notna(), None))
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

    return re.sub(r"\{(\w+)(?::([^{}]*))?\}", value, text)


def in_words(value: Cell, digits: int = 4) -> str:
    """A number to so many digits, infinity as its sign, and a dash for what does not apply."""
    if value is None:
        return "–"
    return f"{value:.{digits}g}".replace("inf", "∞") if isinstance(value, float) else str(value)


def as_csv(tables: Sequence[Table]) -> str:
    """All tables one after the other, each under its title."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for place, table in enumerate(tables):
        if place:
            writer.writerow([])
        writer.writerow([f"# {table.title}"])
        writer.writerow(table.columns)
        writer.writerows(table.rows)
    return text.getvalue()


def _plain(value: Any) -> Cell:
    """Python's own kinds: a column of objects holds what was put there, others NumPy's scalars."""
    plain = value.item() if hasattr(value, "item") else value
    return None if plain is pd.NA else plain
