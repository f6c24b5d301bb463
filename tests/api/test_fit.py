"""`fit` is `run` without files."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import fsvi_bench
from fsvi_bench import Diverged, Exact, FullGaussian, Method, RandA, fit
from fsvi_bench.methods.registry import built_in_names, load_method
from fsvi_bench.posteriors.gaussian import GaussianPosterior
from fsvi_bench.posteriors.io import read_posterior
from fsvi_bench.running.store import POSTERIOR_FILE
from fsvi_bench.tasks.task import Task

STEPS, M, SEED = 20, 30, 2


def settings_of(method: str) -> dict:
    options = load_method(method).cls.Options.model_fields
    return {name: value for name, value in {"max_steps": STEPS, "M": M}.items() if name in options}


def same_bits(q, other) -> bool:
    return q.kind == other.kind and all(torch.equal(q.tensors()[n], t) for n, t in other.tensors().items())


def pairs():
    return [(name, family) for name in built_in_names() for family in load_method(name).cls.families]


#: One for each kind of posterior.
SCORED = {
    ("exact", "full"), ("exact", "ffg"), ("bernoulli-dropout", "bernoulli"), ("gfsvi", "factor"), ("svgd", "particles"),
    ("spike-and-slab", "spike-slab"),
}  # fmt: skip


@pytest.mark.usefixtures("short_scores")
@pytest.mark.parametrize(("method", "family"), pairs())
def test_the_numbers_are_those_of_run(tmp_path, cli, diabetes, method, family):
    words = f"--seeds {SEED} --max-steps {STEPS} --measurement-points {M} --wandb off --workers 1 --json --out".split()
    named = "run", "--method", method, "--family", family, "--dataset", "diabetes", "--splits", 0
    status, out, _ = cli(*named, *words, tmp_path)
    ((record,), (path,)) = json.loads(out), tmp_path.rglob(POSTERIOR_FILE)
    posterior = read_posterior(path)
    assert status == 0
    q = fit(method, diabetes, family=family, seed=SEED, device="cpu", **settings_of(method))
    assert same_bits(q, posterior)
    if (method, family) not in SCORED:
        return
    scores = fsvi_bench.score(q, diabetes)
    for name in ("nlpd", "rmse", "kl_moment_matched", "overconfidence.median", "kl_marginals.5"):
        nested = record["scores"]
        for part in name.split("."):
            nested = nested[part]
        assert scores[name] == (float(nested) if isinstance(nested, str) else nested)


def test_a_class_is_its_registered_method(diabetes):
    q = fit(RandA, diabetes, family="ffg", max_steps=5)
    assert same_bits(q, fit("rand-a", diabetes, family="ffg", max_steps=5))
    assert not same_bits(q, fit("rand-a", diabetes, family="ffg", max_steps=5, seed=1))


def test_a_file_and_a_class_of_the_same_name_draw_the_same(diabetes, tmp_path):
    text = (
        "from fsvi_bench import AdamOptions, Method\n"
        "from fsvi_bench.methods.data import expected_nll\n"
        "class Fast(Method):\n"
        "    Options = AdamOptions\n"
        "    def loss(self, q, batch):\n"
        "        return expected_nll(q, batch.rows)\n"
    )
    (tmp_path / "fast.py").write_text(text)
    exec(text, names := {})
    one = fit(f"{tmp_path}/fast.py:Fast", diabetes, max_steps=3)
    assert same_bits(fit(names["Fast"], diabetes, max_steps=3), one)


def test_a_posterior_has_moments_and_draws(diabetes):
    q = fit(Exact, diabetes)
    k = diabetes.frozen.k
    assert (q.mean.shape, q.covariance.shape, q.mean.dtype) == ((k,), (k, k), torch.float64)
    w = q.sample(4000, seed=1)
    assert w.shape == (4000, k)
    assert torch.equal(w, q.sample(4000, seed=1))
    assert not torch.equal(w, q.sample(4000, seed=2))
    error = (w.mean(0) - q.mean) / (q.covariance.diagonal() / 4000).sqrt()
    assert error.abs().max() < 4.5
    assert isinstance(q, GaussianPosterior)


def test_other_threads_are_left_as_they_are(diabetes):
    alone = fit("rand-a", diabetes, max_steps=10)
    try:
        torch.set_num_threads(2)
        q = fit("rand-a", diabetes, max_steps=10)
        fsvi_bench.score(q, diabetes)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert same_bits(q, alone)


class Away(Method):
    """Adam on a loss that is no number after some steps."""

    from fsvi_bench.methods.base import AdamOptions as Options

    def loss(self, q, batch):
        return q.mean.sum(-1) * (float("nan") if self.steps_done > 2 else 1.0)


class Broken(Method):
    """A posterior in single precision."""

    def solve(self, problem):
        mean = torch.zeros(1, problem.k)
        return FullGaussian(mean, torch.eye(problem.k)[None])


def test_divergence_has_an_exception_of_its_own(diabetes):
    with pytest.raises(
        Diverged, match=r"^method Away full on diabetes split 0 diverged: the loss was not finite at step 3$"
    ):
        fit(Away, diabetes, max_steps=10)


def test_targets_that_are_not_finite_diverge(diabetes):
    y = diabetes.y.clone()
    y[3] = np.nan
    task = Task(diabetes.frozen, diabetes.feature_map, diabetes.X, y, diabetes.X_test, diabetes.y_test)
    with pytest.raises(Diverged, match="the posterior contains NaN or infinity"):
        fit("exact", task)


def test_a_wrong_posterior_is_refused(diabetes):
    with pytest.raises(fsvi_bench.InputError, match=r"Broken did not return a posterior .* float32, expected float64"):
        fit(Broken, diabetes)
