"""`fsvi-bench leaderboard build`, `serve`, `compare` and `freeze`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fsvi_bench.cli.collector import no_garbage_collection
from fsvi_bench.cli.options import AsJson, DataDir

if TYPE_CHECKING:
    from rich.table import Table

    from fsvi_bench.leaderboard.comparing import Comparison
    from fsvi_bench.leaderboard.entries import Entry

app = typer.Typer(no_args_is_help=True, help="Make the leaderboard's site, look at it, compare entries.")
DEFAULT_PORT = 8000

Root = Annotated[Path, typer.Option("--root", help="The leaderboard's folder, which holds submissions/.")]


@app.command("build")
def build(
    root: Root = Path("leaderboard"),
    out: Annotated[Path | None, typer.Option("--out", help="Where the site goes. Default: ROOT/site.")] = None,
) -> int:
    """Make a static site of the submissions and what the verifier found; equal folders give equal files."""
    with no_garbage_collection():
        from fsvi_bench.cli.console import stderr, stdout
        from fsvi_bench.leaderboard.site.build import SITE, build_site

        out = root / SITE if out is None else out
        files, without_scores = build_site(root, out)
    for sentence in without_scores:
        stderr.print(f"shown without scores: {sentence}", soft_wrap=True)
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
    json: AsJson = False,
) -> int:
    """Two verified entries by data set, paired over splits: by their track's headline, else by box inputs."""
    from dataclasses import asdict

    from fsvi_bench.cli.console import print_json, stdout
    from fsvi_bench.leaderboard.comparing import comparison
    from fsvi_bench.leaderboard.entries import read_entries
    from fsvi_bench.leaderboard.references import references_of
    from fsvi_bench.leaderboard.site.data import plain

    entries = read_entries(root).entries
    first, second = _verified(entries, a), _verified(entries, b)
    found = comparison(first, second, references_of(root))
    if json:
        print_json({"a": a, "b": b, **plain(asdict(found))})
        return 0
    tracks = [each.manifest.track for each in (first, second)]
    if len(set(tracks)) == 2:
        stdout.print(
            f"{a} is in track {tracks[0]} and {b} in {tracks[1]}, whose headlines differ: compared by predictive KL, "
            "which every posterior has.",
            soft_wrap=True,
        )
    stdout.print(_comparison_table(found, a, b))
    return 0


def _verified(entries: list[Entry], name: str) -> Entry:
    from fsvi_bench.errors import InputError, unknown_name

    by_name = {entry.name: entry for entry in entries}
    if name not in by_name:
        raise unknown_name("entry", name, by_name)
    if by_name[name].verification is None:
        raise InputError(f"{name} has no scores to compare: {by_name[name].note}")
    return by_name[name]


def _comparison_table(found: Comparison, a: str, b: str) -> Table:
    from fsvi_bench.leaderboard.comparing import BOUND, LEVEL
    from fsvi_bench.leaderboard.rows import CLOSED_FORM
    from fsvi_bench.leaderboard.site.tables import SCORES
    from fsvi_bench.presenting import tables

    closer = {"a": a, "b": b, None: ""}
    rows = [
        [
            each.dataset,
            *("missing" if mean is None else mean for mean in (each.a, each.b)),
            each.log_ratio,
            "–" if each.interval is None else " to ".join(map(tables.in_words, each.interval)),
            each.p_value,
            each.adjusted,
            closer[each.closer],
        ]
        for each in found.differences
    ]
    headings = ["data set", a, b, "log ratio", "95 % interval", "p", "p (Holm)", "closer"]
    table = tables.Table(title=SCORES[found.score], columns=tuple(headings), rows=tuple(map(tuple, rows))).terminal()
    table.caption = CAPTION.format(least=CLOSED_FORM, bound=BOUND, level=LEVEL)
    table.caption_justify = "left"
    return table


CAPTION = (
    "Scores are means over splits, lower is closer. Log ratio: mean over splits of log10 of the first’s score by the "
    "second’s, each counted as {least:g} nats at least, and each split within ±{bound:g} (ten times nearer or more, an "
    "infinite score included): no split outweighs the others, as it may in the means. p: the corrected paired t test "
    "of it. “Closer” is said where p (Holm) is at most {level:g}."
)


@app.command("freeze")
def freeze(
    root: Root = Path("leaderboard"),
    dataset: Annotated[
        list[str] | None,
        typer.Option("--dataset", help="Data set; may be repeated. Default: the protocol’s that have tasks."),
    ] = None,
    data_dir: DataDir = None,
) -> int:
    """Write ROOT/reference.json: what the exact posterior, the factorised floor, the MAP and RANDA reach."""
    from fsvi_bench.cli.console import stdout
    from fsvi_bench.leaderboard.entries import read_entries
    from fsvi_bench.leaderboard.references import REFERENCE_FILE, write_references
    from fsvi_bench.leaderboard.references import freeze as freeze_references
    from fsvi_bench.leaderboard.submission import PROTOCOL
    from fsvi_bench.running.executors import use_one_thread
    from fsvi_bench.running.plan import load_protocol
    from fsvi_bench.tasks.official import official_splits, official_tasks

    use_one_thread()
    names = dataset or [name for name in load_protocol(PROTOCOL).datasets if official_splits(name)]
    references = freeze_references(official_tasks(names, data_dir), read_entries(root).entries)
    write_references(root / REFERENCE_FILE, references)
    stdout.print(str(root / REFERENCE_FILE), soft_wrap=True)
    return 0
