"""What a leaderboard's scores are held against, `fsvi-references/1`: frozen once, computed from the official tasks.

The exact posterior's own scores, the floor of the factorised family, the MAP as a point mass, and RANDA's scores as
they were when the file was written: relative numbers must not move when a reference method is submitted again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.files import is_file, write_atomically
from fsvi_bench.leaderboard.entries import Entry
from fsvi_bench.leaderboard.submission import DEVELOPMENT_DATASETS, Sha256, Slug
from fsvi_bench.maths.blr import mean_field_optimum_kl
from fsvi_bench.maths.gaussian import normal_kl
from fsvi_bench.posteriors.gaussian import FullGaussian
from fsvi_bench.resources import resource_dir
from fsvi_bench.scoring.predictive import Predictive, exact_predictive
from fsvi_bench.scoring.scores import Coverage, Scores, score
from fsvi_bench.tasks.official import Place, TaskSet
from fsvi_bench.tasks.task import Task

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

    @property
    def by_place(self) -> dict[Place, TaskReference]:
        """The tasks by data set and split."""
        return {task.place: task for task in self.tasks}

    @property
    def splits(self) -> Mapping[str, list[int]]:
        """By data set, where its tasks stand in `tasks`."""
        return _places(tuple(task.dataset for task in self.tasks))

    @property
    def counted(self) -> Mapping[str, list[int]]:
        """`splits` of the data sets that ranks are made of: all but those to tune on, unless there are no others."""
        others = {name: places for name, places in self.splits.items() if name not in DEVELOPMENT_DATASETS}
        return others or self.splits

    def test_train_ratio(self, dataset: str) -> float:
        """Mean over a data set's splits of n_test/n_train, which is nearly the same for each."""
        return fmean(self.tasks[place].N_test / self.tasks[place].N for place in self.splits[dataset])


@lru_cache(4)
def _places(datasets: tuple[str, ...]) -> Mapping[str, list[int]]:
    """Asked for several times for each line of a table."""
    return {name: [place for place, other in enumerate(datasets) if other == name] for name in dict.fromkeys(datasets)}


def freeze(tasks: TaskSet, entries: Iterable[Entry]) -> References:
    """References of some tasks, and RANDA's scores from its verified submissions.

    Raises:
        InputError: there are no tasks, the raw data of one are missing or are not the task's, or RANDA's submission
            was only scored.
    """
    if not tasks.tasks:
        raise InputError("there are no official tasks to freeze references of; name data sets that have some")
    frozen = {entry.name: _by_task(entry) for entry in entries}
    by_dataset = [place for dataset in tasks.datasets for place in sorted(tasks.tasks) if place[0] == dataset]
    found = tuple(_reference(tasks.problem(place), frozen) for place in by_dataset)
    return References(datasets=tuple(tasks.datasets), tasks=found)


def _reference(problem: Task, frozen: Mapping[str, Mapping[str, Scores]]) -> TaskReference:
    task, truth = problem.frozen, problem.truth
    scores = score(FullGaussian(truth.posterior.mean, truth.covariance_tril), problem)
    full, ffg = (frozen.get(name, {}).get(task.sha256) for name in (RAND_A_FULL, RAND_A_FFG))
    return TaskReference(
        dataset=task.dataset,
        split=task.split,
        task_sha256=task.sha256,
        k=task.k,
        N=len(problem.y),
        N_test=len(problem.y_test),
        ffg_floor=float(mean_field_optimum_kl(truth.posterior.precision_tril)),
        map_predictive_kl_test=map_predictive_kl(problem, problem.Phi_test),
        map_predictive_kl_box=map_predictive_kl(problem, problem.Phi_box),
        map_nlpd=map_predictive(problem, problem.Phi_test).nlpd(problem),
        nlpd_exact=scores.nlpd_exact,
        rmse_exact=scores.rmse,
        coverage_exact=scores.coverage_exact,
        log_evidence=scores.log_evidence,
        noise_variance=float(task.noise_variance),
        condition_precision=condition_number(truth.posterior.precision_tril),
        rand_a_full=None if full is None else _finite(full.kl),
        rand_a_ffg=None if ffg is None else _finite(ffg.kl),
        rand_a_predictive_kl_box=None if full is None else _finite(full.predictive_kl_box),
    )


def map_predictive(problem: Task, Phi: Float[Tensor, "n k"]) -> Predictive:
    """N(φᵀm, σ²) at each input: what a point mass at the exact posterior's mean m, its mode, predicts."""
    mean = (Phi @ problem.truth.posterior.mean[:, None])[:, 0]
    return Predictive(mean, problem.frozen.noise_variance.expand_as(mean))


def map_predictive_kl(problem: Task, Phi: Float[Tensor, "n k"]) -> float:
    """Mean over inputs of KL(exact predictive ‖ N(φᵀm, σ²)) = ½(r − 1 − log r), r the ratio of the variances."""
    return float(normal_kl(*exact_predictive(problem, Phi), *map_predictive(problem, Phi)).mean())


def condition_number(precision_tril: Float[Tensor, "k k"]) -> float:
    """Of Λ = CCᵀ from C, as a task's certificate has it."""
    singular_values = torch.linalg.svdvals(precision_tril)
    return float((singular_values[0] / singular_values[-1]) ** 2)


def _by_task(entry: Entry) -> dict[str, Scores]:
    """Scores of RANDA's submission by the task's SHA-256, if its source was run again; none of another family's."""
    if entry.verification is None or entry.name != f"rand-a-{entry.manifest.family}":
        return {}
    if entry.verification.shortfall is not None:
        raise InputError(
            f"submission {entry.name} has no re-run to rely on ({entry.verification.shortfall}); verify it with "
            "--rerun before its scores are frozen"
        )
    return {cell.task_sha256: cell.scores for cell in entry.verification.cells if cell.scores is not None}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def read_references(path: Path) -> References:
    """References, read strictly.

    Raises:
        InputError: there is no such file, or it is not `fsvi-references/1`.
    """
    try:
        return References.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise InputError(f"there is no {path}; make it with 'fsvi-bench leaderboard freeze'") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part)[:60] for part in first["loc"]) or "the document"
        mend = "make it again with 'fsvi-bench leaderboard freeze'"
        raise InputError(f"{path} is not fsvi-references/1: {field}: {first['msg']}; {mend}") from error


def references_of(root: Path) -> References:
    """A leaderboard's own references, or those of the project's leaderboard if it has none.

    Raises:
        InputError: they cannot be read.
    """
    own = root / REFERENCE_FILE
    return read_references(own if is_file(own) else resource_dir("leaderboard") / REFERENCE_FILE)


def write_references(path: Path, references: References) -> None:
    """Writes references atomically; equal ones give equal bytes.

    Raises:
        InputError: the place is not writable.
    """
    write_atomically(path, (references.model_dump_json(indent=1) + "\n").encode())
