"""Checks that a result is decided by task, settings and seed, and by nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fsvi_bench.conformance.problems import ALL_TOYS, ODD_N, nudged, odd_problems, take, toy_batch, toy_problems
from fsvi_bench.conformance.subject import Numbers, Subject, apart, numbers, same
from fsvi_bench.conformance.verdict import Failed, NotApplicable
from fsvi_bench.errors import InputError
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.training.trace import Tracer
from fsvi_bench.training.trainer import train

ON_GPU = 1e-6  #: relative; sums run in another order there
#: An H100 moved RANDA's full covariance on the first toy by 1.1e-4 in 20 steps; a unit in the last place of its inputs
#: moves it by 4e-6 to 5e-5, and on a GPU every operation rounds otherwise. Single precision is 5e8 units.
_OF_ROUNDING, _NUDGED_RUNS = 100, 3
_MOST = 0.01  #: however much a method amplifies: from there on nobody can tell rounding from a mistake
_ROUNDING = 1e-9


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
    train(subject.make(data), "cpu")
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
