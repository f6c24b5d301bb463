"""Methods that are an alias of one that is here, so that they have no row: each as its paper or library defines it."""

from importlib.util import find_spec

import gpytorch
import numpy as np
import pytest
import torch
from torch.autograd.functional import hessian
from torch.nn import Identity, Sequential
from torch.utils.data import DataLoader, TensorDataset

from fsvi_bench.maths.functional_kl import Gaussian
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.gaussian import FullGaussian
from fsvi_bench.scoring.scores import score
from fsvi_bench.tasks.task import Task
from tests.maths.draws import close, eye, linspace, zeros
from tests.methods.table import first_batch, method_on, random_q, toys
from tests.requirements import skip_or_fail

HARMLESS = 1e-6  #: KL in nats


@pytest.fixture(scope="module")
def toy():
    return toys()[0]


LAYER = torch.nn.Linear(20, 1, bias=False).double()


def network(w, Phi):
    """What a network with these weights in its last layer returns, whose other layers are the task's features."""
    return torch.func.functional_call(LAYER, {"weight": w[None]}, Phi)[:, 0]


# --- Laplace: of the last layer, and by Kronecker factors -------------------------------------------------------------


@pytest.mark.parametrize(("layers", "structure"), [("last_layer", "full"), ("all", "full"), ("all", "kron")])
def test_laplace_torch_returns_the_exact_posterior(toy, layers, structure):
    if find_spec("laplace") is None:
        skip_or_fail("laplace-torch is not installed: pip install --no-deps -r tests/laplace.txt")
    from laplace import Laplace

    LAYER.weight.data = toy.truth.posterior.mean[None].clone()
    inputs = DataLoader(TensorDataset(toy.Phi, toy.y[:, None]), batch_size=16)
    noise = {"sigma_noise": toy.noise_variance**0.5, "prior_precision": 1.0}
    network = Sequential(Identity(), LAYER)
    laplace = Laplace(network, "regression", subset_of_weights=layers, hessian_structure=structure, **noise)
    laplace.fit(inputs)
    precision = laplace.posterior_precision
    covariance = torch.linalg.inv(precision.to_matrix() if structure == "kron" else precision)
    q = FullGaussian(laplace.mean.detach().double(), torch.linalg.cholesky(covariance))
    assert abs(score(q, toy).kl) < HARMLESS


def test_laplace_of_a_last_layer_is_the_exact_posterior(toy):
    """The Hessian of the negative log joint in the layer's weights, at their mode."""

    def negative_log_joint(w):
        return 0.5 * ((toy.y - network(w, toy.Phi)).square().sum() / toy.noise_variance + w @ w)

    precision = hessian(negative_log_joint, zeros(20))
    (gradient,) = torch.autograd.grad(negative_log_joint(w := zeros(20).requires_grad_()), w)
    mode = -torch.linalg.solve(precision, gradient)  # of a quadratic
    q = FullGaussian(mode, torch.linalg.cholesky(torch.linalg.inv(precision)))
    assert abs(score(q, toy).kl) < HARMLESS


def test_kronecker_factored_laplace_is_the_exact_posterior_with_one_output(toy):
    """Σ_n a_n a_nᵀ ⊗ mean_n H_n + I (Ritter et al. 2018), a_n the layer's inputs and H_n the loss's Hessian in its
    output: with one output H_n is 1/σ² for every n, so that the factors lose nothing."""
    mode = toy.truth.posterior.mean

    def loss(outputs):
        return 0.5 * (toy.y - outputs).square().sum() / toy.noise_variance

    of_outputs = hessian(loss, network(mode, toy.Phi)).diagonal().mean()
    precision = torch.kron(of_outputs[None, None], toy.Phi.mT @ toy.Phi) + eye(20)
    q = FullGaussian(mode, torch.linalg.cholesky(torch.linalg.inv(precision)))
    assert abs(score(q, toy).kl) < HARMLESS


# --- TFSVI: RANDA, factorised, with a jitter of 1e-6 ------------------------------------------------------------------


def test_tfsvi_is_randa_with_a_factorised_q_and_jitter(toy):
    """Rudner et al. (2022): the KL between the laws of the network linearised in its weights, about the means of q and
    of the prior, at a context set. By Jacobians and dense Gaussians; value, and gradient in q's means and scales.

    A network that is linear in its weights is its own linearisation, and RANDA's set A is the context set. The dense
    covariances' condition number is 1e6 or so, with the jitter.
    """
    method = method_on("rand-a", TrainingData.of([toy]), "ffg", {"M": 10, "kl_jitter": 1e-6, "minibatch": "full"})
    batch = first_batch(method)
    Phi_A, (mean, tril) = batch.Phi_A[0, :10, :20], random_q("ffg", 20)
    scale = tril.diagonal().clone().requires_grad_()
    mean.requires_grad_()

    def linearised(w, scale, Phi):
        """Mean of f and a root of its covariance, for weights of mean w."""
        return network(w, Phi), torch.func.jacrev(network)(w.detach(), Phi) * scale

    def law(f, root):
        return torch.distributions.MultivariateNormal(f, root @ root.mT + 1e-6 * eye(len(f)))

    of_q, of_prior = (law(*linearised(*at, Phi_A)) for at in ((mean, scale), (zeros(20), torch.ones_like(scale))))
    f, root = linearised(mean, scale, toy.Phi)
    errors = (toy.y - f).square() + root.square().sum(-1)
    nll = 0.5 * (errors / toy.noise_variance + (2 * torch.pi * toy.noise_variance).log()).sum()
    expected = nll + torch.distributions.kl_divergence(of_q, of_prior)
    got = method.loss(Gaussian(mean[None], scale[None]), batch)[0]
    assert float(got) == pytest.approx(float(expected), rel=1e-9)
    for leaf in (mean, scale):
        close(
            *(torch.autograd.grad(loss, leaf, retain_graph=True)[0] for loss in (got, expected)), rtol=1e-6, atol=1e-6
        )


# --- SVGP -------------------------------------------------------------------------------------------------------------


class Svgp(gpytorch.models.ApproximateGP):
    def __init__(self, Z):
        q = gpytorch.variational.NaturalVariationalDistribution(len(Z))
        super().__init__(gpytorch.variational.VariationalStrategy(self, Z, q, learn_inducing_locations=False))
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def test_gpytorchs_svgp_is_the_exact_posterior():
    """At fixed inducing points, kernel and noise, on dense data: the residual kernel is a constant of its ELBO, and one
    natural-gradient step of size 1 ends at the optimum of a conjugate model."""
    rng, jitter = np.random.default_rng(0), 1e-6
    X = torch.from_numpy(rng.uniform(-2, 2, (200, 1)))
    y = X[:, 0].mul(2).sin() + 0.1 * torch.from_numpy(rng.standard_normal(200))
    model, likelihood = Svgp(linspace(-2, 2, 8)[:, None]).double(), gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = 0.05
    objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=200)
    optimizer = gpytorch.optim.NGD(model.variational_parameters(), num_data=200, lr=1.0)
    model.train(), likelihood.train()
    with (
        gpytorch.settings.variational_cholesky_jitter(double_value=jitter),
        gpytorch.settings.cholesky_jitter(double_value=jitter),
    ):
        for _ in range(2):  # the first call sets q to the prior
            optimizer.zero_grad()
            (-objective(model(X), y)).backward()
            optimizer.step()
    law = model.variational_strategy.variational_distribution
    task = Task.from_gpytorch(model, X, y, likelihood=likelihood, jitter=jitter)
    covariance = law.covariance_matrix.detach()
    q = FullGaussian(law.mean.detach(), torch.linalg.cholesky(covariance))
    assert abs(score(q, task).kl) < HARMLESS
