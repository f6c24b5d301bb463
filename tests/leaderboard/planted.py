"""What the tests of the leaderboard share: tiny tasks whose data are drawn from their own model, and submissions on them.

    tasks = planted_tasks()                                  # boston splits 0, 1 and energy split 0; k = 5
    folder = plant_submission(root / "submissions", tasks)   # a valid one, named "planted"

Nothing is read from disk or fitted: a task's inputs, weights and noise come from seeds derived from its name.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from fsvi_bench.leaderboard.submission import (
    CELLS_FILE,
    MANIFEST_FILE,
    PROTOCOL,
    Claim,
    Claims,
    Manifest,
)
from fsvi_bench.posteriors.base import KIND_OF, Family, Posterior
from fsvi_bench.posteriors.dropout import BernoulliDropoutPosterior, SpikeSlabPosterior
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian
from fsvi_bench.posteriors.io import posterior_file
from fsvi_bench.scoring.scores import score
from fsvi_bench.seeds import derived_generator
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.official import Place, TaskSet
from fsvi_bench.tasks.task import FeatureMap, Task

SPLITS = {"boston": 2, "energy": 1}
D, N, N_TEST = 2, 30, 10


def _scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def planted_task(dataset: str, split: int, k: int = 5, n: int = N, n_test: int = N_TEST, d: int = D) -> FrozenTask:
    """A task of the features that the UCI data sets have, its inputs standardised already."""
    Z = derived_generator("planted", dataset, split, "inducing points").normal(size=(k, d))
    return FrozenTask(
        dataset=dataset,
        split=split,
        data_sha256=hashlib.sha256(dataset.encode()).hexdigest(),
        features="sgpr-rbf-ard",
        inducing_points=torch.from_numpy(Z),
        lengthscales=torch.full((d,), 1.5, dtype=torch.float64),
        outputscale=_scalar(1.0),
        noise_variance=_scalar(0.05),
        jitter=_scalar(1e-6),
        input_mean=torch.zeros(d, dtype=torch.float64),
        input_std=torch.ones(d, dtype=torch.float64),
        target_mean=_scalar(0.0),
        target_std=_scalar(2.0),
        train_index=torch.arange(n),
        test_index=torch.arange(n, n + n_test),
    )


def planted_problem(task: FrozenTask) -> Task:
    """The task bound to inputs N(0, I) and to targets drawn from the model (standardised units)."""
    n, n_test, d = len(task.train_index), len(task.test_index), task.inducing_points.shape[1]
    of = [derived_generator("planted", task.dataset, task.split, role) for role in ("inputs", "weights", "noise")]
    X = torch.from_numpy(of[0].normal(size=(n + n_test, d)))
    feature_map = FeatureMap.of(task)
    noise = math.sqrt(task.noise_variance) * of[2].normal(size=n + n_test)
    y = feature_map(X) @ torch.from_numpy(of[1].normal(size=task.k)) + torch.from_numpy(noise)
    return Task(task, feature_map, X[:n], y[:n], X[n:], y[n:])


def planted_tasks(splits: Mapping[str, int] | None = None, k: int = 5) -> TaskSet:
    """The first few splits of some data sets; `load` pickles, so that other processes can have it."""
    wanted = SPLITS if splits is None else splits
    places = [(dataset, split) for dataset, count in wanted.items() for split in range(count)]
    return TaskSet({place: planted_task(*place, k) for place in places}, planted_problem)


def planted_posterior(problem: Task, family: Family = "full", seed: int = 0, distance: float = 0.3) -> Posterior:
    """An approximation near the exact posterior: its mean moved and its scales stretched by about `distance`."""
    task, truth = problem.frozen, problem.truth
    draws = derived_generator("planted posterior", task.sha256, family, seed)
    tril = truth.covariance_tril
    mean = truth.posterior.mean + distance * tril @ torch.from_numpy(draws.normal(size=task.k))
    stretch = torch.from_numpy(np.exp(distance * draws.normal(size=task.k)))
    scale = stretch / truth.posterior.precision_tril.square().sum(-1).sqrt()
    if family == "full":
        return FullGaussian(mean, tril @ torch.diag(stretch))
    if family == "ffg":
        return FactorisedGaussian(mean, scale)
    if family == "bernoulli":
        return BernoulliDropoutPosterior(mean, torch.from_numpy(draws.uniform(0.6, 1.0, task.k)))
    return SpikeSlabPosterior(torch.from_numpy(draws.uniform(0.05, 0.4, task.k)), mean, scale)


def planted_posteriors(tasks: TaskSet, family: Family = "full", **settings: Any) -> dict[Place, Posterior]:
    """One for every task."""
    return {place: planted_posterior(tasks.problem(place), family, **settings) for place in tasks.tasks}


def planted_manifest(name: str = "planted", family: Family = "full", **changes: Any) -> Manifest:
    """A manifest with every field that must be there."""
    fields: dict[str, Any] = {
        "format": "fsvi-submission/1",
        "protocol": PROTOCOL,
        "name": name,
        "method": "planted-method",
        "title": "A planted method",
        "authors": ["A. Tester"],
        "licence": "MIT",
        "family": family,
        "budget": {"steps": 10, "seconds": 60.0},
        "hardware": "one core",
    }
    return Manifest.model_validate({**fields, **changes})


def planted_claim(
    place: Place, task: FrozenTask, posterior: bytes, kl: float, predictive_kl_box: float | None
) -> Claim:
    """A cell that is ok."""
    return Claim(
        dataset=place[0],
        split=place[1],
        task_sha256=task.sha256,
        status="ok",
        posterior_sha256=hashlib.sha256(posterior).hexdigest(),
        kl=kl,
        predictive_kl_box=predictive_kl_box,
    )


def plant_submission(
    root: Path,
    tasks: TaskSet,
    manifest: Manifest | None = None,
    posteriors: Mapping[Place, Posterior] | None = None,
    source: bytes | None = None,
    reasons: Mapping[Place, str] | None = None,
) -> Path:
    """Writes a valid submission `root/<name>` and returns its folder.

    Args:
        posteriors: by default `planted_posteriors`; tasks without one diverged, of `reasons` or of "it diverged".
        source: the method's text; the manifest must name a file for it.
    """
    manifest = manifest or planted_manifest()
    posteriors = planted_posteriors(tasks, manifest.family) if posteriors is None else posteriors
    folder, claims = root / manifest.name, []
    folder.mkdir(parents=True)
    for place, task in tasks.tasks.items():
        if place not in posteriors:
            reason = (reasons or {}).get(place, "it diverged")
            claims.append(
                Claim(dataset=place[0], split=place[1], task_sha256=task.sha256, status="diverged", reason=reason)
            )
            continue
        scores, content = score(posteriors[place], tasks.problem(place)), posterior_file(posteriors[place], task.sha256)
        claims.append(planted_claim(place, task, content, scores.kl, scores.predictive_kl_box))
        path = folder / claims[-1].file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        assert posteriors[place].kind == KIND_OF[manifest.family]
    write_manifest(folder, manifest)
    write_claims(folder, Claims(format="fsvi-cells/1", cells=claims))
    if source is not None:
        assert manifest.source is not None
        (folder / manifest.source.file).write_bytes(source)
    return folder


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """`submission.yaml`, as any YAML writer might put it."""
    content = manifest.model_dump(mode="json", by_alias=True, exclude_none=True)
    (folder / MANIFEST_FILE).write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def write_claims(folder: Path, claims: Claims) -> None:
    """`cells.json`."""
    (folder / CELLS_FILE).write_text(claims.model_dump_json(indent=1) + "\n")


def edit_manifest(folder: Path, **changes: Any) -> None:
    """Sets top-level fields of `submission.yaml` whatever they hold; None removes one."""
    path = folder / MANIFEST_FILE
    content = {**yaml.safe_load(path.read_text()), **changes}
    path.write_text(yaml.safe_dump({name: value for name, value in content.items() if value is not None}))


def edit_claim(folder: Path, place: int = 0, **changes: Any) -> None:
    """Sets fields of one cell of `cells.json` whatever they hold."""
    path = folder / CELLS_FILE
    content = json.loads(path.read_text())
    content["cells"][place].update(changes)
    path.write_text(json.dumps(content, indent=1))
