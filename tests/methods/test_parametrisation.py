"""Training in the eigenvectors of ΦᵀΦ, and from other standard deviations than the prior's."""

import pytest
import torch
from pytorch_lightning import Trainer

from fsvi_bench.errors import InputError
from fsvi_bench.maths.blr import blr_posterior, eigenbasis
from fsvi_bench.maths.functional_kl import Gaussian
from fsvi_bench.maths.gaussian import gaussian_kl_to_precision
from fsvi_bench.methods.base import AdamOptions, GaussianOptions, Method
from fsvi_bench.methods.data import Rows, TaskData, expected_nll
from fsvi_bench.methods.ensemble import Ensemble
from fsvi_bench.methods.fixed_a import FixedA
from fsvi_bench.methods.gaussian_dropout import GaussianDropout
from fsvi_bench.methods.gwi import Gwi
from fsvi_bench.methods.ivon import Ivon
from fsvi_bench.methods.low_rank_vi import LowRankVI
from fsvi_bench.methods.mean_field_vi import MeanFieldVI
from fsvi_bench.methods.rand_a import RandA
from fsvi_bench.methods.sample_then_optimise import SampleThenOptimise
from fsvi_bench.methods.sparse_variational_dropout import SparseVariationalDropout
from fsvi_bench.methods.ssge import Ssge
from fsvi_bench.posteriors.trainable import TrainableGaussian, TrainablePosterior
from fsvi_bench.training.trainer import train
from tests.maths.draws import eye, normal
from tests.methods.synthetic import FAMILIES, features, synthetic
from tests.methods.table import first_batch
from tests.methods.test_networks import networks

EIGEN = {"parametrisation": "eigenbasis"}


@pytest.mark.parametrize(("N", "k"), [(30, 8), (30, 10), (5, 8)])
def test_the_basis_is_orthonormal_and_makes_the_hessian_diagonal(N, k):
    Phi = normal(0, 3, N, k) * torch.logspace(0, -3, k, dtype=torch.float64)
    basis = eigenbasis(Phi)
    width = basis.shape[-1]
    assert width == k + -k % 4
    torch.testing.assert_close(basis.mT @ basis, eye(width).expand(3, -1, -1), rtol=0, atol=1e-14)
    assert torch.equal(basis[:, k:], eye(width)[k:].expand(3, -1, -1))
    V = basis[:, :k, :k]
    gram = V.mT @ Phi.mT @ Phi @ V
    expected = torch.linalg.eigvalsh(Phi.mT @ Phi).flip(-1)
    torch.testing.assert_close(gram, torch.diag_embed(expected), rtol=0, atol=1e-13 * float(expected.max()))
    assert torch.equal(eigenbasis(Phi[1:2]), basis[1:2])  # bitwise the same in any batch


def test_a_root_relative_to_its_diagonal_has_the_gradients_of_its_form():
    k, basis = 8, torch.linalg.qr(normal(1, 1, 8, 8)).Q
    q = TrainableGaussian("full", 1, k, 0.1, basis)
    q.lower.data = normal(2, 1, k, k)
    weights = normal(3, k, k)
    lower = q.lower.detach()[0].clone().requires_grad_()
    naive = torch.diag(lower.diagonal().exp()) @ (eye(k) + 0.1 * lower.tril(-1))
    torch.testing.assert_close(q().root[0], naive, rtol=1e-14, atol=0)
    (expected,) = torch.autograd.grad((weights.tril() * naive).sum(), lower)
    (got,) = torch.autograd.grad((weights * q().root[0]).sum(), q.lower)  # entries above the diagonal do not count
    torch.testing.assert_close(got[0], expected, rtol=1e-13, atol=1e-15)
    covariance = basis[0] @ naive @ naive.T @ basis[0].T
    torch.testing.assert_close(
        q.posterior().covariance_tril()[0], torch.linalg.cholesky(covariance), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("make", [RandA, Ssge])
@pytest.mark.parametrize("k", [8, 9])
@pytest.mark.parametrize(("M", "minibatch"), [(5, "full"), (5, 7), (7, 7), (12, "full")])
def test_a_loss_in_the_basis_is_that_over_the_weights(make, M, minibatch, k):
    """The same rows and measurement sets with and without rotation. Sets of M = 12 > k see every weight."""
    problems = synthetic(2, k=k)
    method = make(problems, "full", [3, 4], M=M, minibatch=minibatch, max_steps=4, **EIGEN)
    method.q.mean.data[:, :k] = normal(5, 2, k)
    method.q.lower.data[:, :k, :k] = 0.3 * normal(6, 2, k, k)
    plain = make(problems, "full", [3, 4], M=M, minibatch=minibatch, max_steps=4)
    method.train(False)
    plain.train(False)
    q = method.posterior()
    for ours, theirs in zip(method.data(), plain.data(), strict=True):
        expected = plain.loss(method.q.terms(), theirs)
        torch.testing.assert_close(method.loss(method.q(), ours), expected, rtol=1e-11, atol=0)
    terms = method.terms(1)
    torch.testing.assert_close(terms.root[:, :k, :k], q.root[1:], rtol=1e-13, atol=1e-15)
    assert torch.equal(terms.mean[:, :k], q.mean[1:])


@pytest.mark.parametrize("family", ["full", "ffg"])
def test_fixed_features_are_rotated_too(family):
    """FIXEDA's measurement set, by L-BFGS and by Adam, and the second moments of GWI."""
    problems, Phi_A = synthetic(2), features(0, 2, 5)
    for method in (
        FixedA(problems, family, M=2, max_steps=3, **EIGEN),
        FixedA(problems, family, M=2, optimizer="adam", max_steps=3, **EIGEN),
        Gwi(problems, family, training="adam", max_steps=3, **EIGEN),
    ):
        if isinstance(method, FixedA):
            method.Phi_A = Phi_A
        method.q.mean.data[:, :8] = normal(5, 2, 8)
        if family == "full":
            method.q.lower.data[:, :8, :8] = 0.3 * normal(6, 2, 8, 8)
        q = method.posterior()
        batch = first_batch(method)
        fixed = Phi_A if isinstance(method, FixedA) else method.seen
        plain = next(iter(TaskData(problems, [0, 1], steps=1, design=method.design, fixed_A=fixed)))
        rows = batch._replace(rows=Rows.whole(method.data().problems))
        expected = method.loss(Gaussian(q.mean, q.root), plain)
        torch.testing.assert_close(method.loss(method.q(), rows), expected, rtol=1e-11, atol=0)


def test_means_move_as_on_rotated_features():
    """Adam's mean does not depend on the covariance with all rows and an A that determines every weight."""
    problems = synthetic(2)
    settings = {"M": 12, "minibatch": "full", "lr": 0.1, "max_steps": 30, "off_diagonal_lr": 0.01}
    basis = eigenbasis(problems.Phi)
    method = RandA(problems, "full", [1, 2], **settings, **EIGEN)
    rotated = RandA(problems.rotated(basis), "full", [1, 2], **settings)
    for each in (method, rotated):
        train(each, "cpu")
    expected = (basis @ rotated.posterior().mean[..., None])[..., 0]
    torch.testing.assert_close(method.posterior().mean, expected, rtol=1e-10, atol=1e-12)
    assert (expected - RandA(problems, "full", [1, 2], **settings).posterior().mean).abs().max() > 0.1


@pytest.mark.parametrize(("make", "draws"), [(Ensemble, 5), (SampleThenOptimise, 6)])
def test_particles_start_at_the_same_draws_and_keep_their_losses(make, draws):
    problems = synthetic(2)
    method, plain = (
        make(problems, None, [1, 2], particles=draws, minibatch="full", max_steps=3, **each) for each in (EIGEN, {})
    )
    w = plain.posterior().draws
    torch.testing.assert_close(method.posterior().draws, w, rtol=1e-13, atol=1e-15)
    batch = first_batch(plain)
    torch.testing.assert_close(method.loss(method.q(), batch), plain.loss(plain.q(), batch), rtol=1e-12, atol=0)
    for each in (method, plain):
        train(each, "cpu")
    assert (method.posterior().draws - plain.posterior().draws).abs().max() > 1e-6  # Adam takes other steps


def test_dropout_starts_at_the_same_means():
    one, other = (GaussianDropout(synthetic(2), **each).posterior() for each in (EIGEN, {}))
    torch.testing.assert_close(one.mean, other.mean, rtol=1e-13, atol=0)
    torch.testing.assert_close(one.root, other.root, rtol=1e-13, atol=0)


@pytest.mark.parametrize("parametrisation", ["weights", "eigenbasis"])
@pytest.mark.parametrize(
    ("make", "family"),
    [(RandA, "full"), (RandA, "ffg"), (MeanFieldVI, "ffg"), (SparseVariationalDropout, "ffg"), (LowRankVI, "full")],
)
def test_standard_deviations_start_at_the_scale(make, family, parametrisation):
    q = make(synthetic(2), family, parametrisation=parametrisation, initial_scale=0.01).posterior()
    torch.testing.assert_close(q.covariance_tril(), 0.01 * eye(8).expand(2, -1, -1), rtol=1e-12, atol=1e-15)
    assert not q.mean.any()


@FAMILIES
def test_a_nearly_noiseless_posterior_is_found_from_small_standard_deviations_only(family):
    """Exact standard deviations from 1 down to 1e-5. From the prior, 2,000 steps of Adam end far from them."""
    one = synthetic(1)
    scales = torch.logspace(0, 5, 8, dtype=torch.float64)
    # Orthogonal columns with norms from 1 to 1e5 in turned coordinates, so that both families can fit.
    Q, V = torch.linalg.qr(normal(0, 30, 8)).Q, torch.linalg.qr(normal(1, 8, 8)).Q
    V = V if family == "full" else eye(8)
    Phi = ((Q * scales) @ V.T)[None]
    y = (Phi[0] @ normal(2, 8))[None] + normal(3, 1, 30)
    problem = type(one)(one.X, y, Phi, torch.ones(1).double(), one.low, one.high, one.feature_map)
    exact = blr_posterior(Phi, y, problem.noise_variance)
    ends = {}
    for scale in (1.0, 1e-3):
        method = _Elbo(problem, family, **EIGEN, initial_scale=scale, lr=0.1, lr_schedule="linear", averaging=0.3,
                       off_diagonal_lr=0.01, minibatch="full", max_steps=2000)  # fmt: skip
        train(method, "cpu")
        q = method.posterior()
        ends[scale] = float(gaussian_kl_to_precision(q.mean, q.covariance_tril(), *exact).total)
    assert ends[1e-3] < 1
    assert ends[1.0] > 1000


class _Elbo(Method):
    """Full and factorised Gaussians in weight space, with its expectations in closed form."""

    Options = RandA.Options

    @property
    def design(self):
        return None

    def loss(self, q, batch):
        diagonal = q.root.diagonal(dim1=-2, dim2=-1) if q.root.ndim == 3 else q.root
        squares = q.root.flatten(1).square().sum(-1) + q.mean.square().sum(-1)
        return expected_nll(q, batch.rows) + 0.5 * squares - diagonal.log().sum(-1)


def test_what_cannot_be_trained_in_the_basis_says_so():
    problems = synthetic(1)

    class Own(Method):
        Options = AdamOptions

        def initial(self):
            return TrainableGaussian("ffg", 1, 8)

    with pytest.raises(InputError, match=r"Own does not train q in the eigenbasis.*set parametrisation=weights"):
        Own(problems, "ffg", **EIGEN)

    class WithoutScale(TrainablePosterior):
        def __init__(self, basis):
            super().__init__(basis)
            self.k, self.mean = 8, torch.nn.Parameter(torch.zeros(1, 8, dtype=torch.float64))

        def forward(self):
            return Gaussian(self.located(self.mean), torch.ones_like(self.mean))

    class Fixed(Own):
        Options = GaussianOptions

        def initial(self):
            return WithoutScale(self.basis)

    assert Fixed(problems, "ffg", **EIGEN).posterior().mean.shape == (1, 8)
    with pytest.raises(InputError, match=r"no standard deviations to start from, got initial_scale=0.1"):
        Fixed(problems, "ffg", initial_scale=0.1)
    with pytest.raises(InputError, match="no such option"):
        Ivon(problems, **EIGEN)
    with pytest.raises(InputError, match="option 'initial_scale': got 0"):
        RandA(problems, initial_scale=0)


@pytest.mark.parametrize("make", [RandA, MeanFieldVI, Ensemble])
def test_networks_have_no_eigenbasis(make):
    a_network = networks(1)
    with pytest.raises(InputError, match=r"needs a linear model, got a network; set parametrisation=weights"):
        make(a_network, **EIGEN)
    with pytest.raises(InputError, match="needs a linear model"):
        make.check(make.checked_options(EIGEN), a_network)


def test_a_trainer_with_data_in_other_coordinates_is_refused():
    problems = synthetic(1)
    method = RandA(problems, "full", M=5, max_steps=2, minibatch="full", **EIGEN)
    own = TaskData(problems, [0], steps=2, design=method.design)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = Trainer(max_epochs=1, **quiet)
    with pytest.raises(InputError, match=r"on rotated features.*pass datamodule=method.data\(\)"):
        trainer.fit(method, datamodule=own)
    Trainer(max_epochs=1, **quiet).fit(method, datamodule=method.data())
    assert method.steps_done == 2
    axis_aligned = RandA(problems, "ffg", M=5, max_steps=2, minibatch="full", **EIGEN)
    with pytest.raises(InputError, match="the Trainer's data are rotated"):
        Trainer(max_epochs=1, **quiet).fit(axis_aligned, datamodule=method.data())
    Trainer(max_epochs=1, **quiet).fit(axis_aligned, datamodule=own)
    assert axis_aligned.steps_done == 2


@FAMILIES
def test_a_problem_alone_takes_its_own_basis_along(family):
    problems = synthetic(3)
    method = RandA(problems, family, [1, 2, 3], M=5, minibatch="full", max_steps=4, **EIGEN)
    train(method, "cpu")
    alone, q = method.q.only(1), method.posterior()
    assert torch.equal(alone.posterior().mean, q.mean[1:2])
    assert torch.equal(alone.posterior().covariance_tril(), q[1:2].covariance_tril())


@pytest.mark.parametrize("k", [8, 9])
@pytest.mark.parametrize("make", [FixedA, Gwi])
def test_rotated_features_are_bitwise_the_same_in_any_batch(make, k):
    """Of an odd size too, which no matrix product pads."""
    problems = synthetic(4, N=31, k=k)
    settings = {"M": 5, "optimizer": "adam"} if make is FixedA else {"training": "adam"}

    def trained(at):
        method = make(problems.narrow(at[0], at[-1] + 1), "full", [*at], max_steps=5, **settings, **EIGEN)
        train(method, "cpu")
        return method.posterior()

    together = trained(range(4))
    for at in (1, 3):
        alone = trained([at])
        assert torch.equal(alone.mean[0], together.mean[at])
        assert torch.equal(alone.covariance_tril()[0], together.covariance_tril()[at])


def test_a_problem_whose_features_are_not_finite_does_not_end_the_others():
    problems = synthetic(2)
    problems.Phi[1, 0, 0] = torch.nan
    method = MeanFieldVI(problems, max_steps=3, **EIGEN)
    train(method, "cpu")
    alone = MeanFieldVI(problems.only(0), max_steps=3, **EIGEN)
    train(alone, "cpu")
    assert torch.equal(method.posterior().mean[0], alone.posterior().mean[0])
    assert method.divergences()[1]


def test_a_checkpoint_in_another_basis_is_refused(tmp_path):
    """As from a machine whose LAPACK chooses other signs."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": tmp_path}
    settings = {"M": 5, "max_steps": 4, "minibatch": "full"}
    trainer = Trainer(max_epochs=1, **quiet)
    method = RandA(synthetic(1), "full", [1], **settings, **EIGEN)
    trainer.fit(method, datamodule=method.data())
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    kept = torch.load(tmp_path / "one.ckpt", weights_only=False)
    RandA(synthetic(1), "full", [1], **settings, **EIGEN).on_load_checkpoint(kept)
    other = RandA(synthetic(1), "full", [1], **settings, **EIGEN)
    other.q.basis[..., 0] *= -1
    for each in (other, RandA(synthetic(1), "full", [1], **settings)):
        with pytest.raises(InputError, match="has other coordinates than this method's"):
            each.on_load_checkpoint(kept)
