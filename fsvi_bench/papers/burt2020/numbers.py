"""What figures 1 to 4 of Burt et al. (2020) share: the numbers behind their marks, and words for settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict

from fsvi_bench.files import canonical_json
from fsvi_bench.methods.registry import load_method
from fsvi_bench.papers.places import Place
from fsvi_bench.posteriors.base import Family
from fsvi_bench.presenting.summary import Row, summarise
from fsvi_bench.running.cell import Record

JITTER = "kl_jitter"


class Settled(Protocol):
    """What has settings: a record, a place, a row."""

    @property
    def method(self) -> str: ...

    @property
    def hyperparameters(self) -> Mapping[str, Any]: ...


class Numbers(BaseModel):
    """Part of a figure's JSON file."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


class CellNumbers(Numbers):
    """One record, without what the figure does not need."""

    dataset: str
    split: int
    seed: int
    method: str
    family: Family
    hyperparameters: dict[str, Any]
    task_sha256: str | None
    cell: str
    status: str
    reason: str | None
    kl: float | None
    kl_mean_term: float | None
    nlpd: float | None


class RowNumbers(Numbers):
    """One mark of each panel: mean and standard error over splits; null where nothing finished.

    `cells` have a record, `finished` of these have scores, and `missing` more have yet to be computed.
    """

    dataset: str
    method: str
    family: Family
    hyperparameters: dict[str, Any]
    cells: int
    finished: int
    missing: int
    kl: dict[str, float | None] | None
    nlpd: dict[str, float | None] | None


class ScoreNumbers(Numbers):
    """A figure of scores: KL in nats, NLPD in nats per test point in the target's original unit."""

    format: Literal["fsvi-reproduction/1"] = "fsvi-reproduction/1"
    figure: str
    quick: bool
    rows: list[RowNumbers]
    cells: list[CellNumbers]


def cell_numbers(record: Record) -> CellNumbers:
    """A record as it stands in a figure's numbers."""
    scores = {name: getattr(record.scores, name, None) for name in ("kl", "kl_mean_term", "nlpd")}
    return CellNumbers.model_validate(
        {name: getattr(record, name) for name in CellNumbers.model_fields if name not in scores} | scores
    )


def rows_of(records: Sequence[Record], missing: Sequence[Place]) -> list[tuple[Row, int]]:
    """Rows with how many of their cells are missing; a row of which all are has no estimates."""
    lacking = Counter(map(_key, missing))
    rows = [(row, lacking.pop(_key(row), 0)) for row in summarise(records)]
    for place in missing:
        if count := lacking.pop(_key(place), 0):
            rows.append((_row_of(place), count))
    return rows


def row_numbers(row: Row, missing: int) -> RowNumbers:
    """A row as it stands in a figure's numbers."""
    estimates = {name: asdict(row.scores[name]) if name in row.scores else None for name in ("kl", "nlpd")}
    return RowNumbers(
        dataset=row.dataset,
        method=row.method,
        family=row.family,  # type: ignore[arg-type]
        hyperparameters=row.hyperparameters,
        cells=row.cells,
        finished=row.finished,
        missing=missing,
        **estimates,
    )


def title_of(method: str) -> str:
    """A method's name in print."""
    return load_method(method).defaults.title


def is_jittered(hyperparameters: Mapping[str, Any]) -> bool:
    """Whether the functional KL had jitter in training."""
    return bool(hyperparameters.get(JITTER, 0))


def jitter_label(settings: Sequence[Mapping[str, Any]]) -> str:
    """The jitters there are, such as `1e-6`."""
    jitters = {each[JITTER] for each in settings if is_jittered(each)}
    return " or ".join(f"{value:g}".replace("e-0", "e-") for value in sorted(jitters)) or "none"


def budget(of: Sequence[Settled], quick: bool) -> str:
    """What the settings say about measurement points, minibatches and steps, in a few words; nothing of what none has.

    `minibatch: M` ties both sizes together, as in the paper: what M does and what the minibatch does cannot be told
    apart, so the words name both.
    """
    settings = [each.hyperparameters for each in of]
    tied = {each.method: each.hyperparameters.get("minibatch") == "M" for each in of if "M" in each.hyperparameters}
    names, whole = "", ""
    if any(tied.values()):
        names = "|A| = minibatch = "
        whole = "; ".join(title_of(method) for method, is_tied in tied.items() if not is_tied)
    sizes = [f"{names}M = {values(settings, 'M')}" + (f" ({whole}: all rows)" if whole else "")] if tied else []
    words = ", ".join([*sizes, *steps_in_words(of)])
    return f"{words} (quick look: the paper takes more)" if quick and words else words


def steps_in_words(of: Sequence[Settled]) -> list[str]:
    """The steps that most methods may take, and which take others; nothing if none takes steps."""
    takers: dict[int, list[str]] = {}
    for each in of:
        if "max_steps" in each.hyperparameters:
            names = takers.setdefault(int(str(each.hyperparameters["max_steps"])), [])
            names.extend([] if each.method in names else [each.method])
    if not takers:
        return []
    usual = max(takers, key=lambda steps: len(takers[steps]))
    others = [f"{title_of(name)}: {steps:,}" for steps, names in takers.items() if steps != usual for name in names]
    return [f"up to {usual:,} steps" + (f" ({'; '.join(others)})" if others else "")]


def values(settings: Sequence[Mapping[str, Any]], option: str) -> str:
    """An option's values, in the order of their first appearance."""
    found = dict.fromkeys(each[option] for each in settings if option in each)
    return " or ".join(f"{value:,}" if isinstance(value, int) else str(value) for value in found) or "–"


def incompleteness(missing: Sequence[Place]) -> str:
    """What a title adds where cells have yet to be computed."""
    return f"; {len(missing):,} cells still missing" if missing else ""


def _row_of(place: Place) -> Row:
    return Row(place.dataset, place.method, place.family, dict(place.hyperparameters), 0, 0, 0, {})


def _key(of: Row | Place) -> tuple[str, str, str, str]:
    return of.dataset, of.method, of.family, canonical_json(of.hyperparameters)
