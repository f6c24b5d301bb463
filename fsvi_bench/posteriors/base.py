"""What every approximate posterior over the k weights offers: moments, draws, and whether it has a density."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.errors import InputError, whole_number

#: Gaussians: of full covariance, fully factorised, by a factor of any rank; Bernoulli dropout, spike-and-slab.
Family = Literal["full", "ffg", "factor", "bernoulli", "spike-slab"]
#: The kind of posterior that each family is made of, as files name it.
KIND_OF: Mapping[Family, str] = {
    "full": "gaussian-full",
    "ffg": "gaussian-ffg",
    "factor": "gaussian-factor",
    "bernoulli": "bernoulli-dropout",
    "spike-slab": "spike-slab",
}

#: Numbers drawn at once: 1 TB.
TOO_MANY = 2**37

Q = TypeVar("Q", bound="Posterior")


class Posterior(ABC):
    """q(w); tensors may carry a leading axis of B problems.

    `mean` and `covariance_tril` are those of q whatever its shape, so N(mean, LLᵀ) is its moment-matched Gaussian.
    """

    kind: ClassVar[str]  #: in posterior files, such as `gaussian-full` or `bernoulli-dropout`
    #: The fields by the names that posterior files have for them, each with its number of axes of length k.
    parameters: ClassVar[Mapping[str, int]]

    if TYPE_CHECKING:  # at run time it would become the default of a dataclass's field of that name

        @property
        def mean(self) -> Float[Tensor, "*B k"]:
            """E w."""

    @property
    def k(self) -> int:
        """Number of weights."""
        return int(next(iter(self.tensors().values())).shape[-1])

    @property
    @abstractmethod
    def singular(self) -> bool | None:
        """True if q (one problem's) has no density, so that its KL to any Gaussian is infinite; None if unknown."""

    @abstractmethod
    def covariance_tril(self) -> Float[Tensor, "*B k k"]:
        """Lower-triangular L with LLᵀ = Cov w. Its diagonal is positive, but 0 along a weight that does not vary."""

    @property
    def covariance(self) -> Float[Tensor, "*B k k"]:
        """Cov w."""
        tril = self.covariance_tril()
        return tril @ tril.mT

    def sample(self, n: int, seed: int = 0) -> Float[Tensor, "*B n k"]:
        """n independent draws of w (for each problem of a batch), the same for the same seed on the same device.

        Raises:
            InputError: n or the seed is no such number, or no memory holds so many draws.
        """
        draws, seed = whole_number("n", n, 1), whole_number("seed", seed)
        if draws * self.k >= TOO_MANY:
            raise InputError(f"n is {draws}, expected fewer than {TOO_MANY // self.k} draws; draw them in parts")
        return self.draw(torch.Generator(self.mean.device).manual_seed(seed), draws)

    @abstractmethod
    def draw(self, generator: torch.Generator, n: int) -> Float[Tensor, "*B n k"]:
        """n independent draws of w from a generator."""

    def tensors(self) -> Mapping[str, Tensor]:
        """The parameters by the names that posterior files have for them, in the order of the class's fields."""
        values = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]
        return dict(zip(self.parameters, values, strict=True))

    def shapes(self, k: int) -> Mapping[str, tuple[int, ...]]:
        """The shapes that the parameters of one problem with k weights must have."""
        return {name: (k,) * axes for name, axes in self.parameters.items()}

    def malformed(self) -> str | None:
        """What is wrong with the form of tensors that have the right shapes, as a clause, or None."""
        return None

    def out_of_domain(self) -> str | None:
        """Which finite parameter lies outside its domain, as a clause, or None."""
        return None

    def map(self: Q, change: Callable[[Tensor], Tensor]) -> Q:
        """The same kind of posterior with every tensor changed."""
        return type(self)(*map(change, self.tensors().values()))

    def __getitem__(self: Q, problem: int | slice) -> Q:
        """The posterior of one problem of a batch."""
        return self.map(lambda tensor: tensor[problem])

    def cpu(self: Q) -> Q:
        """The same posterior with its tensors on the CPU."""
        return self.map(Tensor.cpu)


def unstack(posterior: Q) -> Sequence[Q]:
    """The B posteriors of a batch, one by one."""
    return [posterior[problem] for problem in range(len(next(iter(posterior.tensors().values()))))]


def noise(
    law: Callable[..., Tensor], generator: torch.Generator, n: int, like: Float[Tensor, "*B r"]
) -> Float[Tensor, "*B n r"]:
    """n independent vectors of `law`, which is `torch.rand` or `torch.randn`, for each one in `like`."""
    *batch, r = like.shape
    return law(*batch, n, r, generator=generator, dtype=like.dtype, device=like.device)


def concatenate(posteriors: Sequence[Q]) -> Q:
    """Batches of one kind as one batch."""
    columns = zip(*(q.tensors().values() for q in posteriors), strict=True)
    return type(posteriors[0])(*map(torch.cat, columns))


def first_outside(name: str, values: Tensor, inside: Tensor, expected: str) -> str | None:
    """The clause on the first value that is not inside its domain, or None."""
    wrong = values[~inside].flatten()
    return f"'{name}' holds {float(wrong[0]):g}, expected {expected}" if len(wrong) else None


def defect(posterior: Posterior, k: int) -> str | None:
    """What keeps one posterior from being one over k weights at all (types and shapes of its tensors), or None."""
    expected = posterior.shapes(k)
    for name, tensor in posterior.tensors().items():
        if tensor.dtype != torch.float64:
            return f"its {name} has type {str(tensor.dtype).removeprefix('torch.')}, expected float64"
        if tuple(tensor.shape) != expected[name]:
            return f"its {name} has shape {list(tensor.shape)}, expected {list(expected[name])}"
    return posterior.malformed()


def divergence(posterior: Posterior) -> str | None:
    """Why the numbers of a well-formed posterior say that training diverged, or None."""
    if not all(bool(torch.isfinite(tensor).all()) for tensor in posterior.tensors().values()):
        return "the posterior holds NaN or infinity"
    return posterior.out_of_domain()
