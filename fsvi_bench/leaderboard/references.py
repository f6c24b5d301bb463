"""What a leaderboard's scores are held against, `fsvi-references/1`: frozen once, computed from the official tasks.

The exact posterior's own scores, the floor of the factorised family, the MAP as a point mass, and RANDA's scores as they
were when the file was written: relative numbers must not move when a reference method is submitted again.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fsvi_bench.leaderboard.entries import Entry
from fsvi_bench.leaderboard.submission import Sha256, Slug
from fsvi_bench.scoring.scores import Coverage
from fsvi_bench.tasks.official import Place, TaskSet

REFERENCE_FILE = "reference.json"
RAND_A_FULL, RAND_A_FFG = "rand-a-full", "rand-a-ffg"  #: the submissions whose scores are frozen

Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TaskReference(_Strict):
    """One official task. Divergences in nats; `nlpd` and `rmse` in the target's original unit."""

    dataset: Slug
    split: Annotated[int, Field(ge=0, le=99)]
    task_sha256: Sha256
    k: Annotated[int, Field(ge=1)]
    N: Annotated[int, Field(ge=1)]
    N_test: Annotated[int, Field(ge=1)]
    ffg_floor: Finite  #: KL(q ‖ P_D) of the best factorised q; the root of the features decides it, not the data alone
    map_predictive_kl_test: Finite  #: of q = a point mass at the exact mean: N(φᵀm, σ²) is what it predicts
    map_predictive_kl_box: Finite
    map_nlpd: Finite
    nlpd_exact: Finite  #: of the exact posterior, as the next two
    rmse_exact: Finite
    coverage_exact: Coverage
    log_evidence: Finite  #: standardised units
    noise_variance: Finite  #: standardised units
    condition_precision: Finite  #: of Λ, the exact posterior's precision
    rand_a_full: Finite | None  #: KL(q ‖ P_D) of the frozen submission; None where it has no finite one
    rand_a_ffg: Finite | None
    rand_a_predictive_kl_box: Finite | None  #: of the full run

    @property
    def place(self) -> Place:
        return self.dataset, self.split


class References(_Strict):
    """`reference.json`: the data sets in the order in which they are shown, and their tasks, split by split."""

    format: Literal["fsvi-references/1"] = "fsvi-references/1"
    protocol: Literal["leaderboard-v1"] = "leaderboard-v1"
    datasets: Annotated[tuple[Slug, ...], Field(min_length=1)]
    tasks: Annotated[tuple[TaskReference, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _in_order(self) -> References:
        places = [task.place for task in self.tasks]
        if len(set(places)) != len(places):
            raise ValueError("a task stands twice in 'tasks', expected each once")
        if tuple(dict.fromkeys(dataset for dataset, _ in places)) != self.datasets:
            raise ValueError("'tasks' are not those of 'datasets', in their order")
        return self

    @cached_property
    def by_place(self) -> dict[Place, TaskReference]:
        """The tasks by data set and split."""
        return {task.place: task for task in self.tasks}


def freeze(tasks: TaskSet, entries: Iterable[Entry]) -> References:
    """References of some tasks, and RANDA's scores from its verified submissions.

    Raises:
        InputError: the raw data of a task are missing or are not the task's.
    """
    raise NotImplementedError


def read_references(path: Path) -> References:
    """References, read strictly.

    Raises:
        InputError: there is no such file, or it is not `fsvi-references/1`.
    """
    raise NotImplementedError


def write_references(path: Path, references: References) -> None:
    """Writes references atomically; equal ones give equal bytes.

    Raises:
        InputError: the place is not writable.
    """
    raise NotImplementedError
