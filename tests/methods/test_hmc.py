"""HMC: its chain has the moments of the exact posterior, touches no global state, and says where Pyro is missing."""

import sys
import threading

import pytest
import torch
from tqdm import tqdm

from fsvi_bench import load_task
from fsvi_bench.cli.app import main
from fsvi_bench.errors import InputError
from fsvi_bench.methods.hmc import Hmc, nuts
from tests.methods.synthetic import exact, synthetic
from tests.methods.table import method_on

BATCHES = 20  #: of each chain


def estimate(chains):
    """Mean of chains' values, and its standard error by means of batches of 50 states, which corrects for their
    autocorrelation: means of batches hardly depend on each other."""
    means = chains.unflatten(1, (BATCHES, -1)).mean(2).flatten(0, 1)
    return means.mean(0), means.std(0) / len(means) ** 0.5


def test_the_moments_are_those_of_the_exact_posterior():
    """Means and second moments of 1,000 states of each of two chains, k = 8, within 4 standard errors: of each chain, and
    of both, whose law is the same once each is whitened by its own posterior."""
    data = synthetic(2, N=31)
    chains = method_on("hmc", data, "particles", {"max_steps": 1250}).posterior().particles
    assert chains.shape == (2, 1000, 8)
    mean, precision_tril = exact(data)
    z = (chains - mean[:, None]) @ precision_tril  # ~ N(0, I)
    for values, expected in (
        (z, torch.zeros(8)),
        ((z[..., None] * z[..., None, :]).flatten(2), torch.eye(8).flatten()),
    ):
        for some in (values[:1], values[1:], values):
            found, error = estimate(some)
            assert bool(((found - expected).abs() < 4 * error).all())
        assert float(error.max()) < 0.08  # of both, so that a third of a variance would be seen
    # And it could have failed: the chain of the other problem has other moments by far.
    other, error = estimate((chains[1:] - mean[0]) @ precision_tril[0])
    assert bool((other.abs() > 10 * error).any())


def test_it_depends_on_no_global_generator_and_changes_none():
    data, settings = synthetic(1, N=31), {"max_steps": 20}
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        states.append(method_on("hmc", data, "particles", settings).posterior().particles)
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(*states)


def test_functions_and_the_objective_need_no_gradients_switched_on():
    """Both run where gradients are off. The objective is the mean of −log p(y, w) over the states."""
    diabetes = load_task("diabetes")
    method = Hmc([diabetes], seeds=[0], max_steps=12)
    f = method.functions(0, diabetes.X[:3])
    w = method.posterior().particles[0]
    torch.testing.assert_close(f, w @ diabetes.Phi[:3].mT)
    sigma = diabetes.noise_variance.sqrt()
    energy = -torch.distributions.Normal(w @ diabetes.Phi.mT, sigma).log_prob(diabetes.y).sum(-1)
    energy -= torch.distributions.Normal(0.0, 1.0).log_prob(w).sum(-1)
    assert method.objective(0, diabetes) == pytest.approx(float(energy.mean()), rel=1e-12)


def test_progress_bars_leave_no_semaphore_behind():
    """tqdm's own lock has one, which outlives a worker that is killed."""
    nuts()
    assert isinstance(tqdm.get_lock(), type(threading.RLock()))


def test_without_pyro_it_says_how_to_install_it(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "pyro.infer.mcmc", None)
    with pytest.raises(SystemExit) as exit_:
        main(["run", "--method", "hmc", "--dataset", "toy", "--splits", "0", "--out", str(tmp_path / "out")])
    assert exit_.value.code == 2
    fix = "in the clone, run: pip install -c constraints.txt -e '.[hmc]'"
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert said.splitlines()[-1] == f"fsvi-bench: method hmc needs pyro-ppl, which is not installed; {fix}"
    assert not (tmp_path / "out").exists()


def test_a_share_of_steps_is_rounded_once():
    """0.07 · 100 is 7.000000000000001 in floating point."""
    assert Hmc.checked_options({"burn_in": 0.07, "max_steps": 100}).particles == 93


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_steps": 2}, "max_steps=2 and burn_in=0.2 leave particles=1, expected 2 to 9999; change max_steps"),
        ({"max_steps": 12500}, "max_steps=12500 and burn_in=0.2 leave particles=10000, expected 2 to 9999"),
    ],
)
def test_too_few_and_too_many_particles_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        Hmc.checked_options(settings, "hmc")
