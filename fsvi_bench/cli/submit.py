"""`fsvi-bench submit`."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fsvi_bench.arithmetic import use_kernels
from fsvi_bench.cli.leaderboard import EditionName, Root, WithoutIsolation
from fsvi_bench.cli.options import DataDir

if TYPE_CHECKING:
    from fsvi_bench.leaderboard.entry import Entry
    from fsvi_bench.leaderboard.verifying import Verification


def submit(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="A built-in method, or path/file.py:Class; with --check, an entry's folder.")],
    family: Annotated[str, typer.Option("--family", help="full, ffg, bernoulli or spike-slab.")] = "full",
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting; may be repeated.")] = None,
    steps: Annotated[int, typer.Option("--steps", min=0, help="Budget: steps of training one task, at most.")] = 15_000,
    seconds: Annotated[float, typer.Option("--seconds", help="Budget: seconds of it on your hardware.")] = 120.0,
    author: Annotated[list[str] | None, typer.Option("--author", help="Who made it; may be repeated.")] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Your account on the forge.")] = None,
    licence: Annotated[str, typer.Option("--licence", "--license", help="Of the source, as an SPDX expression.")] = "MIT",
    title: Annotated[str | None, typer.Option("--title", help="In tables. Default: the class and the family.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Of the entry's folder. Default: from method and family.")] = None,
    link: Annotated[str | None, typer.Option("--link", help="https:// address of a paper or repository.")] = None,
    notes: Annotated[str, typer.Option("--notes", help="What readers should know, the hardware included.")] = "",
    check: Annotated[bool, typer.Option("--check", help="Write nothing: hold an entry that is there to the same.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Write anew an entry that is there.")] = False,
    root: Root = Path("leaderboard"),
    edition: EditionName = None,
    without_isolation: WithoutIsolation = False,
    data_dir: DataDir = None,
) -> int:  # fmt: skip
    """Make an entry: code and settings. Its method is held to the rules in the jail, and runs two tasks."""
    use_kernels("portable")
    from fsvi_bench.cli.console import stderr, stdout
    from fsvi_bench.cli.leaderboard import local_verification
    from fsvi_bench.errors import InputError
    from fsvi_bench.leaderboard.board import read_entries, read_placed_entry, require_identity, write_entry
    from fsvi_bench.running.executors import use_one_thread
    from fsvi_bench.running.settings import parse_setting

    use_one_thread()
    if check:
        entry, root = read_placed_entry(Path(method))
        verification = local_verification(root, edition, without_isolation, data_dir)
        require_identity(entry, read_entries(root)[0])
        _conforms(entry, verification)
    else:
        if not author or owner is None:
            raise InputError(
                "an entry says by whom it is; give --author (a name) and --owner (an account on the forge)"
            )
        verification = local_verification(root, edition, without_isolation, data_dir)
        its, source, words = _method(method)
        content = {
            "title": title or f"{words} {family}", "authors": author, "owner": owner, "licence": licence,
            "family": family, "link": link, "notes": notes, "method": its,
            "settings": dict(map(parse_setting, settings or ())), "budget": {"steps": steps, "seconds": seconds},
        }  # fmt: skip
        name = name or _name(f"{words}-{family}")
        entry = write_entry(root, name, content, source, replace, lambda made: _conforms(made, verification))
    folder = root / "entries" / entry.name
    passed = _tried(entry, verification, root)
    stdout.print(str(folder), soft_wrap=True)
    secret = " --secret FILE" if verification.edition.status == "open" else ""
    stderr.print(f"next: fsvi-bench verify {shlex.quote(str(folder))}{secret}", soft_wrap=True)
    if not passed:
        stderr.print("a trial failed; mend the method and submit it again with --replace, or remove the entry")
    return 0 if passed else 1


def _method(spec: str) -> tuple[dict[str, str], bytes | None, str]:
    """What the entry says of its method, the file's text, and the method's name."""
    import fsvi_bench
    from fsvi_bench.errors import InputError
    from fsvi_bench.files import read_bounded
    from fsvi_bench.leaderboard.entry import SOURCE_BYTES

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
    from fsvi_bench.cli.console import stderr
    from fsvi_bench.leaderboard.jailed.run import require_conformance

    if checks := require_conformance(entry, verification.jail, verification.limits):
        stderr.print(f"{entry.name} keeps {checks} rules")


def _tried(entry: Entry, verification: Verification, root: Path) -> bool:
    """Runs two official tasks; whether both came to a posterior."""
    from fsvi_bench.cli.console import stderr
    from fsvi_bench.cli.progress import RichProgress
    from fsvi_bench.leaderboard.ranked_tasks import Place
    from fsvi_bench.leaderboard.verifying import verify
    from fsvi_bench.presenting.tables import in_words
    from fsvi_bench.running.executors import make_executor

    first = [Place("official", dataset, 0) for dataset in verification.edition.datasets[:2]]
    with RichProgress() as progress:
        result = verify(entry, verification, root, make_executor("local", 1), progress, first)
    for cell in result.cells:
        box = None if cell.scores is None else in_words(cell.scores.predictive_kl_box)
        said = cell.reason if cell.scores is None else f"KL {in_words(cell.scores.kl)}, over the input box {box}"
        stderr.print(f"{cell.place.name}: {cell.status}, {said}, {cell.seconds:.1f} s")
    return all(cell.status == "ok" for cell in result.cells)
