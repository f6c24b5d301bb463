"""Synthetic references, verifications and entries: numbers by name, no training, no data.

`entry("a", table)` is a re-run entry of the full track whose scores are drawn by its name; keywords say what is
different about it. `save_entry` writes such an entry's folder and verification, with files that hash to what it says.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np
import torch

from fsvi_bench.files import write_atomically
from fsvi_bench.leaderboard.entries import SUBMISSIONS, Entry, folder_sha256
from fsvi_bench.leaderboard.references import References, TaskReference
from fsvi_bench.leaderboard.strict import manifest_yaml
from fsvi_bench.leaderboard.submission import CELLS_FILE, MANIFEST_FILE, Budget, Claim, Claims, Manifest, Source
from fsvi_bench.leaderboard.verification import (
    TOLERANCE,
    OfficialRerun,
    Rerun,
    Verification,
    VerifiedCell,
    Waypoint,
    WithheldRerun,
    verification_path,
    write_verification,
)
from fsvi_bench.posteriors.base import KIND_OF
from fsvi_bench.posteriors.dropout import BernoulliDropoutPosterior, SpikeSlabPosterior
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian
from fsvi_bench.posteriors.io import posterior_file
from fsvi_bench.scoring.scores import Overconfidence
from fsvi_bench.seeds import derived_generator
from tests.presenting.studies import SPECTRUM
from tests.presenting.studies import scores as gaussian_scores

DATASETS = {"boston": 3, "energy": 4, "yacht": 2}
SOURCE = "class Mine:\n    pass\n"
STEPS = 1000
ONES = torch.ones(5, dtype=torch.float64)
POSTERIORS_OF_ALL_ONES = {
    "full": FullGaussian(ONES, torch.diag(ONES)),
    "ffg": FactorisedGaussian(ONES, ONES),
    "bernoulli": BernoulliDropoutPosterior(ONES, torch.tensor(0.5, dtype=torch.float64)),
    "spike-slab": SpikeSlabPosterior(0.5 * ONES, ONES, ONES),
}


def references(datasets=None, **changes):
    """References of data sets with as many splits as given; keywords replace fields of every task."""
    tasks = []
    for dataset, splits in (DATASETS if datasets is None else datasets).items():
        for split in range(splits):
            rng = derived_generator("task", dataset, split)
            own = {
                "dataset": dataset, "split": split, "task_sha256": rng.bytes(32).hex(), "k": 5, "N": 45, "N_test": 5,
                "ffg_floor": 1 + rng.random(), "map_predictive_kl_test": 2 + rng.random(),
                "map_predictive_kl_box": 3 + rng.random(), "map_nlpd": 4 + rng.random(), "nlpd_exact": 1 + rng.random(),
                "rmse_exact": 0.5, "coverage_exact": {"50": 0.5, "90": 0.9, "95": 0.94}, "log_evidence": -40.0,
                "noise_variance": 0.01, "condition_precision": 1e4, "rand_a_full": 5 + rng.random(),
                "rand_a_ffg": 9 + rng.random(), "rand_a_predictive_kl_box": 0.5 + rng.random(),
            }  # fmt: skip
            tasks.append(TaskReference(**(own | changes)))
    return References(datasets=tuple(dict.fromkeys(task.dataset for task in tasks)), tasks=tuple(tasks))


def manifest(name, family="full", **changes):
    own = {
        "format": "fsvi-submission/1", "protocol": "leaderboard-v1", "name": name, "method": name, "title": "A method",
        "authors": ["A. Author", "B. Author"], "licence": "MIT", "family": family,
        "source": Source(**{"file": "mine.py", "class": "Mine"}), "hyperparameters": {"lr": 0.01},
        "budget": Budget(steps=STEPS, seconds=60.0), "hardware": "one core",
    }  # fmt: skip
    return Manifest(**(own | changes))


def scores(rng, family, kl=None, **changes):
    """Scores drawn from a generator; an infinite KL in the families without a density."""
    kl = (3 + 4 * rng.random() if family in ("full", "ffg") else math.inf) if kl is None else kl
    test, box, gap = rng.random(3).tolist()
    low, middle, high = np.sort(rng.random(3)).tolist()
    # `quantiles` are those of the synthetic report; only the three numbers are read here.
    spectrum = Overconfidence(smallest=low, median=middle, largest=high, quantiles=SPECTRUM)
    drawn = {"predictive_kl_test": test, "predictive_kl_box": box, "nlpd_gap": gap, "overconfidence": spectrum}
    return gaussian_scores(kl, **(drawn | changes))


def waypoints(rng, finish=STEPS):
    """A re-run's: at the start, and near 1, 10 and 100 % of its steps."""
    at = [0, max(1, finish // 100), max(2, finish // 10), finish]
    return tuple(
        Waypoint(
            steps=step,
            seconds=0.01 * step,
            kl=float(50 / (1 + step) + rng.random()),
            predictive_kl_box=float(5 / (1 + step) + rng.random()),
            work={"likelihood_rows": 45 * step, "measurement_rows": 80 * step},
        )
        for step in at
    )


def rerun(rng, cells, family="full", seconds=10.0):
    """Of the first two cells, and of one withheld task."""
    score = "kl" if family in ("full", "ffg") else "predictive_kl_box"
    official = [
        OfficialRerun(
            dataset=cell.dataset,
            split=cell.split,
            score=score,
            submitted=cell.scores and getattr(cell.scores, score),
            rerun=cell.scores and getattr(cell.scores, score),
            waypoints=waypoints(rng),
        )
        for cell in cells[:2]
    ]
    withheld = WithheldRerun(
        dataset=cells[0].dataset,
        split=cells[0].split,
        draw=0,
        status="ok",
        reason=None,
        scores=scores(rng, family),
        ffg_floor=1.0,
        seconds=seconds,
    )
    return Rerun(
        seed=1,
        isolated=True,
        isolation="a process",
        tolerance=TOLERANCE,
        hardware="one core",
        official=tuple(official),
        withheld=(withheld,),
    )


def verified_cells(name, table, family="full", kl=None, missing=(), diverged=(), **changes):
    """One per task of `table`; `kl` is a number or a function of the place, other keywords are scores of every cell."""
    cells = []
    for task in table.tasks:
        if task.place in missing or task.dataset in missing:
            continue
        rng = derived_generator("scores", name, *task.place)
        broken = task.place in diverged
        given = kl(task) if callable(kl) else kl
        cells.append(
            VerifiedCell(
                dataset=task.dataset,
                split=task.split,
                task_sha256=task.task_sha256,
                status="diverged" if broken else "ok",
                reason="the covariance lost its rank" if broken else None,
                scores=None if broken else scores(rng, family, given, **changes),
            )
        )
    return tuple(cells)


def verification(name, cells, family="full", again=True, sha256="0" * 64):
    """`again`: whether the source was run again, or the Rerun itself."""
    ran = rerun(derived_generator("rerun", name), cells, family) if again is True else again or None
    return Verification(submission=name, submission_sha256=sha256, fsvi_bench="0.1.0", cells=cells, rerun=ran)


def entry(name, table, family="full", again=True, verified=True, words=None, **cells):
    """An entry; `words` are fields of its manifest, other keywords are those of `verified_cells`."""
    found = None
    if verified:
        found = verification(name, verified_cells(name, table, family, **cells), family, again)
    note = None if verified else "it has not been verified"
    return Entry(manifest(name, family, **(words or {})), found, note, SOURCE)


def save_entry(root: Path, name, table, family="full", words=None, again=True, **cells):
    """Writes `submissions/<name>` and its verification beneath a leaderboard's folder; returns the submission's."""
    folder, posterior = root / SUBMISSIONS / name, POSTERIORS_OF_ALL_ONES[family]
    assert posterior.kind == KIND_OF[family]
    found, claims = verified_cells(name, table, family, **cells), []
    for cell in found:
        claim = cell.model_dump(include={"dataset", "split", "task_sha256", "status", "reason"})
        if cell.scores is not None:
            content = posterior_file(posterior, cell.task_sha256)
            write_atomically(folder / f"posteriors/{cell.dataset}/split-{cell.split:02d}.safetensors", content)
            claim |= {"kl": cell.scores.kl, "predictive_kl_box": cell.scores.predictive_kl_box}
            claim |= {"posterior_sha256": hashlib.sha256(content).hexdigest()}
        claims.append(Claim(**claim))
    (folder / MANIFEST_FILE).write_bytes(manifest_yaml(manifest(name, family, **(words or {}))))
    (folder / CELLS_FILE).write_text(Claims(format="fsvi-cells/1", cells=claims).model_dump_json(indent=1))
    (folder / "mine.py").write_text(SOURCE)
    write_verification(verification_path(root, name), verification(name, found, family, again, folder_sha256(folder)))
    return folder
