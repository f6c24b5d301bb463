"""Gal's dropout posterior on networks: masks, relaxation, KL and its constants; then his two experiments, small."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch

from fsvi_bench.errors import InputError
from fsvi_bench.papers.gal2016.concrete import (
    ConcreteSettings,
    UncertaintySettings,
    concrete_dropout,
    heteroscedastic_loss,
    uncertainty_over_size,
)
from fsvi_bench.papers.gal2016.dropout_network import (
    DropoutNetwork,
    Relaxation,
    binary_entropy,
    concrete_keep,
    discrete_constant,
    mixture_constant,
)
from fsvi_bench.papers.gal2016.mc_dropout import (
    ElboGridSettings,
    McDropoutSettings,
    elbo_grid,
    function_draws,
    log_likelihood,
    log_mean_exp,
    mc_dropout,
    negative_elbo,
)
from fsvi_bench.papers.gal2016.regression_data import RegressionData, line, waves


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def network(rates=(0.2, 0.4), sizes=(3, 5, 2), learnt=False):
    return DropoutNetwork(sizes, rates, learnt, generator(), torch.float64)


# --- Masks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.05, 0.5, 0.8])
def test_the_relaxation_becomes_bernoulli_as_the_temperature_falls(p):
    n = 400_000
    u = (torch.arange(n, dtype=torch.float64) + 0.5) / n  # the midpoint rule, not a sample
    log_odds = torch.full_like(u, math.log(p / (1 - p)))
    kept = (u < 1 - p).double()  # z̃ → 1, dropped, iff u > 1 − p
    assert float(kept.mean()) == pytest.approx(1 - p, abs=1 / n)
    distances = [float((concrete_keep(log_odds, u, t) - kept).abs().mean()) for t in (0.1, 0.01, 0.001)]
    # ∫|relaxed − hard| du falls like t: the logistic noise's density at the threshold, p(1 − p), times 2 log 2 · t.
    limit = 2 * math.log(2) * p * (1 - p)
    assert distances[1:] == pytest.approx([0.01 * limit, 0.001 * limit], rel=2e-3)
    assert distances[0] == pytest.approx(0.1 * limit, rel=0.1)


def test_the_relaxation_is_gals_formula():
    p, u, t = 0.3, 0.77, 0.1
    z = 1 / (1 + math.exp(-(math.log(p) - math.log(1 - p) + math.log(u) - math.log(1 - u)) / t))
    values = torch.tensor([math.log(p / (1 - p)), u], dtype=torch.float64)
    assert float(concrete_keep(values[0], values[1], t)) == pytest.approx(1 - z, rel=1e-12)
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)  # what a uniform generator may give
    assert concrete_keep(torch.zeros(2, dtype=torch.float64), ends, t).tolist() == [1.0, 0.0]


def test_gradients_pass_through_the_relaxation():
    net = network(learnt=True)
    x = torch.randn(4, 3, dtype=torch.float64, generator=generator(1))

    def outputs(log_odds, theta):
        values = {"log_odds": log_odds, "thetas.0": theta}
        return torch.func.functional_call(net, values, (x, generator(2), Relaxation(0.5)))

    assert torch.autograd.gradcheck(outputs, (net.log_odds, net.thetas[0]), rtol=1e-6)


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
    nearest = torch.cdist(outputs, possible).min(0)
    assert float(torch.cdist(outputs, possible).min(1).values.max()) < 1e-6  # cdist's own rounding
    assert float(nearest.values.max()) < 1e-6  # every mask has come
    assert ((outputs.mean(0) - mean).abs() < 4 * (covariance.diagonal() / n).sqrt()).all()
    torch.testing.assert_close(outputs.T.cov(), covariance, rtol=0.05, atol=0.0)


def test_one_function_has_one_mask():
    net = network()
    x = torch.randn(4, 3, dtype=torch.float64, generator=generator(1))
    doubled = torch.cat([x, x])
    one, many = (net(doubled, generator(2), one_function=f) for f in (True, False))
    torch.testing.assert_close(one[:4], one[4:], rtol=1e-13, atol=1e-13)
    assert not torch.allclose(many[:4], many[4:])


def test_no_dropout_draws_no_noise():
    net = network(rates=(0.0, 0.0))
    x = torch.randn(4, 3, dtype=torch.float64, generator=generator(1))
    assert torch.equal(net(x, generator(2)), net(x, generator(3)))
    assert net.kl(1.0).entropy == 0


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
    kl = net.kl(length_scale)
    assert (kl.weights.item(), kl.entropy.item()) == pytest.approx((weights, entropy), rel=1e-12)
    assert kl.total.item() == pytest.approx(weights - entropy, rel=1e-12)


def test_the_entropy_is_zero_at_its_ends():
    p = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    assert binary_entropy(p).tolist() == pytest.approx([0.0, math.log(2), 0.0], abs=1e-15)


def test_the_continuous_constant_equals_quadrature_for_one_weight():
    # KL of p N(0, σ²) + (1 − p) N(m, σ²) to N(0, l⁻²), the components 20 σ apart.
    p, m, sigma, length_scale = 0.3, 1.0, 0.05, 0.8

    def normal(w, mean, deviation):
        return mpmath.npdf(w, mean, deviation)

    def integrand(w):
        q = p * normal(w, 0, sigma) + (1 - p) * normal(w, m, sigma)
        return q * mpmath.log(q / normal(w, 0, 1 / length_scale))

    exact = float(mpmath.quad(integrand, [-0.6, -0.2, 0, 0.2, 0.5, 0.8, 1, 1.2, 1.6]))
    entropy = float(binary_entropy(torch.tensor(p, dtype=torch.float64)))
    ours = length_scale**2 * (1 - p) / 2 * m**2 - entropy + mixture_constant(1, length_scale, sigma)
    assert ours == pytest.approx(exact, abs=1e-9)
    assert mixture_constant(1, length_scale, 1e-30) > 60  # diverges with σ → 0


def test_the_discrete_constant_equals_the_sum_over_a_grid():
    p, length_scale, interval = 0.3, 0.8, 0.01
    grid = interval * np.arange(-2000, 2001)
    log_prior = -0.5 * (length_scale * grid) ** 2
    log_prior -= np.logaddexp.reduce(log_prior)
    m = 150  # grid steps
    exact = p * (math.log(p) - log_prior[2000]) + (1 - p) * (math.log(1 - p) - log_prior[2000 + m])
    entropy = float(binary_entropy(torch.tensor(p, dtype=torch.float64)))
    weights = length_scale**2 * (1 - p) / 2 * (m * interval) ** 2
    # The sum over a grid much finer than 1/l is its integral to rounding.
    assert weights - entropy + discrete_constant(1, length_scale, interval) == pytest.approx(exact, abs=1e-11)
    assert discrete_constant(7, length_scale, interval) == 7 * discrete_constant(1, length_scale, interval)


# --- Section 6.4 -----------------------------------------------------------------------------------------------------------


def small_mc(**changes):
    return McDropoutSettings(**({"width": 16, "hidden_layers": 2, "steps": 150, "draws": 50, "lr": 1e-2} | changes))


def test_log_mean_exp_keeps_its_digits_far_out():
    values = [[-1000.0, -3.0], [-1001.0, -5.0], [-1002.5, 700.0]]
    with mpmath.workdps(40):
        expected = [float(mpmath.log(mpmath.fsum(mpmath.exp(row[k]) for row in values) / 3)) for k in range(2)]
    assert log_mean_exp(torch.tensor(values, dtype=torch.float64)).tolist() == pytest.approx(expected, rel=1e-14)


def test_the_log_likelihood_is_the_normal_density():
    f, y = torch.tensor([[0.1, 2.0]]), torch.tensor([0.3, -1.0])
    expected = torch.distributions.Normal(f, 50.0**-0.5).log_prob(y)
    torch.testing.assert_close(log_likelihood(f, y, 50.0), expected)


def test_what_is_minimised_is_minus_the_elbo_per_point():
    net, settings = network(), small_mc(precision=7.0, length_scale=0.6)
    f, y = (torch.randn(5, generator=generator(k), dtype=torch.float64) for k in (1, 2))
    likelihood = torch.distributions.Normal(f, 7.0**-0.5).log_prob(y).sum()
    # Five points stand for twenty.
    expected = -(4 * likelihood - net.kl(0.6).total) / 20
    torch.testing.assert_close(negative_elbo(f, y, net, 20, settings), expected, rtol=1e-12, atol=0)


def test_draws_are_functions():
    x = torch.randn(4, 3, generator=generator(1), dtype=torch.float64)
    draws = function_draws(network(), torch.cat([x, x]), 6, generator(2))
    assert draws.shape == (6, 8)
    torch.testing.assert_close(draws[:, :4], draws[:, 4:], rtol=1e-13, atol=1e-13)
    assert draws.std(0).min() > 0


def test_the_elbo_is_likelihood_less_kl_and_repeats_itself():
    data = waves(100, 50)
    settings = small_mc(drop_rate=0.25)
    result = mc_dropout(data, settings)
    kl = result.kl_weights - result.kl_entropy
    assert result.elbo == pytest.approx(result.expected_log_likelihood - kl / 100, rel=1e-12)
    entropy = float(binary_entropy(torch.tensor(0.25, dtype=torch.float64)))
    assert result.kl_entropy == pytest.approx(32 * entropy, rel=1e-6)  # 16 rows of two matrices; the input is kept
    assert result == mc_dropout(data, settings)
    assert result != mc_dropout(data, replace(settings, seed=1))
    dropped = mc_dropout(data, replace(settings, drop_inputs=True, steps=1))
    assert dropped.kl_entropy == pytest.approx(33 * entropy, rel=1e-6)


def test_without_dropout_the_predictive_density_is_one_gaussian():
    tau = 20.0
    result = mc_dropout(waves(100, 50), small_mc(drop_rate=0.0, precision=tau))
    expected = 0.5 * math.log(tau / (2 * math.pi)) - 0.5 * tau * result.test_rmse**2
    assert result.test_log_likelihood == pytest.approx(expected, rel=1e-5)


def test_training_raises_the_elbo():
    data = waves(200, 50)
    start, end = (mc_dropout(data, small_mc(steps=steps, precision=10.0)) for steps in (0, 300))
    assert end.elbo > start.elbo + 1
    assert end.test_rmse < 0.75 * start.test_rmse


def test_the_grid_has_every_point():
    network_settings = small_mc(steps=2, draws=3)
    settings = ElboGridSettings((0.0, 0.5), (10.0, 50.0), repeats=2, N=20, N_test=5, network=network_settings)
    results = elbo_grid(settings)
    assert [(r.precision, r.drop_rate) for r in results] == [
        (t, p) for t in (10.0, 50.0) for p in (0.0, 0.5) for _ in "ab"
    ]
    assert results[0].seed != results[1].seed
    paper = ElboGridSettings()
    assert (len(paper.points()), paper.network.width, paper.network.hidden_layers) == (54, 1024, 4)
    assert len(ElboGridSettings.quick().points()) < 54


# --- Section 6.7 -----------------------------------------------------------------------------------------------------------


def small_concrete(**changes):
    return ConcreteSettings(**({"width": 16, "hidden_layers": 2, "steps": 400, "draws": 50, "lr": 1e-2} | changes))


def test_the_heteroscedastic_loss_is_that_of_torch():
    outputs = torch.randn(6, 2, generator=generator(), dtype=torch.float64)
    y = torch.randn(6, generator=generator(1), dtype=torch.float64)
    expected = torch.nn.GaussianNLLLoss(eps=0.0)(outputs[:, 0], y, (-outputs[:, 1]).exp())
    torch.testing.assert_close(heteroscedastic_loss(outputs, y), expected, rtol=1e-13, atol=0)


@pytest.mark.slow
def test_noise_and_line_are_found():
    data = line(500, 300)
    halved = RegressionData(data.x, data.y / 2, data.x_test, data.y_test / 2)
    result = concrete_dropout(halved, small_concrete(width=64, steps=1200, lr=5e-3))
    assert result.predictive**2 == pytest.approx(result.epistemic**2 + result.aleatoric**2)
    assert result.test_rmse < 0.6  # 0.5 is the noise; the mean of y would give 1.1
    assert 0.42 < result.aleatoric < 0.65
    assert result.epistemic < 0.4
    assert result.objective[-1] < result.objective[0]


def test_few_data_push_the_probabilities_to_one_half_and_many_do_not():
    few, many = (concrete_dropout(line(N, 50), small_concrete(width=64)) for N in (5, 2000))
    assert all(0.35 < p < 0.65 for p in few.drop_rates[1:])
    assert max(many.drop_rates) < min(few.drop_rates[1:])


def test_learnt_probabilities_repeat_themselves_and_masks_may_be_soft():
    data, settings = line(50, 20), small_concrete(steps=30)
    result = concrete_dropout(data, settings)
    assert result == concrete_dropout(data, settings)
    soft = concrete_dropout(data, replace(settings, hard_masks=False))
    assert soft.drop_rates == result.drop_rates
    assert soft.epistemic != result.epistemic


def test_uncertainty_is_measured_at_every_size():
    settings = UncertaintySettings((5, 20), repeats=2, N_test=10, network=small_concrete(steps=2, draws=3))
    results = uncertainty_over_size(settings)
    assert [r.N for r in results] == [5, 5, 20, 20]
    assert len({r.seed for r in results}) == 2
    paper = UncertaintySettings()
    assert (paper.sizes[0], paper.sizes[-1], paper.repeats, paper.network.width) == (10, 10_000, 3, 1024)
    assert UncertaintySettings.quick().network.width < 1024


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Relaxation(0.0), "temperature"),
        (lambda: ConcreteSettings(temperature=-0.1), "temperature"),
        (lambda: ConcreteSettings(length_scale=0.0), "length_scale"),
        (lambda: ConcreteSettings(draws=1), "2 draws"),
        (lambda: McDropoutSettings(precision=0.0), "precision"),
        (lambda: McDropoutSettings(width=0), "width 0"),
        (lambda: network(rates=(0.2, 1.0)), "drop rate of 1.0"),
        (lambda: network(rates=(0.0, 0.5), learnt=True), "above 0"),
        (lambda: network(rates=(0.2,)), "one per weight matrix"),
    ],
)
def test_impossible_settings_are_refused(make, said):
    with pytest.raises(InputError, match=said):
        make()
