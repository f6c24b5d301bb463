"""Gal's dropout posterior on networks: masks, relaxation, KL and its constant; then his two experiments, small."""

import math
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import mpmath
import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError

from fsvi_bench.papers.experiment import ExperimentContext
from fsvi_bench.papers.gal2016 import elbo, uncertainty
from fsvi_bench.papers.gal2016.dropout_network import (
    LINE,
    WAVES,
    DropoutNetwork,
    NetworkSettings,
    concrete_keep,
    fit,
    mean_log_density,
)
from fsvi_bench.papers.gal2016.elbo import log_likelihood
from fsvi_bench.papers.gal2016.uncertainty import heteroscedastic_loss
from fsvi_bench.papers.registry import REPRODUCTIONS
from fsvi_bench.papers.workspace import Workspace
from fsvi_bench.running.progress import Silent
from fsvi_bench.running.runner import Resources

SMALL = {"width": 16, "hidden_layers": 2, "minibatch": 128, "draws": 50, "lr": 1e-2, "seed": 0}
MEASURED = (
    "elbo", "expected_log_likelihood", "kl_weights", "kl_entropy", "discrete_constant", "test_log_likelihood", "test_rmse",
)  # fmt: skip
RELAXED = {"temperature": 0.1, "start_rate": 0.1, "lr_of_rates": 1e-2}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def network(rates=(0.2, 0.4), sizes=(3, 5, 2), learnt=False):
    return DropoutNetwork(sizes, rates, learnt, generator()).double()


class Given(ExperimentContext):
    """Its parts are found at once, made by hand."""

    def __init__(self, find):
        super().__init__("given", Workspace(Path("nowhere"), "quick", Resources(), Silent()))
        self.find = find

    def table(self, function, grid, **shared):
        self.places = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
        return pd.DataFrame(place | self.find(**place) for place in self.places)


def found(experiment, context, **settings):
    """Frames of an experiment from such parts, with claims' values, and (low, high)."""
    settings = experiment.settings.model_validate({**experiment._settings("quick").model_dump(), **settings})
    frames = experiment.investigate(settings, context)
    verdicts = experiment._judge(frames)
    return frames, [v.value for v in verdicts], [(v.low, v.high) for v in verdicts]


# --- Masks ----------------------------------------------------------------------------------------------------------------


def test_the_relaxation_is_gals_formula():
    p, u, t = 0.3, 0.77, 0.1
    z = 1 / (1 + math.exp(-(math.log(p) - math.log(1 - p) + math.log(u) - math.log(1 - u)) / t))
    log_odds = torch.tensor(math.log(p / (1 - p)), dtype=torch.float64, requires_grad=True)
    keep = concrete_keep(log_odds, torch.tensor(u, dtype=torch.float64), t)
    keep.backward()
    assert keep.item() == pytest.approx(1 - z, rel=1e-12)
    assert float(log_odds.grad) == pytest.approx(-z * (1 - z) / t, rel=1e-12)  # by which drop rates are learnt
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)  # what a uniform generator may give
    assert concrete_keep(torch.zeros(2, dtype=torch.float64), ends, t).tolist() == [1.0, 0.0]


def test_masks_drop_whole_rows_and_leave_the_mean_alone():
    net = network(rates=(0.25,), sizes=(3, 2))
    x, n, g = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64), 20_000, generator(3)
    with torch.no_grad():
        outputs = net(x.expand(n, 3), g)
        theta, p = net.thetas[0], 0.25
        mean = (x @ theta)[0]
        covariance = (x[0].square()[:, None, None] * theta[:, :, None] * theta[:, None]).sum(0) * p / (1 - p)
        masks = torch.tensor(list(np.ndindex(2, 2, 2)), dtype=torch.float64)
        possible = (x * masks / (1 - p)) @ theta
    distances = torch.cdist(outputs, possible)
    assert float(distances.min(1).values.max()) < 1e-6  # cdist's own rounding
    assert ((outputs.mean(0) - mean).abs() < 4 * (covariance.diagonal() / n).sqrt()).all()
    torch.testing.assert_close(outputs.T.cov(), covariance, rtol=0.05, atol=0.0)


def test_one_function_has_one_mask():
    net = network()
    x = torch.randn(4, 3, dtype=torch.float64, generator=generator(1))
    doubled = torch.cat([x, x])
    one, many = (net(doubled, generator(2), one_function=f) for f in (True, False))
    torch.testing.assert_close(one[:4], one[4:], rtol=1e-13, atol=1e-13)
    assert not torch.allclose(many[:4], many[4:])


@pytest.mark.parametrize(("module", "values"), [(elbo, {"tau": 10.0, "p": 0.5}), (uncertainty, {})])
def test_denormal_numbers_count_as_zero_only_while_networks_are_trained(monkeypatch, module, values):
    tiny, seen = torch.tensor([1e-39]), []

    def look(*_):
        seen.append(float(tiny * 1.5))
        raise ArithmeticError

    monkeypatch.setattr(module, "fit", look)
    settings = REPRODUCTIONS[f"gal2016-{module.__name__.split('.')[-1]}"]._settings("quick").network
    with pytest.raises(ArithmeticError):
        module.train_and_measure(**values, N=10, repeat=0, N_test=5, network=settings, device="cpu")
    assert seen == [0.0]
    assert float(tiny * 1.5) == pytest.approx(1.5e-39, rel=1e-5)


# --- The KL ----------------------------------------------------------------------------------------------------------------


def test_the_kl_is_a_sum_over_weight_rows():
    net, length_scale = network(learnt=True), 0.7
    with torch.no_grad():
        net.biases[0].copy_(torch.linspace(-1, 1, 5))
    weights = entropy = 0.0
    for theta, bias, p in zip(net.thetas, net.biases, (0.2, 0.4), strict=True):
        for row in theta.detach().numpy():
            m = row / (1 - p)
            weights += length_scale**2 * (1 - p) / 2 * m @ m
            entropy += -p * math.log(p) - (1 - p) * math.log(1 - p)
        weights += length_scale**2 / 2 * float(bias.detach().square().sum())
    assert [each.item() for each in net.kl(length_scale)] == pytest.approx(
        [weights, entropy], rel=1e-7
    )  # log odds' own


def test_the_discrete_constant_equals_the_sum_over_a_grid(monkeypatch):
    """Of one of the network's weights; the sum over a grid much finer than 1/l is its integral to rounding."""
    length_scale, interval = 0.8, 0.01
    log_prior = -0.5 * (length_scale * interval * np.arange(-2000, 2001)) ** 2
    monkeypatch.setattr(elbo, "INTERVAL", interval)
    result = trained_mc(steps=0, length_scale=length_scale)
    weights = 16 + 16 + 16 * 16 + 16 + 16 + 1
    assert result.discrete_constant / weights == pytest.approx(np.logaddexp.reduce(log_prior), abs=1e-11)


# --- Section 6.4 -----------------------------------------------------------------------------------------------------------


def trained_mc(p=0.1, tau=50.0, N=100, N_test=50, repeat=0, **changes):
    network = SMALL | {"steps": 150, "length_scale": 0.01} | changes
    return SimpleNamespace(**elbo.train_and_measure(tau, p, repeat, N, N_test, NetworkSettings(**network), "cpu"))


def test_the_log_of_the_mean_density_keeps_its_digits_far_out():
    values = [[-1000.0, -3.0], [-1001.0, -5.0], [-1002.5, 700.0]]
    with mpmath.workdps(40):
        expected = [float(mpmath.log(mpmath.fsum(mpmath.exp(row[k]) for row in values) / 3)) for k in range(2)]
    assert mean_log_density(torch.tensor(values, dtype=torch.float64)) == pytest.approx(np.mean(expected), rel=1e-14)


def test_what_is_minimised_is_minus_the_elbo_per_point():
    changes, seen = {"width": 4, "hidden_layers": 1, "length_scale": 0.6, "steps": 1, "minibatch": 5}, []
    settings = NetworkSettings(**SMALL | changes)

    def loss(outputs, y):
        seen.append(torch.distributions.Normal(outputs[:, 0].detach(), 7.0**-0.5).log_prob(y).sum())
        return -log_likelihood(outputs[:, 0], y, 7.0).mean()

    data, rates = WAVES.draw(20), [0.2, 0.4]
    _, objective = fit(data, settings, ("test", 0), 1, rates, loss)
    start, _ = fit(data, settings.model_copy(update={"steps": 0}), ("test", 0), 1, rates, loss)
    weights, entropy = start.kl(0.6)
    # Five points stand for twenty.
    assert objective == pytest.approx([-(4 * seen[0] - (weights - entropy)).item() / 20], rel=1e-5)


def test_the_elbo_is_likelihood_less_kl_and_repeats_itself():
    result = trained_mc(p=0.25, steps=3)
    kl = result.kl_weights - result.kl_entropy
    assert result.elbo == pytest.approx(result.expected_log_likelihood - kl / 100, rel=1e-12)
    entropy = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    assert result.kl_entropy == pytest.approx(32 * entropy, rel=1e-6)  # 16 rows of two matrices; the input is kept
    assert result == trained_mc(p=0.25, steps=3)
    assert result != trained_mc(p=0.25, steps=3, repeat=1)


def test_without_dropout_the_predictive_density_is_one_gaussian():
    tau = 20.0
    result = trained_mc(p=0.0, tau=tau, steps=0)
    expected = 0.5 * math.log(tau / (2 * math.pi)) - 0.5 * tau * result.test_rmse**2
    assert result.test_log_likelihood == pytest.approx(expected, rel=1e-5)


def test_elbo_and_test_likelihood():
    """Two repeats, alike, so that intervals are points; the test targets' deviation is that of the waves."""
    rates = (0.0, 0.5, 0.75, 0.9)
    elbos = {10.0: (1.0, 3.0, 2.5, 0.0), 20.0: (1.0, 2.8, 2.0, 0.0), 50.0: (1.0, 2.0, 1.8, 0.5)}
    likelihoods = {10.0: (-1.0, -1.4, -2.0, -3.0), 20.0: (-2.0, -1.0, -1.5, -3.0), 50.0: (-9.0, -2.0, -3.0, -8.0)}
    rmses = {10.0: (0.3, 0.31, 0.32, 0.33), 20.0: (0.3, 0.31, 0.32, 0.33), 50.0: (0.3, 0.4, 0.5, 0.6)}

    def find(tau, p, **_):
        at = tau, rates.index(p)
        measured = {"elbo": elbos, "test_log_likelihood": likelihoods, "test_rmse": rmses}
        return dict.fromkeys(MEASURED, 0.0) | {k: v[at[0]][at[1]] for k, v in measured.items()}

    frames, values, intervals = found(
        REPRODUCTIONS["gal2016-elbo"], Given(find), drop_rates=rates, repeats=2, N=20, N_test=30
    )
    deviation = frames["targets"]["deviation"].item()
    assert deviation == pytest.approx(WAVES.draw(20, 30).y_test.numpy().std(ddof=1), rel=1e-6)
    assert values == pytest.approx(
        [
            0.8,  # ranks 2 4 3 1 against 1 4 3 2: 1 − 6·2/60
            1.0,
            -0.4,
            2.0,
            0.4,  # 2 4 3 1 against 1 2 3 4: 1 − 6·14/60 = −0.4
            7.0,
            1.25,
            0.6 / deviation,
            0.2,  # 2.0 − 1.8, at τ = 50 and p = 0.75
            0.2,  # 3.0 − 2.8, to τ = 20
        ]
    )
    assert np.array(intervals) == pytest.approx(np.array([values, values]).T)

    # A network that diverged is not left out of a correlation or a mean.
    networks = frames["networks"][["tau", "p", "repeat", "elbo", "test_log_likelihood", "test_rmse"]]
    lost = networks.mask((networks["tau"] == 10) & (networks["p"] == 0.9) & (networks["repeat"] == 0))
    lost = lost.assign(**networks[["tau", "p", "repeat"]])
    without = elbo.frames(lost, deviation)
    unknown = without["correlations"][without["correlations"]["correlation"].isna()]
    assert set(unknown[["tau", "repeat"]].itertuples(index=False, name=None)) == {(10.0, 0)}
    assert len(unknown) == 2
    means = without["means"].set_index(["tau", "p"])["elbo"]
    assert means.isna().sum() == 1
    assert math.isnan(means[10.0, 0.9])


def test_claims_about_a_grid_need_its_points():
    sound = REPRODUCTIONS["gal2016-elbo"]._settings("quick").model_dump()
    with pytest.raises(ValueError, match=r"the claims need drop_rates \[0\.0, 0\.5, 0\.75, 0\.9\]"):
        elbo.Settings.model_validate({**sound, "drop_rates": (0.0, 0.5)})


# --- Section 6.7 -----------------------------------------------------------------------------------------------------------


def trained_concrete(N=50, N_test=20, repeat=0, **changes):
    network = SMALL | {"steps": 400, "length_scale": 1.0, **RELAXED} | changes
    return uncertainty.train_and_measure(N, repeat, N_test, uncertainty.ConcreteSettings(**network), "cpu")


def test_the_heteroscedastic_loss_is_that_of_torch():
    outputs = torch.randn(6, 2, generator=generator(), dtype=torch.float64)
    y = torch.randn(6, generator=generator(1), dtype=torch.float64)
    expected = torch.nn.GaussianNLLLoss(eps=0.0)(outputs[:, 0], y, (-outputs[:, 1]).exp())
    torch.testing.assert_close(heteroscedastic_loss(outputs, y), expected, rtol=1e-13, atol=0)


def test_uncertainties():
    """Two repeats, alike, so that intervals are points; epistemic ranks 1, 3, 2 of N ranks 3, 1, 2 make ρ −1."""
    by_N = {
        10: (2.0, 0.5, [0.01, 0.42, 0.55]),
        200: (0.6, 0.8, [0.04, 0.3, 0.35]),
        1000: (0.5, 1.2, [0.02, 0.15, 0.2]),
    }

    def find(N, repeat):
        measured = dict(zip(("epistemic", "aleatoric", "drop_rates"), by_N[N], strict=True))
        return measured | {"test_log_likelihood": -N, "test_rmse": 1.0 + repeat}

    parts = Given(find)
    _, values, intervals = found(REPRODUCTIONS["gal2016-uncertainty"], parts, sizes=(200, 10, 1000), repeats=2)
    assert [(each["N"], each["repeat"]) for each in parts.places] == [(N, r) for N in (10, 200, 1000) for r in range(2)]
    assert values == pytest.approx(
        [
            -1,
            0.25,
            0.2,
            -0.3,
            0.3 / 1.15,  # √(0.36 + 0.64) = 1 and √(0.25 + 1.44) = 1.3; N = 10 is more than a decade below
            0.08,  # 0.42 is further from 0.5 than 0.55 is
            -0.27,
            0.15,
            0.2,
            0.04,
        ]
    )
    assert np.array(intervals) == pytest.approx(np.array([values, values]).T)


# --- Data and settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "f", "noise"),
    [
        (LINE, lambda x: 2 * x + 8, 1),
        (WAVES, lambda x: 0.8 * torch.sin(1.5 * x) + 0.5 * torch.sin(3.1 * x + 0.5), 0.28),
    ],
)
def test_regression_problems_have_the_noise_they_say(problem, f, noise):
    n, data = 20_000, problem.draw(20_000, 10)
    residual = (data.y - f(data.x[:, 0])) / noise
    assert abs(float(residual.mean())) < 4 / math.sqrt(n)
    assert abs(float(residual.var()) - 1) < 4 * math.sqrt(2 / n)
    assert abs(float((residual * data.x[:, 0]).mean())) < 4 * math.sqrt(3 / n)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: trained_concrete(temperature=0.0), "temperature"),
        (lambda: trained_concrete(length_scale=0.0), "length_scale"),
        (lambda: trained_concrete(draws=1), "draws"),
        (lambda: trained_concrete(start_rate=0.0), "start_rate"),
        (lambda: found(REPRODUCTIONS["gal2016-elbo"], None, precisions=(10, 20, 0)), "precisions"),
        (lambda: found(REPRODUCTIONS["gal2016-elbo"], None, drop_rates=(0.5, 1)), "drop_rates"),
        (lambda: found(REPRODUCTIONS["gal2016-elbo"], None, N=0), "N\n"),
    ],
)
def test_impossible_settings_are_refused(make, said):
    with pytest.raises(ValidationError, match=said):
        make()
