"""The exported tables, as pandas, polars and DuckDB read them."""

from __future__ import annotations

import json
import math

import duckdb
import pandas as pd
import polars as pl
import pyarrow.parquet as parquet
import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.presenting.parquet import write_tables
from fsvi_bench.presenting.summary import unnested
from fsvi_bench.running.plan import Request
from fsvi_bench.running.store import load_traces, read_archive
from fsvi_bench.training.trace import Trace, TracePoint
from tests.presenting import studies
from tests.running import execute


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Gaussians, an infinite KL, methods of different settings, and traces of one of them."""
    root = tmp_path_factory.mktemp("store")
    methods = ["exact", "bernoulli-dropout", "mean-field-vi"]
    execute(root, Request(datasets=["toy"], splits="0-1", methods=methods, max_steps=3))
    return read_archive(root)


@pytest.fixture(scope="module")
def tables(archive, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    return {path.name: (path, rows) for path, rows in write_tables(archive, folder)}


def read_all(path):
    """Rows as three libraries see them, missing as None."""
    pandas = pd.read_parquet(path, dtype_backend="numpy_nullable")
    yield [{k: None if v is pd.NA else v for k, v in row.items()} for row in pandas.to_dict("records")]
    yield pl.read_parquet(path).to_dicts()
    relation = duckdb.sql(f"select * from '{path}'")
    yield [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]


@pytest.mark.slow
def test_every_record_is_a_row_with_all_that_it_holds(archive, tables):
    path, count = tables["records.parquet"]
    assert count == len(archive.records) == 8
    for rows in read_all(path):
        by_cell = {row["cell"]: row for row in rows}
        for record in archive.records:
            row = by_cell[record.cell]
            assert json.loads(row["hyperparameters"]) == record.hyperparameters
            assert row["kl"] == record.scores.kl
            assert row["nlpd"] == record.scores.nlpd
            assert row["overconfidence_smallest"] == record.scores.overconfidence.smallest
            assert row["kl_marginals_5"] == record.scores.kl_marginals["5"]
            assert row["seconds_batch_size"] == record.seconds.batch_size
            assert row["provenance_torch"] == record.provenance["torch"]
            assert (row["status"], row["split"]) == ("ok", record.split)
    assert any(math.isinf(record.scores.kl) for record in archive.records)


def test_settings_of_one_method_are_missing_for_the_others(archive, tables):
    for rows in read_all(tables["records.parquet"][0]):
        assert {row["method"]: row["option_lr"] for row in rows} == {
            "exact": None, "bernoulli-dropout": 0.01, "mean-field-vi": 0.01
        }  # fmt: skip


def test_every_point_of_every_trace_is_a_row(archive, tables):
    path, count = tables["traces.parquet"]
    traces = load_traces(archive.records, archive.root)
    assert count == sum(len(trace.points) for trace in traces.values()) > 0
    for rows in read_all(path):
        for cell, trace in traces.items():
            own = [row for row in rows if row["cell"] == cell]
            assert [(row["steps"], row["kl"]) for row in own] == [(point.steps, point.kl) for point in trace.points]


def test_a_folder_without_traces_or_failures_has_the_same_columns(tmp_path):
    """So that tables of two folders fit together, and DuckDB, which asks for one column at least, reads both."""
    execute(tmp_path / "out", Request(datasets=["toy"], splits="0", methods=["exact"]))
    (records, _), (traces, count) = write_tables(read_archive(tmp_path / "out"), tmp_path)
    assert count == 0
    assert duckdb.sql(f"select count(*), count(loss) from '{traces}'").fetchall() == [(0, 0)]
    assert pl.read_parquet(records).schema["reason"] == pl.String


def export_of(tmp_path, records, traces=None):
    """Both tables of these records, as Arrow has them."""
    archive = read_archive(studies.save(tmp_path / "results", records, traces))
    return [parquet.read_table(path) for path, _ in write_tables(archive, tmp_path)]


def test_what_diverged_is_no_number_and_what_does_not_apply_is_missing(tmp_path):
    (cell,) = [studies.record("mean-field-vi", 0, 1.0)]
    points = [TracePoint(0, 0.0, 1.0, None, 1.0, 1.0, None), TracePoint(1, 0.5, math.nan, math.nan, math.nan, 1.0, 2.0)]
    _, traces = export_of(tmp_path, [cell], {cell.cell: Trace(points)})
    kl, nlpd, loss = (traces[name].to_pylist() for name in ("kl", "nlpd", "loss"))
    assert (kl[0], loss) == (1.0, [None, 2.0])
    assert math.isnan(kl[1])
    assert nlpd[0] is None
    assert math.isnan(nlpd[1])


def test_scores_are_columns_of_the_same_types_whatever_the_records_hold(tmp_path):
    whole, _ = export_of(tmp_path / "a", [studies.record("mean-field-vi", 0, 1.0)])
    failed, _ = export_of(tmp_path / "b", [studies.record("mean-field-vi", 0)])
    scores = studies.record("mean-field-vi", 0, 1.0).scores.model_dump(exclude={"kl_marginals"})
    scored = {*unnested(scores, "_"), *(f"kl_marginals_{count}" for count in (1, 5, 20, 50))}
    assert {"kl", "coverage_50", "kl_marginals_5", "overconfidence_quantiles"} <= scored <= set(failed.column_names)
    assert [(n, failed.schema.field(n).type) for n in failed.column_names] == [
        (n, whole.schema.field(n).type) for n in whole.column_names
    ]
    assert all(failed[name].null_count == 1 for name in scored)
    assert [str(whole.schema.field(name).type) for name in ("split", "singular", "kl")] == ["int64", "bool", "double"]


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
    cells = [studies.record("ssge", split, 1.0, M=value) for split, value in enumerate(values)]
    records, _ = export_of(tmp_path, cells)
    by_split = dict(zip(records["split"].to_pylist(), records["option_M"].to_pylist(), strict=True))
    assert [by_split[split] for split in range(len(values))] == expected
    assert str(records.schema.field("option_M").type) == kind


def test_without_pyarrow_the_extra_is_named(archive, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"in the clone: pip install -c constraints.txt -e '\.\[export\]'"):
        write_tables(archive, tmp_path)
    assert list(tmp_path.iterdir()) == []
