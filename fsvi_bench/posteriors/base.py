"""The interface of approximate posteriors over the k weights: moments, draws, and whether there is a density."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.errors import InputError, whole_number

#: Gaussians with a full covariance, fully factorised, or given by a factor of any rank; Bernoulli dropout,
#: spike-and-slab, particles.
Family = Literal["full", "ffg", "factor", "bernoulli", "spike-slab", "particles"]
#: The kind of posterior of each family, as named in files.
KIND_OF: Mapping[Family, str] = {
    "full": "gaussian-full",
    "ffg": "gaussian-ffg",
    "factor": "gaussian-factor",
    "bernoulli": "bernoulli-dropout",
    "spike-slab": "spike-slab",
    "particles": "particles",
}

#: Numbers drawn at once: 1 TB.
TOO_MANY = 2**37

Q = TypeVar("Q", bound="Approximation")


class Approximation(ABC):
    """Base class of everything that can be scored: tensors of one kind, which may have a leading axis of B problems."""

    kind: ClassVar[str]  #: in posterior files, such as `gaussian-full` or `bernoulli-dropout`
    #: The fields by their names in posterior files, each with its number of axes of length k.
    parameters: ClassVar[Mapping[str, int]]

    def tensors(self) -> Mapping[str, Tensor]:
        """The parameters by their names in posterior files, in the order of the class's fields."""
        values = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]
        return dict(zip(self.parameters, values, strict=True))

    def malformed(self) -> str | None:
        """What is wrong with the form of tensors of the right shapes, as a clause; or None."""
        return None

    def wrong_number(self) -> str | None:
        """What is wrong with the number of draws, as a clause; or None."""
        return None

    def out_of_domain(self) -> str | None:
        """Which finite parameter is outside its domain, as a clause; or None."""
        return None

    def map(self: Q, change: Callable[[Tensor], Tensor]) -> Q:
        """A copy with `change` applied to every tensor."""
        return type(self)(*map(change, self.tensors().values()))

    def __getitem__(self: Q, problem: int | slice) -> Q:
        """Selects problems of a batch, copied, since rounding depends on alignment in memory (see `maths.batching`)."""
        return self.map(lambda tensor: tensor[problem].clone())

    def cpu(self: Q) -> Q:
        """A copy with its tensors on the CPU."""
        return self.map(Tensor.cpu)


class Posterior(Approximation):
    """q(w); tensors may have a leading axis of B problems.

    `mean` and `covariance_tril` exist for every q, so N(mean, LLᵀ) is its moment-matched Gaussian.
    """

    if TYPE_CHECKING:  # at run time, a dataclass would take it as the default of its field `mean`

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
        """True if q (one problem's) has no density, so its KL to any Gaussian is infinite; None if unknown."""

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
            InputError: n or the seed is not a valid number, or the draws have 2³⁷ numbers or more.
        """
        draws, seed = whole_number("n", n, 1), whole_number("seed", seed)
        if draws * self.k >= TOO_MANY:
            raise InputError(f"n is {draws}, expected fewer than {TOO_MANY // self.k} draws; draw them in parts")
        return self.draw(torch.Generator(self.mean.device).manual_seed(seed), draws)

    @abstractmethod
    def draw(self, generator: torch.Generator, n: int) -> Float[Tensor, "*B n k"]:
        """n independent draws of w from a generator."""

    def shapes(self, k: int) -> Mapping[str, tuple[int, ...]]:
        """The shapes that the parameters of one problem with k weights must have."""
        return {name: (k,) * axes for name, axes in self.parameters.items()}


def unstack(posterior: Q) -> Sequence[Q]:
    """The B posteriors of a batch, one by one."""
    return [posterior[problem] for problem in range(len(next(iter(posterior.tensors().values()))))]


def noise(
    law: Callable[..., Tensor], generator: torch.Generator, n: int, like: Float[Tensor, "*B r"]
) -> Float[Tensor, "*B n r"]:
    """n independent vectors from `law` (`torch.rand` or `torch.randn`) for each vector in `like`."""
    *batch, r = like.shape
    return law(*batch, n, r, generator=generator, dtype=like.dtype, device=like.device)


def concatenate(posteriors: Sequence[Q]) -> Q:
    """Batches of one kind as one batch."""
    columns = zip(*(q.tensors().values() for q in posteriors), strict=True)
    return type(posteriors[0])(*map(torch.cat, columns))


def first_outside(name: str, values: Tensor, inside: Tensor, expected: str) -> str | None:
    """A clause about the first value outside its domain, or None."""
    wrong = values[~inside].flatten()
    return f"'{name}' contains {float(wrong[0]):g}, expected {expected}" if len(wrong) else None


def wrong_size(got: int, k: int) -> str:
    """The message for a posterior over another number of weights than the task's k."""
    return f"the posterior has {got} weights, expected {k}, one per feature of the task; use the task it was trained on"


def defect(posterior: Posterior, k: int) -> str | None:
    """Why this is not a valid posterior over k weights (types, shapes or form of its tensors), or None."""
    expected = posterior.shapes(k)
    for name, tensor in posterior.tensors().items():
        if tensor.dtype != torch.float64:
            return f"its {name} has type {str(tensor.dtype).removeprefix('torch.')}, expected float64"
        if tuple(tensor.shape) != expected[name]:
            return f"its {name} has shape {list(tensor.shape)}, expected {list(expected[name])}"
    return posterior.malformed() or posterior.wrong_number()


def divergence(posterior: Approximation) -> str | None:
    """Why a well-formed posterior counts as diverged, judging by its numbers; or None."""
    if not all(bool(torch.isfinite(tensor).all()) for tensor in posterior.tensors().values()):
        return "the posterior contains NaN or infinity"
    return posterior.out_of_domain()
