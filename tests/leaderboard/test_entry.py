"""Entries of strangers: read strictly, or refused in one sentence."""

import re
from pathlib import Path

import pytest

from fsvi_bench.errors import InputError, unknown_name
from fsvi_bench.leaderboard.entry import ENTRY_FILE, parse_manifest, read_entry
from fsvi_bench.strict import toml_text
from tests.leaderboard.boards import entry, manifest, write_entry

TEXT = toml_text(manifest(notes="one\ntwo", settings={"lr": 0.1, "wide": True, "mode": "é"}, link="https://a.org/b"))


@pytest.fixture
def folder(tmp_path):
    return write_entry(tmp_path, entry("mine", b"class M: ...\n"))


def test_an_entry_is_read_as_it_was_written(tmp_path):
    for each in (entry("mine", b"class M: ...\n"), entry("ours", notes='quotes are "not" taken'.replace('"', "'"))):
        found = read_entry(write_entry(tmp_path, each))
        assert (found.manifest, found.source, found.sha256) == (each.manifest, each.source, each.sha256)
    assert parse_manifest(TEXT.encode(), tmp_path) == parse_manifest(
        toml_text(parse_manifest(TEXT.encode(), tmp_path)).encode(), tmp_path
    )


def test_everything_that_decides_a_result_is_in_the_hash():
    first = entry("mine", b"x = 1")
    others = [entry("other", b"x = 1"), entry("mine", b"x = 2"), entry("mine"), entry("mine", b"x = 1", family="ffg"),
              entry("mine", b"x = 1", settings={"lr": 1.0})]  # fmt: skip
    assert len({each.sha256 for each in [first, *others]}) == 1 + len(others)


REFUSED = {
    "duplicate key": ('title = "A title"', 'title = "a"\ntitle = "b"'),
    "no licence": ('licence = "MIT"', 'licence = "mine alone"'),
    "unknown family": ('family = "full"', 'family = "all"'),
    "unknown field": ('family = "full"', 'family = "full"\nrank = 1'),
    "claims": ('family = "full"', 'family = "full"\nkl = 0.0'),
    "javascript link": ("https://a.org/b", "javascript:alert(1)"),
    "infinite budget": ("seconds = 30.0", "seconds = inf"),
    "negative budget": ("steps = 100", "steps = -1"),
    "NaN setting": ("lr = 0.1", "lr = nan"),
    "integer of 65 bits": ("lr = 0.1", f"lr = {2**63}"),
    "huge integer": ("lr = 0.1", f"lr = {'9' * 5000}"),
    "nested setting": ("lr = 0.1", "lr = {a = 1}"),
    "deep nesting": ("lr = 0.1", f"lr = {'[' * 5000}{']' * 5000}"),
    "no method": ('[method]\nname = "rand-a"\nversion = "0.2.0"', "[method]"),
}


@pytest.mark.parametrize(("old", "new"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_manifest_is_refused(tmp_path, old, new):
    assert old in TEXT
    with pytest.raises(InputError) as error:
        parse_manifest(TEXT.replace(old, new).encode(), tmp_path / ENTRY_FILE)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "A title"', 'title = "a<b"', "title is 'a<b', expected one line of 1 to 200 visible characters"),
        ("https://a.org/b", "http://a.org/b", "link is 'http://a.org/b', expected an address of at most 300"),
        ("lr = 0.1", "lr = [1]", "settings.lr is [1], expected true, false, a finite number"),
        ("lr = 0.1", f"lr = {2**63}", "integers of at most 64 bits"),
        ("lr = 0.1", '"l r" = 0.1', "expected a Python name"),
    ],
)
def test_what_is_expected_is_said_in_words_and_not_as_a_pattern(tmp_path, old, new, message):
    assert old in TEXT
    with pytest.raises(InputError, match=re.escape(message)):
        parse_manifest(TEXT.replace(old, new).encode(), tmp_path / ENTRY_FILE)


def replaced(make):
    def spoil(folder):
        (folder / "method.py").unlink()
        make(folder / "method.py")

    return spoil


SPOILT = {
    "not UTF-8": lambda folder: (folder / ENTRY_FILE).write_bytes(b"\xff"),
    "a large source": lambda folder: (folder / "method.py").write_bytes(b"#" * (2**20 + 1)),
    "a link": replaced(lambda path: path.symlink_to("/etc/passwd")),
    "a folder": replaced(Path.mkdir),
    "many files": lambda folder: [(folder / f"{place}.txt").touch() for place in range(1000)],
    "a posterior": lambda folder: (folder / "split-00.safetensors").write_bytes(b""),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_an_invalid_folder_is_refused(folder, spoil):
    spoil(folder)
    with pytest.raises(InputError, match=r"expected|more than|not a regular file|UTF-8|TOML|cannot read"):
        read_entry(folder)


def test_a_folder_that_is_a_link_is_refused(folder, tmp_path):
    (tmp_path / "there").symlink_to(folder)
    with pytest.raises(
        InputError, match=r"is a symbolic link, expected a folder with entry\.toml; name the folder itself"
    ):
        read_entry(tmp_path / "there")


def test_a_misspelt_folder_is_refused_with_the_closest_one_beside_it(folder):
    misspelt = folder.with_name(folder.name + "e")
    with pytest.raises(InputError, match=f"is not a folder: did you mean '{folder.name}'"):
        read_entry(misspelt)
    with pytest.raises(InputError, match="is not a folder: expected one with"):
        read_entry(folder.with_name("a" * 300))  # longer than the system allows


def test_names_of_folders_beside_it_cannot_write_to_the_terminal(folder):
    folder.rename(folder.with_name("mi\x1b[31mne"))
    with pytest.raises(InputError, match=r"did you mean 'mi\\x1b\[31mne'"):
        read_entry(folder.with_name("mi[31mne"))
    assert "\x1b" not in str(unknown_name("edition", "v1", ["v\x1b[31m1"]))
