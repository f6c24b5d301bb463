"""What testers found broken once, case by case."""

import math

import numpy as np
import pytest
import torch

from fsvi_bench.maths.functional_kl import measure
from fsvi_bench.maths.projection import row_space
from fsvi_bench.maths.ssge import spectral_stein_score
from fsvi_bench.methods import fixed_a
from fsvi_bench.methods.data import MeasurementDesign, MeasurementStream, Streams
from fsvi_bench.methods.lbfgs import LBFGS
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.rand_a import RandA
from fsvi_bench.posteriors.trainable import TrainableGaussian
from fsvi_bench.training.trainer import train

f64 = torch.float64


# 1. tests/methods
@pytest.mark.parametrize("lr", [1.0, 10.0])
def test_rand_a_that_runs_away_is_noted_not_raised(toy, lr):
    method = RandA(toy, "full", [0], M=14, lr=lr, minibatch="full", max_steps=300)
    train(method, "cpu")  # raises LinAlgError
    assert int(method.diverged_at[0]) >= 0


# 2. tests/maths/test_functional_kl.py
@pytest.mark.parametrize("M", [10, 12, 16, 20, 30])
def test_the_rank_of_the_toy_s_sets_is_that_of_their_singular_values(toy, M):
    sets = MeasurementStream(TrainingData.of([toy]), MeasurementDesign(M), Streams((5,))).draw(range(512))[:, 0].clone()
    identity = torch.eye(20, dtype=f64).repeat(512, 1, 1)
    ranks = measure(sets).project_rows(identity).diagonal(dim1=1, dim2=2).sum(1).round().long()
    expected = torch.tensor([row_space(one).shape[1] for one in sets])
    assert int((ranks != expected).sum()) == 0


def test_pivots_do_not_reveal_the_rank():
    """Wilkinson's: all pivots 1, singular values from 25 to 3e-12."""
    Phi_A = torch.eye(40, dtype=f64) - torch.ones(40, 40, dtype=f64).triu(1)
    rank = row_space(Phi_A).shape[1]
    assert rank == 39
    for features in (Phi_A, torch.cat([Phi_A, torch.zeros(40, 20, dtype=f64)], 1)):
        k = features.shape[1]
        assert float(measure(features[None]).project_rows(torch.eye(k, dtype=f64)[None])[0].trace()) == pytest.approx(
            rank
        )


# 3. tests/maths/test_functional_kl.py
def test_a_large_rank_tolerance_decides_too():
    Phi_A = torch.diag(torch.tensor([1.0, 1.0, 1e-5, 1.0], dtype=f64))
    identity = torch.eye(4, dtype=f64)[None]
    assert row_space(Phi_A, 1e-4).shape[1] == 3
    for M in (3, 4):
        seen = measure(Phi_A[None, :M], rank_tolerance=1e-4).project_rows(identity)
        assert float(seen[0].trace()) == pytest.approx(M - 1)


# 5. tests/scoring/test_objective.py
@pytest.mark.parametrize("M", [15, 18, 19])
def test_a_scale_that_vanishes_slowly_has_vanished(toy, M):
    """The KL at the optimum must not depend on where the search for it stops."""
    method = fixed_a.FixedA(toy, "ffg", M=M)
    method.Phi_A = (
        MeasurementStream(TrainingData.of(toy), MeasurementDesign(M), Streams((3,))).draw(range(1))[0].clone()
    )
    kls, saved = [], fixed_a.DESIGN_TOLERANCE
    try:
        for tolerance in (1e-6, 1e-10):
            fixed_a.DESIGN_TOLERANCE = tolerance
            (optimum,) = method.optima([toy])
            kls.append(optimum.kl)
    finally:
        fixed_a.DESIGN_TOLERANCE = saved
    assert kls[0] == pytest.approx(kls[1], rel=1e-3)


# 6. tests/methods/test_lbfgs.py
@pytest.mark.parametrize("beyond", [math.nan, math.inf, -5.0, 0.8])
def test_lbfgs_turns_back_from_a_wall(beyond):
    """(x − 0.4)², no number from 0.6 on, where the first step, of length 0.8, arrives."""
    q, seen = TrainableGaussian("ffg", 1, 4), []

    def loss():
        x = q.mean[0, 0]
        seen.append(float(x.detach()))
        # The value is no number there, and the gradient what it may.
        return (x - 0.4) ** 2 if seen[-1] < 0.6 else beyond * x - (beyond * x).detach() + math.nan

    optimizer = LBFGS([q.mean])
    for _ in range(50):
        optimizer.step(loss)
    assert not any(math.isnan(x) for x in seen)
    assert float(q.mean.detach()[0, 0]) == pytest.approx(0.4, abs=1e-6)


def test_the_score_does_not_lose_digits_to_a_common_offset():
    samples = 1e-2 * torch.from_numpy(np.random.default_rng(0).standard_normal((20, 5)))
    expected = spectral_stein_score(samples)
    torch.testing.assert_close(spectral_stein_score(samples + 1000.0), expected, rtol=1e-7, atol=1e-7)
