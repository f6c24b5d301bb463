"""Boards made for tests: entries, editions and results without running anything."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

from fsvi_bench.leaderboard.edition import Edition, Secret, write_edition
from fsvi_bench.leaderboard.entry import ENTRIES, ENTRY_FILE, Budget, BuiltIn, Entry, Manifest, SourceFile
from fsvi_bench.leaderboard.ranked_tasks import runs
from fsvi_bench.leaderboard.result import (
    SCORING_VERSION,
    Cell,
    NetworkFacts,
    Result,
    ShortNetworkScores,
    ShortScores,
    TaskFacts,
    Waypoint,
    result_path,
    write_result,
)
from fsvi_bench.leaderboard.signing import sign, signature_path
from fsvi_bench.strict import toml_text

KEY = bytes(range(32))
SECRET = Secret(KEY)
JOINT = ("joint_predictive_kl_test", "joint_predictive_kl_box")
DATASETS = ["boston", "diabetes", "yacht", "wine", "energy"]


def edition(datasets=("diabetes",), status="closed", seeds=1, protocol="redrawn-tasks/1", **more):
    return Edition(
        protocol=protocol,
        name="v2",
        datasets=list(datasets),
        status=status,
        secret_sha256=hashlib.sha256(KEY).hexdigest(),
        secret=KEY.hex() if status == "closed" else None,
        seeds=seeds,
        **more,
    )


def manifest(title="A title", family="full", method=None, owner="ada", settings=None, steps=100, **more):
    return Manifest(
        title=title,
        authors=["Ada Lovelace"],
        owner=owner,
        licence="MIT",
        family=family,
        method=method or BuiltIn(name="rand-a", version="0.2.0"),
        settings=settings or {},
        budget=Budget(steps=steps, seconds=30.0),
        **more,
    )


def entry(name, source=None, **more):
    method = SourceFile(**{"file": "method.py", "class": "M"}) if source is not None else None
    return Entry(name, manifest(**{"title": name, "method": method, "settings": {"name": name}} | more), source)


def write_entry(root: Path, each: Entry) -> Path:
    folder = root / ENTRIES / each.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ENTRY_FILE).write_text(toml_text(each.manifest))
    if each.source is not None:
        (folder / each.manifest.method.file).write_bytes(each.source)
    return folder


def scores(kl, family="full"):
    """The KL, a tenth of it as predictive KLs, and for particles a hundredth as MMD², which draws reach at 0.01."""
    finite = kl if math.isfinite(kl) else 1.0
    ratios = {"smallest_variance_ratio": 0.1, "median_variance_ratio": 0.9, "largest_variance_ratio": 1.5}
    predictive = dict.fromkeys((*JOINT, "predictive_kl_test", "predictive_kl_box"), finite / 10)
    mmd2 = (finite / 100, 0.01, 0.005) if family == "particles" else (None, None, None)
    others = dict(zip(("mmd2", "mmd2_of_draws", "mmd2_deviation"), mmd2, strict=True)) | predictive | ratios
    gap = None if family == "particles" else finite / 20
    return ShortScores(kl=kl, kl_moment_matched=finite, nlpd=1.0, nlpd_gap=0.1, rmse=1.0, objective_gap=gap, **others)


def network_scores(kl):
    """A hundredth of the KL as energy distance on test inputs, a tenth on box inputs."""
    distances = {"energy_distance_20_test": kl / 100, "energy_distance_20_box": kl / 10}
    errors = {f"{name}_error": 0.001 for name in distances}
    others = {"predictive_kl_test": kl / 10, "predictive_kl_box": kl}
    return ShortNetworkScores(functions=1000, kl=kl, nlpd=1.0, variance_ranks_test=0.5, **distances, **errors, **others)


def result(each: Entry, of: Edition, kl=lambda place, seed: 1.0, places=None, **changes) -> Result:
    """A result in which `kl(place, seed)` is each run's KL; None for a run that diverged.

    Which runs there are is read from files of tasks: for many entries, once for all as `places`.
    """

    def cell(place, seed):
        value, sha256 = kl(place, seed), hashlib.sha256(place.name.encode()).hexdigest()
        facts = {"N": 100, "N_test": 10, "k": 5, "ffg_floor": 0.5} | {f"map_{name}": 0.25 for name in JOINT}
        task = TaskFacts(sha256=sha256, redrawn=0, **facts)
        if of.is_networks:
            task = NetworkFacts(sha256=sha256, reference_sha256=sha256, N=100, k=31, level="C1", log_z=-20.0)
        its = {**vars(place), "seed": seed, "task": task, "seconds": 1.0, "steps": 100}
        if value is None:
            return Cell(**its, status="diverged", reason="KL is not a number")
        if of.is_networks:
            return Cell(**its, status="ok", scores=network_scores(value))
        waypoint = Waypoint(steps=100, seconds=1.0, kl=value, **dict.fromkeys(JOINT, 0.1))
        return Cell(**its, status="ok", scores=scores(value, each.manifest.family), waypoints=(waypoint,))

    facts = {
        "edition": of.name,
        "edition_sha256": of.sha256,
        "edition_status": of.status,
        "entry": each.name,
        "entry_sha256": each.sha256,
        "scoring_version": SCORING_VERSION,
        "isolation": "bubblewrap, rlimit, seccomp",
        "provenance": {"fsvi_bench": "0.3.0", "hardware": "a processor"},
        "cells": tuple(cell(*each) for each in places or runs(of)),
    }
    return Result(**facts | changes)


def read_result(path: Path) -> Result:
    return Result.model_validate_json(path.read_bytes())


def sign_file(path, key):
    signature_path(path).write_bytes(sign(path.read_bytes(), key))


def make_board(root: Path, kls, of: Edition | None = None, **more) -> Path:
    """A board of entries by name, each with what `result` takes for its KLs."""
    of = of or edition(DATASETS)
    write_edition(root, of)
    places = runs(of)
    for name, kl in kls.items():
        each = entry(name, **more)
        write_entry(root, each)
        if kl is not None:
            write_result(result_path(root, of.name, name), result(each, of, kl, places))
    return root
