"""`fsvi-bench status`: how far a grid has come."""

from __future__ import annotations

from collections import Counter

from fsvi_bench.cli import commands
from fsvi_bench.cli.collector import no_garbage_collection
from fsvi_bench.cli.console import show
from fsvi_bench.presenting.tables import Table
from fsvi_bench.running.store import Status, read_status

COLUMNS = ("ok", "diverged", "failed", "missing")


@no_garbage_collection()
def status(options: commands.Status) -> None:
    show_status(read_status(options.folder), options.as_json)


def show_status(status: Status, as_json: bool) -> None:
    """A line for each data set, method and family, or one JSON document."""
    total, planned = status.total, status.total.total()
    groups = [{**group._asdict(), **_counts(counts)} for group, counts in status.groups.items()]
    document = {"planned": planned, **_counts(total), "stale": status.stale, "groups": groups}
    rows = [
        (group.dataset, f"{group.method} {group.family}", counts.total(), *(counts[name] or None for name in COLUMNS))
        for group, counts in status.groups.items()
    ]
    if len(rows) > 1:
        rows.append(("all", "", planned, *_counts(total).values()))
    columns = ("data set", "method", "planned", *COLUMNS)
    show(as_json, document, lambda: Table(columns=columns, rows=rows).terminal(sections=True))
    if as_json:
        return
    done = planned - total["missing"]
    share = f"{100 * done / planned:.0f} %" if planned else "nothing planned"
    print(f"{done} of {planned} cells done ({share}), {total['ok']} of them ok")
    if status.stale:
        print(f"{status.stale} records beside them are of other code, kernels, settings or tasks, and count nowhere")


def _counts(counts: Counter[str]) -> dict[str, int]:
    return {name: counts[name] for name in COLUMNS}
