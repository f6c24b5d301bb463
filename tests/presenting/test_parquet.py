"""The exported tables, as pandas, polars and DuckDB read them."""

import json
import math
import sys

import duckdb
import pandas as pd
import polars as pl
import pyarrow.parquet as parquet
import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.presenting.parquet import write_tables
from fsvi_bench.presenting.summary import unnested
from fsvi_bench.running.store import Store
from fsvi_bench.training.trace import Trace, TracePoint
from tests.presenting.studies import curve, record, save

OPTIONS = {"lr": 0.01, "layers": [1, 2]}
RECORDS = [record("exact", 0, 0.0), record("ssge", 0, 2.0, hyperparameters=OPTIONS), record("ssge", 1, math.inf)]


def read_all(path):
    """Rows as three libraries see them, missing as None."""
    pandas = pd.read_parquet(path, dtype_backend="numpy_nullable")
    yield [{k: None if v is pd.NA else v for k, v in row.items()} for row in pandas.to_dict("records")]
    yield pl.read_parquet(path).to_dicts()
    relation = duckdb.sql(f"select * from '{path}'")
    yield [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]


def export_of(tmp_path, records, traces=None):
    """Both tables of these records, as Arrow has them."""
    archive = Store(save(tmp_path / "results", records, traces))
    return [parquet.read_table(path) for path, _ in write_tables(archive, tmp_path)]


def test_every_record_and_every_point_of_a_trace_is_a_row_with_all_that_it_holds(tmp_path):
    traces = {each.cell: curve([9.0, 5.0, each.scores.kl]) for each in RECORDS[1:]}
    (records, n), (points, m) = write_tables(Store(save(tmp_path / "out", RECORDS, traces)), tmp_path)
    assert (records.name, n, points.name, m) == ("records.parquet", 3, "traces.parquet", 6)
    for rows in read_all(records):
        by_cell = {row["cell"]: row for row in rows}
        for each in RECORDS:
            row = by_cell[each.cell]
            assert json.loads(row["hyperparameters"]) == each.hyperparameters
            assert (row["kl"], row["nlpd"], row["status"], row["split"]) == (each.scores.kl, 1.0, "ok", each.split)
            assert row["overconfidence_smallest"] == each.scores.overconfidence.smallest
            assert (row["coverage_50"], row["seconds_batch_size"], row["provenance_hardware"]) == (0.4, 2, "a machine")
            assert row["option_lr"] == each.hyperparameters.get("lr")  # another method's setting is missing
    for rows in read_all(points):
        for cell, trace in traces.items():
            own = [(row["steps"], row["kl"]) for row in rows if row["cell"] == cell]
            assert own == [(point.steps, point.kl) for point in trace.points]


def test_an_integer_beyond_64_bits_is_text(tmp_path):
    """`run` refuses it; folders of earlier versions may have one."""
    records, _ = export_of(tmp_path, [record("ssge", 0, 1.0, hyperparameters={"S": 10**25}), RECORDS[0]])
    assert set(records["option_S"].to_pylist()) == {str(10**25), None}


def test_what_diverged_is_no_number_and_what_does_not_apply_is_missing(tmp_path):
    cell = record("mean-field-vi", 0, 1.0)
    points = [TracePoint(0, 0.0, 1.0, None, 1.0, 1.0, None), TracePoint(1, 0.5, math.nan, math.nan, math.nan, 1.0, 2.0)]
    _, traces = export_of(tmp_path, [cell], {cell.cell: Trace(points)})
    kl, nlpd, loss = (traces[name].to_pylist() for name in ("kl", "nlpd", "loss"))
    assert (kl[0], nlpd[0], loss) == (1.0, None, [None, 2.0])
    assert math.isnan(kl[1])
    assert math.isnan(nlpd[1])


def test_columns_and_their_types_are_the_same_whatever_the_records_hold(tmp_path):
    """So that tables of two folders fit together, and DuckDB, which asks for one column at least, reads both."""
    whole, _ = export_of(tmp_path / "a", [record("ssge", 0, 1.0)])
    failed, points = export_of(tmp_path / "b", [record("ssge", 0)])
    scores = record("ssge", 0, 1.0).scores.model_dump(exclude={"kl_marginals"})
    scored = {*unnested(scores, "_"), *(f"kl_marginals_{count}" for count in (1, 5, 20, 50))}
    assert {"kl", "coverage_50", "kl_marginals_5", "overconfidence_quantiles"} <= scored <= set(failed.column_names)
    assert dict(zip(failed.schema.names, failed.schema.types, strict=True)) == dict(
        zip(whole.schema.names, whole.schema.types, strict=True)
    )
    assert all(failed[name].null_count == 1 for name in scored)
    kinds = [str(whole.schema.field(name).type) for name in ("split", "singular", "kl", "reason")]
    assert kinds == ["int64", "bool", "double", "string"]
    assert (points.num_rows, "loss" in points.column_names) == (0, True)
    assert duckdb.sql(f"select count(*) from '{tmp_path / 'b' / 'traces.parquet'}'").fetchall() == [(0,)]


@pytest.mark.parametrize(
    ("values", "expected", "kind"),
    [
        ([1, 2.5, None], [1.0, 2.5, None], "double"),
        ([1, None], [1, None], "int64"),
        (["a", 1, 0.5, None], ["a", "1", "0.5", None], "string"),
        ([None, None], [None, None], "double"),
        ([True, 1], ["true", "1"], "string"),
    ],
)
def test_a_setting_is_of_one_kind(tmp_path, values, expected, kind):
    records, _ = export_of(tmp_path, [record("ssge", split, 1.0, M=value) for split, value in enumerate(values)])
    by_split = dict(zip(records["split"].to_pylist(), records["option_M"].to_pylist(), strict=True))
    assert [by_split[split] for split in range(len(values))] == expected
    assert str(records.schema.field("option_M").type) == kind


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install -c constraints.txt -e '\.\[export\]'"):
        write_tables(Store(save(tmp_path / "out", RECORDS)), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
