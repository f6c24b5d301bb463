"""`fsvi-bench leaderboard build`, `serve` and `freeze`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fsvi_bench.cli.collector import no_garbage_collection
from fsvi_bench.cli.options import DataDir

app = typer.Typer(no_args_is_help=True, help="Make the leaderboard's site, look at it, freeze its references.")
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
        files = build_site(root, out)
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
