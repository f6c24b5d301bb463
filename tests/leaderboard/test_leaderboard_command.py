"""`fsvi-bench leaderboard` freeze, compare and serve; build is tested where its files are."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from urllib.request import urlopen

import pytest

from fsvi_bench.cli.app import main
from fsvi_bench.leaderboard.comparing import comparison
from fsvi_bench.leaderboard.entries import read_entries
from fsvi_bench.leaderboard.references import REFERENCE_FILE, freeze, read_references, write_references
from fsvi_bench.leaderboard.site.output import write_site
from fsvi_bench.tasks import official
from tests.leaderboard.boards import references, save_entry
from tests.leaderboard.planted import planted_tasks


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["leaderboard", *map(str, arguments)])
    return ended.value.code


def test_freeze_writes_the_references_of_the_protocols_tasks(tmp_path, monkeypatch, capsys):
    tasks, asked = planted_tasks({"concrete": 1, "yacht": 2}), []
    splits = {"concrete": [0], "yacht": [0, 1], "diabetes": [0]}  # diabetes is in no leaderboard
    monkeypatch.setattr(official, "official_splits", lambda name: splits.get(name, []))
    monkeypatch.setattr(official, "official_tasks", lambda names, data_dir: asked.append((names, data_dir)) or tasks)
    (tmp_path / "submissions").mkdir()
    assert run("freeze", "--root", tmp_path, "--data-dir", tmp_path) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'reference.json'}\n"
    assert asked == [(["concrete", "yacht"], tmp_path)]
    assert read_references(tmp_path / "reference.json") == freeze(tasks, [])


def test_freeze_without_a_leaderboard_or_tasks_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(official, "official_splits", lambda name: [])
    assert run("freeze", "--root", tmp_path) == 2
    assert "submissions" in capsys.readouterr().err
    (tmp_path / "submissions").mkdir()
    assert run("freeze", "--root", tmp_path) == 2
    assert "there are no official tasks" in capsys.readouterr().err
    assert not (tmp_path / "reference.json").exists()


@pytest.fixture
def board(tmp_path):
    """Two entries of the full track, of which one diverged on a split, one of another track, one not verified."""
    table, root = references({"boston": 12, "energy": 12, "yacht": 3}), tmp_path / "board"
    write_references(root / REFERENCE_FILE, table)
    save_entry(root, "near", table, kl=lambda task: 1 + 0.001 * task.split)
    save_entry(root, "far", table, kl=lambda task: 2 + 0.002 * task.split, diverged={("yacht", 1)})
    save_entry(root, "other", table, "ffg", missing=("boston",))
    save_entry(root, "new", table)
    (root / "verified" / "new.json").unlink()
    return root


def test_compare_prints_what_the_functions_say(board, capsys):
    assert run("compare", "near", "far", "--root", board) == 0
    said = capsys.readouterr().out
    rows = {line.split()[0]: line.split() for line in said.splitlines() if line.strip()}
    entries = {entry.name: entry for entry in read_entries(board).entries}
    expected = comparison(entries["near"], entries["far"], read_references(board / REFERENCE_FILE))
    for each in expected.differences:
        ends = ["–"] if each.interval is None else [f"{each.interval[0]:.4g}", "to", f"{each.interval[1]:.4g}"]
        numbers = [f"{number:.4g}".replace("inf", "∞") for number in (each.a, each.b, each.log_ratio)]
        p_values = [f"{number:.4g}" for number in (each.p_value, each.adjusted)]
        closer = ["near"] if each.closer == "a" else []
        assert rows[each.dataset] == [each.dataset, *numbers, *ends, *p_values, *closer]
    assert [each.closer for each in expected.differences] == ["a", "a", None]
    assert rows["yacht"][2] == "∞"
    assert said.startswith("KL(q ‖ exact posterior), nats")
    assert "each counted as 1e-06 nats at least" in said


def test_compare_takes_the_projects_references_where_a_board_has_none(board, capsys):
    assert run("compare", "near", "far", "--root", board) == 0
    own = capsys.readouterr().out
    (board / REFERENCE_FILE).unlink()
    assert run("compare", "near", "far", "--root", board) == 0
    others = capsys.readouterr().out
    assert "boston" in own
    assert "concrete" not in own
    assert "concrete" in others


def test_compare_across_tracks_says_by_what_and_why(board, capsys):
    assert run("compare", "near", "other", "--root", board) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("near is in track full and other in ffg, whose headlines differ: compared by predictive KL")
    assert second.startswith("predictive KL on box inputs")


def test_compare_as_json_has_infinity_as_a_word_and_null_for_what_is_missing(board, capsys):
    assert run("compare", "near", "far", "--root", board, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["a"], found["b"], found["score"]) == ("near", "far", "kl")
    yacht = found["differences"][2]
    assert (yacht["b"], len(yacht["interval"])) == ("Infinity", 2)
    assert yacht["log_ratio"] == pytest.approx((2 * math.log10(0.5) - 1) / 3, rel=1e-3)  # what diverged counts as -1
    assert run("compare", "near", "other", "--root", board, "--json") == 0
    across = json.loads(capsys.readouterr().out)
    assert across["score"] == "predictive_kl_box"
    assert (across["differences"][0]["b"], across["differences"][0]["p_value"]) == (None, None)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fat", "unknown entry 'fat': did you mean 'far'"),
        ("new", "new has no scores to compare: it has not been verified yet"),
    ],
)
def test_compare_of_what_has_no_scores_is_refused(board, capsys, name, said):
    assert run("compare", "near", name, "--root", board) == 2
    assert said in capsys.readouterr().err


def test_serve_prints_the_address_and_ends_on_ctrl_c(tmp_path):
    write_site(tmp_path / "site", [("index.html", b"<p>here</p>")])
    command = [sys.executable, "-m", "fsvi_bench", "leaderboard", "serve", "--root", str(tmp_path), "--port", "0"]
    # A CI job may itself run with interrupts ignored, which children would inherit.
    settings = {"text": True, "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **settings) as serving:
        try:
            address = serving.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:")
            with urlopen(address) as answer:
                assert answer.read() == b"<p>here</p>"
            serving.send_signal(signal.SIGINT)
            _, errors = serving.communicate(timeout=60)
        finally:
            serving.kill()
    assert (serving.returncode, errors) == (0, "Ctrl-C ends it.\n")


def test_serve_without_a_site_says_how_to_make_one(tmp_path, capsys):
    assert run("serve", "--site", tmp_path) == 2
    assert "make it with `fsvi-bench leaderboard build`" in capsys.readouterr().err
