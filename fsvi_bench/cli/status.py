"""`fsvi-bench status`, and `run --dry-run`: how far a grid has come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fsvi_bench.cli import commands
from fsvi_bench.cli.collector import no_garbage_collection
from fsvi_bench.cli.console import show, stderr, table
from fsvi_bench.running.plan import Plan
from fsvi_bench.running.prepare import known_tasks
from fsvi_bench.running.runner import Problems, check_settings
from fsvi_bench.running.store import Status, planned_status, read_status, status_of
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.raw import is_here

COLUMNS = ("ok", "diverged", "failed", "missing")


@no_garbage_collection()
def status(options: commands.Status) -> None:
    _show(read_status(options.folder), options.as_json)


@no_garbage_collection()
def show_planned(plan: Plan, options: commands.Run) -> int:
    """What `run` would find and compute. Splits whose task is not fitted yet count as missing.

    Raises:
        InputError: what `run` would refuse, so far as that takes neither a fit nor a download.
    """
    tasks, unfitted, refusals = known_tasks(plan)
    _check_missing(plan, tasks, options)
    _show(planned_status(plan.file(tasks, refusals, "cpu"), unfitted, options.out, options.rerun), options.as_json)
    return 0


def _check_missing(plan: Plan, tasks: Sequence[FrozenTask], options: commands.Run) -> None:
    names = sorted({task.dataset for task in tasks if task.own_data is None})
    unchecked = [name for name in names if not is_here(load_card(name), options.data_dir)]
    if unchecked:
        absent = f"the raw data of {', '.join(unchecked)} are not here"
        stderr.print(f"{absent}, so that no setting is held to them", style="yellow")
    held = [task for task in tasks if task.dataset not in unchecked]
    cells = plan.file(held, {}, "cpu").cells()
    missing = [cell for cell in cells if status_of(cell, options.out, options.rerun) == "missing"]
    check_settings(missing, plan.methods, Problems(held, options.data_dir))


def _show(status: Status, as_json: bool) -> None:
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
    show(as_json, document, lambda: table(("data set", "method", "planned", *COLUMNS), rows, sections=True))
    if as_json:
        return
    done = planned - total["missing"]
    share = f"{100 * done / planned:.0f} %" if planned else "nothing planned"
    print(f"{done} of {planned} cells done ({share}), {total['ok']} of them ok")
    if status.stale:
        print(f"{status.stale} records beside them are of other code, kernels, settings or tasks, and count nowhere")


def _counts(counts: Counter[str]) -> dict[str, int]:
    return {name: counts[name] for name in COLUMNS}
