"""The suite for others' methods: ours pass it, and every check finds the mistake that it is there for."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from fsvi_bench.conformance import CHECKS, Subject, check_method, checks, parametrize_with_checks, subjects
from fsvi_bench.conformance.problems import nudged, toy_batch
from fsvi_bench.conformance.process import random_state, settings_of_process
from fsvi_bench.conformance.subject import Failed
from fsvi_bench.methods.registry import MethodDefaults, MethodEntry, load_method, method_names
from fsvi_bench.posteriors.trainable import TrainableGaussian
from fsvi_bench.seeds import derived_generator
from tests.conformance import broken
from tests.conformance.broken import BROKEN, Descends, Sound


def subject_of(cls, **options):
    entry = MethodEntry(cls.__name__, cls, MethodDefaults(title="", summary=""), "0" * 64, cls.__name__)
    return Subject(entry, cls.families[0], **options)


def found(cls, check):
    return next(each for each in check_method([subject_of(cls)], [check]).findings if each.check == check)


@pytest.mark.parametrize(("cls", "check", "words"), BROKEN, ids=[f"{cls.__name__}-{check}" for cls, check, _ in BROKEN])
def test_a_check_finds_what_it_is_there_for(cls, check, words):
    finding = found(cls, check)
    assert finding.status == "failed"
    assert re.search(words, finding.message), finding.message
    assert "\n" not in finding.message


def test_what_has_no_posterior_is_asked_nothing_else():
    """One failing, not the same one nineteen times."""
    report = check_method([subject_of(broken.NotANumber)])
    assert [each.check for each in report.findings if each.status == "failed"] == ["posterior after training"]
    assert {each.message for each in report.findings if each.status == "not applicable"} == {
        "first this has to be mended: posterior after training"
    }


def test_a_negative_kl_is_found():
    """In the suite an odd factor is found before it comes to scores, so that they are asked directly."""
    with pytest.raises(Failed, match="no KL is negative"):
        checks.scores_are_numbers(subject_of(broken.NegativeKL))


def test_every_check_has_a_method_that_fails_it():
    """But the one that needs a GPU, which has a test of its own."""
    assert {check for _, check, _ in BROKEN} == set(CHECKS) - {"the same on a GPU"}


@pytest.mark.parametrize("cls", [Sound, Descends])
def test_a_sound_method_passes_all(cls):
    """Whether it draws or not: what trains is looked at on the way and held to its budget."""
    report = check_method([subject_of(cls)])
    assert [each.message for each in report.findings if each.status == "failed"] == []
    skipped = {each.check for each in report.findings if each.status == "not applicable"}
    assert skipped == {"reaches its exact limit", "the same on a GPU"}
    assert report.ok
    assert report.verdict == f"{cls.__name__} conforms: 17 ok, 2 not applicable"
    (budget,) = [each for each in report.findings if each.check == "keeps to its budget"]
    assert budget.message == (
        "the steps are those declared (20, each once); what is done within a step cannot be seen from here"
    )
    assert {each.message for each in report.findings if each.status == "ok"} == {"", budget.message}


@parametrize_with_checks([*subjects(Descends), *subjects("exact", ["ffg"])], ["trains", "reaches its exact limit"])
def test_each_check_is_a_test_of_its_own(subject, check, request):
    if subject.entry.name == "Descends" and "exact limit" in request.node.name:
        with pytest.raises(pytest.skip.Exception, match="claims no exact limit"):
            check(subject)
    else:
        check(subject)


def test_a_check_that_fails_fails_its_test():
    (case,) = parametrize_with_checks(subjects(broken.Raises), ["trains"]).args[1]
    assert case.id == "Raises-ffg-trains"
    with pytest.raises(AssertionError, match="ValueError: planted"):
        case.values[1](case.values[0])


def test_a_named_number_of_steps_is_kept_and_else_late_steps_are_seen():
    assert subject_of(Sound).for_long.options.max_steps == 100
    assert subject_of(Sound, settings={"max_steps": 8}).for_long.options.max_steps == 8


@pytest.fixture
def on_a_gpu_moved_by(monkeypatch):
    """What a GPU would give is planted: the CPU's numbers, the first problem's mean moved."""
    trained = Subject.trained

    def plant(by):
        def train(subject, data, places=None, seed=0, device="cpu"):
            (mean, tril), *others = trained(subject, data, places, seed)
            return [(mean + by if device == "cuda" else mean, tril), *others]

        monkeypatch.setattr(Subject, "trained", train)

    return plant


def test_on_a_gpu_numbers_may_differ_by_a_millionth(on_a_gpu_moved_by):
    on_a_gpu_moved_by(5e-7)
    checks.on_gpu(subject_of(Sound, gpu=True))
    on_a_gpu_moved_by(2e-6)
    with pytest.raises(Failed, match=r"differs from the CPU's numbers by 2\.0e-06, expected 1e-06 at most"):
        checks.on_gpu(subject_of(Sound, gpu=True))


def test_on_a_gpu_numbers_may_differ_as_far_as_rounding_is_amplified(on_a_gpu_moved_by):
    """RANDA's full covariance amplifies it (an H100 moved it by 1.1e-4), the factorised one does not."""
    settings, entry = {"M": 10}, load_method("rand-a")
    on_a_gpu_moved_by(1.1e-4)
    checks.on_gpu(Subject(entry, "full", settings, gpu=True))
    with pytest.raises(Failed, match=r"by 1\.\de-04, expected 1e-06 at most"):
        checks.on_gpu(Subject(entry, "ffg", settings, gpu=True))
    on_a_gpu_moved_by(0.1)
    with pytest.raises(Failed, match=r"by 9\.\de-02, expected \de-0[2345] at most"):
        checks.on_gpu(Subject(entry, "full", settings, gpu=True))


def test_what_amplifies_without_bounds_is_held_to_a_hundredth(on_a_gpu_moved_by, monkeypatch):
    monkeypatch.setattr(checks, "_OF_ROUNDING", 1e300)
    on_a_gpu_moved_by(0.1)
    with pytest.raises(Failed, match="expected 1e-02 at most"):
        checks.on_gpu(Subject(load_method("rand-a"), "full", {"M": 10}, gpu=True))


def test_a_nudge_is_one_unit_in_the_last_place_of_a_copy():
    data = toy_batch(2)
    moved, again, other = nudged(data, 0), nudged(data, 0), nudged(data, 1)
    for read in (lambda each: each.Phi, lambda each: each.feature_map.inducing_points):
        steps = (read(moved) - read(data)).abs() / torch.finfo(torch.float64).eps / read(data).abs()
        assert ((steps >= 0.49) & (steps <= 1)).all()
        assert read(moved).equal(read(again))
        assert not read(moved).equal(read(other))
        assert read(data).equal(read(toy_batch(2)))
    assert moved.y.equal(data.y)


@pytest.mark.slow
@pytest.mark.parametrize("name", method_names())
def test_our_own_methods_conform(name, monkeypatch):
    # Beartype, which checks shapes while tests run, chooses by Python's generator which items of a list it looks at.
    kept = {"torch", "NumPy"}
    states = lambda: {each: state for each, state in random_state().items() if each in kept}  # noqa: E731
    monkeypatch.setattr(checks, "random_state", states)
    entry = load_method(name)
    small = {"M": 10, "S": 20}  # SSGE's time goes with the cube of its function samples
    points = {option: value for option, value in small.items() if option in entry.cls.Options.model_fields}
    gpu = torch.cuda.is_available()
    report = check_method([Subject(entry, family, points, gpu=gpu) for family in entry.cls.families])
    assert [(each.check, each.message) for each in report.findings if each.status == "failed"] == []
    claimed = {
        each.family for each in report.findings if (each.check, each.status) == ("reaches its exact limit", "ok")
    }
    assert claimed == set(entry.cls.exact_limits)


CONDUCT = ["leaves random generators alone", "leaves the process as it was", "writes no files"]


def test_whatever_a_method_changes_is_put_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = random_state(), settings_of_process()
    for cls in (broken.LeavesDtype, broken.LeavesThreads, broken.DrawsGlobally, broken.SeedsNumPy, broken.WritesALog):
        assert not check_method([subject_of(cls)], CONDUCT).ok
    assert (random_state(), settings_of_process()) == before
    assert Path.cwd() == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_train_is_asked_nothing_else():
    report = check_method([subject_of(broken.Raises)])
    assert [each.status for each in report.findings] == ["failed"] + ["not applicable"] * (len(CHECKS) - 1)
    assert report.verdict.startswith("Raises does not conform: 1 failed, 0 ok, 18 not applicable; ")


def test_the_command(cli, tmp_path):
    path = tmp_path / "mine.py"
    source = Path(broken.__file__).read_text().replace("class Sound(", "class Fine(").replace("(Sound", "(Fine")
    path.write_text(source.replace("Sound.Options", "Fine.Options"))
    status, out, err = cli("methods", "check", f"{path}:Fine", "--device", "cpu", "--max-steps", "8")
    assert (status, err) == (0, "")
    assert out.splitlines()[-1] == "Fine conforms: 17 ok, 2 not applicable"
    status, out, _ = cli("methods", "check", f"{path}:IgnoresMaxSteps", "--set", "size=0.5", "--json")
    assert status == 1
    document = json.loads(out)
    assert not document["ok"]
    (failed,) = [each for each in document["findings"] if each["status"] == "failed"]
    assert failed["check"] == "keeps to its budget"
    assert failed["family"] == "ffg"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["exact", "--family", "bernoulli"], "unknown family of exact 'bernoulli'"),
        (["exact", "--set", "lr=1"], "option 'lr'"),
        (["exat"], "did you mean 'exact'"),
        (["exact", "--device", "tpu"], "expected auto, cpu or cuda"),
    ],
)
def test_the_command_refuses_what_it_does_not_know(cli, arguments, said):
    status, out, err = cli("methods", "check", *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err


@pytest.mark.parametrize("family", ["full", "ffg"])
def test_a_trainable_gaussian_starts_at_the_prior_and_has_the_gradients_of_its_form(family):
    q = TrainableGaussian(family, 3, 7)
    identity = torch.eye(7, dtype=torch.float64)
    assert torch.equal(q.posterior().covariance_tril(), identity.expand(3, 7, 7))
    assert not q.posterior().mean.any()
    assert not q.posterior().mean.requires_grad
    weights = torch.from_numpy(derived_generator(0).standard_normal((7, 7)))
    mean, root = q()
    spread = (weights * root[1, :7, :7]).sum() if family == "full" else (weights.diagonal() * root[1, :7]).sum()
    (2 * mean[1].sum() + spread).backward()
    gradients = {name: parameter.grad[1] for name, parameter in q.named_parameters()}
    # At the prior ∂L_ii/∂log L_ii = 1, and what lies below the diagonal is itself.
    assert torch.equal(gradients["mean"][:7], torch.full((7,), 2.0, dtype=torch.float64))
    assert ("lower" in gradients) == (family == "full")
    if family == "full":
        assert torch.equal(gradients["lower"][:7, :7], weights.tril())
    else:
        assert torch.equal(gradients["log_scale"][:7], weights.diagonal())
    assert not any(parameter.grad[[0, 2]].any() for parameter in q.parameters())
