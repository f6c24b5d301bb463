"""What does not belong in a submission's folder is refused before it is opened; nothing is run, memory is bounded."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.reading import posterior_bytes, read_submission, submission_sha256
from fsvi_bench.leaderboard.rescoring import rescore
from fsvi_bench.leaderboard.submission import Claims
from fsvi_bench.tasks.official import TaskSet
from fsvi_bench.tensorfile import tensor_file
from tests.leaderboard.planted import (
    edit_manifest,
    plant_submission,
    planted_manifest,
)
from tests.leaderboard.tampering import FIRST, SECOND, THIRD, refused


@pytest.fixture
def tasks(planted_set) -> TaskSet:
    return planted_set


@pytest.mark.parametrize(
    "name",
    ["notes.txt", ".hidden", "posteriors/.gitkeep", "posteriors/boston/split-02.safetensors",
     "posteriors/boston/split-0.safetensors", "posteriors/boston/split-٠٠.safetensors", "posteriors/atlantis/split-00.safetensors",
     "posteriors/extra.safetensors", "posteriors/boston/deeper/split-00.safetensors", "method.py", "cells.JSON"],
)  # fmt: skip
def test_extra_file(name, folder, tasks):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"")
    refused(folder, tasks, "remove")


def test_extra_folders(folder, tasks):
    (folder / "posteriors" / "boston" / "empty").mkdir()
    refused(folder, tasks, "remove")
    (folder / "posteriors" / "boston" / "empty").rmdir()
    (folder / THIRD).unlink()
    refused(folder, tasks, "energy is an empty folder")


@pytest.mark.parametrize("name", ["thesis.txt", ".lock", "posteriors/boston/split-00.safetensors"])
def test_a_folder_that_is_no_submission_is_not_to_be_emptied(name, tmp_path, tasks):
    """A run's folder, say: nobody is told to remove what lies there."""
    (tmp_path / "work" / name).parent.mkdir(parents=True)
    refused(tmp_path / "work", tasks, "work holds no submission.yaml, so it is no submission; name the folder")
    (tmp_path / "work" / name).write_bytes(b"")
    with pytest.raises(InputError) as caught:
        read_submission(tmp_path / "work", tasks)
    assert "remove" not in str(caught.value)


def test_many_extra_files_are_not_listed(folder, tasks):
    for number in range(2000):
        (folder / "posteriors" / "boston" / f"x{number}").touch()
    refused(folder, tasks, "posteriors/boston")


@pytest.mark.parametrize("name", ["submission.yaml", "cells.json", FIRST])
def test_missing_file(name, folder, tasks):
    (folder / name).unlink()
    refused(folder, tasks, name)


@pytest.mark.parametrize("name", ["submission.yaml", "cells.json", FIRST, "posteriors/boston", "posteriors"])
def test_symbolic_link(name, folder, tasks, tmp_path):
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    refused(folder, tasks, name, "is a symbolic link, expected a")


def test_the_folder_as_a_symbolic_link(folder, tasks, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "planted").symlink_to(folder)
    refused(tmp_path / "other" / "planted", tasks, "planted is a symbolic link")


@pytest.mark.parametrize("name", ["cells.json", FIRST])
def test_pipes_and_sockets_are_not_opened(name, folder, tasks, tmp_path, monkeypatch):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    refused(folder, tasks, name, "is a device, pipe or socket")
    (folder / name).unlink()
    monkeypatch.chdir((folder / name).parent)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(Path(name).name)
        refused(folder, tasks, name, "is a device, pipe or socket")


def test_no_folder(tasks, tmp_path):
    refused(tmp_path / "nowhere", tasks, "cannot read", "No such file")
    (tmp_path / "file").touch()
    refused(tmp_path / "file", tasks, "is a file, expected a submission's folder")
    refused(tmp_path / ("x" * 300), tasks, "is no name of a submission's folder")


@pytest.mark.parametrize("name", ["\x1b[31m", "two\nlines", os.fsdecode(b"\xff"), "Upper", "a b", "-x", "x" * 64])
def test_the_folders_name_reaches_no_terminal(name, template, tmp_path, tasks):
    said = refused(Path(shutil.copytree(template, tmp_path / name)), tasks, "is no name of a submission's folder")
    assert said.startswith(repr(name[:60]))


def test_the_folder_has_the_submissions_name(folder, tasks, monkeypatch):
    edit_manifest(folder, name="other")
    refused(folder, tasks, "submission.yaml: name: got 'other', expected the folder's name, 'planted'")
    edit_manifest(folder, name="planted")
    monkeypatch.chdir(folder)
    read_submission(Path(), tasks)  # as `verify .` would


def test_the_hash_is_over_every_file(folder, tasks):
    before = read_submission(folder, tasks).sha256
    assert before == read_submission(folder, tasks).sha256
    names = ["submission.yaml", "cells.json", FIRST, SECOND, THIRD]
    assert before == submission_sha256({name: (folder / name).read_bytes() for name in names})
    edit_manifest(folder, notes="another word")
    assert read_submission(folder, tasks).sha256 != before


def test_claims_round_trip(folder):
    text = (folder / "cells.json").read_text()
    assert Claims.model_validate_json(text).model_dump_json(indent=1) + "\n" == text


def test_the_largest_honest_file_fits_its_limit():
    for k in (1, 100, 2000):
        q = {"mean": torch.zeros(k, dtype=torch.float64), "scale_tril": torch.eye(k, dtype=torch.float64)}
        words = {"format": "fsvi-posterior/1", "kind": "gaussian-full", "task_sha256": "0" * 64}
        assert len(tensor_file(q, words)) <= posterior_bytes("full", k) < len(tensor_file(q, words)) + 20_000


def sourced(root, tasks, mark):
    text = f"from pathlib import Path\nPath({str(mark)!r}).touch()\nclass Evil:\n    pass\n"
    manifest = planted_manifest(source={"file": "evil.py", "class": "Evil"})
    return plant_submission(root, tasks, manifest, source=text.encode())


def test_a_source_is_read_and_never_run(tasks, tmp_path):
    mark = tmp_path / "mark"
    folder = sourced(tmp_path, tasks, mark)
    submission = read_submission(folder, tasks)
    rescore(submission, tasks)
    rescore(submission, tasks, workers=2)
    assert submission.source == (folder / "evil.py").read_bytes()
    assert not mark.exists()
    exec(compile(submission.source, "evil.py", "exec"), {})  # it would have left its mark
    assert mark.exists()


def test_sources_that_are_not(tasks, tmp_path):
    folder = sourced(tmp_path, tasks, tmp_path / "mark")
    source = folder / "evil.py"
    source.write_bytes(b"\xff")
    refused(folder, tasks, "evil.py is not UTF-8")
    source.write_bytes(b"#" * (2**20 + 1))
    refused(folder, tasks, "evil.py is larger than the 1048576 bytes")
    source.rename(folder / "other.py")
    refused(folder, tasks, "'other.py'", "source.file")
    (folder / "other.py").unlink()
    source.symlink_to("/etc/passwd")
    refused(folder, tasks, "evil.py is a symbolic link")


MEASURED = """
import resource, sys
from pathlib import Path
from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.reading import read_submission
from fsvi_bench.leaderboard.strict import cells_bytes, parse_claims
from tests.leaderboard.planted import planted_tasks
MANY = 200  # tasks, whose cells.json may have a mebibyte
tasks = planted_tasks()
read_submission(Path(sys.argv[1]), tasks)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
refusals = 0
for folder in sys.argv[2:]:
    try:
        read_submission(Path(folder), tasks)
    except InputError as error:
        refusals += 1
keys = ",".join(f'"{number:x}":0' for number in range(100_000))
objects = ["{%s}" % ",".join(f'"{chr(256 + key)}":0' for key in range(count)) for count in (0, 1, 60, 64)]
for pieces in (["0"], ["[]"], ['""'], [f"{{{keys}}}"], *([each] for each in objects)):
    count = (cells_bytes(MANY) - 100) // (len(pieces[0].encode()) + 1)
    text = '{"cells":[%s]}' % ",".join(pieces * count)
    try:
        parse_claims(Path("cells.json"), text.encode(), MANY)
    except InputError as error:
        refusals += 1
print(refusals, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_nothing_that_is_refused_takes_memory(template, tmp_path, tasks):
    """A gigabyte in any of the files, a bomb, ten megabytes in a field, a mebibyte of small lists, objects or keys: all
    in 64 MiB more than an honest one takes.
    """
    folders = []

    def another():
        folders.append(Path(shutil.copytree(template, tmp_path / str(len(folders)) / "planted")))
        return folders[-1]

    for name in ("submission.yaml", "cells.json", FIRST):
        with (another() / name).open("r+b") as stream:
            stream.truncate(2**30)
    (another() / "submission.yaml").write_text("a: &a [x]\n" + "\n".join(f"b{i}: [*a, *a]" for i in range(1000)))
    with (another() / "submission.yaml").open("a") as stream:
        stream.write("notes: " + "x" * 10_000_000)
    (another() / "cells.json").write_text('{"cells": [' + ",".join(["0"] * (2**21 - 100)) + "]}")
    (another() / "submission.yaml").write_text("[" * 2**16)
    ran = subprocess.run(
        [sys.executable, "-c", MEASURED, template, *folders], capture_output=True, text=True, check=True
    )
    refusals, kibibytes = map(int, ran.stdout.split())
    assert refusals == len(folders) + 8
    assert kibibytes < 64 * 1024
