"""docs/new-method.md as a reader takes it: its template, checked and run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fsvi_bench.leaderboard.verification import read_verification

from fsvi_bench.conformance import Subject, check_method
from fsvi_bench.methods.registry import load_method
from fsvi_bench.tasks.build import build_task
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.official import TaskSet

PAGE = (Path(__file__).parents[2] / "docs" / "new-method.md").read_text()
TEMPLATE = PAGE.split("```python\n")[1].split("```")[0]


@pytest.fixture
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my_method.py").write_text(TEMPLATE)
    return tmp_path


def commands():
    """Every command of the page, without the program's name."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    return [line.removeprefix("fsvi-bench ").split() for block in blocks for line in block.strip().splitlines()]


def test_the_template_is_short():
    assert len(TEMPLATE.strip().splitlines()) <= 12
    assert all(len(line) <= 120 for line in TEMPLATE.splitlines())


@pytest.mark.slow
def test_the_template_conforms_by_the_pages_command(in_empty_folder, cli):
    (check,) = [words for words in commands() if words[:2] == ["methods", "check"]]
    status, out, err = cli(*check, "--device", "cpu")
    assert (status, err) == (0, "")
    said = re.search(r"`(MyMethod conforms: [^`]*)`", PAGE)
    assert said is not None
    assert out.splitlines()[-1] == said[1]
    assert [path.name for path in in_empty_folder.iterdir()] == ["my_method.py"]


def test_the_template_runs_and_learns(in_empty_folder, cli):
    """As the page's `run`, on the toy task for the raw data's sake and with fewer steps: KL falls by far."""
    kls = {}
    for steps in (1, 300):
        status, out, _ = cli(
            "run", "--dataset", "toy", "--splits", "0", "--method", "my_method.py:MyMethod", "--max-steps", steps,
            "--wandb", "off", "--workers", 1, "--out", f"out-{steps}", "--json",
        )  # fmt: skip
        assert status == 0
        for record in json.loads(out):
            kls[record["family"], steps] = record["scores"]["kl"]
    for family in ("full", "ffg"):
        assert kls[family, 300] < 0.2 * kls[family, 1]


def test_the_template_may_take_larger_minibatches(in_empty_folder):
    path = Path("larger.py")
    path.write_text(TEMPLATE.replace("minibatch: int = 20", "minibatch: int = 32"))
    check = "the same in any batch, odd shapes"
    report = check_method([Subject(load_method(f"{path}:MyMethod"), "ffg")], [check])
    assert [(each.check, each.status) for each in report.findings] == [
        ("trains", "ok"),
        ("posterior after training", "ok"),
        (check, "ok"),
    ]


@pytest.fixture
def two_official_tasks(monkeypatch):
    """The commands take two toy tasks, which need no raw data, for the leaderboard's."""
    tasks = TaskSet({("toy", split): build_task(load_card("toy"), split).task for split in range(2)})
    monkeypatch.setattr("fsvi_bench.leaderboard.protocol.protocol_tasks", lambda data_dir=None: tasks)
    monkeypatch.setattr("fsvi_bench.tasks.official.official_splits", lambda name: [0, 1])
    monkeypatch.setattr("fsvi_bench.tasks.official.official_tasks", lambda names, data_dir: tasks)


@pytest.mark.slow
@pytest.mark.usefixtures("two_official_tasks")
def test_steps_4_and_5_lead_from_a_run_to_a_site(in_empty_folder, cli):
    """The page's commands in their order, on two toy tasks, with fewer steps and one re-run instead of two."""
    found = commands()
    (run,) = [words for words in found if "--protocol" in words]
    place = run.index("--protocol")
    run[place : place + 2] = ["--dataset", "toy", "--splits", "0-1", "--max-steps", "30", "--wandb", "off"]
    submit, verify, build, serve = found[found.index(next(w for w in found if w[0] == "submit")) :]
    submit = [*submit[: submit.index("--author")], "--author", "Ada Lovelace", *submit[submit.index("--licence") :]]
    verify[-1] = "1"
    assert serve == ["leaderboard", "serve"]
    for words in (run, submit, verify):
        status, _, err = cli(*words, "--workers", 1)
        assert status == 0, err
    # The project's own references are of other tasks than the two that are planted here.
    for words in (["leaderboard", "freeze"], build):
        status, out, err = cli(*words)
        assert status == 0, err
    verified = read_verification(Path("leaderboard/verified/my-method-full.json"))
    assert (verified.label, len(verified.cells)) == ("re-run", 2)
    assert len(verified.rerun.official[0].waypoints) > 2
    assert out == "leaderboard/site/index.html\n"
    assert "MyMethod" in Path(out.strip()).read_text()
    assert Path("leaderboard/site/methods/my-method-full.html").is_file()


@pytest.mark.data
def test_the_pages_run_commands_are_understood(in_empty_folder, cli):
    runs = [words for words in commands() if words[0] == "run"]
    assert len(runs) == 2
    for words in runs:
        status, _, err = cli(*words, "--dry-run")
        assert status == 0, err
