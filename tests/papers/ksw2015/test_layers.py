"""Noisy layers: moments, gradients, explicit weight matrices, KL terms."""

import json
import math
from typing import get_args

import pytest
import torch
from pydantic import ValidationError

from fsvi_bench.papers.ksw2015 import networks
from fsvi_bench.papers.ksw2015.networks import ESTIMATORS, Kind, NoiseSettings, NoisyLinear, kl

KINDS = get_args(Kind)
NOISY = [kind for kind in KINDS if kind != "none"]
CASES = [(kind, estimator) for kind in NOISY for estimator in ESTIMATORS]
M, K, L = 3, 4, 2


@pytest.fixture(autouse=True)
def _float64():
    """In which identities hold to more digits."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


class One:
    """A stack of one network, without the leading axis."""

    def __init__(self, stack):
        self.stack, (self.noise,) = stack, stack.noise
        self.is_on_weights, self.project = stack.is_on_weights, stack.project

    theta = property(lambda self: self.stack.theta[0])
    bias = property(lambda self: self.stack.bias[0, 0])
    log_alpha = property(lambda self: self.stack.log_alpha[0])

    def __call__(self, a, generator=None, estimator="local"):
        return self.stack(a[None], generator and [generator], estimator)[0]

    def kl(self):
        return kl([self.stack])[0]


def make(kind, granularity="unit", drop_rate=0.3, sizes=(K, L)):
    noise = NoiseSettings(kind=kind, granularity=granularity)
    layer = One(NoisyLinear(*sizes, [noise], drop_rate, [generator()]))
    with torch.no_grad():
        layer.bias.copy_(torch.linspace(-1, 1, sizes[1]))
        if layer.noise.is_variational:  # α that differ wherever they may
            layer.log_alpha.sub_(torch.rand(layer.log_alpha.shape, generator=generator(5), dtype=torch.float64))
    return layer


def inputs(seed=1, rows=M):
    return torch.randn(rows, K, generator=generator(seed), dtype=torch.float64)


def relative_variances(layer):
    """Var w_ij / θ_ij², [K,L]."""
    return layer.log_alpha.detach().exp().expand(K, L)


def exact_covariance(layer, a, estimator):
    """Of the outputs b [M,L] as [M,L,M,L], from w_ij = θ_ij s_i (type A) or independent w_ij (type B)."""
    theta, alpha = layer.theta.detach(), relative_variances(layer)
    same_point = torch.eye(M, dtype=torch.float64) if estimator != "per-minibatch" else torch.ones(M, M)
    same_point = same_point.to(torch.float64)
    if layer.is_on_weights:
        same_output = torch.eye(L, dtype=torch.float64)
        return torch.einsum("mi,ni,ij,jk,mn->mjnk", a, a, alpha * theta.square(), same_output, same_point)
    return torch.einsum("mi,ni,i,ij,ik,mn->mjnk", a, a, alpha[:, 0], theta, theta, same_point)


def sample(layer, a, n, estimator="local"):
    """Outputs [n,M,L] of n minibatches, or of one with n copies of each point if points have noise of their own."""
    g = generator(2)
    with torch.no_grad():
        if estimator == "per-minibatch":
            return torch.stack([layer(a, g, estimator) for _ in range(n)])
        return layer(a.repeat(n, 1), g, estimator).unflatten(0, (n, -1))


# --- The distribution of what comes out --------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "estimator"), CASES)
def test_the_moments_of_the_outputs_are_those_of_the_weights(kind, estimator):
    layer, a, n = make(kind), inputs(), 2000
    draws = sample(layer, a, n, estimator)
    mean = (a @ layer.theta + layer.bias).detach()
    covariance = exact_covariance(layer, a, estimator)
    variance = torch.einsum("mjmj->mj", covariance)
    assert ((draws.mean(0) - mean).abs() < 4 * (variance / n).sqrt()).all()
    centred = draws - mean
    products = torch.einsum("rmj,rnk->rmjnk", centred, centred)
    error = products.std(0) / math.sqrt(n)
    assert ((products.mean(0) - covariance).abs() < 4 * error + 1e-12).all()


@pytest.mark.parametrize("granularity", ["layer", "unit", "weight"])
def test_every_granularity_has_the_moments_of_its_alpha(granularity):
    layer, a, n = make("variational-b", granularity), inputs(), 2000
    draws = sample(layer, a, n)
    variance = a.square() @ (relative_variances(layer) * layer.theta.detach().square())
    # The variance of a Gaussian's sample variance is 2σ⁴/(n − 1).
    assert ((draws.var(0) - variance).abs() < 4 * variance * math.sqrt(2 / (n - 1))).all()


@pytest.mark.parametrize("granularity", ["layer", "unit", "weight"])
def test_the_local_estimators_gradients_are_those_of_mean_and_variance(granularity):
    """With ζ fixed, by hand: ∂b_ml/∂θ_kl = a_mk + ζ_ml a_mk² α_kl θ_kl / √δ_ml, and half of that times θ_kl in log α."""
    layer, a = make("variational-b", granularity), inputs()
    cotangent = torch.linspace(-1, 2, M * L).view(M, L)
    output = layer(a, generator(3))
    (output * cotangent).sum().backward()
    with torch.no_grad():
        theta, alpha = layer.theta, layer.log_alpha.exp().expand(K, L)
        delta = torch.einsum("mk,kl->ml", a.square(), alpha * theta.square())
        zeta = (output - a @ theta - layer.bias) / delta.sqrt()
        through_delta = a.square().mT @ (cotangent * zeta / delta.sqrt()) * alpha * theta
        of_log_alpha = (0.5 * through_delta * theta).sum_to_size(layer.log_alpha.shape)
    torch.testing.assert_close(layer.stack.theta.grad[0], a.mT @ cotangent + through_delta, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(layer.stack.log_alpha.grad[0], of_log_alpha, rtol=1e-10, atol=1e-12)


def test_without_a_generator_the_mean_weights_are_used():
    a = inputs()
    for kind in KINDS:
        layer = make(kind)
        torch.testing.assert_close(layer(a), a @ layer.theta + layer.bias, rtol=1e-13, atol=1e-14)
    plain = make("none")
    assert torch.equal(plain(a, generator()), plain(a))
    noisy = make("variational-b")
    assert torch.equal(noisy(a, generator(), "no-noise"), noisy(a))


# --- Against explicit weight matrices -----------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 2 * K * L, 2**24])
def test_per_point_noise_is_a_weight_matrix_for_every_point(chunk, monkeypatch):
    monkeypatch.setattr(networks, "CHUNK", {"cpu": chunk})
    layer, a = make("variational-b", "weight"), inputs()
    a.requires_grad_()
    pull = torch.randn(M, L, generator=generator(4), dtype=torch.float64)
    g, points = generator(9), max(1, chunk // (K * L))
    chunks = [min(points, M - start) for start in range(0, M, points)]
    noise = torch.cat([torch.randn(n, K, L, generator=g, dtype=torch.float64) for n in chunks])
    W = layer.theta + (0.5 * layer.log_alpha).exp() * layer.theta * noise
    expected = torch.einsum("mi,mij->mj", a, W) + layer.bias
    drawing = generator(9)
    actual = layer(a, drawing, "per-point")
    assert torch.equal(drawing.get_state(), g.get_state())
    torch.testing.assert_close(actual, expected, rtol=1e-13, atol=1e-14)
    parameters = [a, layer.stack.theta, layer.stack.log_alpha]
    for ours, theirs in zip(
        torch.autograd.grad(actual, parameters, pull), torch.autograd.grad(expected, parameters, pull), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


# --- Gradients -----------------------------------------------------------------------------------------------------------


def test_rows_of_zeros_give_no_nan():
    for kind, estimator in CASES:
        layer = make(kind)
        a = torch.zeros(M, K, dtype=torch.float64, requires_grad=True)
        out = layer(a, generator(), estimator)
        torch.testing.assert_close(out, layer.bias.expand_as(out), rtol=0, atol=1e-100)
        out.sum().backward()
        stack = layer.stack
        for gradient in (a.grad, stack.theta.grad, stack.bias.grad, stack.log_alpha.grad):
            assert gradient is None or gradient.isfinite().all()


# --- The KL ---------------------------------------------------------------------------------------------------------------


def cubic(alpha):
    """KSW's section 3.3, with the constant that makes it exact as α → 0."""
    constant = 0.5 * (0.5772156649015329 + math.log(2))
    return constant - 0.5 * math.log(alpha) - 1.16145124 * alpha + 1.50204118 * alpha**2 - 0.58629921 * alpha**3


def test_kl_counts_weights_or_input_scales(reference):
    exact = json.loads((reference / "expected.json").read_text())["log_uniform"]["kl"]
    for drop_rate, u in ((0.5, "0.5"), (0.2, "2")):  # α = p/(1 − p) and u = 1/(2α)
        one = cubic(drop_rate / (1 - drop_rate))
        assert one == pytest.approx(exact[u], abs=0.0404)  # the cubic's largest error
        for kind, terms in (("variational-a", K), ("variational-b", K * L)):
            for granularity in ("layer", "unit", "weight"):
                if kind == "variational-a" and granularity == "weight":
                    continue
                noise = NoiseSettings(kind=kind, granularity=granularity)
                layer = One(NoisyLinear(K, L, [noise], drop_rate, [generator()]))
                assert layer.kl().item() == pytest.approx(terms * one, rel=1e-12)


def test_kl_of_unequal_alphas_is_their_sum():
    layer = make("variational-b")
    expected = sum(L * cubic(math.exp(value)) for value in layer.log_alpha.flatten().tolist())
    assert layer.kl().item() == pytest.approx(expected, rel=1e-13)
    assert all(make(kind).kl().item() == 0 for kind in ("none", "bernoulli", "gaussian-a", "gaussian-b"))


def test_projection_brings_alpha_back_to_one_and_touches_nothing_else():
    layer = make("variational-b", granularity="unit")
    with torch.no_grad():
        layer.log_alpha.copy_(torch.tensor([[-2.0], [0.0], [0.3], [5.0]]))
    layer.project()
    assert layer.log_alpha.flatten().tolist() == [-2.0, 0.0, 0.0, 0.0]
    assert layer.stack.mean_drop_rates() == pytest.approx([(1 / (1 + math.exp(2)) + 1.5) / 4])


def test_an_alpha_that_diverges_downwards_stays_positive():
    layer = make("variational-b", granularity="unit")
    with torch.no_grad():
        layer.log_alpha.fill_(-1e30)
    layer.project()
    assert (layer.log_alpha.float().exp() > 0).all()
    assert layer.kl().isfinite()


def test_a_fixed_alpha_above_one_has_no_kl():
    assert make("gaussian-a", drop_rate=0.6).kl() == 0.0


def test_fixed_alpha_is_no_parameter():
    layer = make("gaussian-a", drop_rate=0.2)
    assert {name for name, _ in layer.stack.named_parameters()} == {"theta", "bias"}
    torch.testing.assert_close(layer.log_alpha.exp(), torch.full((K, 1), 0.25), rtol=1e-14, atol=0)


# --- What is refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "gausian-a"}, "'gaussian-a'"),
        ({"granularity": "neuron"}, "'unit'"),
        ({"kind": "variational-a", "granularity": "weight"}, "choose granularity layer or unit"),
    ],
)
def test_settings_are_refused_with_what_is_known(changes, said):
    with pytest.raises(ValidationError, match=said):
        NoiseSettings(**{"kind": "variational-b", **changes})
