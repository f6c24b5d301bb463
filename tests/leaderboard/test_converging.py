"""Objective gaps computed by the verifier: those of the run, without the entry's code."""

import math
import time
from functools import partial

import pytest
import torch

from fsvi_bench.leaderboard import verifying
from fsvi_bench.leaderboard.converging import objective_gap
from fsvi_bench.leaderboard.entry import BuiltIn, Entry
from fsvi_bench.leaderboard.jailed.run import Run, Snapshot
from fsvi_bench.leaderboard.verifying import _judged, _objective_gap, _scored
from fsvi_bench.methods.registry import load_method
from fsvi_bench.posteriors.gaussian import FactorisedGaussian
from fsvi_bench.posteriors.particles import ParticlesPosterior
from fsvi_bench.training.trainer import train
from tests.leaderboard.boards import JOINT, entry, manifest

SEED = 7


def built_in(name, family, **settings):
    return Entry(name, manifest(family=family, method=BuiltIn(name=name, version="0.2.0"), settings=settings), None)


@pytest.mark.parametrize(
    ("name", "family", "settings"),
    [
        ("exact", "ffg", {}), ("mean-field-vi", "ffg", {"max_steps": 5}), ("gaussian-dropout", "ffg", {"max_steps": 5}),
        ("bernoulli-dropout", "bernoulli", {}), ("fixed-a", "full", {"max_steps": 3, "M": 30}),
        ("rand-a-ngd", "full", {"max_steps": 5, "M": 10}), ("fsp-laplace", "factor", {}), ("gwi", "full", {}),
    ],
)  # fmt: skip
def test_the_gap_is_that_of_the_run(toy, name, family, settings):
    """FIXEDA's objective depends on a measurement set, which is drawn from the seed."""
    found = load_method(name)
    method = found.cls([toy], family, [SEED], found.options(settings))
    if method.trains:
        train(method, "cpu", None, ())
    (optimum,) = method.optima([toy])
    expected = method.objective(0, toy) - optimum.value
    gap = objective_gap(built_in(name, family, **settings), method.posterior()[0], toy, SEED)
    assert gap == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert (gap > 0.1) == method.trains  # few steps do not suffice, and closed forms are at their optimum


@pytest.mark.parametrize(("name", "family"), [("low-rank-vi", "full"), ("spike-and-slab", "spike-slab")])
def test_without_a_known_optimum_the_gap_is_unknown(toy, name, family):
    found = load_method(name)
    method = found.cls([toy], family, [SEED], found.options({}))
    assert objective_gap(built_in(name, family), method.posterior()[0], toy, SEED) is None


def prior(k):
    return FactorisedGaussian(torch.zeros(k, dtype=torch.float64), torch.ones(k, dtype=torch.float64))


def test_the_gap_of_a_source_file_is_unknown_whatever_it_says(toy):
    """Nothing of the file is imported, so it cannot report a gap of its own."""
    assert objective_gap(entry("mine", b"1 / 0", family="ffg"), prior(toy.k), toy, SEED) is None


def test_a_gap_that_takes_too_long_or_fails_is_unknown(toy, monkeypatch):
    mine = built_in("mean-field-vi", "ffg")
    assert _objective_gap(mine, prior(toy.k), toy, SEED) > 0
    assert _objective_gap(mine, prior(toy.k + 1), toy, SEED) is None
    monkeypatch.setattr(verifying, "OBJECTIVE_SECONDS", 1)
    monkeypatch.setattr("fsvi_bench.leaderboard.converging.objective_gap", lambda *_: time.sleep(60))
    assert _objective_gap(mine, prior(toy.k), toy, SEED) is None


def test_particles_have_an_mmd2_and_others_have_none(toy, monkeypatch):
    monkeypatch.setattr(verifying, "_objective_gap", lambda entry, q, task, seed: 0.5)

    def scores(q):
        run = Run("ok", None, 1.0, (Snapshot(1, 1.0, q),), "none")
        judged = _judged(run, SEED, partial(_scored, built_in("mean-field-vi", "ffg"), toy))
        (point,) = judged["waypoints"]
        for name in JOINT:
            assert getattr(point, name) == getattr(judged["scores"], name)
        return judged["scores"]

    draws = torch.randn(30, toy.k, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = scores(ParticlesPosterior(draws))
    assert found.mmd2 > found.mmd2_of_draws > found.mmd2_deviation > 0
    assert (found.kl, found.objective_gap) == (math.inf, 0.5)
    assert (scores(prior(toy.k)).mmd2, scores(prior(toy.k)).mmd2_deviation) == (None, None)
