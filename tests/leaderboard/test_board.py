"""Which results count: those that an allowed signer made of exactly this entry, in exactly this edition."""

import re
import shutil
import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard import board
from fsvi_bench.leaderboard.board import read_board
from fsvi_bench.leaderboard.entry import read_entry
from fsvi_bench.leaderboard.ranking import rank
from fsvi_bench.leaderboard.result import SCORING_VERSION, result_path, write_result
from fsvi_bench.leaderboard.signing import ALLOWED_SIGNERS, require_key, signature_path, signer
from tests.leaderboard.boards import edition, entry, make_board, manifest, read_result, result, sign_file, write_entry


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


DIABETES = edition(["diabetes"])


@pytest.fixture
def signed(tmp_path, keys):
    """A board of two entries whose results the lab has signed."""
    root = make_board(tmp_path, {"first": ones, "second": twos}, DIABETES)
    (root / ALLOWED_SIGNERS).write_text(f'lab namespaces="fsvi-bench-result" {(keys / "lab.pub").read_text()}')
    for name in ("first", "second"):
        sign_file(result_path(root, "v2", name), keys / "lab")
    return root


def stale(root):
    return next(each for each in read_board(root).standings if each.name == "first").stale


def test_signed_results_count_and_say_who_signed(signed):
    board = read_board(signed)
    assert [(each.stale, each.signer) for each in board.standings] == [(None, "lab")] * 2
    assert [line.name for line in rank(board, "posterior").lines] == ["first", "second"]


def edited(root, path, keys):
    path.write_bytes(path.read_bytes().replace(b'"kl":1.0', b'"kl":0.1', 1))


def unsigned(root, path, keys):
    signature_path(path).unlink()


def by_a_stranger(root, path, keys):
    sign_file(path, keys / "stranger")


def for_another_purpose(root, path, keys):
    signature_path(path).unlink()
    subprocess.run(["ssh-keygen", "-Y", "sign", "-f", keys / "lab", "-n", "git", path], check=True, capture_output=True)


def of_another_entry(root, path, keys):
    for suffix in ("", ".sig"):
        shutil.copy(f"{result_path(root, 'v2', 'second')}{suffix}", f"{path}{suffix}")


def of_an_earlier_entry(root, path, keys):
    write_entry(root, entry("first", settings={"lr": 0.5}))


def garbage(root, path, keys):
    path.write_bytes(b"{")


def link(root, path, keys):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def absent(root, path, keys):
    path.unlink()


def signed_by_the_lab(its):
    """Another result in the first one's place, with a signature that holds."""

    def spoil(root, path, keys):
        write_result(path, its, keys / "lab")

    return spoil


WHOLE = result(entry("first"), DIABETES, ones)
ELSEWHERE = result(entry("first"), edition(["yacht"]), ones)


def cells(*those):
    return signed_by_the_lab(WHOLE.model_copy(update={"cells": those}))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (edited, "not signed by an allowed signer"),
        (unsigned, "not signed by an allowed signer"),
        (by_a_stranger, "not signed by an allowed signer"),
        (for_another_purpose, "not signed by an allowed signer"),
        (of_another_entry, "earlier version of the entry"),
        (signed_by_the_lab(ELSEWHERE), "tasks of a different edition"),
        (signed_by_the_lab(WHOLE.model_copy(update={"scoring_version": SCORING_VERSION + 1})), "scoring version"),
        (of_an_earlier_entry, "earlier version of the entry"),
        (cells(), "lacks 10 of the edition's 10 runs, and has 0 that do not belong"),
        (cells(*WHOLE.cells[1:]), "lacks 1 of the edition's 10 runs"),
        (cells(*WHOLE.cells, *ELSEWHERE.cells), "lacks 0 of the edition's 10 runs, and has 10 that do not belong"),
        (cells(*WHOLE.cells, WHOLE.cells[0]), "lacks 0 of the edition's 10 runs, and has 1 that do not belong"),
        (signed_by_the_lab(WHOLE.model_copy(update={"isolation": "none"})), "without isolation"),
        (garbage, "signer|read"),
        (link, "not a readable file"),
        (absent, "not verified yet"),
    ],
)
def test_a_result_that_does_not_hold_is_stale_and_never_ranked(signed, keys, spoil, why):
    spoil(signed, result_path(signed, "v2", "first"), keys)
    board = read_board(signed)
    assert board.standings[0].result is None
    assert re.search(why, board.standings[0].stale)
    assert [line.name for line in rank(board, "posterior").lines] == ["second"]


def test_a_board_of_ones_own_needs_no_signatures(tmp_path):
    assert stale(make_board(tmp_path, {"first": ones}, DIABETES)) is None


def test_an_edition_may_allow_results_without_a_jail(tmp_path):
    of = edition(["diabetes"], allow_without_isolation=True)
    root = make_board(tmp_path, {"first": None}, of)
    write_result(result_path(root, "v2", "first"), result(entry("first"), of, ones, isolation="none"))
    assert stale(root) is None


def test_of_two_entries_with_one_source_the_verified_one_stays(tmp_path):
    root = make_board(tmp_path, {"zebra": ones}, DIABETES, source=b"class M: ...\n")
    write_entry(root, entry("aardvark", b"class M:  # mine\n    ...\n", owner="eve"))
    board = read_board(root)
    assert [each.name for each in board.standings] == ["zebra"]
    assert [(each.name, "zebra, by ada" in each.problem) for each in board.refused] == [("aardvark", True)]


def test_a_broken_entry_stops_no_other_and_names_no_path(tmp_path):
    root = make_board(tmp_path, {"first": ones}, DIABETES)
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

    whole = result(entry("first"), DIABETES, some)
    write_result(tmp_path / "r.json", whole)
    found = read_result(tmp_path / "r.json")
    assert (found, found.text()) == (whole, whole.text())


@pytest.mark.parametrize(
    ("key", "match"),
    [
        ("lab", None),
        ("stranger", "is not listed in"),
        (None, "accepts only signed results"),
        ("nothing", "does not exist"),
    ],
)
def test_an_unlisted_key_is_refused_before_the_work(signed, keys, key, match):
    with nullcontext() if match is None else pytest.raises(InputError, match=match):
        require_key(key and keys / key, signed)


def test_a_result_is_written_with_its_signature(signed, keys):
    path = result_path(signed, "v2", "first")
    write_result(path, result(entry("first"), DIABETES, twos), keys / "lab")
    assert signer(path, path.read_bytes(), signed) == "lab"
    before = path.read_bytes()
    with pytest.raises(InputError, match="does not exist"):
        write_result(path, result(entry("first"), DIABETES, ones), keys / "nothing")
    assert (path.read_bytes(), signer(path, before, signed)) == (before, "lab")


def test_writing_a_result_removes_the_signature_that_fits_it_no_more(signed):
    path = result_path(signed, "v2", "first")
    write_result(path, result(entry("first"), DIABETES, twos))
    assert not signature_path(path).exists()
    assert signer(path, path.read_bytes(), signed) is None


def written(root, replace):
    content = manifest(title="RANDA").model_dump(by_alias=True)
    return board.write_entry(root, "mine", content, None, replace, lambda entry: None)


def test_an_interruption_leaves_the_earlier_entry_in_place(tmp_path, monkeypatch):
    written(tmp_path, replace=False)
    before, rename = read_entry(tmp_path / "entries/mine").sha256, Path.rename

    def interrupted(self, target):
        if self.parent.parent.name == "entries" and self.name == "mine":
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        written(tmp_path, replace=True)
    assert read_entry(tmp_path / "entries/mine").sha256 == before
    assert [each.name for each in (tmp_path / "entries").iterdir()] == ["mine"]


def test_a_link_to_nothing_is_in_the_way_of_an_entry(tmp_path):
    (tmp_path / "entries").mkdir()
    (tmp_path / "entries/mine").symlink_to(tmp_path / "nothing")
    with pytest.raises(InputError, match="already exists"):
        written(tmp_path, replace=False)
    assert written(tmp_path, replace=True).name == "mine"
    assert not (tmp_path / "entries/mine").is_symlink()
