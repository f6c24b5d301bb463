"""`fsvi-bench status`: how much of a grid is done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fsvi_bench.cli import commands
from fsvi_bench.cli.collector import no_garbage_collection
from fsvi_bench.cli.console import show
from fsvi_bench.presenting.tables import Table
from fsvi_bench.running.store import Counts, Store

COLUMNS = ("ok", "diverged", "failed", "missing")


@no_garbage_collection()
def status(options: commands.Status) -> None:
    store = Store(options.folder)
    show_status(store.count(store.wanted), store.stale, options.as_json, _mixed(store))


def _mixed(store: Store) -> list[str]:
    """The methods whose cells are of different versions of their code or of kernels."""
    planned = store.wanted if store.plans else []  # without a plan, the versions are not read
    versions = {(each.method, each.code_sha256) for each in planned}
    return sorted(method for method, count in Counter(method for method, _ in versions).items() if count > 1)


def show_status(counts: Counts, stale: int, as_json: bool, mixed: Sequence[str] = ()) -> None:
    """Prints a line for each data set, method and family, or one JSON document."""
    groups = {key[:3]: {name: counts[*key[:3], name] for name in COLUMNS} for key in counts}
    total = {name: sum(group[name] for group in groups.values()) for name in COLUMNS}
    planned = counts.total()
    named = [dict(zip(("dataset", "method", "family"), group, strict=True)) | n for group, n in groups.items()]
    document = {"planned": planned, **total, "stale": stale, "mixed": list(mixed), "groups": named}
    rows = [
        (dataset, f"{method} {family}", sum(n.values()), *(count or None for count in n.values()))
        for (dataset, method, family), n in groups.items()
    ]
    if len(rows) > 1:
        rows.append(("all", "", planned, *total.values()))
    columns = ("data set", "method", "planned", *COLUMNS)
    show(as_json, document, lambda: Table(columns=columns, rows=rows).terminal(sections=True))
    if as_json:
        return
    done = planned - total["missing"]
    share = f"{100 * done / planned:.0f}%" if planned else "nothing is planned"
    print(f"{done} of {planned} cells done ({share}), {total['ok']} ok")
    if stale:
        print(f"{stale} stale records are not counted: they belong to other code, kernels or tasks")
    if mixed:
        print(
            f"{', '.join(mixed)}: cells of several versions of the code or kernels; rerun their commands to mend this"
        )
