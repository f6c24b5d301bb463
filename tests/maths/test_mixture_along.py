"""Densities of mixtures at many targets that share their work, against all 2ᵏ Gaussians and against one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fsvi_bench.maths import mixtures
from fsvi_bench.maths.mixtures import bernoulli_dropout_weights, mixture_log_density, mixture_log_density_along
from tests.maths.draws import PROPERTY, close, f64, linspace, seeds
from tests.maths.mixtures import MixtureProblem, enumerated_log_density, random_problem, weights_of

KINDS = ["probability per weight", "some certain, some zero", "low noise", "wide range of sizes", "slab"]


def along(problem: MixtureProblem, m: int) -> tuple[torch.Tensor, torch.Tensor]:
    """m ascending targets for each row, over ±8 predictive standard deviations, and the rows."""
    q = weights_of(problem)
    Phi = f64(problem.Phi)
    on, off = q.retain_probability, q.drop_probability
    mean = Phi @ (on * q.mean)
    variance = problem.noise_variance + Phi.square() @ (on * (q.scale.square() + off * q.mean.square()))
    return mean[:, None] + variance.sqrt()[:, None] * linspace(-8, 8, m), Phi


@settings(PROPERTY, max_examples=20)
@given(seed=seeds, kind=st.sampled_from(KINDS), m=st.sampled_from([1, 5, 15, 16, 33]))
def test_densities_equal_those_of_all_atoms_and_their_imprecision_is_honest(seed, kind, m):
    """As one by one; what sharing has to give is asked to be better than 1e-9, and is."""
    problem = random_problem(seed, kind)
    y, Phi = along(problem, m)
    result = mixture_log_density_along(y, Phi, weights_of(problem), problem.noise_variance)
    places = np.repeat(np.arange(len(Phi)), m)
    expected = enumerated_log_density(problem._replace(y=y.numpy().ravel(), Phi=problem.Phi[places]))
    error = np.abs(result.log_density.numpy().ravel() - expected)
    assert (error <= 10 * result.imprecision.numpy().ravel()).all()
    assert (error <= 2e-9 + 1e-11 * np.abs(expected)).all()
    # Beyond that the spacing of doubles is no better than what counts as reliable.
    assert result.reliable.numpy().ravel()[np.abs(expected) < 1e7].all()


def test_neighbours_share_their_work_and_the_far_ones_are_computed_alone(monkeypatch):
    """A hundred weights and little noise: sharing gives what single densities give, and few are left for those."""
    generator = torch.Generator().manual_seed(3)
    Phi, m = torch.randn(50, 100, generator=generator, dtype=torch.float64), f64(np.linspace(0.1, 1, 100))
    q, asked = bernoulli_dropout_weights(m, 0.8), []

    def counted(y, *rest):
        asked.append(y.numel())
        return mixture_log_density(y, *rest)

    sd = (Phi.square() @ (0.16 * m.square()) + 0.01).sqrt()
    y = 0.8 * (Phi @ m)[:, None] + sd[:, None] * linspace(-8, 8, 45)
    expected = mixture_log_density(y.flatten(), Phi.repeat_interleave(45, 0), q, 0.01)
    monkeypatch.setattr(mixtures, "mixture_log_density", counted)
    result = mixture_log_density_along(y, Phi, q, 0.01)
    close(result.log_density.flatten(), expected.log_density, rtol=0, atol=2e-9)
    assert sum(asked) < 0.02 * y.numel()  # those that lie farthest out


def test_targets_beyond_what_one_tilt_reaches():
    """Two narrow atoms, targets on them and at their middle: shared tilts give no digit there, single ones all."""
    q, y = bernoulli_dropout_weights(f64([1.0]), 0.5), f64([[0.0, 0.25, 0.5, 0.75, 1.0]])
    result = mixture_log_density_along(y, f64([[1.0]]), q, 0.01**2)
    expected = [
        math.log(0.5 / (0.01 * math.sqrt(2 * math.pi))) + np.logaddexp(-0.5e4 * at**2, -0.5e4 * (at - 1) ** 2)
        for at in y[0].tolist()
    ]
    close(result.log_density[0], f64(expected), rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_depend_on_its_batch(kind):
    problem = random_problem(8, kind)
    y, Phi = along(problem, 15)
    q, noise = weights_of(problem), problem.noise_variance
    together = mixture_log_density_along(y, Phi, q, noise).log_density
    for row in range(len(Phi)):
        alone = mixture_log_density_along(y[row : row + 1], Phi[row : row + 1], q, noise).log_density
        assert torch.equal(alone[0], together[row])


def test_rows_that_are_not_finite_do_not_affect_others():
    q, Phi = bernoulli_dropout_weights(f64([1.0, 2.0]), 0.5), f64([[1.0, 1.0], [math.inf, 1.0], [1.0, 1.0]])
    y = f64([[0.0, 1.0], [0.0, 1.0], [0.0, math.nan]])
    result = mixture_log_density_along(y, Phi, q, 0.1)
    assert result.reliable.tolist() == [[True, True], [False, False], [True, False]]
    assert torch.equal(result.log_density.isfinite(), result.reliable)
