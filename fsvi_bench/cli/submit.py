"""`fsvi-bench submit`."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import fsvi_bench
from fsvi_bench.cli.commands import Submit
from fsvi_bench.cli.console import stderr
from fsvi_bench.cli.leaderboard import local_verification
from fsvi_bench.cli.progress import RichProgress
from fsvi_bench.errors import InputError
from fsvi_bench.files import read_bounded
from fsvi_bench.leaderboard.board import read_entries, read_placed_entry, require_identity
from fsvi_bench.leaderboard.entry import SOURCE_BYTES, Entry
from fsvi_bench.leaderboard.ranked_tasks import Place
from fsvi_bench.leaderboard.submitting import Draft, require_conformance, write_entry
from fsvi_bench.leaderboard.verifying import Verification, verify
from fsvi_bench.presenting.tables import in_words
from fsvi_bench.running.executors import make_executor
from fsvi_bench.running.settings import parse_setting
from fsvi_bench.threads import use_one_thread


def submit(options: Submit) -> int:
    use_one_thread()
    if options.check:
        entry, root = read_placed_entry(Path(options.method))
        verification = local_verification(options, root)
        require_identity(entry, read_entries(root)[0])
        _conforms(entry, verification)
    else:
        root, draft = options.root, _draft(options)
        verification = local_verification(options, root)
        entry = write_entry(draft, root, options.replace, lambda made: _conforms(made, verification))
    folder = root / "entries" / entry.name
    passed = _tried(entry, verification, root)
    print(folder)
    secret = " --secret FILE" if verification.edition.status == "open" else ""
    stderr.print(f"next: fsvi-bench verify {shlex.quote(str(folder))}{secret}")
    if not passed:
        stderr.print("a trial failed; mend the method and submit it again with --replace, or remove the entry")
    return 0 if passed else 1


def _draft(options: Submit) -> Draft:
    if not options.authors or options.owner is None:
        raise InputError("an entry says by whom it is; give --author (a name) and --owner (an account on the forge)")
    method, source, words = _method(options.method)
    content = options.model_dump(include={"authors", "owner", "licence", "family", "link", "notes"}) | {
        "title": options.title or f"{words} {options.family}",
        "method": method,
        "settings": dict(map(parse_setting, options.settings)),
        "budget": {"steps": options.steps, "seconds": options.seconds},
    }
    return Draft(options.name or _name(f"{words}-{options.family}"), content, source)


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
    if checks := require_conformance(entry, verification):
        stderr.print(f"{entry.name} keeps {checks} rules")


def _tried(entry: Entry, verification: Verification, root: Path) -> bool:
    """Runs two official tasks; whether both came to a posterior."""
    first = [Place("official", dataset, 0) for dataset in verification.edition.datasets[:2]]
    with RichProgress() as progress:
        result = verify(entry, verification, root, make_executor("local", 1), progress, first)
    for cell in result.cells:
        said, scores = cell.reason, cell.scores
        if scores is not None:
            said = f"KL {in_words(scores.kl)}, over the input box {in_words(scores.predictive_kl_box)}"
        stderr.print(f"{cell.place.name}: {cell.status}, {said}, {cell.seconds:.1f} s")
    return all(cell.status == "ok" for cell in result.cells)
