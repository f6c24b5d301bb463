"""Attacks on what is read and ranked: none runs code of an entry. Hostile code in the jail is in `test_jail.py`, spoilt
results in `test_board.py`, pull requests in `test_workflow.py`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.board import read_board
from fsvi_bench.leaderboard.entry import ENTRIES, ENTRY_FILE, read_entry
from fsvi_bench.leaderboard.ranking import rank
from fsvi_bench.leaderboard.result import Result, result_path
from fsvi_bench.leaderboard.signing import ALLOWED_SIGNERS
from tests.leaderboard.boards import DATASETS, edition, entry, make_board, write_entry

SOURCE = b"class M:\n    x = 1\n"
DIABETES = edition(["diabetes"])


def flat(value):
    return lambda place, seed: value


def order(root):
    return [line.name for line in rank(read_board(root), "posterior").lines]


def test_jitter_on_one_data_set_gains_nothing_on_any(tmp_path):
    """An exact posterior made worse on one data set stands beside the exact one at best, and below it where it shows."""
    for level, gained in ((1e-6, 0.0), (0.5, -1.0)):

        def jittered(place, seed, level=level):
            return level if place.dataset == "yacht" else 0.0

        root = make_board(tmp_path / str(level), {"honestly": flat(0.0), "jittered": jittered, "other": flat(3.0)})
        lines = {line.name: line for line in rank(read_board(root), "posterior").lines}
        assert lines["honestly"].place == 1
        assert lines["honestly"].ranks["yacht"] - lines["jittered"].ranks["yacht"] == gained


def test_ten_clones_may_change_the_order_of_two_others(tmp_path):
    """What docs/leaderboard/ranking.md says: nobody's score moves, but clones between two entries weigh the data sets anew.

    `steady` is second on every data set. `uneven` is first on three and last on one, where the clones stand between.
    """

    def steady(place, seed):
        return 2.0

    def uneven(place, seed):
        return 9.0 if place.dataset == "wine" else 1.0

    def between(place, seed):
        return 5.0

    entries = {"steady": steady, "uneven": uneven, "clone": between}
    clones = {f"clone-{'abcdefghj'[i] * 2}": between for i in range(9)}
    before = make_board(tmp_path / "before", entries, edition(DATASETS))
    after = make_board(tmp_path / "after", {**entries, **clones}, edition(DATASETS))
    assert [name for name in order(before) if "clone" not in name] == ["uneven", "steady"]
    assert [name for name in order(after) if "clone" not in name] == ["steady", "uneven"]
    scores = [
        {line.name: line.spreads["kl"] for line in rank(read_board(root), "posterior").lines}
        for root in (before, after)
    ]
    assert all(scores[1][name] == scores[0][name] for name in entries)


def test_a_better_posterior_on_the_way_gains_nothing(tmp_path):
    """Only the final iterate is ranked: steps that were exact before do not count."""
    root = make_board(tmp_path, {"passing": flat(2.0), "staying": flat(1.0)}, DIABETES)
    path = result_path(root, "v2", "passing")
    path.write_text(path.read_text().replace('"seconds":1.0,"kl":2.0', '"seconds":1.0,"kl":0.0'))
    (standing, _) = read_board(root).standings
    assert {point.kl for cell in standing.cells for point in cell.waypoints} == {0.0}
    assert order(root) == ["staying", "passing"]


# --- Files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        b"# coding: utf-7\n# +AAo-import os\n", b"# -*- coding: rot13 -*-\nvzcbeg bf\n", b"# coding: nothing\n",
        "x = 1  # \u202e } \u2066 if admin\u2069".encode(), b"\xef\xbb\xbf# coding: latin-1\n",
    ],
)  # fmt: skip
def test_a_source_that_readers_would_misread_is_refused(tmp_path, source):
    folder = write_entry(tmp_path, entry("mine", source))
    with pytest.raises(InputError, match=r"encoding|reorders"):
        read_entry(folder)


@pytest.mark.parametrize(
    "name", ["conftest.py", "Conftest.py", "test_mine.py", "mine_test.py", "setup.py", "__init__.py", "../x.py"]
)
def test_a_source_that_tools_import_by_its_name_is_refused(tmp_path, name):
    folder = write_entry(tmp_path, entry("mine", SOURCE))
    (folder / "method.py").rename(folder / name)
    (folder / ENTRY_FILE).write_text((folder / ENTRY_FILE).read_text().replace("method.py", name))
    with pytest.raises(InputError, match="file"):
        read_entry(folder)


def test_pytest_over_a_leaderboard_imports_nothing_of_it(tmp_path):
    write_entry(tmp_path, entry("mine", f"open({str(tmp_path / 'ran')!r}, 'w')\ndef test_mine(): ...\n".encode()))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    bare = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=bare, capture_output=True, text=True, check=False)
    assert (done.returncode, (tmp_path / "ran").exists()) == (5, False), done.stdout  # 5: no tests collected


@pytest.mark.parametrize("key", [".".join(["a"] * 20_000), "[" + ".".join(["a"] * 400) + "]\nx", ".".join(["a"] * 900)])
def test_keys_of_many_parts_are_one_sentence(tmp_path, key):
    folder = write_entry(tmp_path, entry("mine"))
    (folder / ENTRY_FILE).write_text(f"{key} = 1\n{(folder / ENTRY_FILE).read_text()}")
    with pytest.raises(InputError) as error:
        read_entry(folder)
    assert len(str(error.value)) < 600


@pytest.mark.slow
@pytest.mark.parametrize("piece", [b"a;", b"-", b"x.", b"elif 1: 1\n", b"(", b"@a\n", b"f'{1}'"], ids=repr)
def test_sources_that_are_hard_to_parse_do_not_stop_a_board(tmp_path, piece):
    """Up to the largest source that is read, 128 KiB."""
    root = make_board(tmp_path, {"first": flat(1.0)}, DIABETES)
    write_entry(root, entry("hard", piece * (2**17 // len(piece)), owner="eve"))
    assert [each.name for each in read_board(root).standings] == ["first", "hard"]
    (root / ENTRIES / "hard" / "method.py").write_bytes(b"#" * (2**17 + 1))
    assert [each.name for each in read_board(root).refused] == ["hard"]


def absent_target(path):
    path.symlink_to(path.with_name("nowhere"))


def large(path):
    with path.open("wb") as stream:
        stream.truncate(10 * 2**30)  # sparse


def device(path):
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [absent_target, os.mkfifo, device, Path.mkdir, large], ids=lambda each: each.__name__)
@pytest.mark.parametrize("where", ["result", "signature", "signers", "entry", "source"])
def test_what_is_no_file_blocks_nothing_and_counts_for_nothing(tmp_path, make, where):
    """Above all, `allowed_signers` that cannot be read never mean that nobody has to sign."""
    root = make_board(tmp_path, {"first": flat(1.0)}, DIABETES, source=SOURCE)
    make_board(tmp_path, {"second": flat(2.0)}, DIABETES)
    path = {"result": result_path(root, "v2", "first"), "signature": Path(f"{result_path(root, 'v2', 'first')}.sig"),
            "signers": root / ALLOWED_SIGNERS, "entry": root / ENTRIES / "first" / ENTRY_FILE,
            "source": root / ENTRIES / "first" / "method.py"}[where]  # fmt: skip
    if where in ("signature", "signers"):
        (root / ALLOWED_SIGNERS).write_text("")
    path.unlink(missing_ok=True)
    make(path)
    board = read_board(root)
    assert "first" not in [line.name for line in rank(board, "posterior").lines]
    assert len(board.standings) + len(board.refused) == 2


@pytest.mark.slow
def test_a_hundred_thousand_files_are_not_read(tmp_path):
    root = make_board(tmp_path, {"first": flat(1.0)}, DIABETES)
    (root / ENTRIES / "many").mkdir()
    for number in range(100_000):
        (root / ENTRIES / "many" / f"{number}.py").touch()
    write_entry(root, entry("many"))
    assert [each.name for each in read_board(root).refused] == ["many"]


def test_a_file_swapped_after_reading_changes_nothing(tmp_path):
    """What is run, hashed and shown are the bytes that were read."""
    folder = write_entry(tmp_path, entry("mine", SOURCE))
    read = read_entry(folder)
    before = read.sha256
    (folder / "method.py").write_bytes(b"raise SystemExit")
    assert (read.source, read.sha256) == (SOURCE, before)
    assert read_entry(folder).sha256 != before


# --- Results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"kl":1.0', '"kl":1.0,"kl":0.5'), ('"kl":1.0', '"kl":1e999'), ('"kl":1.0', '"kl":NaN'), ('"kl":1.0', '"kl":"NaN"'),
        ('"kl":1.0', '"kl":-0.5'), ('"kl":1.0', '"kl":"1.0"'), ('"kl":1.0', '"kl":true'), ('"kl":1.0', '"kl":-Infinity'),
        ('"seconds":1.0', '"seconds":-1.0'), ('"seconds":1.0', '"seconds":1'), ('"steps":100', '"steps":1e2'),
        ('"kl":1.0', '"kl":1.00'), ('"rmse":1.0', '"rmse":"Infinity"'), ('"hardware": "a', '"hardware": "\\ud800'),
        ('"isolation": "', '"isolation": "<b>'), ('"cells": [', '"rank": 1, "cells": ['),
        ('"mmd2":null', '"mmd2":0.5'),  # without its deviation it would tie with every worse score
    ],
)  # fmt: skip
def test_a_result_that_reads_two_ways_or_holds_no_score_is_stale(tmp_path, old, new):
    root = make_board(tmp_path, {"first": flat(1.0)}, DIABETES)
    path = result_path(root, "v2", "first")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    (standing,) = read_board(root).standings
    assert standing.result is None
    assert "cannot be read" in standing.stale or "was changed after `verify` wrote it" in standing.stale


def test_a_result_nested_deeply_is_refused():
    with pytest.raises(ValidationError):
        Result.model_validate_json('{"provenance":' + "[" * 100_000 + "]" * 100_000 + "}")


def test_minus_zero_is_a_valid_number(tmp_path):
    root = make_board(tmp_path, {"first": flat(-0.0), "second": flat(0.0)}, DIABETES)
    assert [line.mean_rank for line in rank(read_board(root), "posterior").lines] == [1.5, 1.5]
    assert json.loads(result_path(root, "v2", "first").read_text())["cells"][0]["scores"]["kl"] == 0
