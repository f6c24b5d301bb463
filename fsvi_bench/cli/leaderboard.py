"""`fsvi-bench leaderboard init`, `close`, `build`, `serve` and `compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fsvi_bench.cli.collector import no_garbage_collection
from fsvi_bench.cli.options import AsJson

if TYPE_CHECKING:
    from fsvi_bench.leaderboard.board import Board, Standing
    from fsvi_bench.leaderboard.ranking import Comparison
    from fsvi_bench.leaderboard.verifying import Verification
    from fsvi_bench.presenting.tables import Table

app = typer.Typer(no_args_is_help=True, help="Make a leaderboard, its site, and compare entries.")
DEFAULT_PORT = 8000
DATASETS = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht")

Root = Annotated[Path, typer.Option("--root", help="The leaderboard's folder, which holds entries/ and editions/.")]
EditionName = Annotated[str | None, typer.Option("--edition", help="Default: the latest one.")]
WithoutIsolation = Annotated[
    bool, typer.Option("--without-isolation", help="Run code that you trust without a jail; the result says so.")
]


def local_verification(root: Path, edition: str | None, without_isolation: bool, data_dir: Path | None) -> Verification:
    """An edition of a leaderboard's folder, without its secret, and the jail of this machine."""
    from fsvi_bench.leaderboard.edition import read_edition
    from fsvi_bench.leaderboard.jailed.jail import Jail, require_jail
    from fsvi_bench.leaderboard.verifying import Verification

    jail = Jail(None) if without_isolation else require_jail()
    return Verification(read_edition(root, edition), None, jail, data_dir=data_dir)


@app.command("init")
def init(
    secret: Annotated[Path, typer.Option("--secret", help="Where the edition's secret goes; keep it out of git.")],
    root: Root = Path("leaderboard"),
    edition: Annotated[str, typer.Option("--edition", help="Its name.")] = "v1",
    dataset: Annotated[list[str] | None, typer.Option("--dataset", help="May be repeated. Default: all nine.")] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=20, help="Of each entry on each ranked task.")] = 1,
    allow_without_isolation: Annotated[
        bool, typer.Option("--allow-without-isolation", help="Rank what `verify --without-isolation` makes, too.")
    ] = False,
) -> int:
    """Make a leaderboard of your own, or a further edition of one, with a fresh secret."""
    from fsvi_bench.cli.console import stderr, stdout
    from fsvi_bench.errors import InputError
    from fsvi_bench.leaderboard.edition import make_board
    from fsvi_bench.tasks.official import official_splits

    names = list(dataset or DATASETS)
    for name in names:
        if not official_splits(name):
            raise InputError(f"'{name}' has no official tasks; choose among {', '.join(DATASETS)}")
    more = {"seeds": seeds, "allow_without_isolation": allow_without_isolation}
    made = make_board(root, edition, names, secret, **more)
    stdout.print(str(root / "editions" / made.name), soft_wrap=True)
    stderr.print(f"{secret} holds its secret, which its ranked tasks come from: keep it, and keep it out of git")
    return 0


@app.command("close")
def close(
    secret: Annotated[Path, typer.Option("--secret", help="The file of the edition's secret.")],
    root: Root = Path("leaderboard"),
    edition: EditionName = None,
) -> int:
    """Publish an edition's secret: from then on anyone can make its tasks and numbers again."""
    from fsvi_bench.cli.console import stdout
    from fsvi_bench.leaderboard.edition import close_edition, read_edition, read_secret

    read = read_edition(root, edition)
    close_edition(root, read, read_secret(read, secret))
    stdout.print(f"edition {read.name} is closed", soft_wrap=True)
    return 0


@app.command("build")
def build(
    root: Root = Path("leaderboard"),
    edition: EditionName = None,
    out: Annotated[Path | None, typer.Option("--out", help="Where the site goes. Default: ROOT/site.")] = None,
) -> int:
    """Make a static site of the entries and their results; equal folders give equal files."""
    with no_garbage_collection():
        from fsvi_bench.cli.console import stderr, stdout
        from fsvi_bench.leaderboard.site.build import SITE, build_site

        out = root / SITE if out is None else out
        board, files = build_site(root, out, edition)
    for each in board.standings:
        if each.stale is not None:
            renewed = f"fsvi-bench verify {root / 'entries' / each.name}"
            stderr.print(f"{each.name} has no result that counts: {each.stale}; renew it: {renewed}", soft_wrap=True)
    for refused in board.refused:
        stderr.print(f"{refused.name} is not shown: {refused.problem}", soft_wrap=True)
    stderr.print(f"{len(files)} files; open the first in a browser, or: fsvi-bench leaderboard serve --site {out}")
    stdout.print(str(out / "index.html"), soft_wrap=True)
    return 0


@app.command("serve")
def serve(
    root: Root = Path("leaderboard"),
    site: Annotated[Path | None, typer.Option("--site", help="The built site's folder. Default: ROOT/site.")] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = DEFAULT_PORT,
) -> int:
    """Show a built site on this machine alone, until Ctrl-C."""
    import sys

    from fsvi_bench.cli.console import stderr
    from fsvi_bench.leaderboard.site.build import SITE
    from fsvi_bench.leaderboard.site.serve import address, make_server

    server = make_server(root / SITE if site is None else site, port)
    print(address(server))
    sys.stdout.flush()
    stderr.print("Ctrl-C ends it.")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
    return 0


@app.command("compare")
def compare(
    a: Annotated[str, typer.Argument(help="An entry's name, which is its folder's.")],
    b: Annotated[str, typer.Argument(help="Another's.")],
    root: Root = Path("leaderboard"),
    edition: EditionName = None,
    json: AsJson = False,
) -> int:
    """Two entries by data set, paired over the ranked runs: by their track's headline, else by box inputs."""
    from dataclasses import asdict

    from pydantic_core import from_json, to_json

    from fsvi_bench.cli.console import print_json, stdout
    from fsvi_bench.errors import InputError
    from fsvi_bench.leaderboard.board import read_board
    from fsvi_bench.leaderboard.ranking import comparison

    if a == b:
        raise InputError(f"{a} beside itself says nothing; name two entries")
    board = read_board(root, edition)
    first, second = (_with_result(board, name) for name in (a, b))
    found = comparison(board, first, second)
    if json:
        print_json(from_json(to_json({"a": a, "b": b, **asdict(found)}, inf_nan_mode="strings")))
        return 0
    if first.track != second.track:
        stdout.print(
            f"{a} is in track {first.track} and {b} in {second.track}, whose headlines differ: compared by predictive "
            "KL, which every posterior has.",
            soft_wrap=True,
        )
    stdout.print(_comparison_table(found, a, b).terminal())
    return 0


def _with_result(board: Board, name: str) -> Standing:
    from fsvi_bench.errors import InputError, unknown_name

    by_name = {each.name: each for each in board.standings}
    if name not in by_name:
        raise unknown_name("entry", name, by_name)
    if by_name[name].result is None:
        raise InputError(f"{name} has no scores to compare: {by_name[name].stale}; verify it first")
    return by_name[name]


def _comparison_table(found: Comparison, a: str, b: str) -> Table:
    from fsvi_bench.presenting import tables

    rows = [
        (
            each.dataset,
            each.a,
            each.b,
            each.log_ratio,
            "–" if each.interval is None else " to ".join(map(tables.in_words, each.interval)),
        )
        for each in found.differences
    ]
    title = f"{found.score}: medians over ranked runs; mean of log10({a}/{b}), each run within ±1. Over data sets: p = "
    columns = ("data set", a, b, "log ratio", "95 % interval")
    return tables.Table(
        title=f"{title}{tables.in_words(found.p_value, 3)} (Wilcoxon)", columns=columns, rows=tuple(rows)
    )
