"""An earlier submission is never lost, and results go with the sources that made them, or with a word that they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsvi_bench.arithmetic import PORTABLE
from fsvi_bench.cli.app import main
from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard import drafting
from fsvi_bench.leaderboard.drafting import Choice, draft_from_run
from fsvi_bench.leaderboard.reading import read_submission
from fsvi_bench.leaderboard.submitting import Draft, DraftCell, Words, as_line, write_submission
from fsvi_bench.methods.registry import load_installed
from fsvi_bench.running.archive import read_archive
from fsvi_bench.running.grid import decisive_sha256
from fsvi_bench.running.provenance import machine_words
from fsvi_bench.running.store import read_record
from fsvi_bench.scoring.scores import score
from fsvi_bench.tasks.build import build_task
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.official import TaskSet
from tests.leaderboard.planted import planted_posteriors

WORDS = Words(("A",), "MIT", name="mine")


@pytest.fixture
def draft(planted_set):
    cells = {}
    for place, q in planted_posteriors(planted_set).items():
        scores = score(q, planted_set.problem(place))
        cells[place] = DraftCell("ok", None, q, scores.kl, scores.predictive_kl_box)
    return Draft("m", "full", {}, {"steps": 1, "seconds": 1.0}, None, cells, "A title", "a desk", ())


def test_the_earlier_submission_comes_back_if_the_new_one_cannot_take_its_place(
    draft, planted_set, tmp_path, monkeypatch
):
    first = write_submission(draft, WORDS, planted_set, tmp_path)
    real = Path.rename

    def fails(path, target):
        if path.parent.name.startswith(".mine.") and path.name == "mine":
            raise OSError(28, "No space left on device")
        return real(path, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(InputError, match=r"cannot write .*/mine: No space left on device"):
        write_submission(draft, WORDS, planted_set, tmp_path, replace=True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert read_submission(tmp_path / "mine", planted_set).sha256 == first.sha256


def test_a_refusal_names_the_place_that_was_asked_for(draft, planted_set, tmp_path):
    place = ("boston", 0)
    draft.cells[place] = DraftCell("ok", None, draft.cells[place].posterior, 1.0, 1.0)
    with pytest.raises(InputError) as caught:
        write_submission(draft, WORDS, planted_set, tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'mine' / 'cells.json'}: cells.0.kl: ")
    assert not list(tmp_path.iterdir())


def test_a_submission_that_was_written_says_where_it_lies(draft, planted_set, tmp_path):
    submission = write_submission(draft, WORDS, planted_set, tmp_path)
    assert submission.folder == tmp_path / "mine"


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    out = tmp_path_factory.mktemp("ran") / "out"
    with pytest.raises(SystemExit) as ended:
        main(["run", "--dataset", "toy", "--splits", "0", "--method", "exact", "--family", "full", "--wandb", "off",
              "--workers", "1", "--out", str(out)])  # fmt: skip
    assert ended.value.code == 0
    return out


@pytest.fixture(scope="module")
def toy():
    return TaskSet({("toy", 0): build_task(load_card("toy"), 0).task})


def test_results_of_other_sources_are_submitted_with_a_word_or_not_at_all(ran, toy, tmp_path, monkeypatch):
    draft = draft_from_run(ran, toy, Choice())
    assert (draft.method, draft.remark) == ("exact", "")
    assert {cell.scored for cell in draft.cells.values()} == {True}
    monkeypatch.setattr(
        "fsvi_bench.running.grid.meaning_sha256", lambda *roots, **given: "0" * 64
    )  # as after an update
    with pytest.raises(InputError) as caught:
        draft_from_run(ran, toy, Choice())
    said = str(caught.value)
    assert said.startswith(
        "exact as it is now is not what made these results: its file, or fsvi-bench itself, is another"
    )
    assert f"fsvi-bench run --method exact ... --out {ran}" in said
    assert "--allow-other-sources" in said
    allowed = draft_from_run(ran, toy, Choice(), allow_other_sources=True)
    assert {cell.scored for cell in allowed.cells.values()} == {False}
    words = Words(("A",), "MIT", notes="A note.")
    submission = write_submission(allowed, words, toy, tmp_path / "submissions")
    note, remark = submission.manifest.notes.split("\n")
    assert (note, remark.startswith("Run with other sources of exact or of fsvi-bench than")) == ("A note.", True)


@pytest.mark.parametrize("kernels", [{}, PORTABLE])
def test_results_of_other_kernels_are_not_of_other_sources(ran, toy, monkeypatch, kernels):
    """The manifest names the kernels of each machine; a hash alone would call the sources others."""
    (record,) = read_archive(ran).records
    path = next(ran.glob("cells/**/record.json"))
    text = path.read_text()
    for module in ("running.grid", "leaderboard.drafting"):
        monkeypatch.setattr(f"fsvi_bench.{module}.arithmetic", lambda: {"MKL_CBWR": "AVX2"})
    other = decisive_sha256(load_installed("exact").code_sha256, kernels)
    try:
        path.write_text(text.replace(record.code_sha256, other))
        monkeypatch.setattr(drafting, "_chosen", lambda *given: {("toy", 0): read_record(path)})
        draft = draft_from_run(ran, toy, Choice())
        command = drafting._command(read_record(path), load_installed("exact"), None, ran)("toy", [1])
    finally:
        path.write_text(text)
    assert draft.remark == ""
    assert command.startswith("FSVI_BENCH_KERNELS=portable fsvi-bench run" if kernels else "fsvi-bench run")
    assert draft.hardware == as_line(machine_words(record.provenance))


def test_cells_of_several_sets_of_kernels_are_not_one_submission(ran, toy, monkeypatch):
    """No one re-run could end where all of them are."""
    (record,) = read_archive(ran).records
    codes = [decisive_sha256(load_installed("exact").code_sha256, kernels) for kernels in ({}, PORTABLE)]
    both = {("toy", split): record.model_copy(update={"code_sha256": code}) for split, code in enumerate(codes)}
    monkeypatch.setattr(drafting, "_chosen", lambda *given: both)
    monkeypatch.setattr(drafting, "_steps", lambda *given: 1)
    monkeypatch.setattr(drafting, "_cell", lambda *given, scored: DraftCell("failed", "planted"))
    two = TaskSet(dict.fromkeys(both, toy.tasks["toy", 0]))
    with pytest.raises(InputError, match="some cells of exact were made with other kernels of torch than others"):
        draft_from_run(ran, two, Choice())
    allowed = draft_from_run(ran, two, Choice(), allow_other_sources=True)
    assert allowed.remark == "Its cells were made with several sets of kernels of torch."


def test_all_machines_of_a_run_are_named(ran, toy, monkeypatch):
    (record,) = read_archive(ran).records
    elsewhere = record.model_copy(update={"split": 1, "provenance": {**record.provenance, "hardware": "another"}})
    both = TaskSet({("toy", split): toy.tasks["toy", 0] for split in (0, 1)})
    monkeypatch.setattr(drafting, "_chosen", lambda *given: {("toy", 0): record, ("toy", 1): elsewhere})
    monkeypatch.setattr(drafting, "_steps", lambda *given: 1)
    monkeypatch.setattr(drafting, "_cell", lambda *given, scored: DraftCell("failed", "planted"))
    words = draft_from_run(ran, both, Choice()).hardware
    assert words == "; ".join(as_line(machine_words(each.provenance)) for each in (record, elsewhere))


def test_a_method_that_cannot_be_made_any_more_is_no_traceback(ran, toy, monkeypatch):
    records = {("toy", 0): read_archive(ran).records[0]}

    def broken(*given):
        raise ValueError("no such\nthing")

    monkeypatch.setattr(load_installed("exact").cls, "__init__", broken)
    with pytest.raises(InputError, match=r"exact cannot be made for toy split 0 now \(ValueError: no such thing\)"):
        drafting._steps(records, load_installed("exact"), toy)
    failed = {("toy", 0): records["toy", 0].model_copy(update={"status": "failed"})}
    with pytest.raises(InputError, match="every cell of exact failed, so there is nothing to submit"):
        drafting._steps(failed, load_installed("exact"), toy)


def test_an_interrupt_between_two_renames_loses_nothing(draft, planted_set, tmp_path, monkeypatch):
    write_submission(draft, WORDS, planted_set, tmp_path)
    before = read_submission(tmp_path / "mine", planted_set).sha256
    real = Path.rename

    def interrupted(path, target):
        real(path, target)
        if path == tmp_path / "mine":
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_submission(draft, Words(("B",), "MIT", name="mine"), planted_set, tmp_path, replace=True)
    assert read_submission(tmp_path / "mine", planted_set).sha256 == before
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_flag_has_no_meaning_for_posterior_files(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["submit", "--posteriors", str(tmp_path), "--author", "A", "--licence", "MIT", "--method", "m", "--family",
              "full", "--steps", "1", "--seconds", "1", "--hardware", "h", "--allow-other-sources"])  # fmt: skip
    assert ended.value.code == 2
    assert "--allow-other-sources has no meaning with --posteriors" in capsys.readouterr().err
