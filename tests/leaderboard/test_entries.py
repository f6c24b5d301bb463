"""A leaderboard's folder read as a whole: what a verification is worth, and what one broken submission costs."""

from __future__ import annotations

import hashlib
import os
import shutil
import tracemalloc

import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.entries import FILE_BYTES, SUBMISSIONS, Unreadable, folder_sha256, read_entries
from fsvi_bench.leaderboard.ranking import rank_track
from fsvi_bench.leaderboard.reading import read_submission
from fsvi_bench.leaderboard.verification import read_verification, verification_path, write_verification
from tests.leaderboard.boards import SOURCE, references, save_entry
from tests.leaderboard.planted import plant_submission, planted_manifest, planted_tasks

TABLE = references({"boston": 2, "energy": 1})
CHANGED = "its files are not those that were verified; verify it again"


@pytest.fixture
def root(tmp_path):
    """Two submissions, verified."""
    for name in ("b", "a"):
        save_entry(tmp_path, name, TABLE)
    return tmp_path


def only(root):
    """The entry named a."""
    return next(entry for entry in read_entries(root).entries if entry.name == "a")


def files_of(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_entries_come_sorted_with_their_verification_and_source(root):
    board = read_entries(root)
    assert [entry.name for entry in board.entries] == ["a", "b"]
    assert board.unreadable == []
    for entry in board.entries:
        assert entry.verification == read_verification(verification_path(root, entry.name))
        assert entry.verification is not None
        assert (entry.note, entry.source) == (None, SOURCE)
    ranked = [line.name for line in rank_track(board.entries, TABLE, "full").lines if line.unranked is None]
    assert sorted(ranked) == ["a", "b"]


def test_the_hash_is_that_of_a_submission_that_was_read(tmp_path):
    """One more than `read_submission` reads it: by its names and contents, spelled out."""
    tasks = planted_tasks()
    manifest = planted_manifest(source={"file": "mine.py", "class": "Mine"})
    folder = plant_submission(tmp_path, tasks, manifest, source=SOURCE.encode())
    names = files_of(folder)
    assert len(names) == 2 + 1 + len(tasks.tasks)
    text = "".join(f"{name}:{hashlib.sha256((folder / name).read_bytes()).hexdigest()}\n" for name in names)
    expected = hashlib.sha256(text.encode()).hexdigest()
    assert folder_sha256(folder) == read_submission(folder, tasks).sha256 == expected


def test_a_verification_of_other_files_counts_for_nothing(root, tmp_path_factory):
    """Whichever file differs by one byte, is gone, is new, or stands in another's place."""
    kept = tmp_path_factory.mktemp("kept") / "a"
    folder = root / SUBMISSIONS / "a"
    shutil.copytree(folder, kept)
    names = files_of(folder)
    assert len(names) == 6

    def refused(change):
        change()
        entry = only(root)
        assert (entry.verification, entry.note) == (None, CHANGED)
        (line,) = (each for each in rank_track([entry], TABLE, "full").lines if each.entry is not None)
        assert (line.label, line.place, set(line.scores.values())) == ("not verified", None, {None})
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)
        assert only(root).verification is not None

    for name in names:
        path = folder / name
        refused(lambda path=path: path.write_bytes(path.read_bytes() + b"\n"))
        if name not in ("submission.yaml", "mine.py"):
            refused(path.unlink)
    refused(lambda: (folder / "posteriors" / "boston" / "split-02.safetensors").write_bytes(b""))
    first, second = (folder / "posteriors" / "boston" / f"split-0{split}.safetensors" for split in (0, 1))
    refused(lambda: first.write_bytes(second.read_bytes()))
    # A verification of another submission, and one whose hash is made up.
    of_b = read_verification(verification_path(root, "b"))
    own = read_verification(verification_path(root, "a"))
    for forged in (of_b, own.model_copy(update={"submission_sha256": "f" * 64}),
                   own.model_copy(update={"submission": "b"})):  # fmt: skip
        write_verification(verification_path(root, "a"), forged)
        assert (only(root).verification, only(root).note) == (None, CHANGED)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b"null", b'{"format": "fsvi-verification/1"}'])
def test_a_verification_that_is_none(root, content):
    verification_path(root, "a").write_bytes(content)
    assert (only(root).verification, only(root).note) == (None, "its verification cannot be read; verify it again")


def test_a_verification_is_no_link_and_may_be_absent(root, tmp_path):
    path = verification_path(root, "a")
    path.rename(tmp_path / "elsewhere.json")
    assert (only(root).verification, only(root).note) == (None, "it has not been verified yet")
    path.symlink_to(tmp_path / "elsewhere.json")
    assert (only(root).verification, only(root).note) == (None, "its verification cannot be read; verify it again")


def broken(folder, how):
    """Makes a submission unreadable in one way."""
    manifest, source = folder / "submission.yaml", folder / "mine.py"
    if how == "no manifest":
        manifest.unlink()
    elif how == "no YAML":
        manifest.write_text("{")
    elif how == "tag":
        manifest.write_text("format: !!python/object:os.system {}\n")
    elif how == "huge":
        manifest.write_text("notes: " + "x" * 10**6)
    elif how == "other name":
        manifest.write_text(manifest.read_text().replace("name: broken", "name: a"))
    elif how == "no source":
        source.unlink()
    elif how == "binary source":
        source.write_bytes(b"\xff")
    elif how == "huge source":
        source.write_bytes(b"#" * 2**21)
    elif how == "linked source":
        source.unlink()
        source.symlink_to("/etc/hostname")
    elif how == "sparse file":
        with (folder / "posteriors" / "boston" / "split-00.safetensors").open("wb") as stream:
            stream.truncate(2**30)
    elif how == "odd name":
        os.close(os.open(os.fsencode(folder / "posteriors") + b"/\xff", os.O_CREAT))
    elif how == "pipe":
        os.mkfifo(folder / "posteriors" / "boston" / "split-09.safetensors")
    elif how == "too deep":
        (folder / "posteriors" / "boston" / "more").mkdir()
    elif how == "linked posteriors":
        shutil.move(folder / "posteriors", folder.parent / ".posteriors")
        (folder / "posteriors").symlink_to(folder.parent / ".posteriors")
    elif how == "linked folder":
        folder.rename(folder.parent / ".broken")
        folder.symlink_to(folder.parent / ".broken")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("no manifest", "cannot read submission.yaml: No such file"),
        ("no YAML", "submission.yaml is not plain YAML"),
        ("tag", "submission.yaml: format: the tag"),
        ("huge", "submission.yaml: notes"),
        ("other name", "submission.yaml: name: got 'a', expected the folder's name, 'broken'"),
        ("no source", "cannot read mine.py"),
        ("binary source", "mine.py is not UTF-8"),
        ("huge source", "mine.py is larger than"),
        ("linked source", "cannot read mine.py"),
        ("sparse file", f"posteriors/boston/split-00.safetensors is larger than the {FILE_BYTES} bytes"),
        ("odd name", "it cannot be read (UnicodeEncodeError)"),
        ("pipe", "posteriors/boston/split-09.safetensors is neither a plain file nor a folder"),
        ("too deep", "posteriors/boston/more is neither a plain file nor a folder"),
        ("linked posteriors", "posteriors is neither a plain file nor a folder"),
        ("linked folder", "it is a symbolic link"),
    ],
)
def test_one_broken_submission_is_named_and_stops_nothing(root, how, said):
    save_entry(root, "broken", TABLE)
    broken(root / SUBMISSIONS / "broken", how)
    tracemalloc.start()
    board = read_entries(root)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 * 2**20
    assert [entry.name for entry in board.entries] == ["a", "b"]
    assert all(entry.verification is not None for entry in board.entries)
    (problem,) = board.unreadable
    assert problem.name == "broken"
    assert problem.problem.startswith(said)
    assert str(root) not in problem.problem
    assert "\n" not in problem.problem


def test_folders_of_any_name_are_shown_escaped(root):
    for name in (b"<b>bold", b"not-\xff-utf8", b"two\nlines", b".hidden", "café".encode()):
        os.mkdir(os.path.join(os.fsencode(root / SUBMISSIONS), name))  # noqa: PTH102, PTH118
    (root / SUBMISSIONS / "README.md").write_text("Not a submission.")
    board = read_entries(root)
    assert [entry.name for entry in board.entries] == ["a", "b"]
    problem = "cannot read submission.yaml: No such file or directory"
    names = ["'<b>bold'", "'café'", "'not-\\udcff-utf8'", "'two\\nlines'"]
    assert sorted(board.unreadable, key=lambda each: each.name) == [Unreadable(name, problem) for name in names]
    for each in board.unreadable:
        assert each.name.encode().isascii() or "é" in each.name


def test_a_folder_without_submissions_is_no_leaderboard(tmp_path):
    with pytest.raises(InputError, match="has no folder 'submissions'"):
        read_entries(tmp_path)
    (tmp_path / SUBMISSIONS).mkdir()
    assert read_entries(tmp_path).entries == []
