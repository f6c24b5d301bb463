"""From a run to a submission that holds; and the commands that do it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from fsvi_bench.cli.app import main
from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard import rescoring
from fsvi_bench.leaderboard.drafting import Choice, draft_from_run
from fsvi_bench.leaderboard.reading import read_submission
from fsvi_bench.leaderboard.rescoring import rescore, score_all
from fsvi_bench.leaderboard.submitting import Words, as_line, write_submission
from fsvi_bench.leaderboard.verification import read_verification
from fsvi_bench.running.archive import read_archive
from fsvi_bench.tasks.build import build_task
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.official import TaskSet
from tests.leaderboard.planted import (
    edit_claim,
    planted_tasks,
)

WORDS = Words(("Ann O'Nymous", "B"), "MIT")
OWN = '''
import torch

from fsvi_bench.methods.base import Method, MethodOptions
from fsvi_bench.posteriors.gaussian import FactorisedGaussian


class Guess(Method):
    """A factorised Gaussian of one scale."""

    class Options(MethodOptions):
        scale: float = 0.5

    automatic_optimization = False
    families = ("ffg",)
    num_steps = 3

    def configure_optimizers(self):
        """Nothing is learned."""

    def training_step(self, batch, batch_idx):
        self.note(torch.zeros(len(self.problems)))

    def posterior(self):
        mean = torch.zeros_like(self.problems.Phi[:, 0])
        return FactorisedGaussian(mean, torch.full_like(mean, self.options.scale))
'''


@pytest.fixture(scope="module")
def tasks() -> TaskSet:
    """Toy splits 0 and 1, which need no raw data and are the same wherever they are built."""
    return TaskSet({("toy", split): build_task(load_card("toy"), split).task for split in range(2)})


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Path:
    """A run of two methods, two settings of one of them, and a method from a file."""
    root = tmp_path_factory.mktemp("ran")
    own = root / "my method.py"
    own.write_text(OWN)
    common = ["--dataset", "toy", "--splits", "0-1", "--wandb", "off", "--workers", "1", "--out", str(root / "out")]
    command(["run", *common, "--method", "rand-a", "--method", "exact", "--family", "full", "--measurement-points", "10",
             "--max-steps", "20"])  # fmt: skip
    command(["run", *common, "--method", f"{own}:Guess", "--set", "scale=0.25"])
    command(["run", *common[:3], "1", *common[4:], "--method", "rand-a", "--family", "full", "--measurement-points", "20",
             "--set", "lr=0.002", "--max-steps", "5"])  # fmt: skip
    return root


@pytest.fixture
def official(tasks, monkeypatch):
    """The commands take the toy tasks for the official ones."""
    monkeypatch.setattr("fsvi_bench.leaderboard.protocol.protocol_tasks", lambda data_dir=None: tasks)


def command(arguments):
    """Exit status of a command."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


@pytest.mark.slow
def test_a_run_becomes_a_submission_that_holds(ran, tasks, tmp_path):
    draft = draft_from_run(ran / "out", tasks, Choice("rand-a", "full", {"M": 10}))
    submission = write_submission(draft, WORDS, tasks, tmp_path)
    records = {
        (r.dataset, r.split): r
        for r in read_archive(ran / "out").records
        if (r.method, r.hyperparameters.get("M")) == ("rand-a", 10)
    }
    cells = rescore(submission, tasks)
    assert {(c.dataset, c.split): c.scores.kl for c in cells} == {p: r.scores.kl for p, r in records.items()}
    assert len(cells) == 2
    again = read_submission(tmp_path / "rand-a-full", tasks)
    assert again.sha256 == submission.sha256
    manifest = again.manifest
    assert (manifest.method, manifest.family, manifest.authors) == ("rand-a", "full", ["Ann O'Nymous", "B"])
    assert manifest.hyperparameters == records["toy", 0].hyperparameters
    assert manifest.source.file == "rand_a.py"
    assert manifest.source.class_ == "RandA"
    work = records["toy", 0].work
    assert manifest.budget.steps == 20
    assert manifest.budget.likelihood_rows == work["likelihood_rows"]
    assert manifest.budget.measurement_rows == work["measurement_rows"]
    assert manifest.budget.seconds >= max(1.0, *(r.seconds.batch_train for r in records.values()))
    made = records["toy", 0].provenance
    assert manifest.hardware == as_line(f"{made['hardware']} (cpu, {made['threads']} thread, {made['arithmetic']})")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rand-a-full"]  # nothing half written


def test_what_is_not_told_apart_is_listed(ran, tasks):
    with pytest.raises(InputError) as caught:
        draft_from_run(ran / "out", tasks, Choice())
    said = str(caught.value)
    assert "several things fit" in said
    assert "--method exact --family full" in said
    assert "--method rand-a --family full --set M=10 --set max_steps=20 --set lr=0.01" in said
    assert "--method Guess --family ffg" in said
    with pytest.raises(InputError, match="nothing fits; choose one of these"):
        draft_from_run(ran / "out", tasks, Choice("rand-a", "ffg"))


def test_missing_splits_are_named_with_the_command_that_runs_them(ran, tasks):
    with pytest.raises(InputError) as caught:
        draft_from_run(ran / "out", tasks, Choice("rand-a", settings={"M": 20}))
    said = str(caught.value)
    assert "toy has 2 official tasks, and 1 of them are missing: splits 0" in said
    told = said[said.index("fsvi-bench run") : said.index(", then submit")]
    assert told.startswith(
        "fsvi-bench run --dataset toy --splits 0 --method rand-a --family full --measurement-points 20 "
    )
    assert "--set lr=0.002" in told
    assert "--max-steps 5" in told


@pytest.mark.slow
def test_the_command_that_is_told_completes_the_run(ran, tasks, tmp_path):
    import shlex

    out = Path(shutil.copytree(ran / "out", tmp_path / "out"))
    with pytest.raises(InputError) as caught:
        draft_from_run(out, tasks, Choice("rand-a", settings={"M": 20}))
    said = str(caught.value)
    told = shlex.split(said[said.index("fsvi-bench run") : said.index(", then submit")])[1:]
    assert command([*told, "--wandb", "off", "--workers", "1"]) == 0
    assert len(draft_from_run(out, tasks, Choice("rand-a", settings={"M": 20})).cells) == 2


def test_other_tasks_are_not_submitted(ran):
    with pytest.raises(InputError, match=r"no cell in .* is of an official task"):
        draft_from_run(ran / "out", planted_tasks(), Choice())


def test_data_sets_without_a_cell_are_left_out(ran, tasks):
    more = TaskSet({**tasks.tasks, **planted_tasks().tasks})
    assert draft_from_run(ran / "out", more, Choice("exact")).left_out == ("boston", "energy")


def test_a_method_from_a_file_needs_that_file(ran, tasks, tmp_path):
    choice = Choice("Guess")
    with pytest.raises(InputError, match=r"Guess is no installed method, .* give --source path/file.py:Guess"):
        draft_from_run(ran / "out", tasks, choice)
    source = f"{ran / 'my method.py'}:Guess"
    submission = write_submission(draft_from_run(ran / "out", tasks, choice, source), WORDS, tasks, tmp_path)
    assert submission.manifest.source.file == "my_method.py"
    assert submission.source == OWN.encode()
    assert submission.manifest.hyperparameters == {"scale": 0.25}
    assert submission.manifest.budget.steps == 3
    assert submission.manifest.name == "guess-ffg"
    other = tmp_path / "other.py"
    other.write_text(OWN + "CHANGED = True\n")
    with pytest.raises(InputError, match="as it is now is not what made these results"):
        draft_from_run(ran / "out", tasks, choice, f"{other}:Guess")
    with pytest.raises(InputError, match="is Guess, but the run's method is exact"):
        draft_from_run(ran / "out", tasks, Choice("exact"), source)


def test_what_the_same_sources_have_scored_is_not_scored_again(ran, tasks, tmp_path, monkeypatch):
    scored = []

    def noticed(posteriors, *rest):
        scored.append(sorted(posteriors))
        return score_all(posteriors, *rest)

    monkeypatch.setattr(rescoring, "score_all", noticed)
    draft = draft_from_run(ran / "out", tasks, Choice("exact"))
    write_submission(draft, WORDS, tasks, tmp_path)
    place, cell = next(iter(draft.cells.items()))
    draft = replace(draft, cells={**draft.cells, place: replace(cell, scored=False)})
    write_submission(draft, WORDS, tasks, tmp_path, replace=True)
    assert scored == [[], [place]]


def test_a_folder_that_exists_stays(ran, tasks, tmp_path):
    draft = draft_from_run(ran / "out", tasks, Choice("exact"))
    write_submission(draft, WORDS, tasks, tmp_path)
    before = read_submission(tmp_path / "exact-full", tasks).sha256
    with pytest.raises(InputError, match="exact-full exists; give --replace"):
        write_submission(draft, Words(("C",), "MIT"), tasks, tmp_path)
    assert read_submission(tmp_path / "exact-full", tasks).sha256 == before
    write_submission(draft, Words(("C",), "MIT"), tasks, tmp_path, replace=True)
    assert read_submission(tmp_path / "exact-full", tasks).manifest.authors == ["C"]
    assert [path.name for path in tmp_path.iterdir()] == ["exact-full"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (Words(("<b>",), "MIT"), "submission.yaml: authors.0: got '<b>'"),
        (Words((), "MIT"), "submission.yaml: authors: "),
        (Words(("A",), "MIT", name="No Slug"), "submission.yaml: name: got 'No Slug'"),
        (Words(("A",), "MIT", link="http://x"), "submission.yaml: link: got 'http://x'"),
    ],
)
def test_words_that_do_not_fit_leave_nothing_behind(words, said, ran, tasks, tmp_path):
    with pytest.raises(InputError) as caught:
        write_submission(draft_from_run(ran / "out", tasks, Choice("exact")), words, tasks, tmp_path)
    assert str(caught.value).startswith(said)
    assert not list(tmp_path.iterdir())


def test_a_submission_that_does_not_hold_never_appears(ran, tasks, tmp_path):
    out = Path(shutil.copytree(ran / "out", tmp_path / "out"))
    path = next(out.glob("cells/toy/exact-full/*/record.json"))
    record = json.loads(path.read_text())
    record["scores"]["kl"] += 1e-6
    path.write_text(json.dumps(record))
    taken_at_its_word = draft_from_run(out, tasks, Choice("exact"))
    unknown = {place: replace(cell, scored=False) for place, cell in taken_at_its_word.cells.items()}
    with pytest.raises(InputError, match=r"cells.json: cells.\d.kl: toy split \d claims"):
        write_submission(replace(taken_at_its_word, cells=unknown), WORDS, tasks, tmp_path / "submissions")
    assert not list((tmp_path / "submissions").iterdir())
    # A record that was edited by hand is found out by whoever verifies it.
    with pytest.raises(InputError, match=r"cells.json: cells.\d.kl: toy split \d claims"):
        rescore(write_submission(taken_at_its_word, WORDS, tasks, tmp_path / "submissions"), tasks)


# ------------------------------------------------------------------------------------------------ the commands


@pytest.mark.usefixtures("official")
def test_submit_and_verify_by_command(ran, tmp_path, capsys):
    board = tmp_path / "board"
    arguments = ["submit", str(ran / "out"), "--author", "A", "--licence", "MIT", "--method", "rand-a", "--set", "M=10",
                 "--out", str(board / "submissions"), "--workers", "1", "--notes", "by command"]  # fmt: skip
    assert command(arguments) == 0
    folder = board / "submissions" / "rand-a-full"
    assert f"next: fsvi-bench verify {folder} --rerun 2" in capsys.readouterr().out
    assert yaml.safe_load((folder / "submission.yaml").read_text())["notes"] == "by command"
    assert command(["verify", str(folder), "--workers", "1", "--save", str(tmp_path / "saved")]) == 0
    out = capsys.readouterr().out
    assert "rand-a-full: track full, 2 ok, every claim holds; re-scored only" in out
    saved = read_verification(tmp_path / "saved" / "rand-a-full.json")
    assert (saved.label, len(saved.cells)) == ("re-scored only", 2)
    assert command(["verify", str(folder), "--workers", "1", "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert document == json.loads((tmp_path / "saved" / "rand-a-full.json").read_text())
    assert command(["verify", str(folder), "--workers", "1"]) == 0
    assert read_verification(board / "verified" / "rand-a-full.json") == saved


@pytest.mark.usefixtures("official")
def test_a_rerun_of_the_same_files_is_kept_when_they_are_only_scored(ran, tasks, tmp_path, capsys):
    draft = draft_from_run(ran / "out", tasks, Choice("exact"))
    write_submission(draft, Words(("A",), "MIT", name="again"), tasks, tmp_path / "submissions")
    folder, place = str(tmp_path / "submissions" / "again"), tmp_path / "verified" / "again.json"
    assert command(["verify", folder, "--workers", "1", "--rerun", "1", "--seed", "4", "--without-isolation"]) == 0
    assert "verification written to" in " ".join(capsys.readouterr().err.split())
    first = read_verification(place)
    assert (first.label, first.rerun.seed, len(first.rerun.official), len(first.rerun.withheld)) == ("re-run", 4, 1, 1)
    assert command(["verify", folder, "--workers", "1"]) == 0
    assert "stays as it is: it is of the same files, and has a re-run" in " ".join(capsys.readouterr().err.split())
    assert read_verification(place) == first
    manifest = Path(folder) / "submission.yaml"
    manifest.write_text(manifest.read_text() + "notes: other files\n")
    assert command(["verify", folder, "--workers", "1"]) == 0
    assert read_verification(place).label == "re-scored only"


@pytest.mark.usefixtures("official")
def test_verify_all_goes_on_after_a_refusal(ran, tasks, tmp_path, capsys):
    for name in ("good", "bad", "worse"):
        draft = draft_from_run(ran / "out", tasks, Choice("exact"))
        write_submission(draft, Words(("A",), "MIT", name=name), tasks, tmp_path / "submissions")
    everything = ["verify", "--all", str(tmp_path), "--workers", "1"]
    assert command(everything) == 0
    assert sorted(path.name for path in (tmp_path / "verified").iterdir()) == ["bad.json", "good.json", "worse.json"]
    edit_claim(tmp_path / "submissions" / "bad", kl=1.0)
    (tmp_path / "submissions" / "worse" / "cells.json").unlink()
    (tmp_path / "submissions" / ".half-written").mkdir()
    capsys.readouterr()
    assert command(everything) == 1
    said = capsys.readouterr()
    assert "good: track full, 2 ok, every claim holds; re-scored only (verified before)" in said.out
    assert said.err.count("refused: ") == 2
    assert "cells.json: cells.0.kl: toy split 0 claims 1.0" in said.err
    assert "1 of 3 submissions hold" in said.err
    assert [path.name for path in (tmp_path / "verified").iterdir()] == ["good.json"]
    assert command([*everything, "--again"]) == 1
    assert "verified before" not in capsys.readouterr().out


@pytest.mark.usefixtures("official")
def test_a_verification_of_other_files_or_another_version_is_not_kept(ran, tasks, tmp_path, capsys):
    write_submission(draft_from_run(ran / "out", tasks, Choice("exact")), WORDS, tasks, tmp_path / "submissions")
    path = tmp_path / "verified" / "exact-full.json"
    everything = ["verify", "--all", str(tmp_path), "--workers", "1"]
    assert command(everything) == 0
    first = json.loads(path.read_text())
    for change in ({"fsvi_bench": "0.0.0"}, {"submission_sha256": "0" * 64}, {"format": "other"}):
        path.write_text(json.dumps({**first, **change}))
        capsys.readouterr()
        assert command(everything) == 0
        assert "verified before" not in capsys.readouterr().out
        assert json.loads(path.read_text()) == first


@pytest.mark.usefixtures("official")
def test_one_refusal_is_one_sentence(ran, tasks, tmp_path, capsys):
    write_submission(draft_from_run(ran / "out", tasks, Choice("exact")), WORDS, tasks, tmp_path)
    edit_claim(tmp_path / "exact-full", kl=1.0)
    assert command(["verify", str(tmp_path / "exact-full"), "--workers", "1"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "cells.json: cells.0.kl" in said.err
