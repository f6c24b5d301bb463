"""SSGE's score shrinkage: slopes against a regression written out, planted estimates, and the method's own gradient."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError

from fsvi_bench.maths.functional_kl import measure
from fsvi_bench.maths.gaussian import gaussian_kl
from fsvi_bench.methods import ssge
from fsvi_bench.methods.data import Batch, Rows, Streams
from fsvi_bench.papers.burt2020.shrinkage import (
    CONTROL,
    Marginal,
    descend,
    examine,
    function_marginals,
    judged,
    kl_of_variance,
    measurement_features,
    regress,
    shrinkage,
)
from fsvi_bench.papers.registry import REPRODUCTIONS
from tests import reference
from tests.maths.draws import close, f64
from tests.methods.synthetic import synthetic


def settings(**values):
    found = REPRODUCTIONS["burt2020-shrinkage"]._settings("quick")
    return type(found).model_validate(found.model_dump() | values)


def normals(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def factor_of(seed, M, k):
    """With deviations over three decades."""
    return normals(seed, M, k) * torch.logspace(0, -3, M, dtype=torch.float64)[:, None]


# --- One marginal -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("M", "k", "rank"), [(5, 7, 5), (6, 3, 3)], ids=["regular", "degenerate"])
@pytest.mark.parametrize("share", [0.99, 0.7])
def test_equals_a_regression_written_out(M, k, rank, share):
    """Score by a pseudo-inverse of the covariance, estimate eigenfunction by eigenfunction, lstsq over all entries."""
    factor, w = factor_of(1, M, k), normals(2, 12, k)
    found, by_direction = shrinkage(Marginal.of(factor), w, share)
    f = (w @ factor.mT).numpy()
    covariance = (factor @ factor.mT).numpy()
    score = -f @ np.linalg.pinv(covariance, rcond=1e-12, hermitian=True)
    estimate, J = reference.spectral_stein_score(f, f, share=share)
    eigenvalues, U = np.linalg.eigh(covariance)
    eigenvalues, U = eigenvalues[::-1][:rank], U[:, ::-1][:, :rank]
    whitened, target = ((values @ U) * np.sqrt(eigenvalues) for values in (estimate, score))

    def slope(y, x):
        return np.linalg.lstsq(x.reshape(-1, 1), y.reshape(-1), rcond=None)[0][0]

    assert (found["rank"], found["J"]) == (rank, J)
    assert found["bandwidth"] == pytest.approx(reference.median_distance(f), rel=1e-12)
    # Covariances by products lose eps · cond(C), 1e-16 · 1e6 and more, where the code has singular values of the factor.
    assert found["whitened"] == pytest.approx(slope(whitened, target), rel=1e-7)
    assert found["raw"] == pytest.approx(slope(estimate, score), rel=1e-6)
    assert found["error"] == pytest.approx(((whitened - target) ** 2).sum() / (target**2).sum(), rel=1e-7)
    slopes = [slope(whitened[:, i], target[:, i]) for i in range(rank)]
    assert by_direction["slope"].to_list() == pytest.approx(slopes, rel=1e-5, abs=1e-9)
    assert by_direction["share"].to_list() == pytest.approx(np.sqrt(eigenvalues) / found["bandwidth"], rel=1e-7)


def test_planted_slopes_are_found():
    """Also where the least variance underflows."""
    z, slopes = normals(3, 50, 2), f64([0.9, -0.1])
    found, by_direction = regress(-slopes * z, z, f64([1.0, 1e-200]))
    share = z.square().sum(0) / z.square().sum()
    close(by_direction, slopes)
    expected = {"whitened": share @ slopes, "raw": -0.1, "error": share @ (1 - slopes).square()}
    assert found == pytest.approx({name: float(value) for name, value in expected.items()}, rel=1e-13)


# --- What it means for the gradient -----------------------------------------------------------------------------------


def of_method(Phi_A, S):
    """SSGE with S samples, and a step of it at one measurement set."""
    M, k = Phi_A.shape
    problem = synthetic(1, k=k)
    rows = torch.cat([Phi_A, torch.zeros(-M % 4, k, dtype=torch.float64)])
    return ssge.Ssge(problem, "full", M=M, S=S), Batch(Rows.whole(problem), measure(Phi_A[None]), rows[None])


@pytest.mark.parametrize("variances", [[0.2] * 6, [1.0] * 6, [0.9, 1.7, 0.3, 0.01, 1.0, 0.5]])
def test_kls_of_variances_add_up_in_any_coordinates(variances):
    """C = LLᵀ, and q's covariance L diag(v) Lᵀ."""
    tril, zero = (
        torch.tril(normals(9, 6, 6)) + 3 * torch.eye(6, dtype=torch.float64),
        torch.zeros(6, dtype=torch.float64),
    )
    expected = float(gaussian_kl(zero, tril * f64(variances).sqrt(), zero, tril))
    assert sum(map(kl_of_variance, variances)) == pytest.approx(expected, rel=1e-12, abs=1e-13)


def test_a_variance_of_nothing_is_infinitely_far_and_nan_stays():
    assert kl_of_variance(0.0) == kl_of_variance(-0.1) == math.inf
    assert math.isnan(kl_of_variance(math.nan))


def test_descent_follows_the_methods_own_gradient():
    """Two steps by `stein_gradient`, the method's own, as a derivative by log v: Σ_s of z_is √v_i Wᵀ gradient, over Σ z²."""
    k, M = 6, 9
    Phi_A = normals(11, M, k)
    marginal = Marginal.of(Phi_A)
    (method, batch), streams = of_method(Phi_A, 100), Streams((5,))
    W, log_v, expected = marginal.W, torch.zeros(k, dtype=torch.float64), []
    for step in (1, 2):
        z = Streams((5,), step).normal("descent", 100, k)[0] @ W
        scaled = z * (0.5 * log_v).exp()
        gradient = method.stein_gradient((scaled @ W.mT)[None], batch)[0] @ W
        log_v = log_v - (scaled * gradient).sum(0) / z.square().sum(0)
        expected.append(0.5 * float((log_v.exp() - 1 - log_v).sum()))
    found = descend(marginal, streams, 0.99, (1, 2))
    assert found == pytest.approx(expected, rel=1e-8)
    assert descend(marginal, streams, 0.99, (2,)) == found[1:]


# --- The experiment ---------------------------------------------------------------------------------------------------


def test_measurement_features_are_of_distinct_training_inputs_and_others(toy):
    Phi_A = measurement_features(toy, 20, 0)
    nearest = (Phi_A[:, None] - toy.Phi).abs().amax(-1).min(1)
    assert Phi_A.shape == (20, 20)
    assert (nearest.values[:10] == 0).all()
    assert len(set(nearest.indices[:10].tolist())) == 10
    assert (nearest.values[10:] > 0).all()
    assert not torch.equal(Phi_A, measurement_features(toy, 20, 1))


def test_marginals_of_a_problem_are_seen_at_every_count_and_seed(toy):
    marginals = function_marginals(toy, settings(M=10, seeds=2, S=[5, 100]))
    slopes, directions, descent = examine(marginals, settings(M=10, seeds=2, S=[5, 100], steps=[1, 2])).values()
    assert list(marginals) == ["toy prior", "toy posterior"]
    assert set(slopes["k"]) == {20}
    assert descent.groupby("marginal")["steps"].agg(list).to_list() == [[1, 2, 1, 2]] * 2
    bandwidths = slopes[slopes["S"] == 100].set_index(["marginal", "seed"])["bandwidth"]
    for seed in range(2):
        Phi_A = measurement_features(toy, 10, seed)
        covariance = Phi_A @ torch.cholesky_inverse(toy.truth.posterior.precision_tril) @ Phi_A.mT
        for name, values in (("toy prior", Phi_A @ Phi_A.mT), ("toy posterior", covariance)):
            of_one = directions[(directions["marginal"] == name) & (directions["seed"] == seed)]
            deviations = f64((of_one["share"] * bandwidths[name, seed]).to_list())
            close(deviations.square(), torch.linalg.eigvalsh(values).flip(0), rtol=1e-9, atol=1e-12)


def planted(name, k, slopes, raw, directions):
    """Two seeds, a hundredth apart."""
    runs, by_direction, descent = [], [], []
    others = dict.fromkeys(("rank", "error", "J", "bandwidth"), 1)
    for seed, shift in enumerate((-0.01, 0.01)):
        own = {"marginal": name, "function": name != CONTROL, "k": k, "seed": seed}
        for S, slope in slopes.items():
            runs.append({**own, "S": S, "whitened": slope + shift, "raw": raw + shift, **others})
        for place, slope in enumerate(directions):
            by_direction.append({**own, "direction": place, "slope": slope + shift, "share": 1.0})
        descent += [{**own, "steps": step, "kl": seed + end} for step, end in ((1, 1.0), (10, 1.0 + directions[0]))]
    return {"runs": runs, "directions": by_direction, "descent": descent}


def test_statistics_of_planted_slopes():
    cases = [
        planted("a prior", 20, {100: 0.5, 400: 0.85}, 0.4, [0.9, 0.8, 0.4, 0.2]),
        planted("b prior", 100, {100: 0.3, 400: 0.5}, 0.25, [0.95, 0.3, 0.2, 0.1]),
        planted(CONTROL, 100, {100: 0.6, 400: 0.7}, 0.6, [0.1, 0.6, 0.6, 0.6]),
    ]
    frames = judged(**{name: pd.DataFrame([row for case in cases for row in case[name]]) for name in cases[0]})
    claims = REPRODUCTIONS["burt2020-shrinkage"].file.claims
    verdicts = [claim.judge(claim.at.of(frames)) for claim in claims]
    expected = {
        "slope of the whitened score at S = 100": (0.5, "a prior"), "slope of the score as it is": (-0.05, "b prior"),
        "rise of the slope": (0.1, f"{CONTROL}, S 400"), "slope of the whitened score at the": (0.5, "b prior"),
        "slope at the largest S, standard normal": (0.7, None), "slope in the first": (0.9, "a prior"),
        "slope in the lower half": (0.3, "a prior"), "rise of KL": (0.9, "a prior"),
    }  # fmt: skip
    for start, (value, case) in expected.items():
        (verdict,) = [verdict for verdict in verdicts if verdict.statistic.startswith(start)]
        assert verdict.value == pytest.approx(value)
        assert case is None or verdict.statistic.endswith(f"({case})")
    assert len(verdicts) == len(expected)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"S": [100, 50]}, "expected ascending numbers"), ({"S": [25, 50]}, "expected 100 to be one of them")],
)
def test_counts_that_do_not_rise_or_lack_the_claims_own_are_refused(changes, words):
    with pytest.raises(ValidationError, match=words):
        settings(**changes)
