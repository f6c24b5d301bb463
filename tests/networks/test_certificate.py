"""The empirical certificate passes perfect draws, and each fault fails its own limit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fsvi_bench.networks.sampling.certificate import LIMITS, Certificate, certify, judge, mmd_p_value
from fsvi_bench.networks.sampling.evidence import Estimate
from fsvi_bench.networks.sampling.nuts import Chain

GROUPS = {"train": slice(0, 3), "test": slice(3, 6)}
LADDER, SMC = Estimate(-10.0, 0.1, 8), Estimate(-10.1, 0.1, 8)


def certificate(
    *, f: np.ndarray | None = None, log_p: np.ndarray | None = None, energy: np.ndarray | None = None,
    particles: np.ndarray | None = None, ladder: Estimate = LADDER, smc: Estimate = SMC,
) -> Certificate:  # fmt: skip
    generator = np.random.default_rng(0)
    noise = generator.standard_normal((4, 2000, 8))
    log_p = noise[..., 6] if log_p is None else log_p
    energy = noise[..., 7] if energy is None else energy
    zeros = np.zeros(2000)
    chains = [Chain(zeros[:, None], zeros, p, e, zeros, zeros, 0.1) for p, e in zip(log_p, energy, strict=True)]
    f = noise[..., :6] if f is None else f
    particles = generator.standard_normal((900, 6)) if particles is None else particles
    return certify(chains, f, particles, ladder, smc, GROUPS, generator)


def draws(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((4, 2000, 6))


def walk(rho: float) -> np.ndarray:
    """Stationary first-order autoregressions of unit variance [4, 2000, 6]."""
    f = draws()
    for t in range(1, f.shape[1]):
        f[:, t] = rho * f[:, t - 1] + math.sqrt(1 - rho**2) * f[:, t]
    return f


def test_perfect_draws_pass() -> None:
    got = certificate()
    assert got.failures == ()
    assert set(got.numbers) == {*LIMITS, "divergences"}
    assert got.numbers["ess_bulk"] == pytest.approx(8000, rel=0.15)


def nan_in(values: np.ndarray) -> np.ndarray:
    values[(1,) * values.ndim] = np.nan
    return values


@pytest.mark.parametrize(
    ("fault", "failures"),
    [
        ({"f": nan_in(draws())}, {"r_hat", "ess_bulk", "ess_tail", "mmd_p"}),
        ({"log_p": nan_in(draws()[..., 0])}, {"r_hat", "ess_bulk", "ess_tail", "mmd_p"}),
        ({"energy": nan_in(draws()[..., 0])}, {"e_bfmi"}),
        ({"energy": walk(0.95)[..., 0]}, {"e_bfmi"}),
        ({"particles": nan_in(draws()[0])}, {"mmd_p"}),
        ({"particles": draws()[0] + 0.4}, {"mmd_p"}),
        ({"f": walk(0.5)}, {"ess_bulk"}),
        ({"f": draws() + np.array([0.3, 0, 0, 0])[:, None, None]}, {"r_hat", "ess_bulk"}),
        ({"ladder": Estimate(-9.0, 0.1, 8)}, {"evidence_p"}),
        ({"smc": Estimate(-10.0, 0.6, 8)}, {"evidence_error"}),
        ({"smc": Estimate(-10.0, math.nan, 1)}, {"evidence_p", "evidence_error"}),
        ({"ladder": Estimate(math.nan, 0.1, 8)}, {"evidence_p"}),
    ],
)  # fmt: skip
def test_each_fault_fails_its_limits(fault: dict, failures: set[str]) -> None:
    assert set(certificate(**fault).failures) == failures


def test_a_number_that_is_missing_or_nan_fails() -> None:
    assert judge({}) == judge(dict.fromkeys(LIMITS, math.nan)) == list(LIMITS)


def test_the_permutation_test_holds_its_level_and_sees_a_spread() -> None:
    generator = np.random.default_rng(6)
    p = [mmd_p_value(*generator.standard_normal((2, 40, 3)), generator) for _ in range(200)]
    # 200 uniform p-values: the share below 0.1 is 0.1 ± 0.021.
    assert 0.02 < np.mean(np.array(p) <= 0.1) < 0.19
    a, b = generator.standard_normal((2, 300, 3))
    assert mmd_p_value(a, 1.5 * b, generator) < 0.01
