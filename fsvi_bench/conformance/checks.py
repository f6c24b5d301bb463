"""What every method must do, whatever it computes: a function for each rule, which raises `Failed` if it is broken.

`check_method` runs them all into one report, and `parametrize_with_checks` makes tests of pytest's of them.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from unittest.mock import patch

import torch

from fsvi_bench.conformance.subject import (
    ALL_TOYS,
    GENERATORS,
    ODD_N,
    SETTINGS,
    TOYS,
    Failed,
    NotApplicable,
    Numbers,
    Subject,
    apart,
    kept,
    nudged,
    numbers,
    odd_problems,
    toy_batch,
    toy_problems,
)
from fsvi_bench.errors import InputError
from fsvi_bench.methods.exact import Exact
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.base import KIND_OF, Family, Posterior, defect, divergence, unstack
from fsvi_bench.posteriors.gaussian import FullGaussian
from fsvi_bench.scoring.scores import score, trace_scores
from fsvi_bench.threads import one_thread
from fsvi_bench.training.trace import Tracer
from fsvi_bench.training.trainer import train

if TYPE_CHECKING:
    import pytest

_K = 20  #: features of a toy task
ROUNDING = 1e-9  #: nats; a KL below −ROUNDING is no rounding
ON_GPU = 1e-6  #: relative; sums run in another order there
#: An H100 moved RANDA's full covariance on the first toy by 1.1e-4 in 20 steps; a unit in the last place of its inputs
#: moves it by 4e-6 to 5e-5, and on a GPU every operation rounds otherwise. Single precision is 5e8 units.
_OF_ROUNDING = 100
_MOST = 0.01  #: however much a method amplifies: from there on nobody can tell rounding from a mistake
_LAST_BITS = 1e-9


# --- What a method says and returns -----------------------------------------------------------------------------------


def trains(subject: Subject) -> None:
    """It is set up on several problems and trained to the end, and its posterior can be asked for."""
    data = toy_batch()
    method = subject.make(data)
    for place in range(TOYS):
        method.check(method.options, data.only(place))
    train(method, "cpu")
    method.posterior()


def options_are_checked(subject: Subject) -> None:
    """Unknown options and NaN are refused, and options survive being written to a record and read back."""
    options = subject.options
    wrong = {"no_method_has_this_option": 1} | {name: math.nan for name, value in options if isinstance(value, float)}
    for name, value in wrong.items():
        with contextlib.suppress(InputError):
            subject.entry.options({**options.model_dump(), name: value})
            raise Failed(
                f"option '{name}' took {value}, and a misspelt --set would be ignored; derive Options from "
                'MethodOptions and leave its extra="forbid" and allow_inf_nan=False as they are'
            )
    if subject.entry.options(options.model_dump(mode="json")) != options:
        raise Failed("Options written as JSON and read back are others; use numbers, words and booleans as options")


def posterior_before_training(subject: Subject) -> None:
    """Before the first step there is a posterior of the right kind: where traces begin."""
    method, seen = subject.make(toy_batch()), []
    if not method.trains:
        raise NotApplicable("it takes one step: there is no way to the posterior")
    train(method, "cpu", lambda steps, seconds: seen.append(method.posterior()), [0])
    _require_posterior(seen[0] if seen else None, subject.family, [None] * TOYS)


def posterior_after_training(subject: Subject) -> None:
    """After training it is one, too."""
    method = subject.train(toy_batch())
    _require_posterior(method.posterior(), subject.family, method.divergences())


def _require_posterior(q: object, family: Family, diverged: Sequence[str | None]) -> None:
    """A posterior of the family's kind: float64, [B,k], finite, scales positive, factors lower triangular.

    Raises:
        Failed: it is not; what has diverged by its own account may hold any number.
    """
    if not isinstance(q, Posterior) or q.kind != KIND_OF[family]:
        raise Failed(
            f"posterior() is {getattr(q, 'kind', type(q).__name__)}, expected {KIND_OF[family]} for --family {family}"
        )
    for name, tensor in q.tensors().items():
        if tensor.shape[:1] != (TOYS,):
            raise Failed(f"{name} has shape {list(tensor.shape)} for {TOYS} problems; put an axis of B in front")
    for one, reason in zip(unstack(q), diverged, strict=True):
        if (fault := defect(one, _K)) is not None:
            raise Failed(f"the posterior is not one over k = {_K} weights: {fault}")
        if reason is None and (fault := divergence(one)) is not None:
            raise Failed(f"{fault}; mend it, or name the reason in divergences() where training may come to it")
        # What scores are computed from: somebody else's class need not make it well of sound parameters.
        moments = FullGaussian(one.mean, tril := one.covariance_tril())
        sound = defect(moments, _K) is None and (tril.diagonal() >= 0).all() and tril.isfinite().all()
        if reason is None and not sound:
            raise Failed(
                "mean and covariance_tril() are not [k] and [k,k], float64, finite, lower triangular; mend them"
            )


def one_entry_per_problem(subject: Subject) -> None:
    """Everything that is told problem by problem has B entries, and what must be a number or a word is one."""
    method = subject.train(toy_batch())
    for name in ("divergences", "work", "details", "stopped_after"):
        entries = getattr(method, name)()
        if len(entries) != TOYS:
            raise Failed(
                f"{name}() has {len(entries)} entries for {TOYS} problems; return one for each, None if unknown"
            )
    for details in method.details():
        if not all(isinstance(value, int | float) for value in (details or {}).values()):
            raise Failed(f"details() has {details}, expected a number for each name")
    if any(reason == "" or not isinstance(reason, str | None) for reason in method.divergences()):
        raise Failed("divergences() names no reason; return a sentence where training came to nothing, else None")


# --- A result is decided by task, settings and seed, and by nothing else ----------------------------------------------


def batch_on_toys(subject: Subject) -> None:
    """A problem alone gives the same bits as among nineteen others, after a hundred steps."""
    in_any_company(subject.for_long, toy_batch(ALL_TOYS))


def batch_on_odd_shapes(subject: Subject) -> None:
    """Likewise where k = 7, N = 67 and D = 3 suit no cache line."""
    method = subject.make(data := odd_problems())
    try:
        method.check(method.options, data.only(0))
    except InputError as error:
        raise NotApplicable(f"the settings do not fit a problem with {ODD_N} rows: {error}") from error
    in_any_company(subject, data)


def in_any_company(subject: Subject, data: TrainingData) -> list[Numbers]:
    """All problems of a batch trained together.

    Raises:
        Failed: one of them comes out otherwise alone, or among some of them in other places.
    """
    B = len(data)
    together = subject.trained(data)
    some = [(3 * place + 1) % B for place in range(min(7, B - 1))]
    for company in (some, [0], [B - 1]):
        for place, got in zip(company, subject.trained(data, company), strict=True):
            if not torch.equal(got, together[place]):
                difference = apart(got, together[place])
                cause = _ROUNDED if difference < _LAST_BITS else _SHARED
                among = f"among {len(company) - 1} others" if company == some else "alone"
                raise Failed(f"problem {place} {among} differs from itself among all by {difference:.1e}{cause}")
    return together


_ROUNDED = (
    ", in its last bits: BLAS and LAPACK round by shape and alignment; work problem by problem on copies "
    "(self.problems.only(i)), and take a matrix-vector product as a sum of products"
)
_SHARED = (
    "; nothing may be averaged, drawn or stopped across the leading axis: sum the loss over problems, and give each a "
    "random stream of its own from its seed"
)


def same_seed(subject: Subject) -> None:
    """Trained twice under one seed, the same bits."""
    data = toy_batch()
    _require_same(
        subject.trained(data),
        subject.trained(data),
        "trained twice with one seed, problem {} differs by {:.1e}; draw from "
        "fsvi_bench.seeds.derived_generator(seed, ...) with self.seeds[problem], never from a clock or a global",
    )


def _require_same(ones: Sequence[Numbers], others: Sequence[Numbers], told: str) -> None:
    for place, (one, other) in enumerate(zip(ones, others, strict=True)):
        if not torch.equal(one, other):
            raise Failed(told.format(place, apart(one, other)))


def another_seed(subject: Subject) -> None:
    """Another seed gives other numbers, or the same of a method that is declared deterministic."""
    data = toy_batch()
    alike = list(map(torch.equal, subject.trained(data, seed=0), subject.trained(data, seed=1)))
    if subject.deterministic and not all(alike):
        raise Failed("it is declared deterministic, but its numbers depend on the seed; drop `deterministic = True`")
    if not subject.deterministic and any(alike):
        raise Failed(
            "another seed gives the same numbers; use self.seeds, or declare `deterministic = True` (or override "
            "is_deterministic) where nothing is drawn, so that seeds are not counted as repetitions"
        )


def looking(subject: Subject) -> None:
    """Being asked for its posterior on the way, as traces and waypoints do, moves nothing."""
    watched = subject.make(toy_batch())
    if not watched.trains:
        raise NotApplicable("it takes one step: nobody looks on the way")
    tracer = Tracer(watched, toy_problems())

    def look(steps: int, seconds: float) -> None:
        tracer(steps, seconds)
        watched.divergences()
        watched.work()
        watched.details()

    train(watched, "cpu", look, [0, 1, 2, 5])
    _require_same(
        numbers(watched),
        subject.trained(toy_batch()),
        "looked at on the way, problem {} ends elsewhere, by {:.1e}; posterior() and "
        "its like may not draw, step or change anything, and a call of training_step may end after any step",
    )


def problems_untouched(subject: Subject) -> None:
    """The training problems are what they were."""
    data, as_made = toy_batch(), toy_batch()
    subject.train(data)
    for now, then in ((data, as_made), (data.feature_map, as_made.feature_map)):
        for name, tensor in vars(now).items():
            if isinstance(tensor, torch.Tensor) and not tensor.equal(getattr(then, name)):
                raise Failed(f"training changed its problems' {name}; work on a copy (.clone()), not in place")


def on_gpu(subject: Subject) -> None:
    """On a GPU the same numbers to 1e-6; where the method amplifies rounding more than that, as far as it does."""
    if not subject.gpu:
        raise NotApplicable("no CUDA GPU was asked for or is here")
    data = toy_batch()
    expected, got = subject.trained(data), subject.trained(data, device="cuda")
    nudged_runs = [subject.trained(nudged(data, seed)) for seed in range(3)]
    for place, difference in enumerate(map(apart, got, expected)):
        amplified = max(apart(run[place], expected[place]) for run in nudged_runs)
        limit = min(max(ON_GPU, _OF_ROUNDING * amplified), _MOST)
        if not difference <= limit:
            raise Failed(
                f"on a GPU problem {place} differs from the CPU's numbers by {difference:.1e}, expected {limit:.0e} at "
                "most; make tensors on self.device, in float64, and draw random numbers from self.streams"
            )


# --- Budget, and what is left behind ----------------------------------------------------------------------------------


def budget(subject: Subject) -> str:
    """It does the steps that it was asked for: `num_steps` is `max_steps`, and each is done once, in order.

    Returns:
        What that says of a budget, and what it does not.
    """
    method = subject.make(toy_batch())
    declared = method.num_steps
    wanted = getattr(subject.options, "max_steps", declared)
    formula = declared == 1 and (subject.deterministic or not method.trains)
    if declared != wanted and not formula:
        raise Failed(f"num_steps is {declared} where max_steps is {wanted}; return self.options.max_steps")
    with patch.object(method, "training_step", wraps=method.training_step) as step:
        train(method, "cpu")
    done = step.call_count
    if done > declared or (done < declared and not formula and not method.finished):
        raise Failed(
            f"training_step was called {done} times, expected once for each of {declared} steps; leave the loop "
            "to the harness (epochs, loaders and Lightning's trainer are its own)"
        )
    return f"the steps are those declared ({declared}, each once); what is done within a step cannot be seen from here"


def work(subject: Subject) -> None:
    """What it says it took is counted in whole numbers, and grows with the steps."""
    method, seen = subject.make(toy_batch()), []

    def count(*clock: float) -> None:
        seen.append([dict(each or {}) for each in method.work()])

    train(method, "cpu", count, [1])
    count()
    if not any(seen[-1]):
        raise NotApplicable("work() counts nothing")
    for early, late in zip(seen[0], seen[-1], strict=True):
        if not all(type(value) is int and value >= 0 for value in late.values()):
            raise Failed(f"work() has {late}, expected whole numbers, 0 or more")
        fell = any(late.get(name, 0) < value for name, value in early.items())
        stuck = method.num_steps > 1 and None in method.stopped_after() and late == early
        if fell or (late and stuck):
            raise Failed(f"work() is {early} after a step and {late} at the end; count what was done so far")


def global_random_state(subject: Subject) -> None:
    """No global random generator was used or seeded, in a hundred steps."""
    with kept(GENERATORS) as changed:
        subject.for_long.train(toy_batch())
    if changed:
        raise Failed(
            f"training drew from or seeded the global generator of {changed[0]}; make one of your own for each "
            "problem, such as fsvi_bench.seeds.derived_generator(self.seeds[problem], 'noise')"
        )


def process_settings(subject: Subject) -> None:
    """Settings that every method shares are what they were."""
    with kept(SETTINGS) as changed:
        subject.train(toy_batch())
    if changed:
        raise Failed(
            f"training left the process with another {changed[0]}; set it back, or pass dtype=, device= instead"
        )


def no_files(subject: Subject) -> None:
    """Nothing was written into the working directory, which is empty (`in_isolation`)."""
    subject.train(toy_batch())
    if left := sorted(Path().rglob("*")):
        raise Failed(f"training wrote '{left[0].name}' into the working directory; a method writes no files")


# --- What is reached --------------------------------------------------------------------------------------------------


def scores_are_numbers(subject: Subject) -> None:
    """On every toy task KL ≥ −1e-9 and no score is NaN, or the method says why it diverged."""
    method = subject.train(toy_batch())
    reasons = method.divergences()
    if all(reasons):
        raise Failed(f"training diverged on every toy task ({reasons[0]}); choose defaults under which it does not")
    for q, problem, reason in zip(unstack(method.posterior().cpu()), toy_problems(), reasons, strict=True):
        if reason is not None:
            continue
        # A singular q by its moments: the density of a mixture takes seconds, and is no matter of the method's.
        found = trace_scores(q, problem, mixtures=False)._asdict() if q.singular else score(q, problem).model_dump()
        for name, value in found.items():
            if isinstance(value, float) and (math.isnan(value) or ("kl" in name and value < -ROUNDING)):
                raise Failed(f"{name} of toy split {problem.split} is {value:.3g}, but no KL is negative; mend it")


def exact_limit(subject: Subject) -> None:
    """Under the settings that it names, it ends at the exact posterior, or at its best factorised approximation."""
    limit = subject.entry.cls.exact_limits.get(subject.family)
    if limit is None:
        raise NotApplicable(f"it claims no exact limit for {subject.family} (Method.exact_limits)")
    problems, claimed = toy_problems(), replace(subject, settings={**subject.settings, **limit.settings})
    method = subject.entry.cls(problems, subject.family, options=claimed.options)
    train(method, "cpu")
    best = Exact(problems, subject.family).posterior()
    for q, optimum, problem in zip(unstack(method.posterior()), unstack(best), problems, strict=True):
        gap = trace_scores(q, problem).kl - trace_scores(optimum, problem).kl
        if not -ROUNDING <= gap <= limit.tolerance < math.inf:
            raise Failed(
                f"on toy split {problem.split} it ends {gap:.3g} nats from the optimum, and claims "
                f"{limit.tolerance:g}; mend exact_limits, or what keeps it from there"
            )


# --- The list ---------------------------------------------------------------------------------------------------------

Check = Callable[[Subject], str | None]  #: what it returns is said beside its "ok"

#: By the names that reports have for them.
CHECKS: Mapping[str, Check] = {
    "trains": trains,
    "posterior after training": posterior_after_training,
    "options are checked": options_are_checked,
    "posterior before the first step": posterior_before_training,
    "one entry per problem": one_entry_per_problem,
    "the same in any batch": batch_on_toys,
    "the same in any batch, odd shapes": batch_on_odd_shapes,
    "the same seed, the same bits": same_seed,
    "another seed, other numbers": another_seed,
    "looking moves nothing": looking,
    "keeps to its budget": budget,
    "counts its work": work,
    "scores are numbers": scores_are_numbers,
    "reaches its exact limit": exact_limit,
    "leaves random generators alone": global_random_state,
    "leaves the process as it was": process_settings,
    "leaves its problems as they were": problems_untouched,
    "writes no files": no_files,
    "the same on a GPU": on_gpu,
}
FIRST = tuple(CHECKS)[:2]  #: what has no posterior in the end has nothing else to be checked for


# --- Running it -------------------------------------------------------------------------------------------------------

Status = Literal["ok", "failed", "not applicable"]


@dataclass(frozen=True)
class Finding:
    """What one check found of one family."""

    check: str
    family: Family
    status: Status
    message: str  #: what was found; where it is ok, what that does not cover, or nothing


@dataclass(frozen=True)
class Report:
    """Every check of a method, in the order in which they were run."""

    method: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Nothing failed."""
        return all(finding.status != "failed" for finding in self.findings)

    @property
    def verdict(self) -> str:
        """One line."""
        found = [finding.status for finding in self.findings]
        rest = f"{found.count('ok')} ok, {found.count('not applicable')} not applicable"
        mend = "what a method must do is said in fsvi_bench.methods.base.Method"
        if self.ok:
            return f"{self.method} conforms: {rest}"
        return f"{self.method} does not conform: {found.count('failed')} failed, {rest}; {mend}"


def check_method(subjects: Sequence[Subject], names: Sequence[str] = tuple(CHECKS)) -> Report:
    """Runs the checks on each family of one method.

    Args:
        subjects: one method with each of its families.
        names: the checks to run; what must work before anything else is run in any case.
    """
    findings: list[Finding] = []
    for subject in subjects:
        broken = ""
        for name in dict.fromkeys((*FIRST, *names)):
            first = f"first this has to be mended: {broken}"
            finding = Finding(name, subject.family, "not applicable", first) if broken else _outcome(name, subject)
            findings.append(finding)
            if name in FIRST and finding.status == "failed":
                broken = name
    return Report(subjects[0].entry.name, tuple(findings))


def _outcome(name: str, subject: Subject) -> Finding:
    """Whatever the method raises is its failing, not the check's: it is told with the method's line that led to it."""
    status: Status = "failed"
    try:
        status, told = "ok", in_isolation(CHECKS[name], subject) or ""
    except (Exception, SystemExit) as error:
        told = str(error)
        if isinstance(error, NotApplicable):
            status = "not applicable"
        elif not isinstance(error, Failed):
            file = inspect.getfile(subject.entry.cls)
            own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
            where = f" ({file}, line {own[-1].lineno}: {own[-1].line})" if own else ""
            told = f"{type(error).__name__}: {' '.join(told.split())[:500] or 'no message'}{where}"
    return Finding(name, subject.family, status, told)


def in_isolation(check: Check, subject: Subject) -> str | None:
    """One check in an empty folder that is thrown away; what the method changes in the process is put back.

    On one thread: small linear algebra is several times slower on two.
    """
    with (
        one_thread(),
        tempfile.TemporaryDirectory() as folder,
        kept({**GENERATORS, **SETTINGS}),
        contextlib.chdir(folder),
    ):
        return check(subject)


def parametrize_with_checks(subjects: Sequence[Subject], names: Sequence[str] = tuple(CHECKS)) -> pytest.MarkDecorator:
    """A decorator that makes a test of each check on each subject, as scikit-learn's function of this name.

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
        for name in names
    ]
    return pytest.mark.parametrize(("subject", "check"), cases)
