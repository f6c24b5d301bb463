"""`fsvi-bench submit` and `verify`: entries are created, and run in the sandbox."""

from __future__ import annotations

import contextlib
import math
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import fsvi_bench
from fsvi_bench.cli.commands import Submit, Verify
from fsvi_bench.cli.console import show, stderr, stdout
from fsvi_bench.cli.progress import RichProgress
from fsvi_bench.errors import InputError, TaskRefused, unknown_name
from fsvi_bench.files import is_file, read_bounded
from fsvi_bench.leaderboard import verifying
from fsvi_bench.leaderboard.agreement import Comparison, Version, agreement, compare, read_kept
from fsvi_bench.leaderboard.board import read_entries, read_placed_entry, require_identity, write_entry
from fsvi_bench.leaderboard.edition import EDITIONS, Place, read_edition, read_secret
from fsvi_bench.leaderboard.entry import SOURCE_BYTES, Entry
from fsvi_bench.leaderboard.jailed.jail import Jail, require_hidden, require_jail
from fsvi_bench.leaderboard.jailed.run import require_conformance
from fsvi_bench.leaderboard.network_tasks import TRIAL
from fsvi_bench.leaderboard.result import Cell, NetworkFacts, Result, ShortScores, result_path, write_result
from fsvi_bench.leaderboard.signing import ALLOWED_SIGNERS, require_key
from fsvi_bench.leaderboard.verifying import Verification
from fsvi_bench.methods.registry import require_class
from fsvi_bench.presenting.tables import Table, in_words, rounded_off
from fsvi_bench.running.executors import Executor, make_executor
from fsvi_bench.running.options import read_settings, require_ray
from fsvi_bench.threads import use_one_thread


class _TrialFailed(Exception):
    """A trial run of `submit` did not end in a posterior."""


def _verification(options: Submit | Verify, root: Path) -> Verification:
    """An edition of a leaderboard, without its secret, and the sandbox of this machine."""
    jail = Jail(None) if options.without_isolation else require_jail()
    edition = read_edition(root, options.edition)
    require_hidden(jail, [root, options.data_dir])
    return Verification(edition, None, jail, data_dir=options.data_dir, networks=root / EDITIONS / edition.name)


def submit(options: Submit) -> int:
    use_one_thread()
    try:
        if options.check:
            entry, root = read_placed_entry(Path(options.method))
            verification = _verification(options, root)
            require_identity(entry, read_entries(root)[0])
            _try(entry, verification)
        else:
            root, (name, content, source) = options.root, _draft(options)
            verification = _verification(options, root)
            entry = write_entry(root, name, content, source, options.replace, lambda made: _try(made, verification))
    except _TrialFailed:
        unwritten = "" if options.check else "; nothing was written"
        stderr.print(f"a trial run failed{unwritten}; fix the method or its settings and run the command again")
        return 1
    folder = root / "entries" / entry.name
    print(folder)
    signed = os.path.lexists(root / ALLOWED_SIGNERS)
    stderr.print(f"next: {verification.edition.verify_command(str(folder), signed=signed)}")
    return 0


def _draft(options: Submit) -> tuple[str, dict[str, Any], bytes | None]:
    """The name of the entry, the content of its manifest, and its source."""
    if not options.authors or options.owner is None:
        raise InputError("an entry needs --author (a name) and --owner (an account on the code host); give both")
    method, source, short = _method(options.method)
    content = options.model_dump(include={"authors", "owner", "licence", "family", "link", "notes"}) | {
        "title": options.title or f"{short} {options.family}",
        "method": method,
        "settings": read_settings(options.settings),
        "budget": {"steps": options.steps, "seconds": options.seconds},
    }
    return options.name or _name(f"{short}-{options.family}"), content, source


def _method(spec: str) -> tuple[dict[str, str], bytes | None, str]:
    """The table `method` of the manifest, the text of the source file, and the name of the method."""
    require_class(spec)
    if ".py:" not in spec:
        return {"name": spec, "version": fsvi_bench.__version__}, None, spec
    path, _, cls = spec.rpartition(":")
    if not is_file(Path(path)):
        raise InputError(f"file {path} does not exist; give the method as path/file.py:Class")
    return {"file": Path(path).name, "class": cls}, read_bounded(Path(path).resolve(), SOURCE_BYTES), cls


def _name(text: str) -> str:
    """The name of a folder from that of a method: `MyMethod-full` -> `my-method-full`."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", text)
    return re.sub(r"[^a-z0-9]+", "-", parted.lower()).strip("-")[:63] or "entry"


def _try(entry: Entry, verification: Verification) -> None:
    """Runs the conformance checks and the first official task of the first two data sets, or the toy network.

    Nothing is written to the leaderboard's folder.

    Raises:
        InputError: a conformance check failed.
        _TrialFailed: a task did not end in a posterior.
    """
    if checks := require_conformance(entry, verification.jail, verification.limits):
        stderr.print(f"{entry.name} passed {checks} conformance checks")
    edition = verification.edition
    first = [TRIAL] if edition.is_networks else [Place("official", dataset, 0) for dataset in edition.datasets[:2]]
    with tempfile.TemporaryDirectory(prefix="fsvi-bench-") as scratch, RichProgress() as progress:
        result = verifying.verify(entry, verification, Path(scratch), make_executor("local", 1), progress, first)
    for cell in result.cells:
        found, scores = cell.reason, cell.scores
        if scores is not None:
            name = "joint_predictive_kl" if isinstance(scores, ShortScores) else "energy_distance_20"
            at = {place: in_words(rounded_off(getattr(scores, f"{name}_{place}"))) for place in ("test", "box")}
            words = name.removesuffix("_20").replace("_", " ")
            found = f"KL {in_words(rounded_off(scores.kl))}, {words} {at['test']} (test), {at['box']} (box)"
        stderr.print(f"{cell.place.name}: {cell.status}, {found}, {cell.seconds:.1f} s")
    if any(cell.status != "ok" for cell in result.cells):
        raise _TrialFailed


def verify(options: Verify) -> int:
    use_one_thread()
    require_ray(options.executor, options.ray_address)
    executor = make_executor(options.executor, options.workers, options.ray_address)
    if (options.datasets or options.ranked or options.official) and not options.check:
        raise InputError("--dataset, --ranked and --official choose what --check runs again; add --check")
    if options.check and options.key:
        raise InputError("--check writes nothing that --key could sign; leave one of them out")
    done: list[_Outcome] = []
    for folder in options.entries:
        try:
            done.append((_checked if options.check else _verified)(folder, executor, options))
        except (InputError, TaskRefused) as error:
            if len(options.entries) == 1:
                raise
            stderr.print(f"fsvi-bench: {error}")  # the remaining entries are still verified
        else:
            if not options.as_json:
                stdout.print(done[-1].table.terminal(), crop=False)
    if options.as_json:
        show(True, [each.document for each in done], str)
    if len(done) < len(options.entries):
        return 2
    return 0 if all(each.good for each in done) else 1


class _Outcome(NamedTuple):
    """What is printed about an entry, and whether all its runs ended, or agree, well."""

    document: Any
    table: Table
    good: bool


def _verified(folder: Path, executor: Executor, options: Verify) -> _Outcome:
    """Verifies one entry, and writes and signs its result."""
    entry, root = read_placed_entry(folder)
    verification = _with_secret(options, root)
    require_key(options.key, root)  # before hours of work, rather than after
    path = result_path(root, verification.edition.name, entry.name)
    with RichProgress() as progress:
        result = verifying.verify(entry, verification, root, executor, progress)
    with contextlib.suppress(InputError):  # there may be no earlier result, or one of other code
        stderr.print(f"{entry.name}: {agreement(compare(read_kept(path, result), result))}")
    write_result(path, result, options.key)
    stderr.print(f"{path}{'' if options.key else ' (unsigned)'}; isolation: {result.isolation}")
    return _Outcome(result, _medians(result), all(cell.status == "ok" for cell in result.cells))


def _checked(folder: Path, executor: Executor, options: Verify) -> _Outcome:
    """Makes the runs that the options choose again, and compares them with the result, which stays as it is."""
    entry, root = read_placed_entry(folder)
    verification = _with_secret(options, root)
    edition = verification.edition
    path = result_path(root, edition.name, entry.name)
    kept = read_kept(path, Version(entry.sha256, edition.sha256))
    datasets, places = options.datasets or edition.datasets, dict.fromkeys(cell.place for cell in kept.cells)
    ranked, official = ([*dict.fromkeys(given)] for given in (options.ranked, options.official))
    chosen = [Place("ranked", name, number) for name in datasets for number in ranked]
    chosen += [Place("official", name, number) for name in datasets for number in official]
    chosen = chosen or [place for place in places if place.dataset in datasets]
    if unknown := [name for name in datasets if name not in edition.datasets]:
        raise unknown_name(f"data set of edition {edition.name}", unknown[0], edition.datasets)
    if missing := [place.name for place in chosen if place not in places]:
        numbers = {place.kind: place.number for place in sorted(places, key=lambda place: place.number)}  # the largest
        called = {"ranked": "ranked tasks", "official": "official splits"}
        held = [f"{called[kind]} 0 to {largest}" for kind, largest in numbers.items()]
        raise InputError(
            f"{path} has no run of {missing[0]}; it has {' and '.join(held)}; change --dataset, --ranked or --official"
        )
    with tempfile.TemporaryDirectory(prefix="fsvi-bench-") as scratch, RichProgress() as progress:
        again = verifying.verify(entry, verification, Path(scratch), executor, progress, chosen)
    found = compare(kept, again)
    stderr.print(f"{entry.name}: {agreement(found)}")
    return _Outcome(
        [each._asdict() for each in found], _side_by_side(entry.name, found), all(each.agrees for each in found)
    )


def _with_secret(options: Verify, root: Path) -> Verification:
    local = _verification(options, root)
    require_hidden(local.jail, [options.secret, options.key, options.networks])
    return replace(
        local,
        secret=read_secret(local.edition, options.secret),
        limits=replace(local.limits, seconds=options.max_seconds),
        networks=options.networks or local.networks,
    )


def _side_by_side(name: str, found: Sequence[Comparison]) -> Table:
    """The main scores of runs in the result and now."""
    networks = isinstance(found[0].again.task, NetworkFacts)
    shown = {"KL": "kl", "energy distance, test": "energy_distance_20_test"}
    if not networks:
        shown = {"KL": "kl", "joint KL, test": "joint_predictive_kl_test", "joint KL, box": "joint_predictive_kl_box"}
    rows: list[list[str | int]] = []
    for each in found:
        kept, again = (dict(cell.scores or {}) for cell in (each.kept, each.again))
        scores = [f"{_digits(kept.get(score))} | {_digits(again.get(score))}" for score in shown.values()]
        rows.append([each.again.place.name, each.again.seed, each.again.status, *scores, f"{each.difference:.1g}"])
    columns = ("run", "seed", "status", *(f"{words}: kept | again" for words in shown), "largest difference")
    return Table(title=f"{name}: scores in its result, and again", columns=columns, rows=rows)


def _digits(score: float | None) -> str:
    return "–" if score is None else f"{score:.7g}"


def _medians(result: Result) -> Table:
    """Median KL by data set, on ranked and on official tasks; of networks the energy distance, which every q has."""
    networks = any(isinstance(cell.task, NetworkFacts) for cell in result.cells)
    name, words = ("energy_distance_20_test", "energy distance") if networks else ("kl", "KL")

    def of(cells: list[Cell]) -> float | None:
        if not cells:
            return None
        return rounded_off(float(median(getattr(cell.scores, name) if cell.scores else math.inf for cell in cells)))

    rows = []
    for dataset in dict.fromkeys(cell.dataset for cell in result.cells):
        here = [cell for cell in result.cells if cell.dataset == dataset]
        ranked, official = ([cell for cell in here if cell.kind == kind] for kind in ("ranked", "official"))
        finished = sum(cell.status == "ok" for cell in ranked)
        rows.append((dataset, f"{finished} of {len(ranked)}", of(ranked), of(official)))
    columns = ("data set", "ranked runs finished", f"{words}, ranked", f"{words}, official")
    return Table(title=f"{result.entry}: medians over runs", columns=columns, rows=rows)
