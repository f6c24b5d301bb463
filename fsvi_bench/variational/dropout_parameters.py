"""What dropout methods move: the parameters of q for B problems, each with its weights in blocks of whole cache lines.

Weights are independent, w_i = centre_i + spread_i e_i with noise e_i of mean 0 and variance 1, or a relaxed mask's.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fsvi_bench.maths.elementwise import sigmoid
from fsvi_bench.posteriors.dropout import BernoulliDropoutPosterior
from fsvi_bench.posteriors.gaussian import FactorisedGaussian
from fsvi_bench.variational.parameters import PosteriorParameters, rounded_up, widened


def _block(B: int, k: int, value: float | Float[Tensor, " B"]) -> nn.Parameter:
    numbers = torch.as_tensor(value, dtype=torch.float64).expand(B)
    return nn.Parameter(numbers[:, None].repeat(1, rounded_up(k)))


class MaskParameters(PosteriorParameters):
    """Bernoulli dropout at a retain probability that stays: m, started at 0."""

    def __init__(self, B: int, k: int, retain_probability: float) -> None:
        super().__init__()
        self.k, self.retain_probability = k, retain_probability
        self._m = _block(B, k, 0.0)

    def refresh(self) -> None:
        """Nothing mirrors anything here."""

    @property
    def mean(self) -> Float[Tensor, "B k"]:
        """E w = p m."""
        return self.retain_probability * self.m

    @property
    def m(self) -> Float[Tensor, "B k"]:
        return self._m.detach()[:, : self.k]

    def set_gradient(self, m: Float[Tensor, "B k"]) -> None:
        """Takes ∂loss/∂m."""
        self._m.grad = widened(m)

    def posterior(self, k: int) -> BernoulliDropoutPosterior:
        p = torch.full_like(self.m[:, 0], self.retain_probability)
        return BernoulliDropoutPosterior(self.m[:, :k].clone(), p)


class ConcreteParameters(PosteriorParameters):
    """Bernoulli dropout with learned retain probabilities, one per problem or one per weight: m and logits of p."""

    def __init__(self, B: int, k: int, retain_probability: float, shared: bool) -> None:
        super().__init__()
        self.k, self.shared = k, shared
        self._m = _block(B, k, 0.0)
        p = torch.tensor(retain_probability, dtype=torch.float64)
        self._logit = _block(B, 1 if shared else k, float(p.logit()))

    def refresh(self) -> None:
        """Nothing mirrors anything here."""

    @property
    def m(self) -> Float[Tensor, "B k"]:
        return self._m.detach()[:, : self.k]

    @property
    def logit(self) -> Float[Tensor, "B p"]:
        """Of the retain probabilities; p = 1 or k."""
        return self._logit.detach()[:, : 1 if self.shared else self.k]

    @property
    def mean(self) -> Float[Tensor, "B k"]:
        """E w = p m."""
        return sigmoid(self.logit) * self.m

    def set_gradient(self, m: Float[Tensor, "B k"], logit: Float[Tensor, "B k"]) -> None:
        """Takes ∂loss/∂m and ∂loss/∂logit for each weight, which is summed if the logit is shared."""
        self._m.grad = widened(m)
        self._logit.grad = widened(logit.sum(-1, keepdim=True) if self.shared else logit)

    def posterior(self, k: int) -> BernoulliDropoutPosterior:
        p = sigmoid(self.logit)
        return BernoulliDropoutPosterior(self.m[:, :k].clone(), p[:, 0] if self.shared else p[:, :k].clone())


class MultiplicativeParameters(PosteriorParameters):
    """N(θ, αθ²) with θ and log α, one α per problem or one per weight; started where E w² is the prior's, θ²(1+α) = 1.

    Args:
        largest_log_alpha: log α is put back there after every step; None leaves it free.
    """

    def __init__(self, B: int, k: int, alpha: float, shared: bool, largest_log_alpha: float | None) -> None:
        super().__init__()
        self.k, self.shared, self.largest_log_alpha = k, shared, largest_log_alpha
        self._theta = _block(B, k, (1 + alpha) ** -0.5)
        self._log_alpha = _block(B, 1 if shared else k, float(torch.tensor(alpha, dtype=torch.float64).log()))

    @torch.no_grad()
    def refresh(self) -> None:
        if self.largest_log_alpha is not None:
            self._log_alpha.clamp_(max=self.largest_log_alpha)

    @property
    def mean(self) -> Float[Tensor, "B k"]:
        """θ."""
        return self._theta.detach()[:, : self.k]

    @property
    def log_alpha(self) -> Float[Tensor, "B a"]:
        """a = 1 or k."""
        return self._log_alpha.detach()[:, : 1 if self.shared else self.k]

    @property
    def signed_scale(self) -> Float[Tensor, "B k"]:
        """√α θ, whose size is the standard deviation."""
        return (0.5 * self.log_alpha).exp() * self.mean

    def set_gradient(self, mean: Float[Tensor, "B k"], log_alpha: Float[Tensor, "B k"] | None) -> None:
        """Takes ∂loss/∂θ and ∂loss/∂(log α) for each weight (summed if it is shared); None holds log α."""
        self._theta.grad = widened(mean)
        if log_alpha is not None:
            self._log_alpha.grad = widened(log_alpha.sum(-1, keepdim=True) if self.shared else log_alpha)

    def posterior(self, k: int) -> FactorisedGaussian:
        return FactorisedGaussian(self.mean[:, :k].clone(), self.signed_scale[:, :k].abs())


class AdditiveParameters(PosteriorParameters):
    """N(θ, σ²) with θ and log σ² (Molchanov et al. 2017), started at the prior N(0, 1)."""

    def __init__(self, B: int, k: int) -> None:
        super().__init__()
        self.k = k
        self._theta, self._log_variance = _block(B, k, 0.0), _block(B, k, 0.0)

    def refresh(self) -> None:
        """Nothing mirrors anything here."""

    @property
    def mean(self) -> Float[Tensor, "B k"]:
        """θ."""
        return self._theta.detach()[:, : self.k]

    @property
    def variance(self) -> Float[Tensor, "B k"]:
        """σ²."""
        return self._log_variance.detach()[:, : self.k].exp()

    def set_gradient(self, mean: Float[Tensor, "B k"], log_variance: Float[Tensor, "B k"]) -> None:
        """Takes ∂loss/∂θ and ∂loss/∂(log σ²)."""
        self._theta.grad, self._log_variance.grad = widened(mean), widened(log_variance)

    def posterior(self, k: int) -> FactorisedGaussian:
        return FactorisedGaussian(self.mean[:, :k].clone(), self.variance[:, :k].sqrt())
