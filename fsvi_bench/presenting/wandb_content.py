"""What a W&B run says of a group of records: curves, tables, a figure, artifacts and a summary."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsvi_bench.files import canonical_json, is_file, sha256_of_json
from fsvi_bench.presenting.cell_files import folder_of, load_traces
from fsvi_bench.presenting.curves import curves_figure
from fsvi_bench.presenting.parquet import IDENTITY, WORDS, record_row, trace_rows
from fsvi_bench.presenting.summary import SCORES, cells_of
from fsvi_bench.presenting.summary import summary_of as scores_of
from fsvi_bench.presenting.traces import curve_rows
from fsvi_bench.running.cell import Record

FILES = {"posterior": ["posterior.safetensors"], "result": ["record.json", "trace.csv"]}  #: artifacts' types


@dataclass(frozen=True)
class Content:
    """What a run says. W&B's objects belong to one run; the next needs others."""

    init: dict[str, Any]
    rows: list[dict[str, Any]]  #: curves, tables and a figure, to be logged one after the other
    artifacts: list[Any]
    summary: dict[str, float]


def content_of(group: Sequence[Record], folder: Path) -> Content:
    """All that may fail before W&B is spoken to fails here."""
    import pandas
    import wandb

    group = sorted(group, key=lambda record: (record.split, record.seed))
    words = [group[0].dataset, group[0].method, group[0].family]
    init = {"name": "-".join(words)[:128], "group": words[0][:128], "job_type": words[1][:64], "config": config(group)}
    init["tags"] = sorted({tag for word in words if (tag := allowed(word)[:64])})
    traces = load_traces(group, folder)
    named = {f"split-{r.split:02d}-seed-{r.seed}": traces[r.cell] for r in group if r.cell in traces}
    rows: list[dict[str, Any]] = [*curve_rows(named)]
    cells = pandas.DataFrame(map(record_row, group), dtype=object)
    # Tables of several runs are put together by their first columns.
    cells = cells.reindex(columns=list(dict.fromkeys([*IDENTITY, *WORDS, *SCORES, *cells.columns])))
    rows.append({"cells": wandb.Table(dataframe=cells.where(cells.notna(), None))})
    if traces:
        rows.append({"traces": wandb.Table(dataframe=pandas.DataFrame(trace_rows(group, traces), dtype=object))})
    if figure := curves_figure(list(traces.values()), " · ".join(words)):
        path = Path(tempfile.gettempdir(), "curves.png")
        figure.savefig(path, dpi=120)
        rows.append({"curves": wandb.Image(str(path))})
    artifacts = [artifact for kind in FILES if (artifact := artifact_of(kind, group, folder)).manifest.entries]
    return Content(init, rows, artifacts, summary_of(group))


def run_sha256(record: Record) -> str:
    """Names the run that a record belongs to."""
    return sha256_of_json([record.dataset, record.method, record.family, record.hyperparameters])


def allowed(name: str) -> str:
    """W&B's names are letters, digits, dashes, underscores and dots; other runs of characters become a dash."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")


def config(group: Sequence[Record]) -> dict[str, Any]:
    """Settings (`option_...` where a fact has that name) and facts, lists where cells differ, as after a resume."""
    facts: dict[str, Any] = {name: getattr(group[0], name) for name in ("dataset", "method", "family")}
    facts |= {"splits": sorted({r.split for r in group}), "seeds": sorted({r.seed for r in group})}
    facts["tasks"] = {str(record.split): record.task_sha256 for record in group}
    facts["code_sha256"] = distinct(record.code_sha256 for record in group)
    names = dict.fromkeys(name for r in group for name in r.provenance if name not in ("seeds", "started"))
    facts["provenance"] = {name: distinct(r.provenance.get(name) for r in group) for name in names}
    return {f"option_{n}" if n in facts else n: value for n, value in group[0].hyperparameters.items()} | facts


def distinct(values: Iterable[Any]) -> Any:
    """All different values, or the only one."""
    found = list({canonical_json(value): value for value in values}.values())
    return found[0] if len(found) == 1 else found


def summary_of(group: Sequence[Record]) -> dict[str, float]:
    """A group's scores and how many cells there are."""
    statuses = [record.status for record in group]
    summary: dict[str, float] = {f"cells_{name}": statuses.count(name) for name in ("ok", "diverged", "failed")}
    scores = scores_of(cells_of(group)).set_index("score")
    summary |= scores["mean"].dropna().to_dict()
    summary |= scores["standard_error"].dropna().add_suffix("_standard_error").to_dict()
    return summary | {"cells": len(group)}


def artifact_of(kind: str, group: Sequence[Record], folder: Path) -> Any:
    """Cells' files, each under its cell's name. They stay where they lie: nothing is copied.

    It has the same name for every run of a group, so that W&B takes the next one's for another version.
    """
    import wandb

    facts = {name: getattr(group[0], name) for name in ("dataset", "method", "family")}
    name = f"{allowed('-'.join(facts.values()))[:90]}-{run_sha256(group[0])[:12]}-{kind}"
    artifact = wandb.Artifact(name, kind, metadata=facts)
    cells = [folder.resolve() / folder_of(record) for record in group if record.task_sha256]
    for path in filter(is_file, (cell / file for cell in cells for file in FILES[kind])):
        artifact.add_file(str(path), f"{path.parent.name}/{path.name}", policy="immutable", skip_cache=True)
    return artifact
