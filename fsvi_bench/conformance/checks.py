"""The rules that every method must follow, one function per rule, which raises `Failed` if the rule is broken.

`check_method` runs all checks and returns one report; `parametrize_with_checks` turns them into pytest tests.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.conformance.report import Failed, Finding, NotApplicable, Report, outcome
from fsvi_bench.conformance.subject import (
    ALL_TOYS,
    GENERATORS,
    ODD_N,
    SETTINGS,
    TOYS,
    Numbers,
    Subject,
    numbers,
    odd_problems,
    perturbed,
    relative_difference,
    restored,
    take,
    toy_batch,
    toy_problems,
)
from fsvi_bench.errors import InputError, unknown_name
from fsvi_bench.methods.base import Method
from fsvi_bench.methods.exact import Exact
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.base import KIND_OF, Posterior, defect, divergence, unstack
from fsvi_bench.posteriors.gaussian import FullGaussian
from fsvi_bench.scoring.scores import score, trace_scores
from fsvi_bench.threads import one_thread
from fsvi_bench.training.trace import Tracer
from fsvi_bench.training.trainer import train

if TYPE_CHECKING:
    import pytest

_K = 20  #: features of a toy task
ROUNDING = 1e-9  #: nats; a KL below −ROUNDING cannot be explained by rounding
GPU_TOLERANCE = 1e-6  #: relative; a GPU sums in a different order
#: Allowed GPU difference as a multiple of the effect of one unit in the last place of the inputs. An H100 changed
#: RANDA's full covariance on the first toy problem by 1.1e-4 in 20 steps; one unit in the last place of the inputs
#: changes it by 4e-6 to 5e-5, and a GPU rounds every operation differently. Single precision is 5e8 units.
AMPLIFICATION_FACTOR = 100
MAX_GPU_TOLERANCE = 0.01  #: above this, rounding cannot be distinguished from an error, however much is amplified
_LAST_BITS = 1e-9
LOSS_ROUNDING = 1e-10  #: relative, and absolute in nats; the shape of a batch may change how a sum is rounded


# --- Interface and return values --------------------------------------------------------------------------------------


def trains(subject: Subject) -> None:
    """The method can be constructed for several problems and trained to the end, and returns a posterior."""
    data = toy_batch()
    method = subject.make(data)
    for place in range(TOYS):
        method.check(method.options, data.only(place))
    train(method, "cpu")
    method.posterior()


def options_are_validated(subject: Subject) -> None:
    """Unknown options and NaN are rejected, and options survive a round trip through JSON."""
    options = subject.options
    wrong = {"no_method_has_this_option": 1} | {name: math.nan for name, value in options if isinstance(value, float)}
    for name, value in wrong.items():
        with contextlib.suppress(InputError):
            subject.entry.options({**options.model_dump(), name: value})
            raise Failed(
                f"option '{name}' accepted {value}, expected an error; derive Options from MethodOptions and keep its "
                'extra="forbid" and allow_inf_nan=False'
            )
    if subject.entry.options(options.model_dump(mode="json")) != options:
        raise Failed("Options change when written as JSON and read back; use numbers, strings and booleans as options")


def posterior_before_training(subject: Subject) -> None:
    """Before the first step, where traces begin, the posterior is of the right kind."""
    method, seen = subject.make(toy_batch()), []
    if not method.trains:
        raise NotApplicable("the method takes a single step, so it has no intermediate posterior")
    train(method, "cpu", lambda steps, seconds: seen.append(method.posterior()), [0])
    _require_posterior(seen[0] if seen else None, method, [None] * TOYS)


def posterior_after_training(subject: Subject) -> None:
    """After training the posterior is of the right kind."""
    method = subject.example
    _require_posterior(method.posterior(), method, method.divergences())


def _require_posterior(q: object, method: Method, diverged: Sequence[str | None]) -> None:
    """Requires a posterior of the family's kind: float64, [B,k], finite, positive scales, lower-triangular factors.

    Raises:
        Failed: a requirement is not met. Problems that the method reports as diverged may have any values.
    """
    family = method.family
    if not isinstance(q, Posterior) or q.kind != KIND_OF[family]:
        raise Failed(
            f"posterior() is {getattr(q, 'kind', type(q).__name__)}, expected {KIND_OF[family]} for --family {family}"
        )
    for name, tensor in q.tensors().items():
        if tensor.shape[:1] != (TOYS,):
            raise Failed(
                f"{name} has shape {list(tensor.shape)} for {TOYS} problems, {_leading_axis(method, q, name, tensor)}"
            )
    for one, reason in zip(unstack(q), diverged, strict=True):
        if (fault := defect(one, _K)) is not None:
            raise Failed(f"the posterior is not a valid posterior over k = {_K} weights: {fault}")
        if reason is None and (fault := divergence(one)) is not None:
            raise Failed(f"{fault}; fix it, or return a reason from divergences() if training can diverge")
        # Scores use these moments, which a third party's class may compute wrongly from valid parameters.
        moments = FullGaussian(one.mean, tril := one.covariance_tril())
        sound = defect(moments, _K) is None and (tril.diagonal() >= 0).all() and tril.isfinite().all()
        if reason is None and not sound:
            raise Failed(
                "mean and covariance_tril() are invalid, expected [k] and lower-triangular [k,k], float64 and finite; "
                "fix them"
            )


def _leading_axis(method: Method, q: Posterior, name: str, tensor: Tensor) -> str:
    """What is expected of a tensor's leading axis, and how to fix it."""
    if tensor.ndim <= q.parameters[name]:
        size = "B" if method.trains else "1 in `solve`"
        return f"expected a leading axis for the problems; add one of size {size}"
    fix = "return one posterior per problem"
    if not method.trains:  # the solutions of the problems, one after the other
        fix = "`solve` must return a batch of one"
        fix += "" if len(tensor) % TOYS else f", and returned {len(tensor) // TOYS}"
    return f"expected {[TOYS, *tensor.shape[1:]]}; {fix}"


def one_entry_per_problem(subject: Subject) -> None:
    """Everything reported per problem has B entries of the right types."""
    method = subject.example
    for name in ("divergences", "work", "details", "stopped_after"):
        entries = getattr(method, name)()
        if len(entries) != TOYS:
            raise Failed(
                f"{name}() has {len(entries)} entries for {TOYS} problems; return one per problem, None if unknown"
            )
    for details in method.details():
        if not all(isinstance(value, int | float) for value in (details or {}).values()):
            raise Failed(f"details() has {details}, expected a number for each name; return numbers")
    if any(reason == "" or not isinstance(reason, str | None) for reason in method.divergences()):
        raise Failed("divergences() gives no reason; return a sentence for a problem that diverged, else None")


# --- A result depends on task, settings and seed only -----------------------------------------------------------------


def batch_on_toys(subject: Subject) -> None:
    """After 100 steps a posterior is bitwise the same among 19 others, among 6 and alone, and its loss to 1e-10."""
    require_batch_independence(subject.longer, toy_batch(ALL_TOYS))


def batch_on_odd_shapes(subject: Subject) -> None:
    """Likewise for k = 7, N = 67 and D = 3, which are no multiples of a cache line."""
    method = subject.make(data := odd_problems())
    try:
        method.check(method.options, data.only(0))
    except InputError as error:
        raise NotApplicable(f"the settings are not valid for a problem with {ODD_N} rows: {error}") from error
    require_batch_independence(subject, data)


def require_batch_independence(subject: Subject, data: TrainingData) -> None:
    """Requires results to be the same in the whole batch, in a smaller reordered one, and, of the last problem, alone.

    The loss is compared too, since adding the others' losses need not change the gradient.

    Raises:
        Failed: a problem's posterior or loss differs.
    """
    B = len(data)
    together, losses = _posteriors_and_losses(subject, data, range(B))
    some = [3 * place % B for place in reversed(range(min(7, B - 1)))]
    for batch in (some, [B - 1]):  # the last is aligned otherwise alone than in the whole batch
        where = f"with {len(batch) - 1} others" if batch == some else "alone"
        posteriors, own_losses = _posteriors_and_losses(subject, data, batch)
        for place, got in zip(batch, posteriors, strict=True):
            if not torch.equal(got, together[place]):
                difference = relative_difference(got, together[place])
                advice = _ROUNDING_ADVICE if difference < _LAST_BITS else _SHARING_ADVICE
                raise Failed(
                    f"the result of problem {place} {where} differs from its result in the whole batch by "
                    f"{difference:.1e}{advice}"
                )
        for mode, own in own_losses.items():
            for place, one in zip(batch, own, strict=True):
                whole = losses[mode][place]
                if not torch.isclose(one, whole, rtol=LOSS_ROUNDING, atol=LOSS_ROUNDING, equal_nan=True):
                    raise Failed(
                        f"the loss of problem {place} {where} in {mode} mode is {one:.6g}, but {whole:.6g} in the "
                        f"whole batch{_SHARING_ADVICE}"
                    )


def _posteriors_and_losses(
    subject: Subject, data: TrainingData, places: Sequence[int]
) -> tuple[list[Numbers], dict[str, Float[Tensor, " B"]]]:
    """Results of training the problems at these places together, and the loss of each on the last batch, by mode.

    A method without a loss has no losses.

    Raises:
        Failed: the loss is not one number per problem.
    """
    method = subject.make(take(data, places), subject.seeds(places))
    with patch.object(method, "training_step", wraps=method.training_step) as step:
        train(method, "cpu")
    posteriors, losses = numbers(method), {}
    if method.trains and type(method).loss is not Method.loss:
        for mode in ("training", "evaluation"):
            method.train(mode == "training")
            loss = method.loss(method.q(), step.call_args.args[0]).detach()
            if loss.shape != (len(places),):
                raise Failed(
                    f"in {mode} mode the loss has shape {list(loss.shape)}, expected [{len(places)}]; return one "
                    "number for each problem"
                )
            losses[mode] = loss
    return posteriors, losses


_ROUNDING_ADVICE = (
    ", in the last bits: BLAS and LAPACK round differently by shape and alignment; compute each problem on a copy "
    "(self.problems.only(i)), and a matrix-vector product as a sum of products"
)
_SHARING_ADVICE = (
    "; never average, draw or stop across the leading axis: reduce over every axis except the first, and draw "
    'random numbers with self.streams.normal("purpose", ...)'
)


def same_seed(subject: Subject) -> None:
    """Training twice with the same seed gives bitwise the same result."""
    _require_same(
        subject.results,
        subject.trained(toy_batch()),
        "two runs with the same seed differ by {1:.1e} for problem {0}; draw with "
        'self.streams.normal("purpose", ...), never from the clock or a global generator',
    )


def _require_same(ones: Sequence[Numbers], others: Sequence[Numbers], message: str) -> None:
    for place, (one, other) in enumerate(zip(ones, others, strict=True)):
        if not torch.equal(one, other):
            raise Failed(message.format(place, relative_difference(one, other)))


def another_seed(subject: Subject) -> None:
    """A different seed changes the result, unless the method is declared deterministic."""
    equal = list(map(torch.equal, subject.results, subject.trained(toy_batch(), seed=1)))
    if subject.deterministic and not all(equal):
        raise Failed("declared deterministic, but the result depends on the seed; remove `deterministic = True`")
    if not subject.deterministic and any(equal):
        raise Failed(
            'a different seed gives the same result; draw with self.streams.normal("purpose", ...), or declare '
            "`deterministic = True` if the method draws nothing; a setting may also exceed the toy task's 40 rows, so "
            "that nothing is left to draw"
        )


def observation(subject: Subject) -> None:
    """Requesting the posterior during training, as traces and waypoints do, does not change the result."""
    observed = subject.make(toy_batch())
    if not observed.trains:
        raise NotApplicable("the method takes a single step, so it cannot be observed during training")
    tracer = Tracer(observed, toy_problems())

    def observe(steps: int, seconds: float) -> None:
        tracer(steps, seconds)
        observed.divergences()
        observed.work()
        observed.details()

    train(observed, "cpu", observe, [0, 1, 2, 5])
    _require_same(
        numbers(observed),
        subject.results,
        "observing training changes the result of problem {} by {:.1e}; posterior(), divergences(), work() and "
        "details() must not draw, step or change anything, and a call of training_step may end after any step",
    )


def training_data(subject: Subject) -> None:
    """Training does not modify the training data."""
    data, original = toy_batch(), toy_batch()
    subject.train(data)
    for now, then in ((data, original), (data.feature_map, original.feature_map)):
        for name, tensor in vars(now).items():
            if isinstance(tensor, Tensor) and not tensor.equal(getattr(then, name)):
                raise Failed(f"training changed the problems' {name}; work on a copy (.clone()), not in place")


def on_gpu(subject: Subject) -> None:
    """A GPU gives the same result to 1e-6, or to the method's amplification of rounding if that is larger."""
    if not subject.gpu:
        raise NotApplicable("no CUDA GPU was requested or is available")
    data = toy_batch()
    expected, got = subject.trained(data), subject.trained(data, device="cuda")
    perturbed_runs = [subject.trained(perturbed(data, seed)) for seed in range(3)]
    for place, difference in enumerate(map(relative_difference, got, expected)):
        amplified = max(relative_difference(run[place], expected[place]) for run in perturbed_runs)
        limit = min(max(GPU_TOLERANCE, AMPLIFICATION_FACTOR * amplified), MAX_GPU_TOLERANCE)
        if not difference <= limit:
            raise Failed(
                f"the GPU result of problem {place} differs from the CPU's by {difference:.1e}, expected at most "
                f"{limit:.0e}; create tensors on self.device, in float64, and draw random numbers from self.streams"
            )


# --- Budget and side effects ------------------------------------------------------------------------------------------


def budget(subject: Subject) -> str:
    """`num_steps` equals `max_steps`, and every step is done once, in order.

    Returns:
        What this shows about the budget, and what it cannot show.
    """
    method = subject.make(toy_batch())
    declared = method.num_steps
    wanted = getattr(subject.options, "max_steps", declared)
    formula = declared == 1 and (subject.deterministic or not method.trains)
    if declared != wanted and not formula:
        raise Failed(f"num_steps is {declared}, expected max_steps = {wanted}; return self.options.max_steps")
    with patch.object(method, "training_step", wraps=method.training_step) as step:
        train(method, "cpu")
    done = step.call_count
    if done > declared or (done < declared and not formula and not method.finished):
        raise Failed(
            f"training_step was called {done} times, expected once for each of {declared} steps; leave epochs, data "
            "loaders and Lightning's Trainer to the harness"
        )
    return f"training took {done} of {declared} declared steps; the work within a step is not checked"


def work(subject: Subject) -> None:
    """`work()` returns whole numbers that grow with the number of steps."""
    method, seen = subject.make(toy_batch()), []

    def count(*clock: float) -> None:
        seen.append([dict(each or {}) for each in method.work()])

    train(method, "cpu", count, [1])
    count()
    if not any(seen[-1]):
        raise NotApplicable("work() counts nothing")
    for early, late in zip(seen[0], seen[-1], strict=True):
        if not all(type(value) is int and value >= 0 for value in late.values()):
            raise Failed(f"work() has {late}, expected whole numbers of at least 0; count with integers")
        fell = any(late.get(name, 0) < value for name, value in early.items())
        stuck = method.num_steps > 1 and None in method.stopped_after() and late == early
        if fell or (late and stuck):
            raise Failed(
                f"work() is {early} after one step and {late} at the end; return the work done so far, or "
                "define cost() instead"
            )


def global_random_state(subject: Subject) -> None:
    """In 100 steps, training neither uses nor seeds a global random generator."""
    with restored(GENERATORS) as changed:
        subject.longer.train(toy_batch())
    if changed:
        raise Failed(
            f"training drew from or seeded the global generator of {changed[0]}; draw with "
            'self.streams.normal("purpose", ...)'
        )


def process_settings(subject: Subject) -> None:
    """Training does not change settings of the process."""
    with restored(SETTINGS) as changed:
        subject.train(toy_batch())
    if changed:
        raise Failed(
            f"training changed the {changed[0]} of the process; restore it, or pass dtype= and device= instead"
        )


def no_files(subject: Subject) -> None:
    """Training writes no files into the working directory, which is empty (`in_isolation`)."""
    subject.train(toy_batch())
    if left := sorted(Path().rglob("*")):
        raise Failed(f"training wrote '{left[0].name}' into the working directory; do not write files in a method")


# --- Results ----------------------------------------------------------------------------------------------------------


def scores_are_valid(subject: Subject) -> None:
    """On every toy task KL ≥ −1e-9 and no score is NaN, or the method gives a reason for divergence."""
    method = subject.example
    reasons = method.divergences()
    if all(reasons):
        raise Failed(f"training diverged on every toy task ({reasons[0]}); choose defaults that do not diverge")
    for q, problem, reason in zip(unstack(method.posterior().cpu()), toy_problems(), reasons, strict=True):
        if reason is not None:
            continue
        # A singular q is scored by its moments: a mixture's density takes seconds and does not depend on the method.
        found = trace_scores(q, problem, mixtures=False)._asdict() if q.singular else score(q, problem).model_dump()
        for name, value in found.items():
            if isinstance(value, float) and (math.isnan(value) or ("kl" in name and value < -ROUNDING)):
                raise Failed(
                    f"{name} of toy split {problem.split} is {value:.3g}, expected a number and no negative KL; fix "
                    "the posterior"
                )


def exact_limit(subject: Subject) -> None:
    """With the declared settings, training reaches the exact posterior or its best factorised approximation."""
    limit = subject.entry.cls.exact_limits.get(subject.family)
    if limit is None:
        raise NotApplicable(f"the method declares no exact limit for {subject.family} (Method.exact_limits)")
    problems, claimed = toy_problems(), replace(subject, settings={**subject.settings, **limit.settings})
    method = subject.entry.cls(problems, subject.family, options=claimed.options)
    train(method, "cpu")
    best = Exact(problems, subject.family).posterior()
    for q, optimum, problem in zip(unstack(method.posterior()), unstack(best), problems, strict=True):
        gap = trace_scores(q, problem).kl - trace_scores(optimum, problem).kl
        if not -ROUNDING <= gap <= limit.tolerance < math.inf:
            raise Failed(
                f"on toy split {problem.split} training ends {gap:.3g} nats from the optimum, expected at most the "
                f"declared {limit.tolerance:g}; fix exact_limits or the method"
            )


# --- All checks -------------------------------------------------------------------------------------------------------

Check = Callable[[Subject], str | None]  #: returns an optional remark, reported next to "ok"

#: The checks by their names in reports.
CHECKS: Mapping[str, Check] = {
    "trains": trains,
    "posterior after training": posterior_after_training,
    "options are validated": options_are_validated,
    "posterior before the first step": posterior_before_training,
    "one entry per problem": one_entry_per_problem,
    "the same in any batch": batch_on_toys,
    "the same in any batch, odd shapes": batch_on_odd_shapes,
    "the same with the same seed": same_seed,
    "depends on the seed as declared": another_seed,
    "observation does not change training": observation,
    "respects its step budget": budget,
    "work counts are valid": work,
    "scores are valid": scores_are_valid,
    "reaches its exact limit": exact_limit,
    "does not use global random generators": global_random_state,
    "does not change process settings": process_settings,
    "does not modify its training data": training_data,
    "writes no files": no_files,
    "the same on a GPU": on_gpu,
}
FIRST = tuple(CHECKS)[:2]  #: without a posterior after training, no other check can run


# --- Running the checks -----------------------------------------------------------------------------------------------


def check_method(subjects: Sequence[Subject], names: Sequence[str] = tuple(CHECKS)) -> Report:
    """Runs the checks on each family of one method.

    Args:
        subjects: one method with each of its families.
        names: the checks to run; those in `FIRST` always run.

    Raises:
        InputError: there are no subjects, or there is no check of a name.
    """
    if not subjects:
        raise InputError("there are no subjects to check; pass those of a method")
    findings: list[Finding] = []
    for subject in subjects:
        file, broken = inspect.getfile(subject.entry.cls), ""
        for name in dict.fromkeys((*FIRST, *_known(names))):
            if broken:
                findings.append(Finding(name, "not run", f"fix '{broken}' first", subject.family))
                continue
            status, message = outcome(partial(in_isolation, CHECKS[name], subject), file)
            findings.append(Finding(name, status, message, subject.family))
            if name in FIRST and status == "failed":
                broken = name
    return Report(
        subjects[0].entry.name,
        tuple(findings),
        'docs/how-to/method.md ("Write a method: from an idea to the leaderboard")',
        "networks are not checked" if subjects[0].entry.cls.networks else "",
    )


def _known(names: str | Sequence[str]) -> Sequence[str]:
    names = (names,) if isinstance(names, str) else names
    for name in names:
        if name not in CHECKS:
            raise unknown_name("check", name, CHECKS)
    return names


def in_isolation(check: Check, subject: Subject) -> str | None:
    """Runs one check in a temporary folder, and restores what the method changes in the process.

    It uses one thread, since small linear algebra is several times slower on two.
    """
    with (
        one_thread(),
        tempfile.TemporaryDirectory() as folder,
        restored({**GENERATORS, **SETTINGS}),
        contextlib.chdir(folder),
    ):
        return check(subject)


def parametrize_with_checks(subjects: Sequence[Subject], names: Sequence[str] = tuple(CHECKS)) -> pytest.MarkDecorator:
    """A decorator that turns each check of each subject into a test, like scikit-learn's function of this name.

    ```python
    @parametrize_with_checks(subjects(MyMethod))
    def test_it_conforms(subject, check):
        check(subject)
    ```
    """
    import pytest

    cases = [
        pytest.param(subject, partial(in_isolation, CHECKS[name]), id=f"{subject.entry.name}-{subject.family}-{name}")
        for subject in subjects
        for name in _known(names)
    ]
    return pytest.mark.parametrize(("subject", "check"), cases)
