"""Official tasks fitted again, side by side, and compared with what is frozen; nothing is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fsvi_bench.errors import InputError, TaskRefused
from fsvi_bench.running.executors import Executor, use_one_thread
from fsvi_bench.running.progress import Progress
from fsvi_bench.tasks.build import build_from
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.official import official_splits, read_official
from fsvi_bench.tasks.raw import RawData, load_raw
from fsvi_bench.tasks.refit import Refit, compare

Place = tuple[str, int]  #: (data set, split)


def refit_official(
    places: Sequence[Place], executor: Executor, data_dir: Path | None, progress: Progress
) -> dict[Place, Refit | str]:
    """Each official task's split fitted again, on one thread, and compared; or why there is no second fit, in words.

    Raises:
        InputError: a split has no official task, or its raw data are missing or altered.
        TaskRefused: an official task fails the limits of this version.
    """
    for name, split in places:
        _require_official(name, split)
    jobs = [_Refit(name, split, load_raw(load_card(name), split, data_dir)) for name, split in places]
    progress.start("refits", len(jobs))
    found: dict[Place, Refit | str] = {}
    for job, outcome in executor.on("cpu").map(_refit, jobs):
        if isinstance(outcome, Exception):
            own_words = isinstance(outcome, TaskRefused)
            found[job.dataset, job.split] = str(outcome) if own_words else f"{type(outcome).__name__}: {outcome}"
        else:
            found[job.dataset, job.split] = outcome
        progress.advance("refits", f"{job.dataset} split {job.split}")
    return {place: found[place] for place in places}


def _require_official(name: str, split: int) -> None:
    splits = official_splits(load_card(name).name)
    if not splits:
        raise InputError(f"{name} has no official tasks to be compared with; name a data set that has")
    if split not in splits:
        raise InputError(f"{name} has no official task of split {split}; its splits: {splits[0]} to {splits[-1]}")
    read_official(name, split)


@dataclass(frozen=True)
class _Refit:
    """One split to be fitted again."""

    dataset: str
    split: int
    raw: RawData


def _refit(job: _Refit) -> Refit:
    """Runs in a worker or here. The cache is not asked: what lies there may be the frozen task itself."""
    use_one_thread()
    refitted = build_from(load_card(job.dataset), job.split, job.raw)
    return compare(read_official(job.dataset, job.split), refitted, job.raw)
