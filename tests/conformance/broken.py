"""One sound method, and for each check one that is sound but for what the check is there to find."""

from __future__ import annotations

import random
import secrets
import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import ConfigDict

from fsvi_bench.maths.blr import blr_posterior, covariance_tril
from fsvi_bench.methods.base import ExactLimit, Method, MethodOptions
from fsvi_bench.methods.data import Streams
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian


class Sound(Method):
    """A random walk of the mean: nothing is learned, and nothing is wrong."""

    class Options(MethodOptions):
        max_steps: int = 20
        size: float = 0.01

    families = ("ffg",)
    automatic_optimization = False

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.walked = torch.zeros_like(self.problems.Phi[:, 0])

    def configure_optimizers(self):
        """Steps are its own."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for place, stream in enumerate(self.streams("walk")):
            self.walked[place] += self.options.size * torch.from_numpy(stream.standard_normal(self.problems.k))
        self.note(self.walked.sum(-1))

    def posterior(self):
        return FactorisedGaussian(self.walked.clone(), torch.ones_like(self.walked))

    def work(self):
        return [{"likelihood_rows": self.steps_done}] * len(self.problems)


class Descends(Sound):
    """Full-batch gradient steps: trained, and nothing drawn."""

    deterministic = True

    def training_step(self, batch, batch_idx):
        for place in range(len(self.problems)):
            one = self.problems.only(place)
            residual = one.y - (one.Phi * self.walked[place]).sum(-1)
            self.walked[place] += 1e-4 * (residual[..., None] * one.Phi).sum((0, 1))
        self.note(self.walked.sum(-1))


class Raises(Sound):
    def training_step(self, batch, batch_idx):
        raise ValueError("planted")


class TakesAnything(Sound):
    class Options(Sound.Options):
        model_config = ConfigDict(extra="ignore")


class TakesNaN(Sound):
    class Options(Sound.Options):
        model_config = ConfigDict(allow_inf_nan=True)


class NothingToShowAtFirst(Sound):
    def posterior(self):
        return self.walked if self.steps_done == 0 else super().posterior()


class SinglePrecision(Sound):
    def posterior(self):
        return FactorisedGaussian(self.walked.float(), torch.ones_like(self.walked).float())


class NoBatchAxis(Sound):
    def posterior(self):
        return FactorisedGaussian(self.walked[0], torch.ones_like(self.walked[0]))


class OneWeightTooFew(Sound):
    def posterior(self):
        return FactorisedGaussian(self.walked[:, 1:], torch.ones_like(self.walked[:, 1:]))


class NotANumber(Sound):
    def posterior(self):
        return FactorisedGaussian(
            self.walked + (np.nan if self.steps_done == 20 else 0.0), torch.ones_like(self.walked)
        )


class NegativeScale(Sound):
    def posterior(self):
        return FactorisedGaussian(self.walked, -torch.ones_like(self.walked))


class WrongKind(Sound):
    def posterior(self):
        return FullGaussian(self.walked, torch.ones_like(self.walked).diag_embed())


class UpperTriangular(Sound):
    families = ("full",)

    def posterior(self):
        return FullGaussian(self.walked, torch.ones_like(self.walked).diag_embed() + 0.1)


class TooFewEntries(Sound):
    def work(self):
        return [{}]


class Averages(Sound):
    def posterior(self):
        return FactorisedGaussian(self.walked - self.walked.mean(0), torch.ones_like(self.walked))


class AveragesOddShapesOnly(Sound):
    def posterior(self):
        shift = self.walked.mean(0) if self.problems.k == 7 else 0.0
        return FactorisedGaussian(self.walked - shift, torch.ones_like(self.walked))


class AveragesLate(Sound):
    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        if self.steps_done > 50:
            self.walked -= self.walked.mean(0)


class AnotherInLargeBatches(Sound):
    def posterior(self):
        return FactorisedGaussian(self.walked + 0.1 * (len(self.problems) > 8), torch.ones_like(self.walked))


class DrawsAnew(Sound):
    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.streams = Streams([secrets.randbits(60) for _ in self.seeds])


class IgnoresSeeds(Sound):
    def __init__(self, tasks, family, seeds, options):
        super().__init__(tasks, family, [0] * len(seeds), options)


class FalselyDeterministic(Sound):
    deterministic = True


class DrawsWhenLookedAt(Sound):
    def posterior(self):
        self.streams("walk")[0].standard_normal()
        return super().posterior()


class StepsWhenLookedAt(Descends):
    def posterior(self):
        self.walked += 1e-6
        return super().posterior()


class IgnoresMaxStepsAndDrawsNothing(Descends):
    num_steps = 777


class IgnoresMaxSteps(Sound):
    num_steps = 7


class TwiceTheSteps(Sound):
    finished = False

    def data(self):
        data = super().data()
        data.steps *= 2
        return data


class PlannedWork(Sound):
    def work(self):
        return [{"likelihood_rows": self.num_steps}] * len(self.problems)


class NegativeWork(Sound):
    def work(self):
        return [{"likelihood_rows": -self.steps_done}] * len(self.problems)


class AlwaysDiverges(Sound):
    def divergences(self):
        return ["it always does"] * len(self.problems)


class _Unchecked(FullGaussian):
    """Hides from the checks of its form that its factor is a symmetric root, not a Cholesky factor."""

    def malformed(self):
        return None


class NegativeKL(Sound):
    """The product of a symmetric root's diagonal exceeds its determinant (Hadamard): the KL comes out below 0."""

    families = ("full",)

    def posterior(self):
        data = self.problems
        exact = [blr_posterior(*each) for each in zip(data.Phi, data.y, data.noise_variance, strict=True)]
        roots = []
        for each in exact:
            tril = covariance_tril(each.precision_tril)
            values, vectors = torch.linalg.eigh(tril @ tril.mT)
            roots.append(vectors @ values.sqrt().diag() @ vectors.mT)
        return _Unchecked(torch.stack([each.mean for each in exact]), torch.stack(roots))


class ClaimsTooMuch(Sound):
    exact_limits: ClassVar = {"ffg": ExactLimit({"max_steps": 5}, tolerance=1e-3)}


class DrawsGlobally(Sound):
    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        torch.rand(1)


class DrawsGloballyLate(Sound):
    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        if self.steps_done > 50:
            torch.randn(1)


class SeedsNumPy(Sound):
    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        np.random.seed(0)


class DrawsFromPython(Sound):
    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        random.random()


class LeavesDtype(Sound):
    def on_train_end(self):
        torch.set_default_dtype(torch.float16)


class LeavesFilters(Sound):
    def on_fit_start(self):
        super().on_fit_start()
        warnings.filters.append(("ignore", None, Warning, None, 0))


class LeavesThreads(Sound):
    def on_train_end(self):
        torch.set_num_threads(2 if torch.get_num_threads() == 1 else 1)


class CentresInPlace(Sound):
    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        self.problems.y.sub_(0.1)


class WritesALog(Sound):
    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        Path("debug.log").write_text("step")


#: (class, the check that finds it, words of what it says)
BROKEN = [
    (Raises, "trains", "ValueError: planted .*broken.py, line .* raise ValueError"),
    (TakesAnything, "options are checked", "unknown option"),
    (TakesNaN, "options are checked", "'size' took NaN"),
    (NothingToShowAtFirst, "posterior before the first step", "is Tensor, expected gaussian-ffg"),
    (SinglePrecision, "posterior after training", "float32, expected float64"),
    (NoBatchAxis, "posterior after training", "for 3 problems"),
    (OneWeightTooFew, "posterior after training", r"shape \[19\], expected \[20\]"),
    (NotANumber, "posterior after training", "NaN or infinity"),
    (NegativeScale, "posterior after training", "'scale' holds -1, expected positive"),
    (WrongKind, "posterior after training", "gaussian-full, expected gaussian-ffg"),
    (UpperTriangular, "posterior after training", "above the diagonal"),
    (TooFewEntries, "one entry per problem", r"work\(\) has 1 entries for 3 problems"),
    (Averages, "the same in any batch", "averaged"),
    (AveragesLate, "the same in any batch", "averaged"),
    (AnotherInLargeBatches, "the same in any batch", "problem 1 among 6 others differs"),
    (AveragesOddShapesOnly, "the same in any batch, odd shapes", "averaged"),
    (DrawsAnew, "the same seed, the same bits", "trained twice"),
    (IgnoresSeeds, "another seed, other numbers", "the same numbers"),
    (FalselyDeterministic, "another seed, other numbers", "declared deterministic, but"),
    (DrawsWhenLookedAt, "looking moves nothing", "looked at on the way, problem 0"),
    (StepsWhenLookedAt, "looking moves nothing", "looked at on the way, problem 0"),
    (IgnoresMaxSteps, "keeps to its budget", "num_steps is 7 where max_steps is 20"),
    (IgnoresMaxStepsAndDrawsNothing, "keeps to its budget", "num_steps is 777 where max_steps is 20"),
    (TwiceTheSteps, "keeps to its budget", "was called 40 times, expected once for each of 20 steps"),
    (PlannedWork, "counts its work", "halfway and at the end"),
    (NegativeWork, "counts its work", "has -20 for 'likelihood_rows'"),
    (AlwaysDiverges, "scores are numbers", "it always does"),
    (ClaimsTooMuch, "reaches its exact limit", "claims 0.001"),
    (DrawsGlobally, "leaves random generators alone", "generator of torch"),
    (DrawsGloballyLate, "leaves random generators alone", "generator of torch"),
    (SeedsNumPy, "leaves random generators alone", "generator of NumPy"),
    (DrawsFromPython, "leaves random generators alone", "generator of Python's random"),
    (LeavesDtype, "leaves the process as it was", "default dtype"),
    (LeavesThreads, "leaves the process as it was", "number of threads"),
    (CentresInPlace, "leaves its problems as they were", "problems' y"),
    (WritesALog, "writes no files", "debug.log"),
]
