"""Perfect draws of two samplers agree, and each fault exceeds its own limit of the certificate."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fsvi_bench.networks import reference
from fsvi_bench.networks.sampling.agreement import agreement, mmd_p_value
from fsvi_bench.networks.sampling.evidence import Estimate
from fsvi_bench.networks.sampling.nuts import Chain

GROUPS = {"train": slice(0, 3), "test": slice(3, 6)}
LADDER, SMC = Estimate(-10.0, 0.1, 8), Estimate(-10.1, 0.1, 8)


def agreeing(
    *, f: np.ndarray | None = None, log_p: np.ndarray | None = None, energy: np.ndarray | None = None,
    particles: np.ndarray | None = None, ladder: Estimate = LADDER, smc: Estimate = SMC,
) -> reference.Agreement:  # fmt: skip
    generator = np.random.default_rng(0)
    noise = generator.standard_normal((4, 2000, 8))
    log_p = noise[..., 6] if log_p is None else log_p
    energy = noise[..., 7] if energy is None else energy
    zeros = np.zeros(2000)
    chains = [Chain(zeros[:, None], zeros, p, e, zeros, 0.1) for p, e in zip(log_p, energy, strict=True)]
    f = noise[..., :6] if f is None else f
    particles = generator.standard_normal((900, 6)) if particles is None else particles
    return agreement(chains, f, particles, ladder, smc, GROUPS, generator)


def draws(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((4, 2000, 6))


def walk(rho: float) -> np.ndarray:
    """Stationary first-order autoregressions of unit variance [4, 2000, 6]."""
    f = draws()
    for t in range(1, f.shape[1]):
        f[:, t] = rho * f[:, t - 1] + math.sqrt(1 - rho**2) * f[:, t]
    return f


def failures(of: reference.Agreement) -> set[str]:
    """The limits that are exceeded, by the first words that tell them apart."""
    exact = reference.Estimate(value=of.log_z_smc.value, error=0.0)
    nothing = {"task": "t", "task_sha256": "", "reference_sha256": "", "settings": {}, "versions": {}, "seconds": 0.0}
    found = reference.Certificate(**nothing, level="C2", log_z=exact, agreement=of).failures()
    return {each.removeprefix("the ").partition(" is ")[0] for each in found}


def test_perfect_draws_pass() -> None:
    got = agreeing()
    assert failures(got) == set()
    assert got.ess_bulk == pytest.approx(8000, rel=0.15)


def nan_in(values: np.ndarray) -> np.ndarray:
    values[(1,) * values.ndim] = np.nan
    return values


R_HAT, MMD = "largest R̂", "p-value of the MMD test"
ESS = "smallest bulk ESS", "smallest tail ESS"


@pytest.mark.parametrize(
    ("fault", "exceeded"),
    [
        ({"f": nan_in(draws())}, {R_HAT, *ESS, MMD}),
        ({"log_p": nan_in(draws()[..., 0])}, {R_HAT, *ESS, MMD}),
        ({"energy": nan_in(draws()[..., 0])}, {"E-BFMI"}),
        ({"energy": walk(0.95)[..., 0]}, {"E-BFMI"}),
        ({"particles": nan_in(draws()[0])}, {MMD}),
        ({"particles": draws()[0] + 0.4}, {MMD}),
        ({"f": walk(0.5)}, {ESS[0]}),
        ({"f": np.sign(draws()) * abs(walk(0.9))}, {*ESS}),
        ({"f": draws() + np.array([0.3, 0, 0, 0])[:, None, None]}, {R_HAT, ESS[0]}),
        ({"ladder": Estimate(-9.0, 0.1, 8)}, {"p-value of equal log Z"}),
        ({"smc": Estimate(-10.0, 0.6, 8)}, {"error of log Z by SMC"}),
        ({"smc": Estimate(-10.0, math.nan, 1)}, {"p-value of equal log Z", "error of log Z by SMC"}),
        ({"ladder": Estimate(math.nan, 0.1, 8)}, {"p-value of equal log Z"}),
    ],
)  # fmt: skip
def test_each_fault_exceeds_its_limits(fault: dict, exceeded: set[str]) -> None:
    assert failures(agreeing(**fault)) == exceeded


def test_the_permutation_test_holds_its_level_and_sees_a_spread() -> None:
    generator = np.random.default_rng(6)
    p = [mmd_p_value(*generator.standard_normal((2, 40, 3)), generator) for _ in range(200)]
    # 200 uniform p-values: the share below 0.1 is 0.1 ± 0.021.
    assert 0.02 < np.mean(np.array(p) <= 0.1) < 0.19
    a, b = generator.standard_normal((2, 300, 3))
    assert mmd_p_value(a, 1.5 * b, generator) < 0.01
