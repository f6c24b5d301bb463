"""Certificates vouch for a task, are re-derived from the task alone, and refuse what rounding has eaten."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from fsvi_bench.errors import InputError, TaskRefused
from fsvi_bench.tasks.card import FitSettings
from fsvi_bench.tasks.certificate import Certificate, Fit, Limits, certify, differences, read_certified, save
from fsvi_bench.tasks.task import FeatureMap, Task


@pytest.fixture
def certificate(toy):
    return certify(toy)


def singular_problem(noise_variance=1e-15):
    """Sixty points, ten features of which two are equal, and next to no noise: Λ has condition 1e16."""
    g = torch.Generator().manual_seed(0)
    X = torch.rand(60, 1, generator=g, dtype=torch.float64)
    centres = torch.linspace(0, 1, 9, dtype=torch.float64)
    centres = torch.cat([centres, centres[:1] + 1e-9])[:, None]
    one = torch.tensor(1.0, dtype=torch.float64)
    feature_map = FeatureMap(centres, torch.ones(1, dtype=torch.float64), one, tril=None)
    from tests.tasks.test_task_file import make_task

    task = replace(
        make_task(k=10),
        inducing_points=centres,
        features="rbf-grid",
        noise_variance=torch.tensor(noise_variance, dtype=torch.float64),
    )
    y = torch.sin(6 * X[:, 0])
    return Task(task, feature_map, X, y, X[:5], y[:5])


def test_it_holds_for_a_sound_task(certificate):
    certificate.require_limits()
    assert {check.method for check in certificate.posterior_checks} == {"cholesky", "woodbury"}
    # cond(Λ) is 2e3 here, so float64 leaves 1e-13 of three routes to the same posterior.
    assert certificate.largest_difference() < 1e-11
    assert certificate.condition_precision == pytest.approx(2195, rel=0.01)


@pytest.mark.data
def test_it_recomputes_the_bound_that_the_reference_states(boston):
    """The reference file's own `elbo` metadata: the collapsed bound at these parameters, computed elsewhere."""
    assert certify(boston).bound == pytest.approx(-156.36705025549236, rel=1e-10)


def test_it_is_read_back_unchanged(toy, certificate, tmp_path):
    save((toy.frozen, certificate), path := tmp_path / "split-00.safetensors")
    beside = tmp_path / "split-00.certificate.json"
    assert read_certified(path)[1] == certificate
    assert json.loads(beside.read_text())["format"] == "fsvi-certificate/1"
    other = json.dumps({**certificate.model_dump(mode="json"), "surprise": 1})
    for text, words in (("{}", "not a valid certificate"), (other, "surprise"), ("", "not a valid certificate")):
        beside.write_text(text)
        with pytest.raises(InputError, match=words):
            read_certified(path)


def test_what_it_says_otherwise_is_named(certificate):
    checks = certificate.posterior_checks
    worse = tuple(check.model_copy(update={"mean_relative_difference": 1e-3}) for check in checks)
    assert differences(certificate, certificate) == []
    for changes, words in (
        (
            {"log_evidence": certificate.log_evidence * (1 + 1e-7), "N": 41},
            ["says N 41, recomputed 40", "log_evidence"],
        ),
        ({"condition_precision": 1.0}, ["condition_precision"]),
        ({"posterior_checks": checks[:1]}, ["different posterior checks"]),
        ({"posterior_checks": worse}, ["accurate to"]),
    ):
        found = differences(certificate.model_copy(update=changes), certificate)
        assert [said in line for line, said in zip(found, words, strict=True)] == [True] * len(words)


def test_a_posterior_lost_to_rounding_is_refused():
    with pytest.raises(TaskRefused, match=r"toy split 0 is refused: .*refit it with a larger noise floor or jitter"):
        certify(singular_problem()).require_limits()


BAD = (1e16, float("nan"), float("inf"))


@pytest.mark.parametrize("value", BAD)
def test_the_condition_is_limited(certificate, value):
    with pytest.raises(TaskRefused, match="condition number"):
        certificate.model_copy(update={"condition_precision": value}).require_limits()


@pytest.mark.parametrize("value", [1e-5, *BAD])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("field", ["mean_relative_difference", "covariance_relative_difference", "kl"])
def test_every_difference_between_two_routes_is_limited(certificate, field, which, value):
    """NaN in any one of them, beside sound ones, must not slip through a maximum."""
    checks = list(certificate.posterior_checks)
    checks[which] = checks[which].model_copy(update={field: value})
    with pytest.raises(TaskRefused, match="between the QR and"):
        certificate.model_copy(update={"posterior_checks": tuple(checks)}).require_limits()


@pytest.mark.parametrize("bound", [1.0, float("nan")])
def test_a_fitted_bound_that_is_not_the_recomputed_one_is_refused(certificate, bound):
    fit = Fit(
        bound=bound, bound_per_point=0, iterations=1, evaluations=1, converged=True, message="", gradient_norm=0,
        seconds=0, settings=FitSettings(), versions={},
    )  # fmt: skip
    with pytest.raises(TaskRefused, match="fitted and recomputed bound"):
        certificate.model_copy(update={"fit": fit}).require_limits()


def test_limits_in_a_file_cannot_loosen_the_present_ones(certificate):
    loose = {"limits": Limits(condition_precision=1e300), "condition_precision": 1e16}
    with pytest.raises(TaskRefused, match="expected at most 1e"):
        certificate.model_copy(update=loose).require_limits()


def test_a_certificate_without_checks_is_refused(certificate):
    with pytest.raises(ValueError, match="posterior_checks"):
        Certificate.model_validate({**certificate.model_dump(), "posterior_checks": ()})


def test_one_that_holds_nan_is_never_written(toy, certificate, tmp_path):
    with pytest.raises(TaskRefused, match="NaN"):
        save((toy.frozen, certificate.model_copy(update={"bound": float("nan")})), tmp_path / "task.safetensors")
    assert list(tmp_path.iterdir()) == []
