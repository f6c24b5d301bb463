"""Which results count: those that an allowed signer made of exactly this entry, in exactly this edition."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard import result as results
from fsvi_bench.leaderboard.board import read_board
from fsvi_bench.leaderboard.ranking import rank_track
from fsvi_bench.leaderboard.result import SCORING_VERSION, read_result, result_path, write_result
from fsvi_bench.leaderboard.signing import ALLOWED_SIGNERS, require_key, signature_path, signer
from tests.leaderboard.boards import edition, entry, make_board, result, sign_file, write_entry


@pytest.fixture(scope="session")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    for name in ("lab", "stranger"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name)]
        subprocess.run(command, check=True)
    return folder


def ones(place, seed):
    return 1.0


def twos(place, seed):
    return 2.0


@pytest.fixture
def signed(tmp_path, keys):
    """A board of two entries whose results the lab has signed."""
    root = make_board(tmp_path, {"first": ones, "second": twos}, edition(["diabetes"]))
    (root / ALLOWED_SIGNERS).write_text(f'lab namespaces="fsvi-bench-result" {(keys / "lab.pub").read_text()}')
    for name in ("first", "second"):
        sign_file(result_path(root, "v2", name), keys / "lab")
    return root


def stale(root, name="first"):
    return next(each for each in read_board(root).standings if each.name == name).stale


def test_signed_results_count_and_say_who_signed(signed):
    board = read_board(signed)
    assert [(each.stale, each.signer) for each in board.standings] == [(None, "lab")] * 2
    assert [line.name for line in rank_track(board, "full").lines] == ["first", "second"]


def edited(root, keys):
    path = result_path(root, "v2", "first")
    path.write_bytes(path.read_bytes().replace(b'"kl":1.0', b'"kl":0.1', 1))


def unsigned(root, keys):
    signature_path(result_path(root, "v2", "first")).unlink()


def by_a_stranger(root, keys):
    sign_file(result_path(root, "v2", "first"), keys / "stranger")


def for_another_purpose(root, keys):
    path = result_path(root, "v2", "first")
    signature_path(path).unlink()
    subprocess.run(["ssh-keygen", "-Y", "sign", "-f", keys / "lab", "-n", "git", path], check=True, capture_output=True)


def of_another_entry(root, keys):
    for suffix in ("", ".sig"):
        shutil.copy(f"{result_path(root, 'v2', 'second')}{suffix}", f"{result_path(root, 'v2', 'first')}{suffix}")


def of_another_edition(root, keys):
    write_result(result_path(root, "v2", "first"), result(entry("first"), edition(["yacht"]), ones))
    sign_file(result_path(root, "v2", "first"), keys / "lab")


def of_another_scoring_version(root, keys):
    old = result(entry("first"), edition(["diabetes"]), ones, scoring_version=SCORING_VERSION + 1)
    write_result(result_path(root, "v2", "first"), old)
    sign_file(result_path(root, "v2", "first"), keys / "lab")


def of_an_earlier_entry(root, keys):
    write_entry(root, entry("first", settings={"lr": 0.5}))


def without_some_runs(root, keys):
    whole = result(entry("first"), edition(["diabetes"]), ones)
    write_result(result_path(root, "v2", "first"), whole.model_copy(update={"cells": whole.cells[1:]}))
    sign_file(result_path(root, "v2", "first"), keys / "lab")


def with_runs_of_another_edition(root, keys):
    both = result(entry("first"), edition(["diabetes", "yacht"]), ones)
    whole = result(entry("first"), edition(["diabetes"]), ones)
    write_result(result_path(root, "v2", "first"), whole.model_copy(update={"cells": both.cells}))
    sign_file(result_path(root, "v2", "first"), keys / "lab")


def without_a_jail(root, keys):
    write_result(
        result_path(root, "v2", "first"), result(entry("first"), edition(["diabetes"]), ones, isolation="none")
    )
    sign_file(result_path(root, "v2", "first"), keys / "lab")


def garbage(root, keys):
    result_path(root, "v2", "first").write_bytes(b"{")


def link(root, keys):
    path = result_path(root, "v2", "first")
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def absent(root, keys):
    result_path(root, "v2", "first").unlink()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (edited, "no allowed signer"),
        (unsigned, "no allowed signer"),
        (by_a_stranger, "no allowed signer"),
        (for_another_purpose, "no allowed signer"),
        (of_another_entry, "earlier version of the entry"),
        (of_another_edition, "other tasks"),
        (of_another_scoring_version, "scoring version"),
        (of_an_earlier_entry, "earlier version of the entry"),
        (without_some_runs, "lacks 1 of 10 runs"),
        (with_runs_of_another_edition, "lacks 0 of 10 runs, and has 10 others"),
        (without_a_jail, "without a jail"),
        (garbage, "signer|read"),
        (link, "no file"),
        (absent, "not verified yet"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_result_that_does_not_hold_is_stale_and_never_ranked(signed, keys, spoil, why):
    spoil(signed, keys)
    board = read_board(signed)
    first = board.standings[0]
    assert first.result is None
    assert __import__("re").search(why, first.stale)
    assert [line.name for line in rank_track(board, "full").lines] == ["second"]


def test_a_board_of_ones_own_needs_no_signatures(tmp_path):
    assert stale(make_board(tmp_path, {"first": ones}, edition(["diabetes"]))) is None


def test_signers_that_cannot_be_read_do_not_make_a_board_ones_own(signed):
    (signed / ALLOWED_SIGNERS).unlink()
    (signed / ALLOWED_SIGNERS).symlink_to(signed / "nowhere")
    assert stale(signed) == "no allowed signer signed its result"


def test_an_edition_may_allow_results_without_a_jail(tmp_path):
    of = edition(["diabetes"], allow_without_isolation=True)
    root = make_board(tmp_path, {"first": None}, of)
    write_result(result_path(root, "v2", "first"), result(entry("first"), of, ones, isolation="none"))
    assert stale(root) is None


def test_of_two_entries_with_one_source_the_verified_one_stays(tmp_path):
    root = make_board(tmp_path, {"zebra": ones}, edition(["diabetes"]), source=b"class M: ...\n")
    write_entry(root, entry("aardvark", b"class M:  # mine\n    ...\n", owner="eve"))
    board = read_board(root)
    assert [each.name for each in board.standings] == ["zebra"]
    assert [(each.name, "zebra, by ada" in each.problem) for each in board.refused] == [("aardvark", True)]


def test_a_broken_entry_stops_no_other_and_names_no_path(tmp_path):
    root = make_board(tmp_path, {"first": ones}, edition(["diabetes"]))
    (root / "entries" / "broken").mkdir()
    (root / "entries" / "bro\x1bken").mkdir()
    (root / "entries" / "linked").symlink_to(root / "entries" / "first")
    (root / "entries" / "README.md").write_text("hello")
    (root / "entries" / ".hidden").mkdir()
    board = read_board(root)
    assert [each.name for each in board.standings] == ["first"]
    assert [each.name for each in board.refused] == ["bro\\x1bken", "broken", "linked"]
    assert not any(str(tmp_path) in each.problem for each in board.refused)


def test_no_leaderboard_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match="leaderboard init"):
        read_board(tmp_path)


def test_a_result_is_read_as_it_was_written(tmp_path):
    def some(place, seed):
        return {0: None, 1: float("inf")}.get(place.number, 3.0)

    whole = result(entry("first"), edition(["diabetes"]), some)
    write_result(tmp_path / "r.json", whole)
    assert read_result(tmp_path / "r.json") == whole
    assert read_result(tmp_path / "r.json").text() == whole.text()


@pytest.mark.parametrize(
    ("key", "match"),
    [
        ("lab", None),
        ("stranger", "is no key of"),
        (None, "counts signed results only"),
        ("nothing", "there is no key"),
    ],
)
def test_a_key_that_will_not_count_is_found_out_before_the_work(signed, keys, key, match):
    with nullcontext() if match is None else pytest.raises(InputError, match=match):
        require_key(key and keys / key, signed)


def test_a_result_is_written_with_its_signature(signed, keys):
    path = result_path(signed, "v2", "first")
    write_result(path, result(entry("first"), edition(["diabetes"]), twos), keys / "lab")
    assert signer(path, path.read_bytes(), signed) == "lab"
    before = path.read_bytes()
    with pytest.raises(InputError, match="there is no key"):
        write_result(path, result(entry("first"), edition(["diabetes"]), ones), keys / "nothing")
    assert (path.read_bytes(), signer(path, before, signed)) == (before, "lab")


def test_writing_a_result_removes_the_signature_that_fits_it_no_more(signed):
    path = result_path(signed, "v2", "first")
    write_result(path, result(entry("first"), edition(["diabetes"]), twos))
    assert not signature_path(path).exists()
    assert signer(path, path.read_bytes(), signed) is None


WHOLE = result(entry("first"), edition(["diabetes"]), ones)
TEXT = WHOLE.text().decode()


@pytest.mark.slow(seconds=60)
@settings(max_examples=2000, deadline=None)
@given(
    place=st.integers(0, len(TEXT)),
    length=st.integers(0, 10),
    text=st.text('0123456789.eInfinity"{}[],:-\x00é', max_size=10),
)
def test_a_mutated_result_is_one_or_is_refused(tmp_path_factory, place, length, text):
    """What is accepted holds finite seconds, no score of −Infinity or NaN, and each run once."""
    path = tmp_path_factory.getbasetemp() / "mutated.json"
    path.write_text(TEXT[:place] + text + TEXT[place + length :])
    try:
        found = read_result(path)
    except InputError as error:
        assert "\n" not in str(error)
        return
    json.loads(found.text())
    assert len({(cell.place, cell.seed) for cell in found.cells}) == len(found.cells)
    for cell in found.cells:
        for value in cell.scores.model_dump().values() if cell.scores else ():
            assert value is None or value > -results.math.inf
