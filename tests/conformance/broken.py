"""Two sound methods, and for each check some that are sound but for what the check is there to find."""

from __future__ import annotations

import random
import secrets
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ConfigDict

from fsvi_bench.maths.blr import blr_posterior, covariance_tril
from fsvi_bench.methods.base import AdamOptions, ExactLimit, Method, MethodOptions
from fsvi_bench.methods.data import Streams, expected_nll
from fsvi_bench.methods.weight_space import weight_kl
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
        self.walked += self.options.size * self.streams.normal("walk", self.problems.k)
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


class AdamOnElbo(Method):
    """Adam on the ELBO in closed form, with a loss that `mixed` changes."""

    class Options(AdamOptions):
        max_steps: int = 20

    families = ("ffg",)

    @staticmethod
    def mixed(losses, training):
        return losses

    def loss(self, q, batch):
        return self.mixed(expected_nll(q, batch.rows) + weight_kl(q), self.training)


def mixing(mixed):
    """A method whose losses contain those of other problems, which changes no gradient's direction."""
    return type("Mixing", (AdamOnElbo,), {"mixed": staticmethod(mixed)})


class Raises(Sound):
    def training_step(self, batch, batch_idx):
        raise ValueError("planted")


class IgnoresMaxSteps(Sound):
    num_steps = 7


class DrawsAnew(Sound):
    @property
    def streams(self):
        return Streams(tuple(secrets.randbits(60) for _ in self.seeds))


class IgnoresSeeds(Sound):
    def __init__(self, tasks, family, seeds, options):
        super().__init__(tasks, family, [0] * len(seeds), options)


class StepsWhenLookedAt(Descends):
    def posterior(self):
        self.walked += 1e-6
        return super().posterior()


class TwiceTheSteps(Sound):
    finished = False

    def data(self):
        data = super().data()
        data.steps *= 2
        return data


class SolvesEveryProblem(Method):
    """A closed form that returns the solutions of all problems for each."""

    families = ("full",)

    def solve(self, problem):
        means = torch.zeros_like(self.problems.Phi[:, 0])
        return FullGaussian(means, torch.eye(means.shape[1]).double().expand(len(means), -1, -1))


class Unchecked(FullGaussian):
    """Hides from the checks of its form that its factor is a symmetric root, not a Cholesky factor."""

    def malformed(self):
        return None


class NegativeKL(Sound):
    """The product of a symmetric root's diagonal exceeds its determinant (Hadamard): the KL comes out below 0."""

    families = ("full",)

    def posterior(self):
        data, roots = self.problems, []
        exact = [blr_posterior(*each) for each in zip(data.Phi, data.y, data.noise_variance, strict=True)]
        for each in exact:
            tril = covariance_tril(each.precision_tril)
            values, vectors = torch.linalg.eigh(tril @ tril.mT)
            roots.append(vectors @ values.sqrt().diag() @ vectors.mT)
        return Unchecked(torch.stack([each.mean for each in exact]), torch.stack(roots))


def options(**config):
    return type("Options", (Sound.Options,), {"model_config": ConfigDict(**config)})


def ffg(mean, scale=1.0):
    return FactorisedGaussian(mean, torch.full_like(mean, scale))


def full(method, above=0.0):
    return FullGaussian(method.walked, torch.ones_like(method.walked).diag_embed() + above)


def after_a_step(act, late=False):
    """A step of a sound method, and then something besides; where it is late, after fifty only."""

    def training_step(self, batch, batch_idx):
        Sound.training_step(self, batch, batch_idx)
        if self.steps_done > 50 * late:
            act(self)

    return {"training_step": training_step}


def at_the_end(act):
    return {"on_train_end": lambda self: act()}


def shows(posterior):
    return {"posterior": posterior}


def says(name, count):
    return {name: lambda self: [count(self)] * len(self.problems)}


def leaves_filters(self):
    warnings.filters.append(("ignore", None, Warning, None, 0))


def other_threads():
    torch.set_num_threads(2 if torch.get_num_threads() == 1 else 1)


BEFORE, AFTER, BATCH = "posterior before the first step", "posterior after training", "the same in any batch"
GENERATORS, SETTINGS = "does not use global random generators", "does not change process settings"
BUDGET, OPTIONS, WORK = "respects its step budget", "options are validated", "work counts are valid"
OBSERVATION, SEED = "observation does not change training", "depends on the seed as declared"

#: (class, or the attributes in which it differs from a sound one; the check that finds it; a pattern of its message)
_BROKEN = [
    (Raises, "trains", "ValueError: planted .*broken.py, line .* raise ValueError"),
    ({"Options": options(extra="ignore")}, OPTIONS, "no_method_has_this_option"),
    ({"Options": options(allow_inf_nan=True)}, OPTIONS, "'size' accepted nan"),
    (shows(lambda m: Sound.posterior(m) if m.steps_done else m.walked), BEFORE, "is Tensor, expected gaussian-ffg"),
    (shows(lambda m: ffg(m.walked.float())), AFTER, "float32, expected float64"),
    (shows(lambda m: ffg(m.walked[0])), AFTER, "for 4 problems"),
    (
        SolvesEveryProblem,
        AFTER,
        r"mean has shape \[16, 20\] for 4 problems, expected \[4, 20\]; `solve` must return a batch of one, and returned 4$",
    ),
    (shows(lambda m: ffg(m.walked[:, 1:])), AFTER, r"shape \[19\], expected \[20\]"),
    (shows(lambda m: ffg(m.walked + (np.nan if m.steps_done == 20 else 0.0))), AFTER, "NaN or infinity"),
    (shows(lambda m: ffg(m.walked, -1.0)), AFTER, "'scale' contains -1, expected positive"),
    (shows(full), AFTER, "gaussian-full, expected gaussian-ffg"),
    ({"families": ("full",), **shows(lambda m: full(m, 0.1))}, AFTER, "above the diagonal"),
    (NegativeKL, AFTER, r"covariance_tril\(\) .* lower-triangular"),
    ({"work": lambda m: [{}]}, "one entry per problem", r"work\(\) has 1 entries for 4 problems"),
    (says("details", lambda m: {"a": "b"}), "one entry per problem", "expected a number"),
    (says("divergences", lambda m: "" if m.steps_done else None), "one entry per problem", "gives no reason"),
    (shows(lambda m: ffg(m.walked - m.walked.mean(0))), BATCH, "never average"),
    (after_a_step(lambda m: m.walked.sub_(m.walked.mean(0)), late=True), BATCH, "never average"),
    (shows(lambda m: ffg(m.walked + 0.1 * (len(m.problems) > 8))), BATCH, "problem 18 with 6 others differs"),
    (
        mixing(lambda losses, training: losses + losses.detach().roll(1, 0)),
        BATCH,
        "loss of problem 18 with 6 others in training mode",
    ),
    (
        mixing(lambda losses, training: losses + losses.mean()),
        BATCH,
        "loss of problem 18 with 6 others .* never average",
    ),
    (
        mixing(lambda losses, training: losses if training else losses + losses.mean()),
        BATCH,
        "with 6 others in evaluation mode is",
    ),
    (mixing(lambda losses, training: losses if training else losses.mean()), BATCH, r"has shape \[\], expected \[20\]"),
    (
        shows(lambda m: ffg(m.walked - (m.walked.mean(0) if m.problems.k == 7 else 0.0))),
        f"{BATCH}, odd shapes",
        "never average",
    ),
    (DrawsAnew, "the same with the same seed", "two runs with the same seed differ"),
    (IgnoresSeeds, SEED, "the same result; .* the toy task's 40 rows"),
    ({"deterministic": True}, SEED, "declared deterministic, but"),
    (StepsWhenLookedAt, OBSERVATION, "changes the result of problem 0"),
    (IgnoresMaxSteps, BUDGET, "num_steps is 7, expected max_steps = 20"),
    (type("DrawsNothing", (Descends,), {"num_steps": 777}), BUDGET, "num_steps is 777, expected max_steps = 20"),
    (TwiceTheSteps, BUDGET, "was called 40 times, expected once for each of 20 steps"),
    (says("work", lambda m: {"likelihood_rows": m.num_steps}), WORK, "after one step and .* at the end"),
    (
        says("work", lambda m: {"likelihood_rows": 99 - m.steps_done}),
        WORK,
        "after one step and .* at the end",
    ),
    (says("work", lambda m: {"likelihood_rows": -m.steps_done}), WORK, "-20}, expected whole numbers"),
    (says("divergences", lambda m: "it always does"), "scores are valid", "it always does"),
    ({"exact_limits": {"ffg": ExactLimit({"max_steps": 5}, 1e-3)}}, "reaches its exact limit", "declared 0.001"),
    ({"exact_limits": {"ffg": ExactLimit({}, np.inf)}}, "reaches its exact limit", "declared inf"),
    (after_a_step(lambda m: torch.rand(1)), GENERATORS, "generator of torch"),
    (after_a_step(lambda m: torch.randn(1), late=True), GENERATORS, "generator of torch"),
    (after_a_step(lambda m: np.random.seed(0)), GENERATORS, "generator of NumPy"),
    (after_a_step(lambda m: random.random()), GENERATORS, "generator of Python's random"),
    (at_the_end(lambda: torch.set_default_dtype(torch.float16)), SETTINGS, "default dtype"),
    (at_the_end(other_threads), SETTINGS, "number of threads"),
    (after_a_step(lambda m: m.problems.y.sub_(0.1)), "does not modify its training data", "problems' y"),
    (after_a_step(lambda m: Path("debug.log").write_text("step")), "writes no files", "debug.log"),
]
BROKEN = [
    (how if isinstance(how, type) else type(f"Case{place}", (Sound,), how), check, words)
    for place, (how, check, words) in enumerate(_BROKEN)
]
