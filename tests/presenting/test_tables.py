"""Tables: rows and columns that a specification takes from a frame, and how they are written."""

import csv
import io
import math

import pandas as pd
import pytest

from fsvi_bench.presenting.frames import TableSpec, select
from fsvi_bench.presenting.tables import Table, Written, as_csv, in_words

INF = math.inf
SCORES = pd.DataFrame(
    {
        "dataset": ["boston", "boston", "yacht", "energy"],
        "split": [0, 1, 0, 2],
        "kl": [1.0, INF, -INF, math.nan],
        "steps": pd.array([100, None, 200, 300], dtype="Int64"),
        "reason": ["", None, "it | diverged", ""],
    }
)
FRAMES = {"scores": SCORES}
MIXED = Table(
    title="scores", columns=("data set", "kl", "n"), rows=(("boston", 12.345678, 10), ("a|b", -INF, None), ("", INF, 2))
)


def of(**changes):
    return TableSpec(title="scores", frame="scores", **changes).of(FRAMES)


def test_columns_stand_under_their_headings_in_the_order_given():
    found = of(columns={"KL [nats]": "kl", "data set": "dataset", "again": "dataset"}, where={"split": 0})
    assert found.columns == ("KL [nats]", "data set", "again")
    assert found.rows == ((1.0, "boston", "boston"), (-INF, "yacht", "yacht"))


@pytest.mark.parametrize(
    ("where", "splits"),
    [
        ({}, [0, 1, 0, 2]),
        ({"dataset": "boston"}, [0, 1]),
        ({"dataset": ["yacht", "boston"]}, [0, 1, 0]),
        ({"dataset": "boston", "split": [1, 2]}, [1]),
    ],
)
def test_rows_are_those_that_have_every_value(where, splits):
    assert select(SCORES, where)["split"].tolist() == splits
    assert [row[1] for row in of(where=where).rows] == splits


def test_what_matches_no_row_is_refused_unless_it_may_be_missing():
    where = {"dataset": "boston", "split": 2}
    with pytest.raises(KeyError, match=r"no row has .*boston.*2"):
        select(SCORES, where)
    with pytest.raises(KeyError, match="no row has"):
        of(where=where)
    assert select(SCORES, where, optional=True).empty
    assert select(SCORES[:0], where).empty  # a frame without rows has nothing to be wrong about


WRITTEN = Table(
    title="",
    columns=("method", "settings", "kl"),
    rows=(
        ("exact", Written("a=inf", "a=inf", "<b>"), Written(INF, "∞")),
        ("ssge|", "", Written(1.5, "1.50", "± 0.20", "1 to 2", best=True)),
        ("rand-a", None, Written(math.nan, "failed")),
    ),
)


def test_the_best_is_bold_and_notes_stand_behind_numbers_wherever_a_table_is_shown():
    assert WRITTEN.markdown().splitlines()[1:4] == [
        "| --- | --- | ---: |",
        "| exact | a=inf <b> | ∞ |",
        "| ssge\\| |  | **1.50 ± 0.20** |",
    ]
    *_, numbers = WRITTEN.terminal().columns
    assert numbers.justify == "right"
    assert [(str(cell), cell.style) for cell in numbers.cells][1:] == [("1.50 ± 0.20", "bold"), ("failed", "")]
    assert as_csv([WRITTEN]).splitlines()[3] == "ssge|,,1.5"


def test_cells_are_pythons_own_and_what_is_missing_is_none():
    """A column of words may hold None; pandas' own kinds have NA."""
    found = of()
    assert [type(cell) for cell in found.rows[0]] == [str, int, float, int, str]
    assert found.rows[1][3:] == (None, None)
    assert math.isnan(found.rows[3][2])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (12.345678, "12.35"),
        (1.0, "1"),
        (1.23456e-7, "1.235e-07"),
        (12345, "12345"),
        (INF, "∞"),
        (-INF, "-∞"),
        (math.nan, "nan"),
        (None, "–"),
        ("information", "information"),
    ],
)
def test_cells_in_words(value, words):
    assert in_words(value) == words


def test_csv_has_every_digit_and_table_after_table_under_its_title():
    other = MIXED.model_copy(update={"title": "others, too", "rows": ((0.1 + 0.2, 1, "x"),)})
    rows = list(csv.reader(io.StringIO(as_csv([MIXED, other]))))
    assert rows == [
        ["# scores"],
        ["data set", "kl", "n"],
        ["boston", "12.345678", "10"],
        ["a|b", "-inf", ""],
        ["", "inf", "2"],
        [],
        ["# others, too"],
        ["data set", "kl", "n"],
        ["0.30000000000000004", "1", "x"],
    ]
    assert as_csv([]) == ""


def test_a_column_of_nothing_is_one_of_numbers():
    found = Table(columns=("method", "seconds"), rows=[("exact", None)]).markdown()
    assert found.splitlines()[1] == "| --- | ---: |"
