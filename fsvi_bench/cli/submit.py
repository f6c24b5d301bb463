"""`fsvi-bench submit`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fsvi_bench.arithmetic import use_kernels
from fsvi_bench.cli.leaderboard import EditionName, Root, WithoutIsolation
from fsvi_bench.cli.options import DataDir


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
    from fsvi_bench.cli.progress import RichProgress
    from fsvi_bench.errors import InputError
    from fsvi_bench.leaderboard.board import read_entries, require_identity
    from fsvi_bench.leaderboard.entry import read_entry
    from fsvi_bench.leaderboard.submitting import Draft, require_conformance, trial_places, write_entry
    from fsvi_bench.leaderboard.verifying import verify
    from fsvi_bench.running.executors import make_executor, use_one_thread

    use_one_thread()
    if check:
        entry, root = read_entry(Path(method)), Path(method).absolute().parent.parent
        require_identity(entry, [other for other in read_entries(root)[0] if other.name != entry.name])
    elif not author or owner is None:
        raise InputError("an entry says by whom it is; give --author (a name) and --owner (an account on the forge)")
    else:
        its, source, words = _method(method)
        content = {
            "title": title or f"{words} {family}", "authors": author, "owner": owner, "licence": licence,
            "family": family, "link": link, "notes": notes or None, "method": its, "settings": _settings(settings),
            "budget": {"steps": steps, "seconds": seconds},
        }  # fmt: skip
    verification = local_verification(root, edition, without_isolation, data_dir)
    if not check:
        entry = write_entry(Draft(name or _name(words, family), content, source), root, replace)
    folder = root / "entries" / entry.name
    if checks := require_conformance(entry, verification):
        stderr.print(f"{entry.name} keeps {checks} rules")
    with RichProgress() as progress:
        result = verify(entry, verification, root, make_executor("local", 1), progress, trial_places(verification))
    for cell in result.cells:
        said = cell.reason if cell.scores is None else f"KL {cell.scores.kl:.6g}, box {cell.scores.predictive_kl_box}"
        stderr.print(f"{cell.place.name}: {cell.status}, {said}, {cell.seconds:.1f} s")
    stdout.print(str(folder), soft_wrap=True)
    stderr.print(f"next: fsvi-bench verify {shlex.quote(str(folder))}")
    return 0 if all(cell.status == "ok" for cell in result.cells) else 1


def _method(spec: str) -> tuple[dict[str, str], bytes | None, str]:
    """What the entry says of its method, the file's text, and the method's name."""
    import fsvi_bench
    from fsvi_bench.errors import InputError
    from fsvi_bench.leaderboard.entry import SOURCE_BYTES, read_bounded

    if ".py:" not in spec:
        return {"name": spec, "version": fsvi_bench.__version__}, None, spec
    path, _, cls = spec.rpartition(":")
    if not Path(path).is_file():
        raise InputError(f"there is no file {path}; give the method as path/file.py:Class")
    return {"file": Path(path).name, "class": cls}, read_bounded(Path(path).resolve(), SOURCE_BYTES), cls


def _settings(settings: list[str] | None) -> dict[str, object]:
    from fsvi_bench.running.settings import parse_setting

    return dict(parse_setting(text) for text in settings or ())


def _name(words: str, family: str) -> str:
    from fsvi_bench.leaderboard.submitting import as_name

    return as_name(f"{words}-{family}")
