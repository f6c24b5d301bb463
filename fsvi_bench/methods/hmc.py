"""HMC: a chain of the No-U-Turn Sampler (Hoffman and Gelman 2014), by Pyro, as a check of the exact posterior.

Pyro draws from PyTorch's global generator, whose state is put back.
"""

from __future__ import annotations

import math
import threading
from functools import cached_property
from typing import Annotated, Any, Self

import torch
from jaxtyping import Float
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.maths.linalg import identity, inverse_tril
from fsvi_bench.methods.base import MethodOptions
from fsvi_bench.methods.networks import NetworkData
from fsvi_bench.methods.points import ParticleMethod, Points
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.base import concatenate
from fsvi_bench.posteriors.particles import ParticlesPosterior
from fsvi_bench.posteriors.samples import MINIMUM_SAMPLES
from fsvi_bench.seeds import derive_seed


class Hmc(ParticleMethod):
    """NUTS on −log p(y, w) from a draw of the prior, in the coordinates z = Cᵀw with CCᵀ = Λ = ΦᵀΦ/σ² + I.

    In these coordinates every direction has curvature 1, so a unit mass matrix suffices. The posterior's mean is not
    used: the chain has to find it. q is every state after the warm-up, in order.
    """

    class Options(MethodOptions):
        """`max_steps` transitions of one chain, of which the first share, `burn_in`, adapts the step size to an
        acceptance of 0.8; the others are the particles."""

        max_steps: PositiveInt = 2500
        burn_in: Annotated[float, Field(gt=0, lt=1)] = 0.2

        @property
        def warmup(self) -> int:
            return math.ceil(round(self.burn_in * self.max_steps, 9))  # 0.07 · 100 is 7.000000000000001

        @property
        def particles(self) -> int:
            return self.max_steps - self.warmup

        @model_validator(mode="after")
        def _enough(self) -> Self:
            if not 2 <= self.particles < MINIMUM_SAMPLES:
                raise ValueError(
                    f"max_steps={self.max_steps} and burn_in={self.burn_in} leave particles={self.particles}, expected "
                    f"2 to {MINIMUM_SAMPLES - 1}; change max_steps"
                )
            return self

    networks = None

    @classmethod
    def trains_with(cls, options: MethodOptions) -> bool:
        """A chain runs as a whole: there are no steps to trace."""
        return False

    @classmethod
    def check(cls, options: MethodOptions, problem: TrainingData | NetworkData) -> None:
        """Raises InputError if Pyro is not installed."""
        nuts()

    @cached_property
    def solved(self) -> ParticlesPosterior:
        starts = self.streams.normal("initial particles", self.problems.k)
        seeds = [derive_seed(seed, "NUTS") for seed in self.seeds]
        return concatenate([self.chain(place, *of) for place, of in enumerate(zip(starts, seeds, strict=True))])

    def terms(self, place: int) -> Points:
        return Points(self.solved[place : place + 1].particles)

    @torch.enable_grad()  # it may be asked for where gradients are off, as functions and objectives are
    def chain(self, place: int, start: Float[Tensor, " k"], seed: int) -> ParticlesPosterior:
        """One problem's posterior, a batch of one; NaN where its targets are."""
        problem, n = self.problems.only(place), self.options.particles
        if not bool(problem.y.isfinite().all()):
            return ParticlesPosterior(start.new_full((1, n, len(start)), torch.nan))
        # −log p(y, w) = constant + ½‖targets − rows·w‖²: the data in units of the noise, and the prior as k rows more.
        sigma, unit = problem.noise_variance[0].sqrt(), identity(len(start), problem.Phi)
        rows = torch.cat([problem.Phi[0] / sigma, unit])
        targets = torch.cat([problem.y[0] / sigma, torch.zeros_like(start)])
        C = torch.linalg.cholesky(rows.mT @ rows)
        inverse = inverse_tril(C)
        whitened = rows @ inverse.mT

        def potential(state: dict[str, Tensor]) -> Float[Tensor, ""]:
            return 0.5 * (targets - whitened @ state["z"]).square().sum()

        NUTS, MCMC = nuts()
        kernel = NUTS(potential_fn=potential, adapt_mass_matrix=False)
        first = {"z": start @ C}
        chain = MCMC(kernel, n, self.options.warmup, first, disable_progbar=True)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            chain.run()
        return ParticlesPosterior((chain.get_samples()["z"] @ inverse)[None])


def nuts() -> tuple[Any, Any]:
    """Pyro's kernel and the class that runs it.

    Raises:
        InputError: Pyro is not installed.
    """
    try:
        from pyro.infer.mcmc import MCMC, NUTS
        from tqdm import tqdm
    except ImportError as error:
        fix = "in the clone, run: pip install -c constraints.txt -e '.[hmc]'"
        raise InputError(f"method hmc needs pyro-ppl, which is not installed; {fix}") from error
    # Pyro makes progress bars even if they are disabled, and tqdm's own lock includes a semaphore of the system, which
    # outlives a worker that is killed at the end of a run.
    tqdm.set_lock(threading.RLock())
    return NUTS, MCMC
