"""Checks of functional objectives: sound ones pass, and every fault planted here is found and named.

The faults were seen in published code, or are like those. That an SSGE keeps
a share of the eigenvalues' sum, and not of their number, is a test of its own:
tests/maths/test_ssge.py::test_the_count_is_the_least_that_reaches_the_share.
"""

from __future__ import annotations

import json
import math
import re

import pytest
import torch

from fsvi_bench.conformance import OBJECTIVE_CHECKS, check_objective
from fsvi_bench.errors import InputError

JITTER = 1e-8  #: as much as the documentation promises to accept


def moments(mean, tril, Phi):
    """Means and covariances of function values under q, and the prior's covariance."""
    return (Phi @ mean[..., None])[..., 0], Phi @ tril @ tril.mT @ Phi.mT, Phi @ Phi.mT


def dense_kl(mean, S, K, log_factor=0.5):
    k = K.shape[-1]
    solved = torch.linalg.solve(K, torch.cat([S, mean[..., None]], -1))
    quadratic = torch.einsum("bii->b", solved[..., :-1]) - k + (mean * solved[..., -1]).sum(-1)
    return 0.5 * quadratic + log_factor * (torch.logdet(K) - torch.logdet(S))


def kl(mean, tril, Phi):
    return dense_kl(*moments(mean, tril, Phi))


def jittered_kl(mean, tril, Phi):
    m, S, K = moments(mean, tril, Phi)
    jitter = JITTER * torch.eye(K.shape[-1], dtype=K.dtype)
    return dense_kl(m, S + jitter, K + jitter)


def root(matrix):
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp(min=0).sqrt()[:, None] @ vectors.mT


def w2_squared(mean, tril, Phi):
    m, S, K = moments(mean, tril, Phi)
    half = root(K)
    cross = torch.linalg.eigvalsh(half @ S @ half).clamp(min=0).sqrt().sum(-1)
    return m.square().sum(-1) + torch.einsum("bii->b", S + K) - 2 * cross


def gwi_w2_squared(mean, tril, Phi):
    """Under the empirical law of A, as Wild et al. (2022) define it."""
    return w2_squared(mean, tril, Phi) / Phi.shape[-2]


@pytest.mark.parametrize(
    ("objective", "divergence"), [(kl, "kl"), (jittered_kl, "kl"), (w2_squared, "w2"), (gwi_w2_squared, "w2")]
)
def test_sound_objectives_pass(objective, divergence):
    report = check_objective(objective, divergence)
    assert [(each.check, each.message) for each in report.findings if each.status == "failed"] == []
    skipped = [each.check for each in report.findings if each.status == "not applicable"]
    assert skipped == (["equals the KL of the weights"] if divergence == "w2" else [])
    assert report.ok


# --- Faults, each in code of its own kind -----------------------------------------------------------------------------


def reshaped(mean, tril, Phi):
    """The roots of the covariance, taken apart by a reshape where a transpose is meant: right if all variances are equal."""
    m, _, K = moments(mean, tril, Phi)
    B, M, k = Phi.shape
    F = (Phi @ tril).mT.reshape(B, M, k)
    return dense_kl(m, F @ F.mT, K)


def asymmetric(mean, tril, Phi):
    """A reshape where a transpose is meant, so that the covariance is no longer symmetric."""
    m, S, K = moments(mean, tril, Phi)
    F = Phi @ tril
    product = F @ F.reshape(len(F), *F.shape[:0:-1])
    half = 0.5 * (
        torch.einsum("bii->b", torch.linalg.solve(K, product)) - torch.einsum("bii->b", torch.linalg.solve(K, S))
    )
    return dense_kl(m, S, K) + half


def scrambled_variances(mean, tril, Phi):
    """Variances of weights in reverse, as a wrong `view` of a flat vector gives them: right if all are equal."""
    return kl(mean, tril.flip(-1, -2).mT, Phi)


def counted_twice(mean, tril, Phi):
    return kl(mean, tril, Phi) + kl(mean, tril, Phi)


def weights_counted_too(mean, tril, Phi):
    k = mean.shape[-1]
    total = kl(mean, tril, Phi)
    total += kl(mean, tril, torch.eye(k, dtype=mean.dtype).expand(len(mean), k, k))
    return total


def half_the_log(mean, tril, Phi):
    """−0.077 at variances ½ and 1."""
    return dense_kl(*moments(mean, tril, Phi), log_factor=0.25)


def reversed_kl(mean, tril, Phi):
    m, S, K = moments(mean, tril, Phi)
    return dense_kl(-m, K, S)


def marginal_kl(mean, tril, Phi):
    m, S, K = moments(mean, tril, Phi)
    s, p = (torch.diagonal(matrix, dim1=-2, dim2=-1) for matrix in (S, K))
    return 0.5 * (s / p - 1 - (s / p).log() + m.square() / p).sum(-1)


def no_determinant(mean, tril, Phi):
    return dense_kl(*moments(mean, tril, Phi), log_factor=0.0)


def w1_called_w2(mean, tril, Phi):
    m, S, K = moments(mean, tril, Phi)
    s, p = (torch.diagonal(matrix, dim1=-2, dim2=-1).sqrt() for matrix in (S, K))
    z = torch.distributions.Normal(0.0, 1.0)
    scale = (s - p).abs().clamp(min=1e-12)
    return (2 * scale * z.log_prob(m / scale).exp() + m * (2 * z.cdf(m / scale) - 1)).sum(-1)


def w2_itself(mean, tril, Phi):
    return w2_squared(mean, tril, Phi).sqrt()


def random_kl(mean, tril, Phi):
    """By ten draws from q, anew in each call."""
    draws = mean[:, None] + torch.randn(len(mean), 10, mean.shape[-1], dtype=mean.dtype) @ tril.mT
    return kl(draws.mean(1), tril, Phi)


def mean_of_problems(mean, tril, Phi):
    return kl(mean, tril, Phi).mean()


def mixed_problems(mean, tril, Phi):
    m, S, K = moments(mean, tril, Phi)
    return dense_kl(m, S, K) + (m - m.mean(0)).sum(-1)


def detached(mean, tril, Phi):
    return kl(mean, tril.detach(), Phi) + 0 * mean.sum(-1)


def partly_detached(mean, tril, Phi):
    m, S, K = moments(mean, tril, Phi)
    logdet = torch.logdet(K) - torch.logdet(S)
    return dense_kl(m, S, K) - 0.25 * logdet + 0.25 * logdet.detach()


def first_input_only(mean, tril, Phi):
    return kl(mean, tril, Phi[:, :1])


def without_its_mean(mean, tril, Phi):
    mean.data.zero_()
    return kl(mean, tril, Phi)


def number_of_inputs_for_the_rank(mean, tril, Phi):
    rows = torch.linalg.pinv(Phi) @ Phi
    root = rows @ tril
    values = torch.linalg.svdvals(root).clamp(min=1e-9).log()[:, : min(Phi.shape[-2:])].sum(-1)
    squares = root.square().sum((-2, -1)) + (rows @ mean[..., None]).square().sum((-2, -1))
    return 0.5 * (squares - Phi.shape[-2]) - values


def negative_infinity(mean, tril, Phi):
    return kl(mean, tril, Phi) * math.inf


def raises(mean, tril, Phi):
    raise ValueError("no such thing")


FAULTS = [
    (reshaped, "kl", "depends on function values only", "reshape that scrambles variances"),
    (asymmetric, "kl", "ignores the order of inputs", "a covariance asymmetric"),
    (without_its_mean, "kl", "returns one number per problem", "it changes its argument mean_q in place"),
    (number_of_inputs_for_the_rank, "kl", "equals the KL of the weights", "in place of the rank"),
    (scrambled_variances, "kl", "depends on function values only", "reshape that scrambles variances"),
    (counted_twice, "kl", "equals the closed form", "it is twice the KL divergence: a part is added twice"),
    (counted_twice, "kl", "equals the KL of the weights", "expected the KL of the weights"),
    (weights_counted_too, "kl", "depends on function values only", "a divergence of the weights in the sum"),
    (weights_counted_too, "kl", "equals the closed form", "the weights are counted twice"),
    (half_the_log, "kl", "is never negative", r"-0\.0767 for one weight with mean 0 and variance 0\.5"),
    (half_the_log, "kl", "equals the closed form", "half its logarithm"),
    (reversed_kl, "kl", "equals the closed form", "arguments exchanged"),
    (marginal_kl, "kl", "equals the closed form", "without the correlations"),
    (no_determinant, "kl", "equals the closed form", "without its logarithm"),
    (w1_called_w2, "w2", "equals the closed form", "it is the W₁ distance"),
    (w2_itself, "w2", "equals the closed form", "it is W₂, not its square"),
    (w2_itself, "w2", "is zero at the prior", "return W₂²"),
    (random_kl, "kl", "returns one number per problem", "called twice"),
    (mean_of_problems, "kl", "returns one number per problem", r"it returns \[\], torch.float64 for 4 problems"),
    (mixed_problems, "kl", "treats each problem separately", "leading axis"),
    (detached, "kl", "is zero at the prior", "no gradient reaches scale_tril_q"),
    (partly_detached, "kl", "has the right gradient", "central differences"),
    (first_input_only, "kl", "ignores the order of inputs", "reordering the inputs"),
    (negative_infinity, "kl", "returns one number per problem", "expected a finite number"),
    (
        raises,
        "kl",
        "returns one number per problem",
        r"ValueError: no such thing .*test_objectives.py, line \d+: raise",
    ),
]


@pytest.mark.parametrize(
    ("fault", "divergence", "check", "words"), FAULTS, ids=[f"{f[0].__name__}-{f[2]}" for f in FAULTS]
)
def test_a_planted_fault_is_found_and_named(fault, divergence, check, words):
    failed = {
        each.check: each.message for each in check_objective(fault, divergence).findings if each.status == "failed"
    }
    assert check in failed, failed
    assert re.search(words, failed[check]), failed[check]
    assert "\n" not in failed[check]


def test_every_check_has_a_fault_that_fails_it():
    assert {check for _, _, check, _ in FAULTS} == set(OBJECTIVE_CHECKS)


FILE = """
import torch
def my_kl(mean, tril, Phi):
    S, K = Phi @ tril @ tril.mT @ Phi.mT, Phi @ Phi.mT
    m = (Phi @ mean[..., None])
    trace = torch.linalg.solve(K, S).diagonal(dim1=-2, dim2=-1).sum(-1)
    return {factor} * (trace - len(K[0]) + (m.mT @ torch.linalg.solve(K, m))[:, 0, 0] - torch.logdet(S) + torch.logdet(K))
"""


@pytest.mark.parametrize(("factor", "status"), [(0.5, 0), (1.0, 1)])
def test_the_command(tmp_path, cli, factor, status):
    file = tmp_path / "mine.py"
    file.write_text(FILE.format(factor=factor))
    got, out, _ = cli("objectives", "check", f"{file}:my_kl", "--json")
    assert got == status
    document = json.loads(out)
    assert document["ok"] is (status == 0)
    assert document["objective"] == f"{file}:my_kl"


def test_from_python():
    class Callable:
        def __call__(self, mean, tril, Phi):
            return kl(mean, tril, Phi)

    assert check_objective(Callable()).ok
    with pytest.raises(InputError, match="unknown divergence 'w1'"):
        check_objective(kl, "w1")


@pytest.mark.parametrize(
    ("spec", "words"),
    [("mine.py:my_lk", "did you mean 'my_kl'"), ("mine.py", "expected path/file.py:function"), ("no.py:f", "no file")],
)
def test_bad_input(tmp_path, monkeypatch, cli, spec, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FILE.format(factor=0.5))
    status, out, err = cli("objectives", "check", spec)
    assert (status, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1
