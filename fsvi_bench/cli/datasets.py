"""`fsvi-bench datasets list|prepare|verify`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fsvi_bench.cli.commands import DatasetsList, DatasetsPrepare, DatasetsVerify
from fsvi_bench.cli.console import show
from fsvi_bench.errors import InputError
from fsvi_bench.presenting.tables import Table
from fsvi_bench.tasks.build import split_indices
from fsvi_bench.tasks.card import AnyCard, Card, ImageCard, all_names, find_card
from fsvi_bench.tasks.images import load_raw_images
from fsvi_bench.tasks.raw import RawData, is_here, load_raw, location
from fsvi_bench.tasks.splits import splits_sha256


def datasets_list(options: DatasetsList) -> None:
    cards = [(card, location(card, options.data_dir)) for card in _cards()]
    document = [{**card.model_dump(mode="json"), "raw_data": where} for card, where in cards]
    rows = [(card.name, card.n, card.D, *_splits_and_target(card), where) for card, where in cards]
    columns = ("name", "n", "D", "splits", "target", "raw data")
    show(options.as_json, document, lambda: Table(columns=columns, rows=rows).terminal())


def datasets_prepare(options: DatasetsPrepare) -> None:
    for card in _cards(options.names):
        if isinstance(card, ImageCard):
            load_raw_images(card, options.data_dir)
        else:
            load_raw(card, 0, options.data_dir)
        print(f"{card.name}: {location(card, options.data_dir)}")


def datasets_verify(options: DatasetsVerify) -> None:
    for card in _cards(options.names):
        if is_here(card, options.data_dir):
            print(f"{card.name}: {_verify(card, options.data_dir)}")
        elif options.names:
            fix = f"download them with: fsvi-bench datasets prepare {card.name}"
            raise InputError(f"the {card.name} data are not available locally; {fix}")
        else:
            print(f"{card.name}: not available locally")


def _cards(names: Sequence[str] = ()) -> list[AnyCard]:
    return [find_card(name) for name in names or all_names()]


def _splits_and_target(card: AnyCard) -> tuple[int | None, str]:
    """The number of splits and what is predicted; images have no splits."""
    if isinstance(card, ImageCard):
        return None, f"class of the image [0 to {card.images.classes - 1}]"
    return card.splits.count, f"{card.target.meaning} [{card.target.unit}]"


def _verify(card: AnyCard, data_dir: Path | None) -> str:
    """Checks local data against their card, and returns what was checked."""
    if isinstance(card, ImageCard):
        load_raw_images(card, data_dir)
        return f"the {card.n} images match the card"
    _require_splits(card, load_raw(card, 0, data_dir))
    return f"the data and {card.splits.count} splits match the card"


def _require_splits(card: Card, raw: RawData) -> None:
    rows = (split_indices(card, split, raw) for split in range(card.splits.count))
    if card.splits.sha256 not in (None, splits_sha256(rows)):
        fix = "fix the card" if card.splits.test_masks else "install a supported version of NumPy"
        raise InputError(f"the {card.splits.count} splits of {card.name} do not match its card; {fix}")
