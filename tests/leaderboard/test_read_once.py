"""What was read stays as it was, whatever becomes of the files; and where numbers lie in memory decides no score."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from fsvi_bench.leaderboard.reading import read_submission, submission_sha256
from fsvi_bench.leaderboard.rescoring import rescore
from fsvi_bench.posteriors.io import read_posterior
from tests.leaderboard.planted import plant_submission, planted_manifest, planted_posteriors, planted_tasks
from tests.leaderboard.tampering import FIRST, SECOND, THIRD


@pytest.mark.parametrize("family", ["full", "ffg"])
def test_one_worker_and_two_agree_bit_for_bit_at_the_size_of_official_tasks(family, tmp_path):
    """With five weights no product is long enough for the order of its terms to depend on where they lie."""
    tasks = planted_tasks({"boston": 3}, k=100)
    submission = read_submission(plant_submission(tmp_path, tasks, planted_manifest(family=family)), tasks)
    assert rescore(submission, tasks, workers=1) == rescore(submission, tasks, workers=2)


def test_tensors_begin_where_torch_would_begin_them(folder):
    """At a multiple of 64 bytes; in a safetensors file they begin at any multiple of 8."""
    addresses = {
        tensor.data_ptr() % 64
        for name in (FIRST, SECOND, THIRD)
        for tensor in read_posterior(folder / name).tensors().values()
    }
    assert addresses == {torch.zeros(3, dtype=torch.float64).data_ptr() % 64} == {0}


def test_files_rewritten_after_reading_change_nothing(folder, planted_set):
    before = rescore(read_submission(folder, planted_set), planted_set)
    submission = read_submission(folder, planted_set)
    for name in (FIRST, SECOND, THIRD, "cells.json", "submission.yaml"):
        with (folder / name).open("r+b") as stream:  # the very file, not another of its name
            stream.write(bytes((folder / name).stat().st_size))
    assert rescore(submission, planted_set) == before


@pytest.mark.slow
def test_tensors_of_one_file_survive_the_next_of_its_name(tmp_path, planted_set):
    place = ("boston", 0)
    for family in ("full", "ffg", "bernoulli", "spike-slab"):
        one, two = (
            plant_submission(
                tmp_path / f"{family}{seed}",
                planted_set,
                planted_manifest(family=family),
                planted_posteriors(planted_set, family, seed=seed) if seed else None,
            )
            for seed in (0, 1)
        )
        read = read_posterior(one / FIRST)
        expected = planted_posteriors(planted_set, family)[place]
        with (one / FIRST).open("r+b") as stream:
            stream.write((two / FIRST).read_bytes())
        assert all(torch.equal(tensor, expected.tensors()[name]) for name, tensor in read.tensors().items())


CUT_SHORT = """
import sys
from pathlib import Path
from fsvi_bench.leaderboard.reading import read_submission
from fsvi_bench.leaderboard.rescoring import rescore
from tests.leaderboard.planted import planted_tasks
tasks, folder = planted_tasks(), Path(sys.argv[1])
submission = read_submission(folder, tasks)
for path in folder.rglob("*.safetensors"):
    with path.open("r+b") as stream:
        stream.truncate(0)
print(len(rescore(submission, tasks)), "scored")
"""


def test_files_cut_short_kill_nothing(folder):
    """In a process of its own: reading beyond the end of a mapped file ends it by a signal."""
    ran = subprocess.run([sys.executable, "-c", CUT_SHORT, folder], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "3 scored\n"), ran.stderr


def test_the_hash_is_of_the_bytes_that_were_understood(folder, planted_set, monkeypatch):
    """Each file is read once: what another read would give belongs to nothing."""
    from fsvi_bench.leaderboard import reading

    names = ["submission.yaml", "cells.json", FIRST, SECOND, THIRD]
    expected = submission_sha256({name: (folder / name).read_bytes() for name in names})
    reads, read_at_most = [], reading.read_at_most

    def once(path, count):
        content = read_at_most(path, count)
        reads.append(path.relative_to(folder).as_posix())
        path.write_bytes(b"another content")
        return content

    monkeypatch.setattr(reading, "read_at_most", once)
    assert read_submission(folder, planted_set).sha256 == expected
    assert sorted(reads) == sorted(names)
