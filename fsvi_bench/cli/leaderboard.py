"""`fsvi-bench leaderboard init`, `close`, `build`, `serve` and `compare`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict

from rich.table import Table as Terminal

from fsvi_bench.cli import commands
from fsvi_bench.cli.collector import no_garbage_collection
from fsvi_bench.cli.console import show, stderr
from fsvi_bench.errors import InputError, quoted, unknown_name
from fsvi_bench.leaderboard.board import Board, Standing, read_board
from fsvi_bench.leaderboard.edition import PROTOCOLS, close_edition, make_board, read_edition, read_secret
from fsvi_bench.leaderboard.network_tasks import model_of
from fsvi_bench.leaderboard.ranking import FEWEST_DATASETS, Comparison, comparison
from fsvi_bench.leaderboard.site.serve import address, make_server
from fsvi_bench.presenting.tables import Table, Written, in_words, rounded_off
from fsvi_bench.tasks.card import card_names
from fsvi_bench.tasks.official import official_splits


def leaderboard_init(options: commands.LeaderboardInit) -> None:
    networks, root, secret = list(options.networks), options.root, options.secret
    if networks and options.datasets:
        raise InputError("an edition has either data sets or networks, got both; give --dataset or --network")
    for name in networks:
        model_of(name)
    known = [each for each in card_names() if official_splits(each)]
    for name in options.datasets:
        if name not in known:
            raise InputError(f"--dataset {quoted(name)} has no official tasks; choose from {', '.join(known)}")
    names = networks or list(options.datasets or known)
    more = options.model_dump(include={"seeds", "replicated_tasks", "allow_without_isolation"})
    made = make_board(root, options.edition, names, secret, PROTOCOLS[bool(networks)], **more)
    print(root / "editions" / made.name)
    stderr.print(f"{secret} contains the secret that generates the ranked tasks: keep it safe, and out of git")
    if networks:
        words = ["--edition", made.name, "--secret", str(secret), "--root", str(root), "--out", "DIR"]
        stderr.print(f"next: {shlex.join(['fsvi-bench', 'networks', 'build', *words])}")


def leaderboard_close(options: commands.LeaderboardClose) -> None:
    edition = read_edition(options.root, options.edition)
    close_edition(options.root, edition, read_secret(edition, options.secret))
    print(f"edition {edition.name} is closed")


@no_garbage_collection()
def leaderboard_build(options: commands.LeaderboardBuild) -> None:
    from fsvi_bench.leaderboard.site.build import (
        SITE,
        build_site,
    )  # the import takes seconds, which other commands do not need

    root, out = options.root, options.out or options.root / SITE
    with stderr.status("drawing the pages of entries, about a second each"):  # a spinner; nothing without a terminal
        board, files = build_site(root, out, options.edition)
    for each in board.standings:
        if each.stale is not None:
            renewed = board.edition.verify_command(str(root / "entries" / each.name), signed=board.signed)
            stderr.print(f"{each.name} has no valid result: {each.stale}; run: {renewed}")
    for refused in board.refused:
        stderr.print(f"{refused.name} was refused: {refused.problem}")
    if all(each.result is None for each in board.standings):
        stderr.print("the leaderboard has no valid result yet: its tables are empty until you run fsvi-bench verify")
    serve = shlex.join(["fsvi-bench", "leaderboard", "serve", "--site", str(out)])
    stderr.print(f"{len(files)} files written; open index.html in a browser, or run: {serve}")
    print(out / "index.html")


def leaderboard_serve(options: commands.LeaderboardServe) -> None:
    from fsvi_bench.leaderboard.site.build import SITE

    with make_server(options.site or options.root / SITE, options.port) as server:
        print(address(server), flush=True)
        stderr.print("Press Ctrl-C to stop.")
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def leaderboard_compare(options: commands.LeaderboardCompare) -> None:
    a, b = options.a, options.b
    if a == b:
        raise InputError(f"{a} is given twice; name two different entries")
    board = read_board(options.root, options.edition)
    first, second = (_with_result(board, name) for name in (a, b))
    found = comparison(board, first, second)
    show(options.as_json, {"a": a, "b": b, **asdict(found)}, lambda: _comparison_table(found, a, b))


def _with_result(board: Board, name: str) -> Standing:
    by_name = {each.name: each for each in board.standings}
    if name not in by_name:
        raise unknown_name(f"entry of edition {board.edition.name}", name, by_name)
    if by_name[name].result is None:
        raise InputError(f"{name} has no valid scores: {by_name[name].stale}; run `fsvi-bench verify` first")
    return by_name[name]


def _comparison_table(found: Comparison, a: str, b: str) -> Terminal:
    rows = [
        (each.dataset, _medians(each.a), _medians(each.b), each.log_ratio, " to ".join(map(in_words, each.interval)))
        for each in found.differences
    ]
    closer = [sum(sign * each.log_ratio < 0 for each in found.differences) for sign in (1, -1)]
    title = f"{' / '.join(found.scores)}: medians over ranked runs; log ratio: mean of log10({a}/{b}), clipped to ±1. "
    title += f"Lower is better: {a} is ahead on {closer[0]} and {b} on {closer[1]} of {len(rows)} data sets. "
    if found.p_value is None:
        title += f"No p-value: Wilcoxon's test over data sets needs at least {FEWEST_DATASETS} ranked ones"
    else:
        title += f"Over the ranked data sets: p = {in_words(found.p_value, 3)} (Wilcoxon's test)"
    return Table(title=title, columns=("data set", a, b, "log ratio", "95% interval"), rows=rows).terminal()


def _medians(scores: Sequence[float]) -> Written:
    return Written(scores[0], " / ".join(in_words(rounded_off(score)) for score in scores))
