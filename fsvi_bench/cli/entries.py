"""`fsvi-bench submit` and `verify`: entries made, and run in the jail."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table as Terminal

import fsvi_bench
from fsvi_bench.cli.commands import Submit, Verify
from fsvi_bench.cli.console import show, stderr, stdout
from fsvi_bench.cli.progress import RichProgress
from fsvi_bench.errors import InputError, TaskRefused
from fsvi_bench.files import read_bounded
from fsvi_bench.leaderboard import verifying
from fsvi_bench.leaderboard.board import read_entries, read_placed_entry, require_identity, write_entry
from fsvi_bench.leaderboard.edition import read_edition, read_secret
from fsvi_bench.leaderboard.entry import SOURCE_BYTES, Entry
from fsvi_bench.leaderboard.jailed.jail import Jail, require_jail
from fsvi_bench.leaderboard.jailed.run import require_conformance
from fsvi_bench.leaderboard.ranked_tasks import Place
from fsvi_bench.leaderboard.result import Cell, Result, result_path, write_result
from fsvi_bench.leaderboard.signing import require_key
from fsvi_bench.leaderboard.verifying import Verification
from fsvi_bench.presenting.tables import Table, in_words
from fsvi_bench.running.executors import Executor, make_executor
from fsvi_bench.running.options import parse_setting, require_ray
from fsvi_bench.threads import use_one_thread


def _verification(options: Submit | Verify, root: Path) -> Verification:
    """An edition of a leaderboard's folder, without its secret, and the jail of this machine."""
    jail = Jail(None) if options.without_isolation else require_jail()
    return Verification(read_edition(root, options.edition), None, jail, data_dir=options.data_dir)


def submit(options: Submit) -> int:
    use_one_thread()
    if options.check:
        entry, root = read_placed_entry(Path(options.method))
        verification = _verification(options, root)
        require_identity(entry, read_entries(root)[0])
        _conforms(entry, verification)
    else:
        root, (name, content, source) = options.root, _draft(options)
        verification = _verification(options, root)
        entry = write_entry(root, name, content, source, options.replace, lambda made: _conforms(made, verification))
    folder = root / "entries" / entry.name
    passed = _tried(entry, verification, root)
    print(folder)
    if not passed:
        stderr.print("a trial failed; mend the method or its settings, then submit with --replace, or remove the entry")
        return 1
    secret = " --secret FILE" if verification.edition.status == "open" else ""
    stderr.print(f"next: fsvi-bench verify {shlex.quote(str(folder))}{secret}")
    return 0


def _draft(options: Submit) -> tuple[str, dict[str, Any], bytes | None]:
    """The entry's name, what its file says, and its source."""
    if not options.authors or options.owner is None:
        raise InputError("an entry says by whom it is; give --author (a name) and --owner (an account on the forge)")
    method, source, words = _method(options.method)
    content = options.model_dump(include={"authors", "owner", "licence", "family", "link", "notes"}) | {
        "title": options.title or f"{words} {options.family}",
        "method": method,
        "settings": dict(map(parse_setting, options.settings)),
        "budget": {"steps": options.steps, "seconds": options.seconds},
    }
    return options.name or _name(f"{words}-{options.family}"), content, source


def _method(spec: str) -> tuple[dict[str, str], bytes | None, str]:
    """What the entry says of its method, the file's text, and the method's name."""
    if ".py:" not in spec:
        return {"name": spec, "version": fsvi_bench.__version__}, None, spec
    path, _, cls = spec.rpartition(":")
    if not Path(path).is_file():
        raise InputError(f"there is no file {path}; give the method as path/file.py:Class")
    return {"file": Path(path).name, "class": cls}, read_bounded(Path(path).resolve(), SOURCE_BYTES), cls


def _name(text: str) -> str:
    """A folder's name from a method's: `MyMethod-full` -> `my-method-full`."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", text)
    return re.sub(r"[^a-z0-9]+", "-", parted.lower()).strip("-")[:63] or "entry"


def _conforms(entry: Entry, verification: Verification) -> None:
    if checks := require_conformance(entry, verification.jail, verification.limits):
        stderr.print(f"{entry.name} keeps {checks} rules")


def _tried(entry: Entry, verification: Verification, root: Path) -> bool:
    """Runs two official tasks; whether both came to a posterior."""
    first = [Place("official", dataset, 0) for dataset in verification.edition.datasets[:2]]
    with RichProgress() as progress:
        result = verifying.verify(entry, verification, root, make_executor("local", 1), progress, first)
    for cell in result.cells:
        said, scores = cell.reason, cell.scores
        if scores is not None:
            said = f"KL {in_words(scores.kl)}, over the input box {in_words(scores.predictive_kl_box)}"
        stderr.print(f"{cell.place.name}: {cell.status}, {said}, {cell.seconds:.1f} s")
    return all(cell.status == "ok" for cell in result.cells)


def verify(options: Verify) -> int:
    use_one_thread()
    require_ray(options.executor, options.ray_address)
    executor = make_executor(options.executor, options.workers, options.ray_address)
    results: list[Result] = []
    for folder in options.entries:
        try:
            results.append(_verified(folder, executor, options))
        except (InputError, TaskRefused) as error:
            if len(options.entries) == 1:
                raise
            stderr.print(f"fsvi-bench: {error}")  # a broken entry does not hold up those behind it
        else:
            if not options.as_json:
                stdout.print(_medians(results[-1]))
    if options.as_json:
        show(True, results, str)
    if len(results) < len(options.entries):
        return 2
    return 0 if all(cell.status == "ok" for result in results for cell in result.cells) else 1


def _verified(folder: Path, executor: Executor, options: Verify) -> Result:
    """The result, written and signed."""
    entry, root = read_placed_entry(folder)
    local, key = _verification(options, root), options.key
    limits = replace(local.limits, seconds=options.max_seconds)
    verification = replace(local, secret=read_secret(local.edition, options.secret), limits=limits)
    require_key(key, root)  # before hours of work, not after
    with RichProgress() as progress:
        result = verifying.verify(entry, verification, root, executor, progress)
    path = result_path(root, result.edition, result.entry)
    write_result(path, result, key)
    stderr.print(f"{path}{'' if key else ', unsigned'}")
    return result


def _medians(result: Result) -> Terminal:
    """By data set, of ranked tasks beside official ones."""

    def median_kl(cells: list[Cell]) -> float | None:
        return median(cell.scores.kl if cell.scores else math.inf for cell in cells) if cells else None

    rows = []
    for dataset in dict.fromkeys(cell.dataset for cell in result.cells):
        here = [cell for cell in result.cells if cell.dataset == dataset]
        ranked, official = ([cell for cell in here if cell.kind == kind] for kind in ("ranked", "official"))
        finished = sum(cell.status == "ok" for cell in ranked)
        rows.append((dataset, f"{finished} of {len(ranked)}", median_kl(ranked), median_kl(official)))
    columns = ("data set", "ranked runs finished", "KL, ranked", "KL, official")
    title = f"{result.entry}: medians; isolation: {result.isolation}"
    return Table(title=title, columns=columns, rows=rows).terminal()
