"""`fsvi-bench datasets list|prepare|verify`."""

from __future__ import annotations

from typing import Annotated

import typer

from fsvi_bench.cli.options import AsJson, DataDir

app = typer.Typer(no_args_is_help=True, help="Data sets: what there is, fetch it, check it.")
Names = Annotated[list[str] | None, typer.Argument(help="Data sets; default: all.")]


@app.command("list")
def list_datasets(data_dir: DataDir = None, json: AsJson = False) -> int:
    """Every data set with its size, target and where its raw data are."""
    from fsvi_bench.cli.console import print_json, stdout
    from fsvi_bench.presenting.tables import Table
    from fsvi_bench.tasks.card import card_names, load_card
    from fsvi_bench.tasks.raw import whereabouts

    cards = [load_card(name) for name in card_names()]
    places = [whereabouts(card, data_dir) for card in cards]
    if json:
        pairs = zip(cards, places, strict=True)
        print_json([{**card.model_dump(mode="json"), "raw_data": where} for card, where in pairs])
        return 0
    rows = [
        (card.name, card.n, card.D, card.splits.count, f"{card.target.meaning} [{card.target.unit}]", where)
        for card, where in zip(cards, places, strict=True)
    ]
    columns = ("name", "n", "D", "splits", "target", "raw data")
    stdout.print(Table(title="", columns=columns, rows=tuple(rows)).terminal())
    return 0


@app.command()
def prepare(names: Names = None, data_dir: DataDir = None) -> int:
    """Find or download raw data and check their SHA-256."""
    from fsvi_bench.cli.console import stdout
    from fsvi_bench.tasks.card import card_names, load_card
    from fsvi_bench.tasks.raw import load_raw, whereabouts

    cards = [load_card(name) for name in names or card_names()]
    for card in cards:
        load_raw(card, 0, data_dir)
        stdout.print(f"{card.name}: {whereabouts(card, data_dir)}", soft_wrap=True)
    return 0


@app.command()
def verify(names: Names = None, data_dir: DataDir = None) -> int:
    """Check SHA-256, size and standard splits of the raw data that are here (nothing is downloaded)."""
    from fsvi_bench.cli.console import stdout
    from fsvi_bench.errors import InputError
    from fsvi_bench.tasks.card import card_names, load_card
    from fsvi_bench.tasks.raw import is_here, load_raw
    from fsvi_bench.tasks.splits import splits_sha256

    cards = [load_card(name) for name in names or card_names()]
    for card in cards:
        if not is_here(card, data_dir):
            if names:
                raise InputError(
                    f"the {card.name} data are not here; fetch them with: fsvi-bench datasets prepare {card.name}"
                )
            stdout.print(f"{card.name}: not here")
            continue
        load_raw(card, 0, data_dir)
        if card.splits.sha256 not in (None, splits_sha256(card.n, card.splits.count)):
            raise InputError(
                f"the {card.splits.count} splits of {card.name} differ from its card's; is this NumPy's RandomState?"
            )
        stdout.print(f"{card.name}: data and {card.splits.count} splits are as its card says")
    return 0
