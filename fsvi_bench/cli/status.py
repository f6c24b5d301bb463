"""`fsvi-bench status`: how far a grid has come."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fsvi_bench.cli.collector import no_garbage_collection
from fsvi_bench.cli.options import AsJson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsvi_bench.running.plan import Plan
    from fsvi_bench.running.store import Status
    from fsvi_bench.tasks.frozen import FrozenTask

COLUMNS = ("ok", "diverged", "failed", "missing")


def status(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What a run was given with --out.")],
    json: AsJson = False,
) -> int:
    """How many cells of a folder's plans are done, failed or missing.

    By the plans of its last runs; what today's sources would compute anew, `run --dry-run` says.
    """
    with no_garbage_collection():
        from fsvi_bench.running.store import read_status

        show(read_status(folder), json)
    return 0


def show_planned(plan: Plan, folder: Path, rerun: str, data_dir: Path | None, json: bool) -> int:
    """What `run` would find and compute. Splits whose task is not fitted yet count as missing.

    Raises:
        InputError: what `run` would refuse, so far as that takes neither a fit nor a download.
    """
    from fsvi_bench.running.prepare import known_tasks
    from fsvi_bench.running.store import planned_status

    with no_garbage_collection():
        tasks, unfitted, refusals = known_tasks(plan)
        _check_missing(plan, tasks, folder, rerun, data_dir)
        show(planned_status(plan.file(tasks, refusals, "cpu"), unfitted, folder, rerun), json)
    return 0


def _check_missing(plan: Plan, tasks: Sequence[FrozenTask], folder: Path, rerun: str, data_dir: Path | None) -> None:
    from fsvi_bench.cli.console import stderr
    from fsvi_bench.running.runner import check_settings, problems_of
    from fsvi_bench.running.store import status_of
    from fsvi_bench.tasks.card import load_card
    from fsvi_bench.tasks.raw import is_here

    names = sorted({task.dataset for task in tasks if task.own_data is None})
    unchecked = [name for name in names if not is_here(load_card(name), data_dir)]
    if unchecked:
        absent = f"the raw data of {', '.join(unchecked)} are not here"
        stderr.print(f"{absent}, so that no setting is held to them", style="yellow")
    held = [task for task in tasks if task.dataset not in unchecked]
    cells = [cell for cell in plan.file(held, {}, "cpu").cells() if status_of(cell, folder, rerun) == "missing"]
    check_settings(cells, plan.methods, problems_of(held, data_dir))


def show(status: Status, json: bool) -> None:
    """As a table with a line for each data set, method and family, or as one JSON document."""
    from fsvi_bench.cli.console import print_json, stdout
    from fsvi_bench.presenting.tables import Table

    total = status.total
    if json:
        groups = [
            {**group._asdict(), **{name: counts[name] for name in COLUMNS}} for group, counts in status.groups.items()
        ]
        print_json({"planned": total.total(), **{name: total[name] for name in COLUMNS}, "stale": status.stale,
                    "groups": groups})  # fmt: skip
        return
    rows = [
        (group.dataset, f"{group.method} {group.family}", counts.total(), *(counts[name] or None for name in COLUMNS))
        for group, counts in status.groups.items()
    ]
    if len(rows) > 1:
        rows.append(("all", "", total.total(), *(total[name] for name in COLUMNS)))
    columns = ("data set", "method", "planned", *COLUMNS)
    stdout.print(Table(title="", columns=columns, rows=tuple(rows)).terminal(sections=True))
    done = total.total() - total["missing"]
    share = f"{100 * done / total.total():.0f} %" if total.total() else "nothing planned"
    stdout.print(f"{done} of {total.total()} cells done ({share}), {total['ok']} of them ok")
    if status.stale:
        stdout.print(
            f"{status.stale} records beside them are of other code, kernels, settings or tasks, and count nowhere"
        )
