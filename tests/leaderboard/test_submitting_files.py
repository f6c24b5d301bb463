"""From posterior files of any tool to a submission that holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fsvi_bench.cli.app import main
from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard import rescoring, submitting
from fsvi_bench.leaderboard.drafting import draft_from_files
from fsvi_bench.leaderboard.reading import read_submission
from fsvi_bench.leaderboard.rescoring import score_all
from fsvi_bench.leaderboard.submitting import Words, write_submission
from fsvi_bench.posteriors.io import write_posterior
from tests.leaderboard.planted import plant_submission, planted_manifest, planted_posteriors, planted_tasks


def write_posteriors(folder, tasks, **settings):
    for (dataset, split), q in planted_posteriors(tasks, **settings).items():
        write_posterior(folder / dataset / f"split-{split:02d}.safetensors", q)


def from_files(folder, tasks, family="full", source=None):
    budget = {"steps": 7, "seconds": 2.0}
    return draft_from_files(folder, tasks, "Tool", family, budget, hyperparameters={"a": 1}, source=source)


def test_posterior_files_become_a_submission(tmp_path):
    tasks = planted_tasks()
    write_posteriors(tmp_path / "files", tasks)
    draft = from_files(tmp_path / "files", tasks)
    with pytest.raises(InputError, match="give --hardware"):
        write_submission(draft, Words(("A",), "MIT"), tasks, tmp_path / "out")
    submission = write_submission(draft, Words(("A",), "MIT", hardware="a desk"), tasks, tmp_path / "out")
    honest = plant_submission(tmp_path, tasks, planted_manifest(name="honest"))
    assert [(c.dataset, c.split, c.kl, c.predictive_kl_box) for c in submission.claims.cells] == [
        (c.dataset, c.split, c.kl, c.predictive_kl_box) for c in read_submission(honest, tasks).claims.cells
    ]
    assert submission.manifest.source is None


def test_posterior_files_are_scored_once_and_after_everything_else_is_known_to_fit(tmp_path, monkeypatch):
    tasks, calls = planted_tasks(), []

    def noticed(posteriors, *rest):
        calls.append(len(posteriors))
        return score_all(posteriors, *rest)

    monkeypatch.setattr(submitting, "score_all", noticed)
    monkeypatch.setattr(rescoring, "score_all", noticed)
    write_posteriors(tmp_path / "files", tasks)
    draft, fit = from_files(tmp_path / "files", tasks), Words(("A",), "MIT", hardware="a desk")
    for words in (Words(("A",), "MIT"), replace(fit, link="http://x"), replace(fit, name="No Slug")):
        with pytest.raises(InputError):
            write_submission(draft, words, tasks, tmp_path / "out")
    assert calls == []
    write_submission(draft, fit, tasks, tmp_path / "out")
    assert calls == [3, 0]
    with pytest.raises(InputError, match="give --replace"):
        write_submission(draft, fit, tasks, tmp_path / "out")
    assert calls == [3, 0]


def test_posterior_files_that_do_not_belong(tmp_path):
    tasks, folder = planted_tasks(), tmp_path / "files"
    with pytest.raises(InputError, match="there is no folder"):
        from_files(folder, tasks)
    write_posteriors(folder, tasks)
    with pytest.raises(InputError, match="kind: got 'gaussian-full', expected 'gaussian-ffg'"):
        from_files(folder, tasks, "ffg")
    (folder / "boston" / "split-01.safetensors").rename(folder / "boston" / "split-07.safetensors")
    with pytest.raises(InputError, match="boston has no official split 7"):
        from_files(folder, tasks)
    (folder / "boston" / "split-07.safetensors").unlink()
    with pytest.raises(InputError, match="boston has 2 official tasks, and 1 of them are missing: splits 1; add"):
        from_files(folder, tasks)
    (folder / "readme.txt").touch()
    with pytest.raises(InputError, match=r"'readme\.txt', expected <data set>/split-NN\.safetensors alone"):
        from_files(folder, tasks)


def test_a_named_source_is_read_and_not_run(tmp_path):
    tasks, mark = planted_tasks({"boston": 1}), tmp_path / "mark"
    write_posteriors(tmp_path / "files", tasks)
    (tmp_path / "tool.py").write_text(f"open({str(mark)!r}, 'w')\n")
    draft = from_files(tmp_path / "files", tasks, source=f"{tmp_path / 'tool.py'}:Tool")
    submission = write_submission(draft, Words(("A",), "MIT", hardware="x"), tasks, tmp_path / "out")
    assert submission.source == (tmp_path / "tool.py").read_bytes()
    assert not mark.exists()


def test_posterior_files_by_command(tmp_path, capsys, monkeypatch):
    tasks = planted_tasks()
    monkeypatch.setattr("fsvi_bench.leaderboard.protocol.protocol_tasks", lambda data_dir=None: tasks)
    write_posteriors(tmp_path / "files", tasks)
    arguments = ["submit", "--posteriors", str(tmp_path / "files"), "--author", "A", "--licence", "MIT", "--method",
                 "My tool", "--family", "full", "--steps", "100", "--seconds", "12.5", "--hardware", "a desk",
                 "--out", str(tmp_path / "out"), "--workers", "1"]  # fmt: skip
    with pytest.raises(SystemExit, match=r"^0$"):
        main(arguments)
    assert "no source, so it can be scored again but not run again" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["verify", str(tmp_path / "out" / "my-tool-full"), "--workers", "1"])
