"""Methods on networks: the general path on a linear model, rounding in batches, gradients, and exact references."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp
from torch import nn
from torch.func import vmap
from torch.utils.data import DataLoader, TensorDataset

from fsvi_bench.errors import InputError
from fsvi_bench.maths.functional_kl import functional_kl
from fsvi_bench.maths.networks import LinearModel, Network
from fsvi_bench.methods.base import GaussianOptions, Method
from fsvi_bench.methods.data import Batch, Rows, expected_nll
from fsvi_bench.methods.functional import MeasurementOptions
from fsvi_bench.methods.networks import CollapsedData, NetworkData
from fsvi_bench.methods.points import Points, energies
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.registry import built_in_names, load_method, network_methods
from fsvi_bench.posteriors.base import divergence
from fsvi_bench.training.trainer import train
from tests.maths.draws import close, eye
from tests.methods.synthetic import synthetic
from tests.methods.table import first_batch, label, method_on, toys
from tests.methods.test_svgd import naive_direction
from tests.requirements import skip_or_fail

f64 = torch.float64


def as_network(data):
    """One linear problem as a network."""
    model = LinearModel(data.feature_map[0], data.k)
    return NetworkData(data.X, data.y, data.noise_variance, data.low, data.high, model)


def networks(B=3, N=31, D=2, H=5, noise=0.3, seed=0):
    """Problems with targets drawn from the model; each has its own noise, the first the largest."""
    g = torch.Generator().manual_seed(seed)
    model = Network(D, H)
    X = torch.randn(B, N, D, generator=g, dtype=f64)
    w = torch.randn(B, 1, model.k, generator=g, dtype=f64)
    y = torch.stack([model.values(*each)[0] for each in zip(w, X, strict=True)])
    variances = noise**2 / torch.arange(1, B + 1, dtype=f64)
    y = y + variances.sqrt()[:, None] * torch.randn(B, N, generator=g, dtype=f64)
    return NetworkData.of(model, list(zip(X, y, variances, strict=True)))


def logits(B=3, N=31, k=8, seed=0):
    """Problems with targets of 0 and 1, drawn from a linear model of logits, with small features."""
    g, linear = torch.Generator().manual_seed(seed), synthetic(1, N=N, k=k)
    model = LinearModel(linear.feature_map[0], k)
    X = linear.X[0] + 0.1 * torch.randn(B, N, 2, generator=g, dtype=f64)
    w = 2 * torch.randn(B, 1, k, generator=g, dtype=f64)
    p = torch.stack([model.values(*each)[0] for each in zip(w, X, strict=True)]).sigmoid()
    y = (torch.rand(B, N, generator=g, dtype=f64) < p).double()
    return NetworkData.of(model, [(*each, None) for each in zip(X, y, strict=True)])


def quiet(method):
    """Steps by hand, without a Trainer to log to."""
    method.is_logged = lambda step: False
    return method


def method_of(name, data, settings, family=None):
    return quiet(method_on(name, data, family or load_method(name).cls.families[0], settings))


# --- A linear model by the general path -------------------------------------------------------------------------------

STEPS = {"max_steps": 12, "minibatch": 7}
SAMPLED = [
    ("ensemble", STEPS),
    ("svgd", {**STEPS, "particles": 6}),
    ("sgld", {**STEPS, "particles": 6}),
    ("sghmc", {**STEPS, "particles": 6, "minibatch": "full"}),
    ("swag", {**STEPS, "every": 2, "rank": 3}),
    ("ivon", {**STEPS, "S": 3, "beta2": 0.9}),
    ("mean-field-vi", {**STEPS, "S": 2}),
    ("mean-field-vi", {**STEPS, "minibatch": "full"}),
    ("sample-then-optimise", {**STEPS, "particles": 6}),
]


def same_state(method, other):
    """Parameters and buffers, to 1e-9 of each tensor's largest entry."""
    for one, two in zip(method.state_dict().values(), other.state_dict().values(), strict=True):
        if isinstance(one, torch.Tensor) and one.is_floating_point():
            close(two, one, rtol=0, atol=1e-9 * float(one.abs().max()) + 1e-12)


def noted(method):
    """The losses of the steps to come."""
    losses, note = [], method.note

    def noting(values, *logged):
        losses.append(float(values))
        note(values, *logged)

    method.note = noting
    return losses


@pytest.mark.parametrize(("name", "settings"), SAMPLED, ids=label)
def test_a_linear_model_trains_as_on_its_own_path(name, settings):
    data = synthetic(1, N=31)
    linear, general = method_of(name, data, settings), method_of(name, as_network(data), settings)
    if name not in ("mean-field-vi", "ivon", "swag"):
        same_state(linear, general)  # what was prepared: starts, largest curvatures
    general.load_state_dict(linear.state_dict())
    losses = [noted(method) for method in (linear, general)]
    for method in (linear, general):
        train(method, "cpu")
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)
    assert len(losses[0]) == 12
    same_state(linear, general)


def in_closed_form(method, data):
    """In place of draws: the closed form of the expected error, from all rows."""
    rows = Rows.whole(data, compress=False)
    method.mean_nll = lambda q, batch: expected_nll(q, rows)


@pytest.mark.parametrize(
    ("name", "family", "settings"),
    [
        ("low-rank-vi", "full", {"rank": 3}),
        ("rand-a", "full", {"M": 5}),
        ("rand-a", "ffg", {"M": 12, "kl_jitter": 1e-3, "kl_weight": 2.0}),
    ],
    ids=label,
)
def test_a_linear_model_has_the_same_regulariser(name, family, settings):
    data = synthetic(1, N=31)
    settings = {**settings, "minibatch": "full", "max_steps": 12}
    linear, general = (method_of(name, each, settings, family) for each in (data, as_network(data)))
    general.load_state_dict(linear.state_dict())
    in_closed_form(general, data)
    for method in (linear, general):
        train(method, "cpu")
    same_state(linear, general)


@pytest.mark.parametrize("settings", [{}, {"score_estimator": "stein", "injected_noise": 0.1}], ids=label)
def test_a_linear_model_has_the_same_estimate_of_the_functional_kl(settings):
    """Gradients at noise so large that the likelihood has none."""
    data = synthetic(1, N=31)
    data = replace(data, noise_variance=1e14 * data.noise_variance)
    settings = {"M": 5, "S": 9, "minibatch": "full", "prior_score": "ssge", **settings}
    gradients = []
    for each in (data, as_network(data)):
        method = method_of("ssge", each, settings, "ffg")
        with torch.no_grad():
            method.q.mean[:] = torch.linspace(-1, 1, method.q.mean.shape[1], dtype=f64)
            method.q.log_scale[:] = -0.3
        method.training_step(first_batch(method), 0).backward()
        gradients.append([parameter.grad[:, : data.k].clone() for parameter in method.q.parameters()])
    for one, two in zip(*gradients, strict=True):
        assert float(one.abs().max()) > 0.01
        close(two, one, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("settings", [{}, {"structure": "diag"}, {"structure": "low-rank", "rank": 3}], ids=label)
def test_a_linear_models_tangent_is_itself(settings):
    data = synthetic(1, N=31)
    linear, general = (method_of("laplace", each, settings).posterior() for each in (data, as_network(data)))
    close(general.mean, linear.mean, rtol=0, atol=1e-9)
    close(general.scale_tril, linear.scale_tril, rtol=0, atol=1e-9)


def test_the_objective_of_a_linear_model_is_the_closed_form_within_its_draws_error():
    toy = toys()[0]
    linear = method_of("mean-field-vi", TrainingData.of([toy]), {})
    general = method_of("mean-field-vi", as_network(linear.problems), {})
    general.load_state_dict(linear.state_dict())
    exact = linear.objective(0, toy)
    # The expected error of the prior is dominated by σ⁻²‖Φw‖²/2, a sum of scaled chi-squares.
    s = torch.linalg.svdvals(linear.problems.Phi[0]).square() / linear.problems.noise_variance[0]
    error = float((0.5 * s.square()).sum()) ** 0.5 / 1000**0.5
    assert abs(general.objective(0, toy) - exact) < 4 * error
    assert error < 0.1 * exact


# --- Networks ---------------------------------------------------------------------------------------------------------

SHORT = {"max_steps": 12, "minibatch": 7}
ON_NETWORKS = [
    *SAMPLED[:-1],
    ("mean-field-vi", {"max_steps": 12, "minibatch": "full", "collapsed": True}),
    ("low-rank-vi", {**SHORT, "rank": 30}),
    ("rand-a", {**SHORT, "M": 5}),
    ("rand-a", {**SHORT, "M": 30, "kl_jitter": 1e-6}),
    ("gfsvi", {**SHORT, "training": "adam", "rho": "mixed", "network_M": 6}),
    ("ssge", {**SHORT, "M": 5, "S": 12}),
    ("fbnn", {**SHORT, "S": 12}),
    ("f-svgd", {**SHORT, "M": 5, "particles": 6}),
    ("f-svgd", {"max_steps": 12, "minibatch": "full", "M": 6, "draw_A": "mixed", "averaging": 0.5}),
    ("bernoulli-dropout", {**SHORT, "training": "masks"}),
    ("bernoulli-dropout", {**SHORT, "training": "masks", "estimator": "per-minibatch", "retain_probability": 0.5}),
    ("bernoulli-dropout", {**SHORT, "training": "masks", "averaging": 0.5}),
    ("sample-then-optimise", {"max_steps": 12, "particles": 5}),
    ("laplace", {"structure": "kronecker"}),
    ("laplace", {}),
]
ON_LOGITS = [each for each in ON_NETWORKS if each[0] != "bernoulli-dropout" and "collapsed" not in each[1]]
ON_ALL = [*((networks, *each) for each in ON_NETWORKS), *((logits, *each) for each in ON_LOGITS)]


def of_case(part):
    return getattr(part, "__name__", None) or label(part)


on_all = pytest.mark.parametrize(("make", "name", "settings"), ON_ALL, ids=of_case)
FASTER = {"lr": 0.03, "max_steps": 200}


def test_every_method_for_networks_is_tested_here():
    assert {name for name, _ in ON_NETWORKS} == set(network_methods())


@pytest.mark.parametrize(("name", "settings"), dict(ON_NETWORKS).items())
def test_what_the_likelihood_draws_is_recorded_as_work(name, settings):
    entry = load_method(name)
    method = method_on(name, networks(), entry.cls.families[0], settings)
    expected = {"gradients": 1, "likelihood_rows": method.rows_per_step}
    if name in ("fbnn", "gfsvi", "ivon", "low-rank-vi", "mean-field-vi", "rand-a", "ssge"):
        expected["weight_samples"] = method.options.S
    found = {"gradients": 1, **method.cost()}
    assert {key: found[key] for key in expected} == expected
    assert ("weight_samples" in found) == ("weight_samples" in expected)


@on_all
def test_a_network_is_bitwise_the_same_in_any_batch(make, name, settings):
    data, seeds = make(), [1, 2, 3]
    entry = load_method(name)
    for family in entry.cls.families:
        found = []
        for at in (slice(0, 3), slice(1, 2), slice(1, 3)):
            method = method_on(name, data.narrow(at.start, at.stop), family, settings, seeds[at])
            train(method, "cpu")
            assert not any(method.divergences())
            place = 1 - at.start
            q = method.posterior()[place]
            found.append((q.mean, q.covariance_tril(), method.functions(place, data.X[0], draws=7, seed=3)))
        assert bool(found[0][2].isfinite().all())
        for other in found[1:]:
            assert all(map(torch.equal, found[0], other))


@on_all
def test_a_nan_in_one_networks_targets_does_not_affect_the_others(make, name, settings):
    found = []
    for spoilt in (False, True):
        data = make(2)
        if spoilt:
            data.y[0] = math.nan
        method = method_on(name, data, load_method(name).cls.families[0], settings)
        train(method, "cpu")
        q = method.posterior()
        found.append((q[1].mean, q[1].covariance_tril()))
    assert all(map(torch.equal, *found))
    assert method.divergences()[0] or divergence(q[0])
    assert method.divergences()[1] is None


@pytest.mark.parametrize(("name", "settings"), ON_NETWORKS[:-3], ids=label)
def test_training_lowers_the_objective(name, settings):
    entry = load_method(name)
    fields = entry.cls.Options.model_fields
    settings = settings | {name: value for name, value in FASTER.items() if name in fields}
    if name == "mean-field-vi":
        settings = settings | {"S": 8}
    method = method_on(name, networks(1), None, settings)
    before = method.objective(0, None, sets=8)
    train(method, "cpu")
    after = method.objective(0, None, sets=8)
    assert after < before - 3
    # Noise σ alone costs N(1 + log 2πσ²)/2.
    assert after < 150


@pytest.mark.parametrize(("name", "settings"), ON_NETWORKS[:-3], ids=label)
def test_the_objective_does_not_depend_on_the_place(name, settings):
    data = networks(2)
    together, alone = (
        method_on(name, problems, None, settings, seeds)
        for problems, seeds in ((data, [1, 2]), (data.narrow(1, 2), [2]))
    )
    assert together.objective(1, None, sets=2) == alone.objective(0, None, sets=2)


@pytest.mark.parametrize("name", [name for name in built_in_names() if name not in network_methods()])
def test_a_method_for_linear_models_refuses_networks(name):
    cls = load_method(name).cls
    with pytest.raises(
        InputError, match=f"^{cls.__name__} is a method for linear models, got a network; choose one of"
    ):
        cls(networks(1))


def test_problems_of_other_shapes_are_refused():
    X, y = torch.zeros(5, 2, dtype=f64), torch.zeros(5, dtype=f64)
    of = [(X, y, 0.1), (X[:4], y[:4], 0.1)]
    for problems, got in ((of, "N=4, D=2 and N=5, D=2"), ([], "none")):
        with pytest.raises(InputError, match=f"side by side must have equal shapes, got {got}; train them one by one"):
            NetworkData.of(Network(2, 3), problems)


def test_targets_with_and_without_a_noise_variance_are_refused_together():
    X, y = torch.zeros(5, 2, dtype=f64), torch.zeros(5, dtype=f64)
    with pytest.raises(InputError, match="must have one likelihood, got 1 of 2 with a noise variance; train those"):
        NetworkData.of(Network(2, 3), [(X, y, None), (X, y, 0.1)])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"X": torch.zeros(5, 2)}, "X is torch.float32, expected a tensor of float64"),
        ({"y": np.zeros(5)}, "y is ndarray, expected a tensor of float64"),
        ({"y": torch.zeros(4, dtype=f64)}, r"X has shape \[5, 2\] and y \[4\], expected \[N, D\] and \[N\]"),
        ({"variance": 0.0}, "the noise variance is 0.0, expected one positive number"),
        ({"variance": torch.ones(2, dtype=f64)}, "expected one positive number"),
        ({"y": -torch.ones(5, dtype=f64), "variance": None}, "a target is neither 0 nor 1"),
    ],
)
def test_rows_that_are_no_networks_are_refused(change, words):
    given = {"X": torch.zeros(5, 2, dtype=f64), "y": torch.zeros(5, dtype=f64), "variance": 0.1} | change
    with pytest.raises(InputError, match=words):
        NetworkData.of(Network(2, 3), [tuple(given.values())])


def test_a_noise_variance_may_be_a_number():
    X, y = torch.zeros(5, 2, dtype=f64), torch.zeros(5, dtype=f64)
    assert NetworkData.of(Network(2, 3), [(X, y, 0.1)]).noise_variance.tolist() == [0.1]


def test_held_out_sets_are_not_those_of_any_seeds_training():
    method = method_of("rand-a", networks(1), {"M": 6, "minibatch": 5, "max_steps": 20})
    of_training = {tuple(batch.X_A.flatten().tolist()) for batch in method.data().train_dataloader()}
    held_out = {tuple(batch.X_A.flatten().tolist()) for batch in method.held_out(0, None, 256)}
    assert len(of_training) == 20
    assert len(held_out) == 256
    assert not of_training & held_out


def test_what_cannot_be_collapsed_is_refused():
    data = synthetic(1, N=31)
    for problem in (data, as_network(data)):
        with pytest.raises(InputError, match="needs a network with one hidden layer"):
            method_of("mean-field-vi", problem, {"collapsed": True, "minibatch": "full"})
    with pytest.raises(InputError, match="needs all 31 training rows at each step, got a minibatch of 7"):
        method_of("mean-field-vi", networks(1), {"collapsed": True, "minibatch": 7})
    gaussian = networks(1)
    of_classes = NetworkData.of(gaussian.model, [(gaussian.X[0], (gaussian.y[0] > 0).double(), None)])
    with pytest.raises(InputError, match="needs targets with Gaussian noise, got targets of 0 and 1"):
        method_of("mean-field-vi", of_classes, {"collapsed": True, "minibatch": "full"})


def test_dropout_without_masks_is_refused():
    for settings in ({}, {"training": "masks", "estimator": "local"}):
        with pytest.raises(
            InputError, match=r"dropout has no closed form for networks.*set training=masks and estimator=per-point"
        ):
            method_of("bernoulli-dropout", networks(1), settings)


def test_dropout_drops_hidden_units_alone():
    """Each mask of a row by itself gives the row's part of the loss."""
    data = networks(1, H=3)
    method = method_of("bernoulli-dropout", data, {"training": "masks", "minibatch": "full", "retain_probability": 0.6})
    q, batch = method.q(), first_batch(method)
    expected = [1.0] * 9 + [0.6] * 3 + [1.0]
    assert q.retain_probability[0].tolist() == pytest.approx(expected, abs=1e-15)
    assert method.details() == [{"retain_probability": pytest.approx(0.6, abs=1e-15)}]
    masks = method.masks(q, data.N)
    assert set(masks[0, :, 9:12].flatten().tolist()) == {0.0, 1.0}
    f = torch.stack([data.model.values(q.m[0] * mask, x[None])[0] for mask, x in zip(masks[0], data.X[0], strict=True)])
    nll = -torch.distributions.Normal(f, 0.3).log_prob(data.y[0]).sum()
    kl = (
        0.5 * (q.retain_probability * q.m.square()).sum()
        - 3 * stats.bernoulli(0.6).entropy()
        + 6.5 * math.log(2 * math.pi)
    )
    assert float(method.loss(q, batch).detach()) == pytest.approx(float((nll + kl).detach()), rel=1e-12)
    w = method.posterior().sample(50, seed=0)[0]
    assert bool((w[:, :9] == q.m[0, :9]).all())
    assert bool(((w[:, 9:12] == 0) | (w[:, 9:12] == q.m[0, 9:12])).all())


def test_q_starts_at_a_draw_of_the_prior():
    for name, family in (("mean-field-vi", "ffg"), ("rand-a", "full"), ("low-rank-vi", "full")):
        q = method_of(name, networks(1), {"M": 20} if name == "rand-a" else {}, family).posterior()
        assert 0.5 < float(q.mean.std()) < 1.5
        close(q.covariance, 0.01 * eye(21)[None], rtol=0, atol=1e-15)
    ivon = method_of("ivon", networks(1), {}).posterior()
    assert 0.5 < float(ivon.mean.std()) < 1.5
    assert torch.equal(method_of("swag", networks(1), {}).posterior().mean, ivon.mean)


def test_noise_on_a_network_leaves_low_rank_vi_at_its_rank():
    method = method_of("low-rank-vi", networks(1), {"rank": 1, "max_steps": 5})
    train(method, "cpu")
    q = method.q()
    assert q.factor.shape[-1] > 1  # padded
    assert (q.factor != 0).any(1)[0].tolist() == [True, False, False, False]
    # What the scores see, too.
    low = method.posterior().covariance[0] - q.scale[0, : method.q.k].square().diag()
    assert torch.linalg.matrix_rank(low, rtol=1e-9) == 1


# --- Targets of 0 and 1 -----------------------------------------------------------------------------------------------


def logistic(data, w):
    """−log p(y | w) in NumPy, its gradient and its Hessian, for the first problem."""
    Phi, y = data.model.features(data.X[0]).numpy(), data.y[0].numpy()
    f = Phi @ w
    p = 1 / (1 + np.exp(-f))
    return (np.logaddexp(0, f) - y * f).sum(), Phi.T @ (p - y), (Phi.T * (p * (1 - p))) @ Phi


def test_the_logistic_likelihood_and_its_gradient_are_numpys():
    data = logits(1)
    w = torch.randn(1, 3, data.k, generator=torch.Generator().manual_seed(1), dtype=f64, requires_grad=True)
    nll = data.nll(w)
    nll.sum().backward()
    for got, gradient, at in zip(nll[0].detach(), w.grad[0], w[0].detach().numpy(), strict=True):
        value, slope, _ = logistic(data, at)
        assert float(got) == pytest.approx(value, rel=1e-12)
        close(gradient, torch.from_numpy(slope), rtol=1e-10, atol=1e-12)
    halves = [data.minibatch(torch.arange(31)[None, part]).nll(w) for part in (slice(0, 15), slice(15, 31))]
    close((15 * halves[0] + 16 * halves[1]) / 31, nll, rtol=1e-12, atol=0)
    by_row = data.nll_by_row(w[:, :1].expand(-1, 31, -1))
    close(by_row, nll[:, 0], rtol=1e-12, atol=0)


@pytest.mark.parametrize("structure", ["full", "kronecker"])
def test_laplace_has_the_mode_and_the_curvature_of_a_logistic_regression(structure):
    """By Newton's method in NumPy."""
    data, w = logits(1), np.zeros(8)
    for _ in range(30):
        _, slope, hessian = logistic(data, w)
        w = w - np.linalg.solve(hessian + np.eye(8), slope + w)
    q = method_of("laplace", data, {"structure": structure}).posterior()
    close(q.mean[0], torch.from_numpy(w), rtol=0, atol=1e-6)
    precision = logistic(data, w)[2] + np.eye(8)
    close(q.covariance[0], torch.from_numpy(np.linalg.inv(precision)), rtol=1e-5, atol=1e-8)


def posterior_on_a_grid(data):
    """Points w [n, 2], their posterior mass, log p(y, w) and the area of a cell."""
    side = torch.linspace(-8, 8, 401, dtype=f64)
    w = torch.cartesian_prod(side, side)
    joint = -data.nll(w[None])[0] - 0.5 * w.square().sum(-1) - math.log(2 * math.pi)
    return w, joint.softmax(0), joint, float(side[1] - side[0]) ** 2


def test_the_elbo_of_logits_falls_short_of_the_evidence_by_the_kl():
    data = logits(1, k=2)
    w, _, joint, cell = posterior_on_a_grid(data)
    log_evidence = float(joint.logsumexp(0)) + math.log(cell)
    for name, settings in (("mean-field-vi", {}), ("low-rank-vi", {"rank": 2})):
        method = method_of(name, data, {"minibatch": "full", "max_steps": 300, "lr": 0.03, "S": 8, **settings})
        train(method, "cpu")
        q = method.posterior()[0]
        normal = torch.distributions.MultivariateNormal(q.mean, scale_tril=q.covariance_tril())
        log_q = normal.log_prob(w)
        kl = float((log_q.exp() * (log_q - joint)).sum() * cell) + log_evidence
        spread = float(data.nll(q.sample(4000, seed=1)[None]).std())
        assert 0 < kl < 0.5
        assert abs(method.objective(0, None) + log_evidence - kl) < 4 * spread / 1000**0.5


@pytest.mark.parametrize("make", [networks, logits])
def test_sgld_is_sghmc_without_momentum(make):
    """So what the tests of SGHMC's long chains show of the gradients holds for SGLD, which needs more steps."""
    settings = {"particles": 5, "max_steps": 12, "step_size": 0.05}
    chains = [
        method_of(name, make(1), {**settings, **own}) for name, own in (("sgld", {}), ("sghmc", {"friction": 1.0}))
    ]
    for each in chains:
        train(each, "cpu")
    one, other = (each.posterior().particles for each in chains)
    close(one, other, rtol=1e-9, atol=1e-12)


def test_chains_sample_the_posterior_of_logits():
    """Last states of independent chains against the grid: means to 4 standard errors, variances to 4 and a bias of the
    order of the step."""
    data = logits(1, k=2)
    w, mass, _, _ = posterior_on_a_grid(data)
    f = data.model.values(w, data.X[0, :5])
    mean = mass @ f
    variance = mass @ (f - mean).square()
    method = method_of("sghmc", data, {"particles": 400, "max_steps": 500, "step_size": 0.05})
    train(method, "cpu")
    found = method.functions(0, data.X[0, :5])
    assert bool(((found.mean(0) - mean).abs() < 4 * (variance / 400).sqrt()).all())
    close(found.var(0) / variance, torch.ones(5, dtype=f64), rtol=0, atol=4 * (2 / 400) ** 0.5 + 0.05)
    # And it could have failed: the prior's mean, 0, is outside.
    assert float((mean.abs() / (variance / 400).sqrt()).max()) > 6


def test_f_svgd_moves_by_the_slope_of_logits():
    data = logits(1, N=12)
    method = method_of("f-svgd", data, {"minibatch": "full", "particles": 4, "M": 3, "prior_jitter": 0.5})
    batch = first_batch(method)
    method.training_step(batch, 0).backward()
    w, X = method.q.w.detach()[0, :4, :8], torch.cat([data.X[0], batch.X_A[0]])
    Phi = data.model.features(X)
    f = w @ Phi.mT
    score = -f @ torch.linalg.inv(Phi @ Phi.mT + 0.5 * eye(len(X)))
    score[:, :12] += data.y[0] - f[:, :12].sigmoid()
    close(-method.q.w.grad[0, :4, :8], naive_direction(f, score) @ Phi, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "settings", "part"),
    [
        ("gfsvi", {"training": "adam", "network_M": 5}, "prior_covariance"),
        ("f-svgd", {"particles": 4}, "prior_covariance"),
        ("laplace", {"structure": "kronecker"}, "kronecker_gram"),
    ],
)
def test_a_model_without_a_part_that_a_method_needs_is_refused(name, settings, part):
    class Line:
        k = 2

        def values(self, w, x):
            return w[..., :1] + w[..., 1:] * x[:, 0]

    X = torch.linspace(0, 1, 9, dtype=f64)[:, None]
    data = NetworkData.of(Line(), [(X, X[:, 0], torch.tensor(0.1, dtype=f64))])
    method_on("laplace", data, "full")
    with pytest.raises(InputError, match=rf"needs {part}\(\) of a network's model, and Line has none; define it as in"):
        method_on(name, data, None, settings)


def test_a_tangent_has_no_measurement_sets():
    class Tangent(Method):
        class Options(GaussianOptions, MeasurementOptions):
            pass

        networks = "tangent"

        def loss(self, q, batch):
            raise NotImplementedError

    with pytest.raises(InputError, match=r"^Tangent takes measurement sets, which a network's tangent does not have"):
        Tangent(networks(1), "full", [1], M=5)


def test_what_has_no_hidden_units_is_refused():
    with pytest.raises(InputError, match="dropout drops hidden units, but the model has none"):
        method_of("bernoulli-dropout", logits(1), {"training": "masks"})
    with pytest.raises(InputError, match="needs a network with one hidden layer"):
        method_of("mean-field-vi", logits(1), {"collapsed": True, "minibatch": "full"})


# --- Derivatives ------------------------------------------------------------------------------------------------------


def test_jacobians():
    data = networks(2)
    w = torch.randn(2, data.k, generator=torch.Generator().manual_seed(1), dtype=f64)
    J = data.jacobian(w, data.X)
    for b in range(2):
        expected = torch.autograd.functional.jacobian(lambda w, b=b: data.model.values(w, data.X[b]), w[b])
        close(J[b], expected, rtol=1e-12, atol=1e-14)


def test_a_gpus_arithmetic_is_the_same(monkeypatch):
    """There, problems are mapped over; here by the same transform on a CPU."""
    data, g = networks(2, H=3), torch.Generator().manual_seed(1)
    collapsed, binary = CollapsedData.collapse(data, data.N), logits(2)
    w = torch.randn(2, 4, data.k, generator=g, dtype=f64)

    def everything():
        moving = w.clone().requires_grad_()
        nll = data.nll(moving) + data.nll_by_row(moving[:, :1].expand(-1, 31, -1))[:, None] + collapsed.nll(moving)
        nll = nll + binary.nll(moving) * binary.slope(binary.values(moving, binary.X)).square().sum(-1)
        (gradient,) = torch.autograd.grad(nll.square().sum(), moving)
        found = nll.detach(), gradient, data.values(w, data.X), data.jacobian(w[:, 0], data.X)
        return *found, data.prior_covariance(data.X)

    alone = everything()

    def mapped(function, *batches):
        return vmap(lambda *parts: function(*(part[None] for part in parts))[0])(*batches)

    monkeypatch.setattr("fsvi_bench.methods.networks.one_by_one", mapped)
    for one, other in zip(alone, everything(), strict=True):
        close(other, one, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mean-field-vi", {"S": 3, "minibatch": 7}),
        ("mean-field-vi", {"S": 3, "minibatch": "full", "collapsed": True}),
        ("low-rank-vi", {"S": 3, "rank": 2}),
        ("rand-a", {"S": 3, "M": 5, "minibatch": 7}),
        ("gfsvi", {"S": 3, "network_M": 5, "minibatch": 7, "training": "adam"}),
        ("ensemble", {"minibatch": 7}),
        ("bernoulli-dropout", {"minibatch": 7, "training": "masks"}),
    ],
    ids=label,
)
def test_gradients_of_the_loss(name, settings):
    """By central differences; a step's draws are the same whenever they are asked for. RANDA and GFSVI hold J constant."""
    method = method_of(name, networks(1), settings)
    batch, q = first_batch(method), method.q
    if name == "rand-a":
        sets = method.measured(q(), batch)
        method.measured = lambda q, batch: sets
    if name == "gfsvi":
        J = method.problems.jacobian(q().mean.detach(), batch.X_A)
        object.__setattr__(method.problems, "jacobian", lambda *_: J)
    g = torch.Generator().manual_seed(0)
    method.loss(q(), batch).sum().backward()
    for parameter in (each for each in q.parameters() if each.requires_grad):
        way = torch.randn(parameter.shape, generator=g, dtype=f64)
        way[..., q.k :] = 0
        if parameter.ndim == 3 and name in ("rand-a", "gfsvi"):
            way = way.tril()
        values = []
        for size in (1e-5, -2e-5):
            parameter.data += size * way
            values.append(float(method.loss(q(), batch).detach()))
        parameter.data += 1e-5 * way
        slope = (values[0] - values[1]) / 2e-5
        assert slope == pytest.approx(float((parameter.grad * way).sum()), rel=1e-5, abs=1e-5)


def test_svgd_moves_by_the_networks_score():
    data = networks(1)
    method = method_of("svgd", data, {"minibatch": "full", "particles": 5})
    w = method.q().w.detach()[0].clone().requires_grad_()
    log_joint = -0.5 * (data.y[0] - data.model.values(w, data.X[0])).square().sum() / data.noise_variance[0]
    (score,) = torch.autograd.grad(log_joint - 0.5 * w.square().sum(), w)
    method.training_step(first_batch(method), 0).backward()
    close(-method.q.w.grad[0, :5, : data.k], naive_direction(w.detach(), score), rtol=1e-9, atol=1e-9)


def test_f_svgd_moves_by_the_score_of_functions():
    """J_iᵀv_i, with v_i by loops."""
    data = networks(1, N=12)
    method = method_of("f-svgd", data, {"minibatch": "full", "particles": 4, "M": 3, "prior_jitter": 0.5})
    batch = first_batch(method)
    method.training_step(batch, 0).backward()
    w, X = method.q.w.detach()[0, :4, : data.k], torch.cat([data.X[0], batch.X_A[0]])
    f = data.model.values(w, X)
    precision = torch.linalg.inv(data.model.prior_covariance(X) + 0.5 * eye(len(X)))
    score = -f @ precision
    score[:, :12] += (data.y[0] - f[:, :12]) / data.noise_variance[0]
    v = naive_direction(f, score)
    expected = torch.stack(
        [torch.autograd.functional.jacobian(lambda w: data.model.values(w, X), w[i]).mT @ v[i] for i in range(4)]
    )
    got = -method.q.w.grad[0, :4, : data.k]
    close(got, expected, rtol=0, atol=1e-9 * float(expected.abs().max()))


def test_gfsvi_compares_the_tangent_with_the_prior_process():
    """Against torch's KL."""
    data = networks(1)
    method = method_of("gfsvi", data, {"training": "adam", "network_M": 4, "gamma": 0.05})
    q, batch = method.q(), first_batch(method)
    with torch.no_grad():
        kl = float(method.network_kl(q, batch))
    mean, tril, X = q.mean[0, : data.k].detach(), q.root[0, : data.k, : data.k].detach(), batch.X_A[0]
    J = torch.autograd.functional.jacobian(lambda w: data.model.values(w, X), mean)
    covariance = data.model.prior_covariance(X) + 0.2 * eye(4)
    prior = torch.distributions.MultivariateNormal(torch.zeros(4, dtype=f64), covariance)
    of_values = torch.distributions.MultivariateNormal(
        data.model.values(mean, X), (J @ tril) @ (J @ tril).mT + 0.2 * eye(4)
    )
    assert kl == pytest.approx(float(torch.distributions.kl_divergence(of_values, prior)), rel=1e-9)


def test_gfsvi_of_a_linear_model_has_the_regulariser_of_its_law():
    """All training inputs as the measurement set are the law ρ."""
    data, settings = synthetic(1, N=31), {"training": "adam", "gamma": 1e-3, "network_M": 31}
    linear, general = (method_of("gfsvi", each, settings) for each in (data, as_network(data)))
    q = general.q()
    kls = functional_kl(q, first_batch(linear).A), general.network_kl(q, first_batch(general))
    assert float(kls[1].detach()) == pytest.approx(float(kls[0].detach()), rel=1e-9)


def test_gfsvi_has_no_closed_form_for_a_network():
    with pytest.raises(InputError, match=r"^training=closed-form needs a linear model, got a network; set training="):
        method_of("gfsvi", networks(1), {})


def test_the_functional_kl_of_a_network_is_its_tangents():
    data = networks(1)
    method = method_of("rand-a", data, {"M": 4}, "ffg")
    q, batch = method.q(), first_batch(method)
    with torch.no_grad():
        kl = float(functional_kl(q, method.measured(q, batch)))
    mean, scale = q.mean[0, : data.k].detach(), q.root[0, : data.k].detach()
    J = torch.autograd.functional.jacobian(lambda w: data.model.values(w, batch.X_A[0]), mean)
    prior = torch.distributions.MultivariateNormal(torch.zeros(4, dtype=f64), J @ J.mT)
    approximate = torch.distributions.MultivariateNormal(J @ mean, (J * scale.square()) @ J.mT)
    assert kl == pytest.approx(float(torch.distributions.kl_divergence(approximate, prior)), rel=1e-8)


# --- Exact references -------------------------------------------------------------------------------------------------


def test_laplace_is_the_gauss_newton_approximation_at_a_mode():
    data = networks(1)
    method = method_of("laplace", data, {})
    q, w = method.posterior(), method.problems.feature_map.at.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(energies(Points(w[:, None]), Batch(data)).sum(), w)
    assert float(gradient.abs().max()) < 1e-5
    w = w.detach()[0]
    close(q.mean[0], w, rtol=0, atol=1e-5)
    J = torch.autograd.functional.jacobian(lambda w: data.model.values(w, data.X[0]), w)
    precision = J.mT @ J / data.noise_variance[0] + eye(data.k)
    close(q.covariance[0], torch.linalg.inv(precision), rtol=0, atol=1e-9)
    f = method.functions(0, data.X[0], draws=20_000, seed=1)
    mean, covariance = data.model.values(w, data.X[0]), J @ torch.linalg.inv(precision) @ J.mT
    variance = covariance.diagonal()
    assert bool(((f.mean(0) - mean).abs() < 4.5 * (variance / len(f)).sqrt() + 1e-5).all())
    assert bool(((f.var(0) / variance - 1).abs() < 4.5 * math.sqrt(2 / len(f))).all())


@pytest.mark.parametrize(("structure", "theirs"), [("full", "full"), ("diag", "diag"), ("kronecker", "kron")])
def test_laplace_is_laplace_torchs(structure, theirs):
    """Its network's weights are not whitened: those of the inputs have the prior precision D, all others 1."""
    if find_spec("laplace") is None:
        skip_or_fail("laplace-torch is not installed: pip install --no-deps -r tests/laplace.txt")
    from laplace import Laplace

    H, D = 4, 2
    data = networks(1, D=D, H=H)
    data = replace(data, model=Network(D, H, output_scale=H**0.5))
    method = method_of("laplace", data, {"structure": structure})
    at = method.problems.feature_map.at[0]
    units, v, b = at[: data.model.k_hidden].view(H, D + 1), at[data.model.outputs], at[-1:]
    layers = nn.Linear(D, H).double(), nn.Tanh(), nn.Linear(H, 1).double()
    parameters = units[:, :D] / D**0.5, units[:, D], v[None], b
    for parameter, values in zip((*layers[0].parameters(), *layers[2].parameters()), parameters, strict=True):
        parameter.data = values.clone()
    precision = torch.tensor([D, 1.0, 1, 1], dtype=f64)
    if structure != "kronecker":
        precision = precision.repeat_interleave(torch.tensor([H * D, H, H, 1]))
    laplace = Laplace(
        nn.Sequential(*layers), "regression", subset_of_weights="all", hessian_structure=theirs,
        sigma_noise=data.noise_variance[0] ** 0.5, prior_precision=precision,
    )  # fmt: skip
    laplace.fit(DataLoader(TensorDataset(data.X[0], data.y[0, :, None]), batch_size=data.N))
    found = laplace.posterior_precision
    found = {"full": lambda: found, "diag": lambda: torch.diag(found), "kron": lambda: found.to_matrix()}[theirs]()
    # In their order, and with their units: a, c, v, b.
    place = torch.arange(data.k)[: data.model.k_hidden].view(H, D + 1)
    order = torch.cat([place[:, :D].flatten(), place[:, D], torch.arange(data.model.k_hidden, data.k)])
    unit = torch.cat([torch.full((H * D,), D**-0.5, dtype=f64), torch.ones(data.k - H * D, dtype=f64)])
    expected = found * unit[:, None] * unit
    got = torch.linalg.inv(method.posterior().covariance[0])[order[:, None], order]
    close(got, expected, rtol=0, atol=1e-7 * float(expected.max()))  # their full matrix is made in float32


def test_the_collapsed_elbo_falls_short_of_the_evidence_by_the_kl():
    """H = 1, D = 1: by quadrature over both hidden weights."""
    data = networks(1, N=8, D=1, H=1)
    settings = {"collapsed": True, "minibatch": "full", "max_steps": 300, "lr": 0.03, "S": 8}
    method = method_of("mean-field-vi", data, settings)
    train(method, "cpu")
    side = torch.linspace(-9, 9, 601, dtype=f64)
    u = torch.cartesian_prod(side, side)
    joint = data.model.log_likelihood(u, data.X[0], data.y[0], data.noise_variance[0])
    joint = joint - 0.5 * u.square().sum(-1) - math.log(2 * math.pi)
    cell = 2 * math.log(float(side[1] - side[0]))
    log_evidence = logsumexp(joint.numpy()) + cell
    q = method.posterior()[0]
    log_q = torch.distributions.Normal(q.mean, q.scale).log_prob(u).sum(-1)
    kl = float((log_q.exp() * (log_q - joint)).sum() * math.exp(cell)) + log_evidence
    # The spread of log p(y | u) under q, over 1,000 draws.
    found = method.objective(0, None) + log_evidence
    draws = q.sample(4000, seed=1)
    spread = data.model.log_likelihood(draws, data.X[0], data.y[0], data.noise_variance[0]).std()
    assert 0 < kl < 5
    assert abs(found - kl) < 4 * float(spread) / 1000**0.5


def reference_mean(data, x, draws=400_000):
    """E[f(x) | y] by importance sampling of u from its prior, the output weights integrated out; and its error."""
    u = torch.randn(draws, data.model.k_hidden, generator=torch.Generator().manual_seed(0), dtype=f64)
    logs, means = [], []
    for part in u.split(20_000):
        logs.append(data.model.log_likelihood(part, data.X[0], data.y[0], data.noise_variance[0]))
        output = data.model.output_posterior(part, data.X[0], data.y[0], data.noise_variance[0])
        means.append((data.model.features(part, x) @ output.mean[..., None])[..., 0])
    weights = torch.cat(logs).softmax(0)[:, None]
    f = torch.cat(means)
    mean = (weights * f).sum(0)
    return mean, (weights.square() * (f - mean).square()).sum(0).sqrt()


@pytest.mark.slow
def test_chains_sample_the_posterior():
    """Independent chains, of which only the last state counts, against 4 standard errors of both."""
    data = networks(1, N=20, D=1, H=2)
    x = torch.linspace(-2, 2, 9, dtype=f64)[:, None]
    expected, error = reference_mean(data, x)
    method = method_of("sghmc", data, {"particles": 1000, "max_steps": 2500, "step_size": 0.05})
    train(method, "cpu")
    f = method.functions(0, x)
    combined = (f.var(0) / len(f) + error.square()).sqrt()
    assert bool(((f.mean(0) - expected).abs() < 4 * combined).all())
    # And it could have failed: the prior's mean, 0, is far outside.
    assert float((expected.abs() / combined).max()) > 20


def test_the_prior_covariance_is_that_of_draws_of_the_weights():
    model, g = Network(2, 3, output_scale=1.3, bias_scale=0.7), torch.Generator().manual_seed(0)
    x, S = 1.5 * torch.randn(4, 2, generator=g, dtype=f64), 200_000
    f = model.values(torch.randn(S, model.k, generator=g, dtype=f64), x)
    largest = 1.3**2 + 0.7**2  # above any variance of f
    # Five standard errors of a product with E f⁴ ≤ 3·largest²: given the hidden weights, f is Gaussian.
    close(model.prior_covariance(x), f.mT @ f / S, rtol=0, atol=5 * 3**0.5 * largest / S**0.5)


@pytest.mark.parametrize(("size", "error"), [(1.0, 1e-9), (2.8, 1e-5)])
def test_the_prior_covariance_is_exact(size, error):
    """tanh's second moments by the trapezoidal rule in two dimensions, for far, close and equal inputs."""
    model = Network(1, 3, output_scale=1.3, bias_scale=0.7)
    x = size * torch.tensor([[-1.0], [0.2], [0.98], [1.0], [1.0]], dtype=f64)
    z = np.arange(-9, 9.01, 0.03)
    a, c = np.meshgrid(z, z)
    mass = np.exp(-0.5 * (a**2 + c**2)).flatten()
    hidden = np.tanh(np.outer(a.flatten(), x[:, 0].numpy()) + c.flatten()[:, None])
    expected = 1.3**2 * (hidden.T * (mass / mass.sum())) @ hidden + 0.7**2
    K = model.prior_covariance(x)
    close(K, torch.from_numpy(expected), rtol=0, atol=error)
    assert float(torch.linalg.eigvalsh(K)[0]) > -1e-14
    assert (K.diagonal() - torch.from_numpy(expected).diagonal()).abs().max() < 1e-13  # what the sum leaves out
