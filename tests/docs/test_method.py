"""docs/how-to/method.md as a reader takes it: its template, checked and run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from fsvi_bench.conformance import Subject, check_method
from fsvi_bench.leaderboard import ranked_tasks
from fsvi_bench.leaderboard.board import read_board
from fsvi_bench.leaderboard.ranking import rank
from fsvi_bench.methods.registry import load_method
from tests.leaderboard.jailing import shared, working_jail  # noqa: F401 -- a fixture of every test

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "method.md").read_text()
TEMPLATE = PAGE.split('```python title="my_method.py"\n')[1].split("```")[0]


@pytest.fixture
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my_method.py").write_text(TEMPLATE)
    return tmp_path


def commands():
    """Every command of the page, without the program's name."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    return [shlex.split(line)[1:] for block in blocks for line in block.strip().splitlines()]


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
    """The page's `run`, on the toy task (which needs no raw data) and with fewer steps: the KL falls by a large factor."""
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


@pytest.mark.slow
@pytest.mark.parametrize("title", ["sampling.py", "closed_form.py", "like_randa.py"])
def test_the_other_examples_conform(tmp_path, title):
    path = tmp_path / title
    path.write_text(PAGE.split(f'```python title="{title}"\n')[1].split("```")[0])
    name = re.search(r"(?m)^class (\w+)", path.read_text())
    assert name is not None
    method = load_method(f"{path}:{name[1]}")
    report = check_method([Subject(method, family) for family in method.cls.families])
    assert [each for each in report.findings if each.status == "failed"] == []


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


def smaller(words):
    """A command of the page on the bundled diabetes data, with fewer steps and in this one process."""
    if words[0] == "submit" and ".py:" in words[1]:
        assert words[words.index("--steps") + 1] == "3000"
        return [*words, "--set", "max_steps=30"]
    if words[0] == "verify":
        return [*words, "--workers", "1"]
    return ["diabetes" if word == "yacht" else word for word in words]


@pytest.mark.slow
def test_steps_4_and_5_lead_from_a_method_to_a_ranked_row(in_empty_folder, cli, monkeypatch):
    """The page's commands in their order, and as they stand there but for the data set and the numbers of steps and of
    tasks: one ranked task of each kind, and an official one."""
    working_jail()
    for name, value in {"TASKS": 2, "WITH_REAL_TARGETS": 1, "OFFICIAL_SPLITS": range(1)}.items():
        monkeypatch.setattr(ranked_tasks, name, value)
    found = commands()
    *words, serve = found[next(place for place, each in enumerate(found) if each[:2] == ["leaderboard", "init"]) :]
    assert [each[0] for each in words] == ["leaderboard", "submit", "submit", "verify", "leaderboard"]
    assert serve == ["leaderboard", "serve"]
    for each in words:
        status, out, err = cli(*smaller(each))
        assert status == 0, err
    assert out == "leaderboard/site/index.html\n"
    assert "MyMethod full" in Path(out.strip()).read_text()
    assert Path("leaderboard/site/methods/my-method-full.html").is_file()
    board = read_board(Path("leaderboard"))
    assert [each.stale for each in board.standings] == [None, None]
    assert [line.name for line in rank(board, "posterior").lines] == ["rand-a-ngd-full", "my-method-full"]


@pytest.mark.data
def test_the_pages_run_commands_are_understood(in_empty_folder, cli):
    runs = [words for words in commands() if words[0] == "run"]
    assert len(runs) == 1
    for words in runs:
        status, _, err = cli(*words, "--dry-run")
        assert status == 0, err
