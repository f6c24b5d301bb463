"""The command line's contract: what goes to stdout, what to stderr, and which status it ends with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fsvi_bench import __version__
from fsvi_bench.posteriors.gaussian import FactorisedGaussian
from fsvi_bench.posteriors.io import write_posterior
from fsvi_bench.presenting import wandb_runs
from tests.conftest import REFERENCE

EXPECTED = json.loads((REFERENCE / "expected.json").read_text())
EXACT_ON_TOY = ("run", "--dataset", "toy", "--method", "exact", "--splits", "0", "--wandb")


def python(*arguments, **options):
    """A fresh process; standard error is always captured."""
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "check": False, **options}
    return subprocess.run([sys.executable, *arguments], text=True, **piped)


@pytest.mark.parametrize("command", [(), ("run",), ("submit",), ("tasks", "build")])
def test_help_does_not_wait_for_torch(command):
    """What makes `--help` answer at once: none of the heavy packages is imported (a clock decides no test)."""
    code = (
        "import sys\nfrom fsvi_bench.cli.app import main\n"
        "try:\n    main([*sys.argv[1:], '--help'])\nexcept SystemExit as e:\n    assert e.code == 0, e.code\n"
        "heavy = {'torch', 'pytorch_lightning', 'gpytorch', 'scipy', 'sklearn', 'wandb', 'numpy', 'matplotlib', 'pandas'}\n"
        "loaded = heavy & set(sys.modules)\nassert not loaded, loaded\n"
    )
    done = python("-c", code, *command)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in (["run", "score", "datasets", "tasks"] if command == () else command))


@pytest.mark.parametrize("command", [(), ("run",), ("score",), ("submit",), ("verify",), ("datasets", "prepare")])
def test_help_names_values_without_types_of_python(cli, command):
    """A flag takes no value: nothing stands beside its name."""
    status, out, _ = cli(*command, "--help")
    assert status == 0
    assert re.search(r"<(bool|str|int|float|path|list)", out) is None
    assert re.search(r"--help {2,}Show this message", out)


def test_results_are_read_without_lightning():
    """Whose import takes longer than a report: only what trains needs it."""
    modules = "fsvi_bench.running.store, fsvi_bench.cli.status, fsvi_bench.cli.score"
    python("-c", f"import sys, {modules}\nassert 'pytorch_lightning' not in sys.modules\n", check=True)


def test_one_methods_options_are_listed_with_their_values(cli, tmp_path):
    status, out, err = cli("methods", "list", "rand-a")
    assert (status, err) == (0, "")
    lines = {line.split()[0]: " ".join(line.split()) for line in out.splitlines() if line.strip()}
    assert lines["lr"] == "lr 0.1 0.03 number > 0"
    assert lines["minibatch"].startswith("minibatch full M whole number > 0 or full or M As in the paper, a step has")
    assert lines["averaging"].startswith("averaging 0.3 0.3 number ≥ 0 and < 1 fraction of the steps")
    assert lines["draw_A"] == "draw_A mixed mixed mixed, data, box"
    (entry,) = json.loads(cli("methods", "list", "rand-a", "--json")[1])
    assert (entry["options"]["lr"], entry["network_options"]["lr"]) == (0.1, 0.03)
    path = tmp_path / "own.py"
    path.write_text(
        "from fsvi_bench.methods.base import Method, MethodOptions\n"
        "class Own(Method):\n"
        "    class Options(MethodOptions):\n"
        "        '''Mine. `size` is its size. It is large.'''\n"
        "        size: int | None = None\n"
        "    def solve(self, problem): ...\n"
    )
    status, out, _ = cli("methods", "list", f"{path}:Own")
    assert (status, "on networks" in out) == (0, False)
    (line,) = [line for line in out.splitlines() if line.startswith(" size")]
    assert " ".join(line.split()) == "size null whole number or null `size` is its size."
    assert "none" in cli("methods", "list", "exact")[1]


@pytest.mark.data
def test_score_prints_one_object_of_scores(cli):
    files = (REFERENCE / kind / name for kind, name in (("tasks", "boston-00"), ("posteriors", "boston-00-full")))
    task, posterior = (path.with_name(f"{path.name}.safetensors") for path in files)
    status, out, err = cli("score", "--task", task, "--posterior", posterior, "--json")
    assert (status, err) == (0, "")
    scores = json.loads(out)
    for name, value in EXPECTED["boston-00"]["posterior_full"].items():
        assert scores[name] == pytest.approx(value, rel=1e-9)
    status, out, _ = cli("score", "--task", task, "--posterior", posterior)
    assert (status, "11.39759528" in out) == (0, True)


@pytest.mark.data
@pytest.mark.parametrize("name", ["boston-00", "concrete-03"])
def test_run_on_a_task_file_gives_the_reference_values(cli, tmp_path, name):
    task = REFERENCE / "tasks" / f"{name}.safetensors"
    status, out, _ = cli("run", "--task", task, "--method", "exact", "--out", tmp_path, "--json", "--wandb", "off")
    assert status == 0
    scores = {record["family"]: record["scores"] for record in json.loads(out)}
    expected = EXPECTED[name]
    for family, values in (("full", expected["exact"]), ("ffg", expected["exact_ffg"])):
        assert {score: scores[family][score] for score in values} == pytest.approx(values, rel=1e-9)
    assert abs(scores["full"]["kl"]) < 1e-9
    assert scores["full"]["log_evidence"] == pytest.approx(expected["log_evidence"], rel=1e-9)


def test_run_in_a_process_of_its_own(cli, tmp_path, monkeypatch):
    """The installed command: JSON alone on stdout, progress on stderr, status 0; the second run computes nothing."""
    command = (*EXACT_ON_TOY, "off", "--json")
    done = python("-m", "fsvi_bench", *command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [record["family"] for record in json.loads(done.stdout)] == ["full", "ffg"]
    assert "running methods 2/2: toy exact ffg: 1 ok" in done.stderr
    assert "Warning" not in done.stderr
    assert (tmp_path / "fsvi-bench-results" / "cells" / "toy").is_dir()
    monkeypatch.chdir(tmp_path)
    assert cli(*command) == (0, done.stdout, "")


def test_a_failed_cell_is_listed_and_the_status_is_1(cli, tmp_path):
    path = tmp_path / "bad.py"
    path.write_text(
        "from fsvi_bench.methods.base import Method\n"
        "class Bad(Method):\n"
        "    deterministic = True\n"
        "    def solve(self, problem): raise RuntimeError('planted')\n"
    )
    arguments = ("run", "--dataset", "toy", "--splits", "0", "--method", f"{path}:Bad", "--out", tmp_path / "o")
    status, out, err = cli(*arguments, "--wandb", "off")
    assert status == 1
    assert "toy split 0 Bad full seed 0: failed: RuntimeError: planted" in err
    named = Path(re.search(r"\(traceback: (.*)\)", err)[1])
    assert named.read_text().endswith("RuntimeError: planted\n")
    assert "Traceback" not in err
    assert "1 not ok" in out


def test_wandb_off_imports_nothing_of_it_and_offline_writes_a_run(tmp_path):
    code = (
        "import sys\nfrom fsvi_bench.cli.app import main\n"
        "for mode in ('off', 'offline'):\n"
        "    assert 'wandb' not in sys.modules\n"
        "    try:\n        main([*sys.argv[1:], mode, '--out', mode])\n"
        "    except SystemExit as e:\n        assert e.code == 0, e.code\n"
    )
    done = python("-c", code, *EXACT_ON_TOY, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "off" / "wandb").exists()
    assert len(list((tmp_path / "offline" / "wandb").glob("offline-run-*/run-*.wandb"))) == 2


def test_a_failure_of_wandb_loses_no_cell(cli, tmp_path, monkeypatch):
    def refuse(*_):
        raise ConnectionError("planted")

    monkeypatch.setattr(wandb_runs, "Worker", refuse)
    status, out, err = cli(*EXACT_ON_TOY, "offline", "--out", tmp_path, "--json")
    assert (status, len(json.loads(out))) == (0, 2)
    assert "W&B logging stopped (ConnectionError: planted)" in err


def test_lists(cli):
    status, out, _ = cli("datasets", "list", "--json")
    assert status == 0
    assert {card["name"] for card in json.loads(out)} >= {"boston", "diabetes", "mnist", "toy", "protein"}
    assert "heating load" in cli("datasets", "list")[1]
    methods = {entry["name"]: entry for entry in json.loads(cli("methods", "list", "--json")[1])}
    exact = methods["exact"]
    assert (exact["families"], exact["deterministic"], exact["options"]) == (["full", "ffg"], True, {})
    drawn = {name: not entry["deterministic"] for name, entry in methods.items()}
    assert (drawn["gwi"], drawn["rand-a"]) == (False, True)  # gwi's default is a closed form
    assert [methods[name]["networks"] for name in ("exact", "mean-field-vi", "fixed-a")] == [False, True, False]
    status, out, _ = cli("methods", "list")
    assert status == 0
    of_method = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert [" yes " in of_method[name] for name in ("exact", "mean-field-vi", "fixed-a")] == [False, True, False]


def test_datasets_prepare_and_verify(cli):
    assert cli("datasets", "prepare", "diabetes", "toy")[0] == 0
    status, out, _ = cli("datasets", "verify", "diabetes")
    assert (status, out) == (0, "diabetes: the data and 20 splits match the card\n")
    status, out, _ = cli("datasets", "verify")
    assert (status, len(out.splitlines())) == (0, 20)


@pytest.mark.data
def test_datasets_prepare_and_verify_take_images(cli):
    assert cli("datasets", "prepare", "mnist")[:2] == (0, "mnist: data folder\n")
    assert cli("datasets", "verify", "mnist")[:2] == (0, "mnist: the 70000 images match the card\n")


def test_infinity_is_a_word_in_json(cli, tmp_path):
    path = tmp_path / "q.safetensors"
    zeros = torch.zeros(100, dtype=torch.float64)
    write_posterior(path, FactorisedGaussian(zeros, zeros + 1e-160))
    status, out, _ = cli("score", "--task", "diabetes:0", "--posterior", path, "--json")
    assert (status, json.loads(out)["reverse_kl"]) == (0, "Infinity")


TALKATIVE = """
from fsvi_bench.methods.exact import Exact
class Talks(Exact):
    families = ("full",)
    @classmethod
    def is_deterministic(cls, options):
        print("said for a plan")
        return True
    def solve(self, problem):
        print("said when solving")
        return super().solve(problem)
"""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "--dry-run", "--dataset", "toy", "--out", "out", "--json", "--method"), "said for a plan"),
        (("methods", "check", "--json"), "said when solving"),
    ],
)
def test_what_the_code_of_a_method_prints_leaves_the_json_document_alone(cli, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    Path("talks.py").write_text(TALKATIVE)
    _, out, err = cli(*arguments, "talks.py:Talks")
    assert json.loads(out)
    assert said in err


def test_without_arguments_the_help_is_shown(cli):
    for arguments in ((), ("tasks",)):
        status, out, err = cli(*arguments)
        assert (status, err) == (2, "")
        assert "Usage" in out


def test_a_full_disk_behind_stdout_is_one_sentence():
    """/dev/full says that no space is left, as a full disk does."""
    with Path("/dev/full").open("w") as full:
        done = python("-m", "fsvi_bench", "datasets", "list", stdout=full)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("fsvi-bench: no space left")


def test_the_version(cli):
    assert cli("--version") == (0, f"{__version__}\n", "")
