"""Runs made again, and what `verify --check` says of them."""

import json
import math

import pytest

from fsvi_bench.leaderboard import verifying
from fsvi_bench.leaderboard.agreement import agreement, compare
from fsvi_bench.leaderboard.edition import Place, write_edition
from fsvi_bench.leaderboard.ranked_tasks import runs
from fsvi_bench.leaderboard.result import result_path, write_result
from tests.leaderboard.boards import DATASETS, edition, entry, read_result, result, write_entry

TASK = Place("ranked", "yacht", 3)


def changed(found, place, **scores):
    """The result with other scores at one place."""
    return found.model_copy(
        update={
            "cells": tuple(
                cell.model_copy(update={"scores": cell.scores.model_copy(update=scores)})
                if cell.place == place
                else cell
                for cell in found.cells
            )
        }
    )


@pytest.fixture
def kept():
    return result(entry("mine"), edition(DATASETS))


@pytest.mark.parametrize(
    ("scores", "difference"),
    [
        ({"kl": 1.0 + 1e-9}, 1e-9),
        ({"kl": 4.0}, 0.75),  # relative to the larger one, whichever that is
        ({"kl": 0.25}, 0.75),
        ({"kl": math.inf}, math.inf),
        ({"mmd2": 0.5, "mmd2_of_draws": 0.5, "mmd2_deviation": 0.5}, math.inf),  # it had none
        ({"objective_gap": 0.05 + 1e-4, "kl": 1.0 + 1e-9}, 1e-4 / 0.0501),
    ],
)
def test_the_difference_of_runs_is_that_of_the_score_furthest_apart(kept, scores, difference):
    found = {each.again.place: each.difference for each in compare(kept, changed(kept, TASK, **scores))}
    assert found.pop(TASK) == pytest.approx(difference, rel=1e-6)
    assert set(found.values()) == {0.0}
    assert len(found) == len(runs(edition(DATASETS))) - 1


def test_rounding_of_zero_is_no_difference(kept):
    one, other = (changed(kept, TASK, objective_gap=gap) for gap in (1e-13, -3e-12))
    assert max(each.difference for each in compare(one, other)) == pytest.approx(3.1e-10)


def test_other_tasks_and_ends_do_not_agree_whatever_the_scores(kept):
    cell = kept.cells[0]
    lost = cell.model_copy(update={"status": "diverged", "scores": None})
    moved = cell.model_copy(update={"task": cell.task.model_copy(update={"sha256": "f" * 64})})
    for other in (lost, moved):
        (found, *_) = compare(kept, kept.model_copy(update={"cells": (other,)}))
        assert not found.agrees
    (both, *_) = compare(*(kept.model_copy(update={"cells": (lost,)}) for _ in range(2)))
    assert both.difference == 0.0


def test_facts_of_tasks_and_waypoints_must_agree_but_not_times(kept):
    cell = kept.cells[0]
    (waypoint,) = cell.waypoints
    changes = (
        ({"task": cell.task.model_copy(update={"map_joint_predictive_kl_box": 0.5})}, 0.5),
        ({"task": cell.task.model_copy(update={"N": 80})}, 0.2),
        ({"waypoints": (waypoint.model_copy(update={"joint_predictive_kl_test": 0.2}),)}, 0.5),
        ({"waypoints": (waypoint.model_copy(update={"kl": math.inf}),)}, math.inf),
        ({"waypoints": (waypoint.model_copy(update={"seconds": 9.0}),), "seconds": 9.0}, 0.0),
        ({"waypoints": (waypoint.model_copy(update={"steps": 50, "kl": 7.0}),)}, 0.0),  # another moment
    )
    for change, difference in changes:
        (found, *_) = compare(kept, kept.model_copy(update={"cells": (cell.model_copy(update=change),)}))
        assert found.difference == pytest.approx(difference), change


def test_agreement_in_words(kept):
    count = len(kept.cells)
    assert agreement(compare(kept, changed(kept, TASK, kl=1.0 + 1e-9))) == (
        f"{count} of {count} runs agree with the earlier result (largest relative difference of a number: 1e-09)"
    )
    assert agreement(compare(kept, changed(kept, TASK, kl=2.0))) == (
        f"{count - 1} of {count} runs agree with the earlier result to 1e-06; the largest relative differences are those "
        "of yacht task 3 (0.5)"
    )


# --- The command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def again(tmp_path, monkeypatch, kept):
    """A board with this result; the returned list has what verification is asked for, and how it answers."""
    of, asked = edition(DATASETS), []
    write_edition(tmp_path, of)
    write_entry(tmp_path, entry("mine"))

    def verify(entry, verification, root, executor, progress, only=None):
        asked.append(only)
        cells = tuple(cell for cell in asked[0].cells if only is None or cell.place in only)
        return kept.model_copy(update={"cells": cells, "entry_sha256": entry.sha256})

    monkeypatch.setattr(verifying, "verify", verify)
    asked.append(kept)
    return tmp_path, asked


def own(root, found):
    """The result as that of the entry on the disk."""
    from fsvi_bench.leaderboard.board import read_placed_entry

    mine, _ = read_placed_entry(root / "entries" / "mine")
    return found.model_copy(update={"entry_sha256": mine.sha256})


def check(cli, root, *words):
    return cli("verify", root / "entries" / "mine", "--without-isolation", *words)


def test_check_makes_the_chosen_runs_again_and_writes_nothing(cli, again, kept):
    root, asked = again
    path = result_path(root, kept.edition, "mine")
    write_result(path, own(root, kept))
    before = path.read_bytes()
    for words, places in (
        (["--dataset", "yacht", "--ranked", 3], [TASK]),
        (["--dataset", "yacht", "--ranked", 3, "--official", 0], [TASK, Place("official", "yacht", 0)]),
        (["--official", 1], [Place("official", name, 1) for name in DATASETS]),
    ):
        status, out, err = check(cli, root, "--check", *words)
        assert status == 0, err
        assert list(dict.fromkeys(asked.pop())) == places
        assert f"{len(places)} of {len(places)} runs agree" in err
        assert all(place.name in out for place in places)
    asked[0] = changed(kept, TASK, kl=2.0)
    status, out, err = check(cli, root, "--check", "--dataset", "yacht", "--json")
    (found,) = json.loads(out)
    by_place = {(each["again"]["kind"], each["again"]["number"]): each["difference"] for each in found}
    assert (status, by_place.pop(("ranked", 3)), set(by_place.values())) == (1, 0.5, {0.0})
    assert path.read_bytes() == before


def test_verifying_anew_says_whether_the_numbers_are_the_earlier_ones(cli, again, kept):
    root, _ = again
    status, _, err = check(cli, root)
    assert (status, "agree" in err) == (0, False)  # there was no result
    status, _, err = check(cli, root)
    assert f"{len(kept.cells)} of {len(kept.cells)} runs agree with the earlier result" in err
    path = result_path(root, kept.edition, "mine")
    write_result(path, changed(read_result(path), TASK, kl=3.0))
    status, _, err = check(cli, root)
    assert "of yacht task 3 (0.67)" in err or "of yacht task 3 (0.7)" in err


@pytest.mark.parametrize(
    ("words", "written", "said"),
    [
        (["--check"], False, "so there is nothing to compare with; verify without --check"),
        (["--check", "--ranked", 9], True, "it has ranked tasks 0 to "),
        (["--check", "--dataset", "bostn"], True, "unknown data set of edition v2 'bostn': did you mean 'boston'?"),
        (["--ranked", 1], True, "add --check"),
        (["--check", "--ranked", 1, "--ranked", 9], True, "has no run of boston task 9"),
        (["--check", "--key", "k"], True, "leave one of them out"),
    ],
)
def test_what_cannot_be_checked_is_said_in_a_sentence(cli, again, kept, words, written, said):
    root, asked = again
    if written:
        write_result(result_path(root, kept.edition, "mine"), own(root, kept))
    status, out, err = check(cli, root, *words)
    assert (status, out, said in err, len(asked)) == (2, "", True, 1)


def test_a_result_of_other_code_is_not_compared(cli, again, kept):
    root, asked = again
    write_result(result_path(root, kept.edition, "mine"), kept.model_copy(update={"entry_sha256": "f" * 64}))
    status, _, err = check(cli, root, "--check")
    assert (status, "is of another version of the entry or edition" in err, len(asked)) == (2, True, 1)
