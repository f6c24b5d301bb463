"""What every method must do, whatever it computes: a function for each rule, which raises `Failed` if it is broken."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fsvi_bench.conformance.problems import ALL_TOYS, ODD_N, nudged, odd_problems, take, toy_batch, toy_problems
from fsvi_bench.conformance.process import random_state, settings_of_process
from fsvi_bench.conformance.subject import Failed, NotApplicable, Numbers, Subject, apart, numbers, same
from fsvi_bench.errors import InputError
from fsvi_bench.maths.blr import mean_field_optimum_scale
from fsvi_bench.methods.base import Method
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.base import KIND_OF, Family, Posterior, defect, divergence, unstack
from fsvi_bench.posteriors.gaussian import FactorisedGaussian
from fsvi_bench.scoring.scores import score, trace_scores
from fsvi_bench.tasks.task import Task
from fsvi_bench.training.trace import Tracer
from fsvi_bench.training.trainer import train

_STRANGER = "no_method_has_this_option"
_B = 3
CLAIMED_ON = 4  #: toy tasks
ROUNDING = 1e-9  #: nats; a KL below −ROUNDING is no rounding
ON_GPU = 1e-6  #: relative; sums run in another order there
#: An H100 moved RANDA's full covariance on the first toy by 1.1e-4 in 20 steps; a unit in the last place of its inputs
#: moves it by 4e-6 to 5e-5, and on a GPU every operation rounds otherwise. Single precision is 5e8 units.
_OF_ROUNDING, _NUDGED_RUNS = 100, 3
_MOST = 0.01  #: however much a method amplifies: from there on nobody can tell rounding from a mistake
_ROUNDING = 1e-9


# --- What a method says and returns -----------------------------------------------------------------------------------


def trains(subject: Subject) -> None:
    """It is set up on three problems and trained to the end, and its posterior can be asked for."""
    data = toy_batch(_B)
    for place in range(_B):
        subject.entry.cls.check(subject.options, data.only(place))
    method = subject.make(data)
    train(method, "cpu")
    method.posterior()


def options_are_checked(subject: Subject) -> None:
    """Unknown options and NaN are refused, and options survive being written to a record and read back."""
    options = subject.options
    if _accepts(subject, {_STRANGER: 1}):
        raise Failed(
            f"Options took an unknown option, '{_STRANGER}'; a misspelt --set would be ignored: derive Options from "
            'MethodOptions and leave extra="forbid" as it is'
        )
    for name, value in options:
        if isinstance(value, float) and _accepts(subject, {name: float("nan")}):
            raise Failed(f"option '{name}' took NaN; leave allow_inf_nan=False of MethodOptions as it is")
    if subject.entry.options(options.model_dump(mode="json")) != options:
        raise Failed("Options written as JSON and read back are others; use numbers, words and booleans as options")


def _accepts(subject: Subject, change: dict[str, Any]) -> bool:
    try:
        subject.entry.options({**subject.options.model_dump(), **change})
    except InputError:
        return False
    return True


def posterior_before_training(subject: Subject) -> None:
    """Before the first step there is a posterior of the right kind: where traces begin."""
    method, seen = subject.make(toy_batch(_B)), []
    if not method.trains:
        raise NotApplicable("it takes one step: there is no way to the posterior")

    def look(steps: int, seconds: float) -> None:
        seen.append(method.posterior())

    train(method, "cpu", look, [0])
    if not seen:
        raise Failed("training ended before its first step; do as many steps as num_steps says")
    require_posterior(seen[0], subject.family, _B, 20, [None] * _B, "before the first step")


def posterior_after_training(subject: Subject) -> None:
    """After training it is one, too."""
    method = subject.train(toy_batch(_B))
    require_posterior(method.posterior(), subject.family, _B, 20, method.divergences(), "after training")


def require_posterior(q: Posterior, family: Family, B: int, k: int, diverged: Sequence[str | None], when: str) -> None:
    """A posterior of the family's kind: float64, [B,k], finite, scales positive, factors lower triangular.

    Raises:
        Failed: it is not; what has diverged by its own account may hold any number.
    """
    if not isinstance(q, Posterior) or q.kind != KIND_OF[family]:
        got = q.kind if isinstance(q, Posterior) else type(q).__name__
        raise Failed(f"{when} posterior() is {got}, expected {KIND_OF[family]} for --family {family}")
    for name, tensor in q.tensors().items():
        if not tensor.shape or tensor.shape[0] != B:
            raise Failed(f"{when} {name} has shape {list(tensor.shape)} for {B} problems; put an axis of B in front")
    for place, one in enumerate(unstack(q)):
        if (reason := defect(one, k)) is not None:
            raise Failed(f"{when} the posterior is not one over k = {k} weights: {reason}")
        if (reason := divergence(one)) is not None and diverged[place] is None:
            raise Failed(f"{when} {reason}; mend it, or name the reason in divergences() where training may come to it")
        if diverged[place] is None:
            _require_moments(one, k, when)


def _require_moments(one: Posterior, k: int, when: str) -> None:
    """What scores are computed from; of our own posteriors the parameters vouch for it."""
    tril = one.covariance_tril()
    if tuple(tril.shape) != (k, k) or tril.dtype != torch.float64 or not bool(tril.isfinite().all()):
        raise Failed(f"{when} covariance_tril() is {tril.dtype} {list(tril.shape)}, expected finite float64 [{k}, {k}]")
    if bool(tril.triu(1).any()) or bool((tril.diagonal() < 0).any()):
        raise Failed(f"{when} covariance_tril() is not lower triangular with a diagonal of 0 or more")


def one_entry_per_problem(subject: Subject) -> None:
    """Everything that is told problem by problem has B entries, and what must be a number or a word is one."""
    method = subject.train(toy_batch(_B))
    for name in ("divergences", "work", "details", "stopped_after"):
        entries = getattr(method, name)()
        if len(entries) != _B:
            raise Failed(f"{name}() has {len(entries)} entries for {_B} problems; return one for each, None if unknown")
    _require_numbers(method)
    if any(reason is not None and not (isinstance(reason, str) and reason) for reason in method.divergences()):
        raise Failed("divergences() names no reason; return a sentence where training came to nothing, else None")


def _require_numbers(method: Method) -> None:
    for details in method.details():
        for name, value in (details or {}).items():
            if not isinstance(value, int | float):
                raise Failed(f"details() has {type(value).__name__} for '{name}', expected a number")


# --- A result is decided by task, settings and seed, and by nothing else ----------------------------------------------


def batch_on_toys(subject: Subject) -> None:
    """A problem alone gives the same bits as among nineteen others, after a hundred steps."""
    _require_same(subject.for_long, toy_batch(ALL_TOYS))


def batch_on_odd_shapes(subject: Subject) -> None:
    """Likewise where k = 7, N = 67 and D = 3 suit no cache line."""
    data = odd_problems()
    try:
        subject.entry.cls.check(subject.options, data.only(0))
    except InputError as error:
        raise NotApplicable(f"the settings do not fit a problem with {ODD_N} rows: {error}") from error
    _require_same(subject, data)


def _require_same(subject: Subject, data: TrainingData) -> None:
    _, departure = in_any_company(subject, data)
    if departure is not None:
        raise Failed(departure)


def in_any_company(subject: Subject, data: TrainingData) -> tuple[list[Numbers], str | None]:
    """All problems of a batch trained together, and in which company one of them came out otherwise: alone, or among
    some of them in other places."""
    B = len(data)
    together = subject.trained(data)
    some = [(3 * place + 1) % B for place in range(min(7, B - 1))]
    found = list(zip(some, subject.trained(data, some), strict=True))
    for place in (0, B - 1):
        found += [(place, subject.trained(data, [place])[0])]
    for at, (place, got) in enumerate(found):
        if not same(got, together[place]):
            company = f"among {len(some) - 1} others" if at < len(some) else "alone"
            return together, _departure(place, company, apart(got, together[place]))
    return together, None


def _departure(place: int, company: str, difference: float) -> str:
    said = f"problem {place} {company} differs from itself among all by {difference:.1e}"
    if difference < _ROUNDING:
        return (
            f"{said}, in its last bits: BLAS and LAPACK round by shape and alignment; work problem by problem on "
            "copies (self.problems.only(i)), and take a matrix-vector product as a sum of products"
        )
    return (
        f"{said}; nothing may be averaged, drawn or stopped across the leading axis: sum the loss over problems, and "
        "give each a random stream of its own from its seed"
    )


def same_seed(subject: Subject) -> None:
    """Trained twice under one seed, the same bits."""
    data = toy_batch(2)
    for place, (one, other) in enumerate(zip(subject.trained(data), subject.trained(data), strict=True)):
        if not same(one, other):
            raise Failed(
                f"trained twice with one seed, problem {place} differs by {apart(one, other):.1e}; draw from "
                "fsvi_bench.seeds.derived_generator(seed, ...) with self.seeds[problem], never from a clock or a global"
            )


def another_seed(subject: Subject) -> None:
    """Another seed gives other numbers, or the same of a method that is declared deterministic."""
    data = toy_batch(2)
    pairs = list(zip(subject.trained(data, seed=0), subject.trained(data, seed=1), strict=True))
    alike = [same(one, other) for one, other in pairs]
    if subject.deterministic and not all(alike):
        raise Failed("it is declared deterministic, but its numbers depend on the seed; drop `deterministic = True`")
    if not subject.deterministic and any(alike):
        raise Failed(
            "another seed gives the same numbers; use self.seeds, or declare `deterministic = True` (or override "
            "is_deterministic) where nothing is drawn, so that seeds are not counted as repetitions"
        )


def looking(subject: Subject) -> None:
    """Being asked for its posterior on the way, as traces and waypoints do, moves nothing."""
    problems = toy_problems()[:2]
    watched, alone = (subject.make(toy_batch(2)) for _ in range(2))
    if not watched.trains:
        raise NotApplicable("it takes one step: nobody looks on the way")
    tracer = Tracer(watched, problems)

    def look(steps: int, seconds: float) -> None:
        tracer(steps, seconds)
        for ask in (watched.posterior, watched.divergences, watched.work, watched.details):
            ask()

    # Not at the end, where a trace takes its time over the density of a mixture.
    train(watched, "cpu", look, [step for step in (0, 1, 2, 5) if step < watched.num_steps])
    train(alone, "cpu")
    for place, (one, other) in enumerate(zip(numbers(watched), numbers(alone), strict=True)):
        if not same(one, other):
            raise Failed(
                f"looked at on the way, problem {place} ends elsewhere, by {apart(one, other):.1e}; posterior() and "
                "its like may not draw, step or change anything, and a call of training_step may end after any step"
            )


def problems_untouched(subject: Subject) -> None:
    """The training problems are what they were."""
    data = toy_batch(2)
    before = take(data, range(2))
    subject.train(data)
    for name, one, other in _tensors(before, data):
        if not torch.equal(one, other):
            raise Failed(f"training changed its problems' {name}; work on a copy (.clone()), not in place")


def _tensors(one: TrainingData, other: TrainingData) -> Sequence[tuple[str, torch.Tensor, torch.Tensor]]:
    names = ("X", "y", "Phi", "noise_variance", "low", "high")
    pairs = [(name, getattr(one, name), getattr(other, name)) for name in names]
    maps = ("inducing_points", "lengthscales", "outputscale")
    return pairs + [(name, getattr(one.feature_map, name), getattr(other.feature_map, name)) for name in maps]


def on_gpu(subject: Subject) -> None:
    """On a GPU the same numbers to 1e-6; where the method amplifies rounding more than that, as far as it does."""
    if not subject.gpu:
        raise NotApplicable("no CUDA GPU was asked for or is here")
    data = toy_batch(2)
    expected = subject.trained(data)
    differences = list(map(apart, subject.trained(data, device="cuda"), expected))
    if all(difference <= ON_GPU for difference in differences):
        return
    nudged_runs = [subject.trained(nudged(data, seed)) for seed in range(_NUDGED_RUNS)]
    for place, difference in enumerate(differences):
        amplified = max(apart(run[place], expected[place]) for run in nudged_runs)
        limit = min(max(ON_GPU, _OF_ROUNDING * amplified), _MOST)
        if not difference <= limit:
            raise Failed(
                f"on a GPU problem {place} differs from the CPU's numbers by {difference:.1e}, expected {limit:.0e} at "
                "most; make tensors on self.device, in float64, from CPU random streams"
            )


# --- Budget, and what is left behind ----------------------------------------------------------------------------------


def budget(subject: Subject) -> str:
    """It does the steps that it was asked for: `num_steps` is `max_steps`, and each is done once, in order.

    Returns:
        What that says of a budget, and what it does not.
    """
    method = subject.make(toy_batch(2))
    declared = method.num_steps
    if not isinstance(declared, int) or declared < 0:
        raise Failed(f"num_steps is {declared!r}, expected a whole number of steps")
    wanted = getattr(subject.options, "max_steps", declared)
    formula = subject.deterministic and declared == 1  # in place of training
    if declared != wanted and not formula:
        raise Failed(f"num_steps is {declared} where max_steps is {wanted}; return self.options.max_steps")
    done = _counted(method)
    train(method, "cpu")
    if len(done) > declared or (len(done) < declared and not formula and not method.finished):
        raise Failed(
            f"training_step was called {len(done)} times, expected once for each of {declared} steps; leave the loop "
            "to the harness (epochs, loaders and Lightning's trainer are its own)"
        )
    return f"the steps are those declared ({declared}, each once); what is done within a step cannot be seen from here"


def _counted(method: Method) -> list[int]:
    """The numbers of the steps that `training_step` will be called for."""
    calls: list[int] = []
    step = method.training_step

    def training_step(batch: Any, batch_idx: int) -> Any:
        calls.append(batch_idx)
        return step(batch, batch_idx)

    method.training_step = training_step  # type: ignore[method-assign]
    return calls


def work(subject: Subject) -> None:
    """What it says it took is counted in whole numbers, and grows with the steps."""
    method, halfway = subject.make(toy_batch(2)), []
    half = max(1, method.num_steps // 2)
    train(method, "cpu", lambda steps, seconds: halfway.append((steps, _copied(method))), [half])
    counts = _copied(method)
    if not any(counts):
        raise NotApplicable("work() counts nothing")
    for count in counts:
        for name, value in count.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise Failed(f"work() has {value!r} for '{name}', expected a whole number, 0 or more")
    if not halfway or halfway[0][0] >= method.num_steps:
        return
    for before, after in zip(halfway[0][1], counts, strict=True):
        if any(after.get(name, 0) < value for name, value in before.items()):
            raise Failed(f"work() fell from {before} to {after}; count everything since the first step")
        if after and None in method.stopped_after() and after == before:
            raise Failed(f"work() is {after} halfway and at the end; count what was done so far, not what is planned")


def _copied(method: Method) -> list[dict[str, int]]:
    return [dict(count or {}) for count in method.work()]


def global_random_state(subject: Subject) -> None:
    """No global random generator was used or seeded, in a hundred steps."""
    before = random_state()
    subject.for_long.train(toy_batch(2))
    for name, state in random_state().items():
        if state != before[name]:
            raise Failed(
                f"training drew from or seeded the global generator of {name}; make one of your own for each problem, "
                "such as fsvi_bench.seeds.derived_generator(self.seeds[problem], 'noise')"
            )


def process_settings(subject: Subject) -> None:
    """Settings that every method shares are what they were."""
    before = settings_of_process()
    subject.train(toy_batch(2))
    for name, value in settings_of_process().items():
        if value != before[name]:
            raise Failed(f"training left the process with another {name}; set it back, or pass dtype=, device= instead")


def no_files(subject: Subject) -> None:
    """Nothing was written into the working directory."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        subject.train(toy_batch(2))
        left = sorted(Path(folder).rglob("*"))
    if left:
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
        for name, value in _scores(q, problem).items():
            if math.isnan(value):
                raise Failed(f"{name} of {_name(problem)} is NaN; mend posterior()")
            if "kl" in name and value < -ROUNDING:
                raise Failed(f"{name} of {_name(problem)} is {value:.3g}, and no KL is negative; mend posterior()")


def _scores(q: Posterior, problem: Task) -> dict[str, float]:
    """A singular q's by its moments alone: the density of a mixture takes seconds, and is no matter of the method's."""
    if q.singular:
        matched = trace_scores(q, problem, mixtures=False)
        return {"kl_moment_matched": matched.kl_moment_matched, "nlpd_moment_matched": matched.nlpd_moment_matched}
    scores = score(q, problem)
    names = ("kl", "reverse_kl", "kl_moment_matched", "predictive_kl_test", "predictive_kl_box", "nlpd", "rmse")
    return {name: value for name in names if (value := getattr(scores, name)) is not None}


def exact_limit(subject: Subject) -> None:
    """Under the settings that it names, it ends at the exact posterior, or at its best factorised approximation."""
    limit = subject.entry.cls.exact_limits.get(subject.family)
    if limit is None:
        raise NotApplicable(f"it claims no exact limit for {subject.family} (Method.exact_limits)")
    if not (math.isfinite(limit.tolerance) and limit.tolerance >= 0):
        raise Failed(f"the tolerance of its exact limit is {limit.tolerance}, expected nats, 0 or more")
    method = subject.with_settings(**limit.settings).train(toy_batch(CLAIMED_ON))
    for q, problem in zip(unstack(method.posterior().cpu()), toy_problems()[:CLAIMED_ON], strict=True):
        optimum = 0.0 if subject.family == "full" else factorised_floor(problem)
        gap = trace_scores(q, problem).kl - optimum
        if not -ROUNDING <= gap <= limit.tolerance:
            raise Failed(
                f"on {_name(problem)} it ends {gap:.3g} nats from the optimum, and claims {limit.tolerance:g}; mend "
                "exact_limits, or what keeps it from there"
            )


def factorised_floor(problem: Task) -> float:
    """KL(q ‖ P_D) of EXACT-FFG: the smallest that a factorised q has (exact mean, variances 1/Λ_ii)."""
    exact = problem.truth.posterior
    return trace_scores(FactorisedGaussian(exact.mean, mean_field_optimum_scale(exact.precision_tril)), problem).kl


def _name(problem: Task) -> str:
    return f"{problem.frozen.dataset} split {problem.frozen.split}"


# --- The list ---------------------------------------------------------------------------------------------------------

Check = Callable[[Subject], str | None]  #: what it returns is said beside its "ok"

#: By the names that reports have for them. What has no posterior in the end has nothing else to be checked for.
FIRST: Mapping[str, Check] = {"trains": trains, "posterior after training": posterior_after_training}
CHECKS: Mapping[str, Check] = {
    **FIRST,
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
