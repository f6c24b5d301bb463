"""Posteriors that gradient methods move."""

import pytest
import torch

from fsvi_bench.posteriors.trainable import TrainableGaussian
from fsvi_bench.seeds import derived_generator


@pytest.mark.parametrize("family", ["full", "ffg"])
def test_a_trainable_gaussian_starts_at_the_prior_and_has_the_gradients_of_its_form(family):
    q = TrainableGaussian(family, 3, 7)
    identity = torch.eye(7, dtype=torch.float64)
    assert torch.equal(q.posterior().covariance_tril(), identity.expand(3, 7, 7))
    assert not q.posterior().mean.any()
    assert not q.posterior().mean.requires_grad
    weights = torch.from_numpy(derived_generator(0).standard_normal((7, 7)))
    mean, root = q()
    spread = (weights * root[1, :7, :7]).sum() if family == "full" else (weights.diagonal() * root[1, :7]).sum()
    (2 * mean[1].sum() + spread).backward()
    gradients = {name: parameter.grad[1] for name, parameter in q.named_parameters()}
    # At the prior ∂L_ii/∂log L_ii = 1, and what lies below the diagonal is itself.
    assert torch.equal(gradients["mean"][:7], torch.full((7,), 2.0, dtype=torch.float64))
    assert ("lower" in gradients) == (family == "full")
    if family == "full":
        assert torch.equal(gradients["lower"][:7, :7], weights.tril())
    else:
        assert torch.equal(gradients["log_scale"][:7], weights.diagonal())
    assert not any(parameter.grad[[0, 2]].any() for parameter in q.parameters())


@pytest.mark.parametrize("factor", [1.0, 0.1])
def test_adam_moves_entries_below_the_diagonal_by_their_own_multiple_of_the_rate(factor):
    """Against a root in parts, whose lower part has its own learning rate: Adam does not see a gradient's scale."""
    k, weights = 8, torch.from_numpy(derived_generator(1).standard_normal((8, 8)))
    target = torch.linalg.cholesky(weights @ weights.mT + torch.eye(k, dtype=torch.float64))
    q = TrainableGaussian("full", 1, k, factor)
    lower, log_diagonal = (torch.zeros(shape, dtype=torch.float64, requires_grad=True) for shape in ((k, k), (k,)))
    one = torch.optim.Adam(q.parameters(), lr=0.05, eps=0.0)
    parts = torch.optim.Adam(
        [{"params": [lower], "lr": 0.05 * factor}, {"params": [log_diagonal]}], lr=0.05, eps=1e-300
    )
    for _ in range(20):
        one.zero_grad()
        parts.zero_grad()
        (mean, root), naive = q(), lower.tril(-1) + torch.diag(log_diagonal.exp())
        assert torch.allclose(root[0], naive, rtol=1e-12, atol=1e-14)
        ((root[0] - target).square().sum() + (mean - 1).square().sum()).backward()
        (naive - target).square().sum().backward()
        # What the mask leaves out has a gradient of 0, which Adam without eps would divide by 0.
        q.lower.grad[:, ~torch.ones(k, k).tril().bool()] = 1.0
        lower.grad[~torch.ones(k, k).tril(-1).bool()] = 1.0
        one.step()
        parts.step()
