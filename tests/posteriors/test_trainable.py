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
