"""Results of the verifier: one compact JSON file per entry and edition, and its signature in a second file.

These files hold all numbers of a leaderboard; none comes from the authors of an entry. The signature covers the whole
file, which identifies edition, entry and tasks by hashes and has the scoring version, so that it cannot be reused.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field, model_validator

from fsvi_bench.files import json_in_lines, replace_together
from fsvi_bench.leaderboard.edition import Kind, Place
from fsvi_bench.leaderboard.entry import Name, Number, Sha256, Text
from fsvi_bench.leaderboard.signing import sign, signature_path
from fsvi_bench.networks.reference import Functions
from fsvi_bench.networks.scores import NetworkScores
from fsvi_bench.networks.task import Level
from fsvi_bench.scoring.points import PointsMmd2
from fsvi_bench.scoring.scores import Scores
from fsvi_bench.strict import Strict

RESULTS = "results"
RESULT_BYTES = 16 * 2**20
SCORING_VERSION = 2  #: increased by every change that affects a ranked score; earlier results are then stale

Count = Annotated[int, Field(ge=0, lt=2**60)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
#: Perhaps infinite, in JSON a string; never NaN.
Extended = Annotated[
    float, BeforeValidator(lambda value: math.inf if value == "Infinity" else value), Field(gt=-math.inf)
]
Nats = Annotated[Extended, Field(ge=-1e-3)]  #: infinite if q is singular; negative only by rounding
JOINT = "10"  #: number of inputs of the joint predictive KL


class Waypoint(Strict):
    """Scores during a run, by the verifier's clock and the entry's own count of steps."""

    steps: Count
    seconds: Seconds
    kl: Nats
    joint_predictive_kl_test: Extended | None
    joint_predictive_kl_box: Extended | None


class ShortScores(Strict):
    """The scores of one posterior for pages and ranks; see `scoring.scores.Scores`."""

    kl: Nats
    kl_moment_matched: Nats
    joint_predictive_kl_test: Extended | None  #: of the first 10 inputs; for a mixture an estimate, perhaps below 0
    joint_predictive_kl_box: Extended | None
    predictive_kl_test: Nats | None
    predictive_kl_box: Nats | None
    mmd2: Number | None  #: of particles; see `scoring.points.points_mmd2`
    mmd2_of_draws: Number | None  #: its mean for as many draws of the exact posterior
    mmd2_deviation: Annotated[Number, Field(ge=0)] | None  #: its standard deviation for them
    objective_gap: Extended | None  #: computed by the verifier; null if unknown
    nlpd: Number | None
    nlpd_gap: Number | None
    rmse: Number
    smallest_variance_ratio: Number
    median_variance_ratio: Number
    largest_variance_ratio: Number

    @model_validator(mode="after")
    def _whole(self) -> ShortScores:
        if len({each is None for each in (self.mmd2, self.mmd2_of_draws, self.mmd2_deviation)}) > 1:
            raise ValueError("expected either all of mmd2, mmd2_of_draws and mmd2_deviation, or none")
        return self

    @staticmethod
    def of(scores: Scores, mmd2: PointsMmd2 | None, objective_gap: float | None) -> ShortScores:
        known = dict(scores) | {f"{name}_variance_ratio": value for name, value in scores.overconfidence or ()}
        for name in ("joint_predictive_kl_test", "joint_predictive_kl_box"):
            known[name] = (known[name] or {}).get(JOINT)
        value, of_draws, deviation = mmd2 or (None, None, None)
        known |= {"mmd2": value, "mmd2_of_draws": of_draws, "mmd2_deviation": deviation, "objective_gap": objective_gap}
        return ShortScores(**{name: known[name] for name in ShortScores.model_fields})


class ShortNetworkScores(Strict):
    """The scores of one posterior of a network for pages and ranks; see `networks.scores.NetworkScores`."""

    functions: Count
    kl: Extended | None  #: log Z − ELBO; null if q has no density over the weights
    energy_distance_20_test: Number
    energy_distance_20_test_error: Annotated[Number, Field(ge=0)]
    energy_distance_20_box: Number
    energy_distance_20_box_error: Annotated[Number, Field(ge=0)]
    predictive_kl_test: Extended
    predictive_kl_box: Extended
    variance_ranks_test: Number | None
    nlpd: Number

    @staticmethod
    def of(scores: NetworkScores, particles: Functions | None) -> ShortNetworkScores:
        """Scores of draws from q, or of particles, which are q.

        The unbiased energy distance would reward particles that lie further apart than draws: theirs has all pairs,
        also i = j, and is a distance between two distributions.
        """
        found: dict[str, Any] = {name: score.value for name, score in scores.scores.items()}
        found["functions"] = scores.functions
        if particles is not None:
            for place, f in (("test", particles.f_test), ("box", particles.f_box)):
                found[f"energy_distance_20_{place}"] += float(torch.pdist(f).mean()) / len(f)
        found |= {f"{name}_error": score.error for name, score in scores.scores.items()}
        return ShortNetworkScores.model_validate({name: found.get(name) for name in ShortNetworkScores.model_fields})


class NetworkFacts(Strict):
    """A network task as shown on the pages."""

    sha256: Sha256
    reference_sha256: Sha256  #: of the functions that scores compare with
    N: Count
    k: Count  #: weights
    level: Level
    log_z: Number  #: nats


class TaskFacts(Strict):
    """A task as shown on the pages, with reference scores."""

    sha256: Sha256
    redrawn: Count  #: earlier draws whose certificates failed
    N: Count
    N_test: Count
    k: Count
    ffg_floor: Number  #: KL of the best factorised q, nats
    map_joint_predictive_kl_test: Number | None  #: joint predictive KL of a point mass at the exact mean, nats
    map_joint_predictive_kl_box: Number | None


class Cell(Strict):
    """One run: an entry on one task with one seed."""

    kind: Kind
    dataset: Name
    number: Count  #: number of a ranked task, or split of an official one
    seed: Count  #: number of the seed
    task: TaskFacts | NetworkFacts
    status: Literal["ok", "diverged", "failed"]
    reason: Text | None = None
    scores: ShortScores | ShortNetworkScores | None = None
    seconds: Seconds  #: duration of the run, by the verifier's clock
    steps: Count | None = None  #: by the entry's own count
    waypoints: Annotated[tuple[Waypoint, ...], Field(max_length=20)] = ()

    @model_validator(mode="after")
    def _whole(self) -> Cell:
        if (self.status == "ok") != (self.scores is not None):
            raise ValueError("a cell must have scores if its status is ok, and no scores otherwise")
        return self

    @property
    def place(self) -> Place:
        return Place(self.kind, self.dataset, self.number)


class Result(Strict):
    """`results/<edition>/<entry>.json`."""

    format: Literal["fsvi-result/1"] = "fsvi-result/1"
    edition: Name
    edition_sha256: Sha256
    edition_status: Literal["open", "closed"]  #: closed: the tasks were public
    entry: Name
    entry_sha256: Sha256
    scoring_version: Count
    isolation: Text  #: how the code was isolated from the machine; `none` if it was not
    provenance: Annotated[dict[str, Any], Field(max_length=40)]  #: versions, kernels and hardware of the verifier
    cells: tuple[Cell, ...]

    @property
    def isolated(self) -> bool:
        return self.isolation != "none"

    def text(self) -> bytes:
        """The content of the file, which is also what is signed: one line per cell."""
        return json_in_lines(self.model_dump_json(), 2).encode()


def result_path(root: Path, edition: str, entry: str) -> Path:
    """The path of a result in the folder of a leaderboard."""
    return root / RESULTS / edition / f"{entry}.json"


def write_result(path: Path, result: Result, key: Path | None = None) -> None:
    """Writes a result, and signs it if a private key is given; an earlier signature, which no longer fits, is removed.

    Raises:
        InputError: the key cannot be used, or the folder is not writable.
    """
    signature = None if key is None else sign(result.text(), key)
    replace_together(path.parent, {signature_path(path).name: signature}, path.name, result.text())
