"""Which scores of a re-run are compared with the submitted file's, and how closely."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from fsvi_bench.leaderboard.rerun import comparison
from fsvi_bench.leaderboard.rerun.comparison import COMPARED, draw_cells
from fsvi_bench.leaderboard.verification import TOLERANCE
from tests.leaderboard.stubbed import SETTINGS, ends_as_submitted, plant, refusal, run

NUMBER = r"([-+.e\d]+)"


def floor_of(problem):
    """½(Σ log Λ_ii − log det Λ) from the precision itself."""
    precision = problem.Phi.T @ problem.Phi / problem.frozen.noise_variance + torch.eye(5, dtype=torch.float64)
    return float(0.5 * (precision.diagonal().log().sum() - torch.linalg.slogdet(precision).logabsdet))


def claimed(cells, tasks, name, times, family):
    """The cells as if the files' scores b had this one so that the runs' lies `times` (1e-6 + 1e-4 b) above it; an
    ffg's KL is taken above its floor."""
    changed = []
    for cell in cells:
        floor = floor_of(tasks.problem((cell.dataset, cell.split))) if (family, name) == ("ffg", "kl") else 0.0
        value = floor + (getattr(cell.scores, name) - floor - times * 1e-6) / (1 + times * 1e-4)
        changed.append(cell.model_copy(update={"scores": cell.scores.model_copy(update={name: value})}))
    return changed


CASES = [*((family, name) for family in ("full", "ffg") for name in COMPARED)]
CASES.append(pytest.param("bernoulli", "predictive_kl_box", marks=pytest.mark.slow))  # a mixture's integrals
ONE = replace(SETTINGS, count=1)


@pytest.mark.parametrize(("family", "name"), CASES)
def test_each_score_must_lie_within_the_tolerance(monkeypatch, tmp_path, family, name):
    """Whether the run's is the larger or the smaller one."""
    tasks, posteriors, make = plant(tmp_path, family)
    whole, cells = make()
    ends = ends_as_submitted(tasks, posteriors)
    for sign in (1, -1):
        within = claimed(cells, tasks, name, sign * 0.99, family)
        found, _ = run(monkeypatch, ends, whole, tasks, within, ONE)
        assert {each.score for each in found.official} == {"predictive_kl_box" if family == "bernoulli" else "kl"}
        beyond = claimed(cells, tasks, name, sign * 1.01, family)
        said = refusal(monkeypatch, ends, whole, tasks, beyond, ONE)
        (drawn,) = draw_cells(beyond, whole.sha256, ONE)
        (honest,) = [cell for cell in cells if (cell.dataset, cell.split) == (drawn.dataset, drawn.split)]
        floor = floor_of(tasks.problem((drawn.dataset, drawn.split))) if (family, name) == ("ffg", "kl") else 0.0
        words = f"{name} above the factorised floor of {floor:.6g}" if floor else name
        assert said.startswith(f"submission planted, {drawn.dataset} split {drawn.split}: {words} of the submitted")
        assert "it is said to have run on 'one core', and here is '" in said
        both = re.search(rf"file is {NUMBER}, of its code run again {NUMBER}, which differ by more than 0.0001", said)
        assert [float(number) for number in both.groups()] == pytest.approx(
            [getattr(cell.scores, name) - floor for cell in (drawn, honest)], rel=1e-5
        )


def test_a_factorised_kl_is_compared_above_its_floor(monkeypatch, tmp_path):
    """Of the whole KL the difference is a third of the tolerance at most; of what is ranked it is a tenth."""
    tasks, posteriors, make = plant(tmp_path, "ffg", distance=0.01)
    whole, cells = make()
    beyond = claimed(cells, tasks, "kl", 1000.0, "ffg")
    for cell, changed in zip(cells, beyond, strict=True):
        assert abs(cell.scores.kl - changed.scores.kl) < 0.3e-2 * changed.scores.kl
    settings = replace(ONE, tolerance=1e-2)
    said = refusal(monkeypatch, ends_as_submitted(tasks, posteriors), whole, tasks, beyond, settings)
    assert "kl above the factorised floor of" in said


def test_rounding_of_a_closed_form_agrees():
    agree = comparison._agree
    assert agree(3e-14, -2e-12, TOLERANCE)
    assert not agree(3e-6, 1e-9, TOLERANCE)
    assert agree(None, None, TOLERANCE)
    assert not agree(None, 1.0, TOLERANCE)
    assert not agree(float("nan"), 1.0, TOLERANCE)
    assert not agree(float("inf"), 1.0, TOLERANCE)
    assert agree(float("inf"), float("inf"), TOLERANCE)
