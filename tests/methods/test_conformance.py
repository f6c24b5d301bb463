"""What every method must do, whatever it computes. A new method adds a row to `TABLE` and nothing else."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch

from fsvi_bench.cli.app import main
from fsvi_bench.errors import InputError
from fsvi_bench.maths.features import inducing_tril
from fsvi_bench.methods.base import Method, TrainingProblems
from fsvi_bench.methods.registry import load_method, method_names
from fsvi_bench.posteriors.gaussian import Family, unstack
from fsvi_bench.running.runner import _score_cell
from fsvi_bench.seeds import derive_seed
from fsvi_bench.tasks.build import build_task
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.problem import FeatureMap, Problem, load_problem
from fsvi_bench.training.trace import Tracer, trace_steps
from fsvi_bench.training.trainer import train
from tests import reference as twin

f64 = torch.float64
STEPS = 10  # one more than a chunk of measurement sets, and some to average
Settings = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A method and a family.

    Args:
        variants: settings for problems with k = 20 and N = 40, one for each way that the method's arithmetic can take
            (batched, one by one, more or fewer measurement points than weights, ...). `max_steps` is the suite's.
        closed_form: nothing is trained and nothing is drawn: no prior to start from, no seed, no step to name.
    """

    method: str
    family: Family
    variants: tuple[Settings, ...] = ({},)
    closed_form: bool = False


# M = 10 is projected on the span of Φ_A, M = 15 on its complement, M = 30 sees all; 13 and 15 are no multiples of 4.
SEES_ALL = 30
BY_ADAM = (
    {"M": 10, "minibatch": "full"},
    {"M": 10, "minibatch": 7},
    {"M": 15, "minibatch": 7, "averaging": 0.5, "lr_schedule": "cosine"},
    {"M": SEES_ALL, "minibatch": "full", "draw_A": "data"},
    {"M": 13, "minibatch": "full", "draw_A": "box", "kl_jitter": 1e-6, "kl_weight": "N/B"},
)
BY_LBFGS = ({"M": 10}, {"M": 13, "kl_weight": 0.5, "kl_jitter": 1e-4}, {"M": SEES_ALL})
BY_NATURAL_GRADIENTS = ({"M": 10}, {"M": 15, "kl_weight": 2.0, "averaging": 0.0}, {"M": SEES_ALL, "decay": 0.0})
BY_SAMPLES = (
    *({**settings, "S": 12} for settings in BY_ADAM),
    {"M": 10, "minibatch": 7, "S": 9, "prior_score": "ssge", "injected_noise": 0.01},
    {"M": 13, "minibatch": "full", "S": 16, "prior_score": "ssge", "bandwidth": 2.0},
)
TABLE = (
    Row("exact", "full", closed_form=True),
    Row("exact", "ffg", closed_form=True),
    Row("fixed-a", "full", BY_LBFGS + tuple({**settings, "optimizer": "adam"} for settings in BY_ADAM)),
    Row("fixed-a", "ffg", BY_LBFGS + tuple({**settings, "optimizer": "adam"} for settings in BY_ADAM)),
    Row("mean-field-vi", "ffg", ({"minibatch": "full"}, {"minibatch": 7, "S": 3})),
    Row("rand-a", "full", BY_ADAM),
    Row("rand-a", "ffg", BY_ADAM),
    Row("rand-a-ngd", "full", BY_NATURAL_GRADIENTS),
    Row("rand-a-ngd", "ffg", BY_NATURAL_GRADIENTS),
    Row("ssge", "full", BY_SAMPLES),
    Row("ssge", "ffg", BY_SAMPLES),
)

#: What no option of such a name may be; `S` besides, for methods that estimate a score from their samples.
NONSENSE: dict[str, tuple[Any, ...]] = {
    "M": (0, -3, 2.5, "many"),
    "lr": (0, -0.01, math.nan, math.inf, "fast"),
    "kl_weight": (-1, -1e-9, math.nan, "N/A"),
    "max_steps": (0, -1, 1.5),
    "minibatch": (0, -80, "ful"),
    "averaging": (1, -0.1),
    "kl_jitter": (-1e-6,),
    "S": (0, -1),
}
MORE_NONSENSE = {"ssge": {"S": (1,), "bandwidth": (0, "mean"), "eigen_share": (0, 1.5), "prior_score": ("exakt",)}}


def label(value: object) -> str | None:
    if isinstance(value, Row):
        return f"{value.method}-{value.family}"
    if isinstance(value, dict):
        return ",".join(f"{name}={setting}" for name, setting in value.items()) or "defaults"
    return None


rows = pytest.mark.parametrize("row", TABLE, ids=label)
trained_rows = pytest.mark.parametrize("row", [row for row in TABLE if not row.closed_form], ids=label)
variants = pytest.mark.parametrize(
    ("row", "settings"), [(row, settings) for row in TABLE for settings in row.variants], ids=label
)
trained_variants = pytest.mark.parametrize(
    ("row", "settings"),
    [(row, settings) for row in TABLE for settings in row.variants if not row.closed_form],
    ids=label,
)


# --- Problems ---------------------------------------------------------------------------------------------------------


@cache
def toys() -> tuple[Problem, ...]:
    """20 problems with k = 20 and N = 40, whose weights differ as well as their data."""
    return tuple(load_problem(build_task(load_card("toy"), split).task) for split in range(20))


@cache
def odd_problems(B: int = 8, N: int = 31, k: int = 7, D: int = 3) -> TrainingProblems:
    """No side is a multiple of a cache line; the features are whitened."""
    g = torch.Generator().manual_seed(0)
    X = torch.rand(B, N, D, generator=g, dtype=f64) * 4 - 2
    centres = torch.rand(B, k, D, generator=g, dtype=f64) * 4 - 2
    lengthscales, outputscale = torch.full((B, D), 1.5, dtype=f64), torch.ones(B, dtype=f64)
    tril = torch.stack([inducing_tril(Z, lengthscales[0], outputscale[0], torch.tensor(1e-6)) for Z in centres])
    feature_map = FeatureMap(centres, lengthscales, outputscale, tril)
    Phi = torch.stack([feature_map[problem](X[problem]) for problem in range(B)])
    noise_variance = torch.full((B,), 0.01, dtype=f64)
    y = (Phi @ torch.randn(B, k, 1, generator=g, dtype=f64))[..., 0] + 0.1 * torch.randn(B, N, generator=g, dtype=f64)
    return TrainingProblems(X, y, Phi, noise_variance, X.amin(1), X.amax(1), feature_map)


def twenty_targets(problem: Problem) -> TrainingProblems:
    """One problem's inputs and features, 20 times, with targets drawn from its own model."""
    g = torch.Generator().manual_seed(0)
    data = TrainingProblems.of([problem] * 20)
    weights = torch.randn(20, data.k, 1, generator=g, dtype=f64)
    noise = torch.randn(data.y.shape, generator=g, dtype=f64) * problem.task.noise_variance.sqrt()
    return replace(data, y=(data.Phi @ weights)[..., 0] + noise)


def take(data: TrainingProblems, places: list[int]) -> TrainingProblems:
    """Some problems of a batch, copied."""
    tensors = {n: getattr(data, n)[places].clone() for n in ("X", "y", "Phi", "noise_variance", "low", "high")}
    return TrainingProblems(**tensors, feature_map=FeatureMap.stack([data.feature_map[place] for place in places]))


# --- Training ---------------------------------------------------------------------------------------------------------


def make(row: Row, settings: Settings, data: TrainingProblems, seeds: list[int], steps: int = STEPS) -> Method:
    entry = load_method(row.method)
    budget = {"max_steps": steps} if "max_steps" in entry.cls.Options.model_fields else {}
    assert row.family in entry.cls.families
    return entry.cls(data, row.family, entry.options({**budget, **settings}), seeds)


def seeds_for(row: Row, places: list[int], seed: int = 0) -> list[int]:
    """As the runner derives them, with a problem's place in the full batch for its task."""
    return [derive_seed(str(place), row.method, row.family, seed) for place in places]


def numbers(method: Method) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Mean and covariance factor of each problem."""
    return [(q.mean, q.covariance_tril()) for q in unstack(method.posterior())]


def trained(row: Row, settings: Settings, data: TrainingProblems, places: list[int], seed: int = 0, **options: Any):
    """Mean and covariance factor of the problems at these places of the full batch, trained together."""
    method = make(row, settings, take(data, places), seeds_for(row, places, seed), **options)
    train(method, "cpu")
    return numbers(method)


def same(one: tuple[torch.Tensor, torch.Tensor], other: tuple[torch.Tensor, torch.Tensor]) -> bool:
    """Bit for bit."""
    return torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


def require_the_same_in_any_company(row, settings, data, steps=5):
    """Alone, among seven (in other places) and among all: the same bits. Returns what they are."""
    B = len(data)
    everyone = list(range(B))
    together = trained(row, settings, data, everyone, steps=steps)
    some = [(3 * place + 1) % B for place in range(7)]
    for place, q in zip(some, trained(row, settings, data, some, steps=steps), strict=True):
        assert same(q, together[place]), f"problem {place} among seven"
    for place in (0, B - 1):
        (alone,) = trained(row, settings, data, [place], steps=steps)
        assert same(alone, together[place]), f"problem {place} alone"
    assert all(mean.isfinite().all() and tril.isfinite().all() for mean, tril in together)
    return together


# --- The suite --------------------------------------------------------------------------------------------------------


def test_every_method_and_family_has_a_row():
    expected = [(name, family) for name in method_names() for family in load_method(name).cls.families]
    assert sorted((row.method, row.family) for row in TABLE) == sorted(expected)
    for row in TABLE:
        assert load_method(row.method).cls.deterministic == row.closed_form


@variants
def test_the_posterior_is_a_gaussian_over_the_weights(row, settings):
    data = TrainingProblems.of(toys()[:3])
    method = make(row, settings, data, [1, 2, 3])
    train(method, "cpu")
    q = method.posterior()
    tril = q.covariance_tril()
    assert q.family == row.family
    assert tuple(q.mean.shape) == (3, 20)
    assert tuple(tril.shape) == (3, 20, 20)
    assert q.mean.dtype == tril.dtype == f64
    assert q.mean.isfinite().all()
    assert tril.isfinite().all()
    assert (tril.diagonal(dim1=-2, dim2=-1) > 0).all()
    assert not tril.triu(1).any()
    assert bool(tril.tril(-1).any()) == (row.family == "full")
    assert list(method.divergences()) == [None] * 3
    assert len(method.objectives()) == 3


@trained_variants
def test_it_starts_at_the_prior(row, settings):
    problems = toys()[:2]
    method = make(row, settings, TrainingProblems.of(problems), [1, 2])
    tracer, starts = Tracer(method, problems), []

    def observe(steps, seconds):
        tracer(steps, seconds)
        starts.append(numbers(method))

    train(method, "cpu", observe, [0])
    for (mean, tril), problem, trace in zip(starts[0], problems, tracer.traces, strict=True):
        assert not mean.any()
        assert torch.equal(tril, torch.eye(20, dtype=f64))
        exact = problem.truth.posterior.mean.numpy(), (problem.truth.covariance_tril @ problem.truth.covariance_tril.mT)
        expected = twin.gaussian_kl(torch.zeros(20).numpy(), torch.eye(20).numpy(), exact[0], exact[1].numpy())
        assert trace.points[0].steps == 0
        assert trace.points[0].seconds == 0
        # The twin inverts a covariance whose condition number is about 1e3.
        assert trace.points[0].kl == pytest.approx(expected, rel=1e-10)
    # It moves, so the start was not the end.
    assert not same(numbers(method)[0], starts[0][0])


@variants
def test_the_same_seed_gives_the_same_bits_and_another_seed_other_numbers(row, settings):
    data = TrainingProblems.of(toys()[:2])
    first, again, other = (trained(row, settings, data, [0, 1], seed, steps=5) for seed in (0, 0, 1))
    assert all(map(same, first, again))
    # With all training rows and an A that sees every weight, the objective is that of weight space, whatever A is.
    alike = row.closed_form or ("S" not in settings and settings.get("M") == SEES_ALL)
    assert [same(one, two) for one, two in zip(first, other, strict=True)] == [alike] * 2


@variants
def test_a_problem_is_bitwise_the_same_in_any_batch(row, settings):
    require_the_same_in_any_company(row, settings, TrainingProblems.of(toys()))


@variants
def test_odd_shapes_are_bitwise_the_same_in_any_batch_too(row, settings):
    for mean, tril in require_the_same_in_any_company(row, settings, odd_problems()):
        assert tuple(mean.shape) == (7,)
        assert tuple(tril.shape) == (7, 7)


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("settings", [{"M": 80}, {"M": 20}, {"M": 120, "minibatch": "full", "S": 32}], ids=label)
@rows
def test_boston_sized_problems_are_bitwise_the_same_in_any_batch(row, settings, boston):
    """k = 100, N = 455: other kernels of BLAS and LAPACK than at k = 20. A method takes the settings that it has."""
    fields = load_method(row.method).cls.Options.model_fields
    settings = {name: value for name, value in settings.items() if name in fields}
    require_the_same_in_any_company(row, settings, twenty_targets(boston), steps=25)


@trained_variants
def test_looking_moves_nothing(row, settings):
    """Where a trace wants a point, the steps are cut; what they compute must not depend on it."""
    data = TrainingProblems.of(toys()[:2])
    watched, alone = (make(row, settings, data, [1, 2]) for _ in range(2))
    train(watched, "cpu", lambda steps, seconds: watched.posterior(), [0, 1, 2, 5, STEPS])
    train(alone, "cpu")
    assert all(map(same, numbers(watched), numbers(alone)))


@trained_variants
def test_a_longer_run_begins_with_the_shorter_one(row, settings):
    settings = {name: value for name, value in settings.items() if name not in ("lr_schedule", "averaging")}
    if "averaging" in load_method(row.method).cls.Options.model_fields:
        settings["averaging"] = 0.0
    data = TrainingProblems.of(toys()[:2])
    longer, seen = make(row, settings, data, [1, 2]), {}
    train(longer, "cpu", lambda steps, seconds: seen.update({steps: numbers(longer)}), [7])
    for steps in (7,):
        shorter = make(row, settings, data, [1, 2], steps=steps)
        train(shorter, "cpu")
        assert shorter.num_steps == steps
        assert all(map(same, numbers(shorter), seen[steps]))


@variants
def test_a_nan_among_one_problems_targets_is_its_own_misfortune(row, settings):
    problems, planted = list(toys()[:3]), 1
    places = list(range(3))
    healthy = trained(row, settings, TrainingProblems.of(problems), places)
    data = TrainingProblems.of(problems)
    data.y[planted] = math.nan
    method = make(row, settings, data, seeds_for(row, places))
    if row.closed_form:
        train(method, "cpu")
    else:
        train(method, "cpu", Tracer(method, problems), trace_steps(STEPS))
    reasons = method.divergences()
    assert [reasons[place] for place in places if place != planted] == [None] * 2
    q = unstack(method.posterior())
    status = _score_cell(q[planted], problems[planted], reasons[planted], None)
    assert status["status"] == "diverged"
    if not row.closed_form:
        # Every target is NaN, so that the first loss, that of step 0, is.
        found = re.search(r"at step (\d+)$", status["reason"])
        assert found, status["reason"]
        assert int(found[1]) == 0
    for place in places:
        if place != planted:
            assert same((q[place].mean, q[place].covariance_tril()), healthy[place])


def nonsense(row: Row) -> list[tuple[str, Any]]:
    fields = load_method(row.method).cls.Options.model_fields
    both = [*NONSENSE.items(), *MORE_NONSENSE.get(row.method, {}).items()]
    return [(name, value) for name, values in both if name in fields for value in values]


@rows
def test_unknown_options_are_refused_and_the_nearest_one_is_named(row):
    entry = load_method(row.method)
    for name in entry.cls.Options.model_fields:
        if len(name) > 2:
            with pytest.raises(InputError, match=f"method {row.method}, option '{name}_': .*did you mean '{name}'"):
                entry.options({f"{name}_": 1})
    with pytest.raises(InputError, match=f"method {row.method}, option 'zzz': .*its options: "):
        entry.options({"zzz": 1})


@rows
def test_nonsense_is_refused_in_one_sentence_that_says_what_was_got(row):
    entry = load_method(row.method)
    assert bool(nonsense(row)) != row.closed_form
    for name, value in nonsense(row):
        with pytest.raises(InputError) as caught:
            entry.options({name: value})
        message = str(caught.value)
        assert message.startswith(f"method {row.method}, option '{name}': got {value!r}, "), message
        assert "\n" not in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "rand-a", "--set", "lrr=1"), "did you mean 'lr'"),
        (("--method", "rand-a", "--set", "lr=0"), "method rand-a, option 'lr': got 0"),
        (("--method", "rand-a", "--set", "lr=.nan"), "method rand-a, option 'lr': got nan"),
        (("--method", "rand-a", "--set", "kl_weight=-1"), "method rand-a, option 'kl_weight"),
        (("--method", "rand-a", "--measurement-points", "0"), "--measurement-points is 0, expected 1 or more"),
        (("--method", "rand-a", "--set", "M=10"), "--set M is not an option"),
        (("--method", "mean-field-vi", "--max-steps", "0"), "--max-steps is 0, expected 1 or more"),
        (("--method", "ssge", "--set", "S=1"), "method ssge, option 'S': got 1"),
        (("--method", "mean-field-vi", "--family", "full"), "no chosen method has a family among full"),
    ],
)
def test_the_command_line_refuses_nonsense_in_one_line_and_writes_nothing(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as exit_:
        main(["run", "--dataset", "toy", *arguments, "--out", str(tmp_path / "out"), "--wandb", "off"])
    out, err = capsys.readouterr()
    assert exit_.value.code == 2
    assert out == ""
    assert err.startswith("fsvi-bench: ")
    assert err.count("\n") == 1
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()


@rows
def test_what_nobody_chose_suits_the_smallest_data_set(row):
    """`fsvi-bench run --dataset toy` runs every method on 40 rows: where fewer rows are than asked for, all are taken."""
    data = TrainingProblems.of(toys()[:1])
    trained(row, {}, data, [0], steps=1)
    if "minibatch" in load_method(row.method).cls.Options.model_fields and row.method != "fixed-a":
        full, more = (trained(row, {"minibatch": rows}, data, [0], steps=2) for rows in ("full", 1000))
        assert same(full[0], more[0])


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("rand-a", {"M": 82}, "M=82 asks for 41 distinct training inputs, but a split has 40"),
        ("rand-a-ngd", {"M": 82}, "M=82 asks for 41 distinct training inputs, but a split has 40"),
        ("ssge", {"M": 41, "draw_A": "data"}, "M=41 asks for 41 distinct training inputs, but a split has 40"),
        ("fixed-a", {"M": 82}, "M=82 asks for 41 distinct training inputs, but a split has 40"),
        ("fixed-a", {"minibatch": 7}, "optimizer=lbfgs takes minibatch=full"),
        ("fixed-a", {"averaging": 0.5}, "optimizer=lbfgs takes minibatch=full and averaging=0"),
    ],
)
def test_what_a_data_set_is_too_small_for_is_refused(method, settings, message):
    row = Row(method, "ffg")
    with pytest.raises(InputError, match=message):
        trained(row, settings, TrainingProblems.of(toys()[:1]), [0])
