"""The workflow of a leaderboard's repository: no secret and no right to write where submitted code runs; and the script
that says which submission a pull request changes, on throwaway repositories."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fsvi_bench.leaderboard.rerun import RerunSettings

CI = Path(__file__).parents[2] / "leaderboard" / "ci"
TEXT = (CI / "verify.yml").read_text()
WORKFLOW = yaml.safe_load(TEXT)
JOBS = WORKFLOW["jobs"]
RUNS_SUBMITTED_CODE = {"rerun", "verify-all"}


def steps(job):
    return JOBS[job]["steps"]


def commands(job):
    return "\n".join(step.get("run", "") for step in steps(job))


def test_it_starts_on_pull_requests_and_on_main_only():
    assert WORKFLOW[True] == {"pull_request": None, "push": {"branches": ["main"]}}  # YAML 1.1 reads `on` as true
    assert "pull_request_target" not in re.sub(r"#.*", "", TEXT)
    assert JOBS["rescore"]["if"] == "github.event_name == 'pull_request'"
    assert JOBS["verify-all"]["if"] == "github.event_name == 'push'"
    assert (JOBS["rerun"]["needs"], JOBS["site"]["needs"]) == ("rescore", "verify-all")


def test_jobs_that_run_submitted_code_can_write_nothing_and_know_no_secret():
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert {job for job in JOBS if "--rerun" in commands(job)} == RUNS_SUBMITTED_CODE
    assert {job for job in JOBS if "permissions" in JOBS[job]} == {"site"}
    assert JOBS["site"]["permissions"] == {"contents": "read", "pages": "write", "id-token": "write"}
    assert "verify" not in commands("site")
    assert "secrets" not in TEXT.replace("no secret", "")
    assert "github.token" not in TEXT
    assert "cache" not in "".join(step.get("uses", "") for job in JOBS for step in steps(job))
    assert set(re.findall(r"uses: (\S+)", TEXT)) == {
        "actions/checkout@v4", "actions/setup-python@v5", "actions/upload-artifact@v4", "actions/download-artifact@v4",
        "actions/upload-pages-artifact@v3", "actions/deploy-pages@v4",
    }  # fmt: skip


def test_no_checkout_leaves_its_token_behind_and_every_job_ends():
    for job in JOBS:
        assert JOBS[job]["timeout-minutes"] < 360
        assert JOBS[job]["concurrency"]["group"]
        for step in steps(job):
            if step.get("uses", "").startswith("actions/checkout"):
                assert step["with"]["persist-credentials"] is False


def test_nothing_from_outside_is_pasted_into_a_shell():
    for job in JOBS:
        assert "${{" not in commands(job)
        for step in steps(job):
            for name in re.findall(r"\$\{?([A-Z_]+)", step.get("run", "")):
                assert name in {**step.get("env", {}), **WORKFLOW["env"], "GITHUB_OUTPUT": ""}


def test_bubblewrap_is_there_wherever_code_is_run():
    for job in RUNS_SUBMITTED_CODE:
        assert "bubblewrap" in commands(job)
        assert "kernel.apparmor_restrict_unprivileged_userns=0" in commands(job)


def test_submitted_code_is_isolated_and_run_often_enough():
    """Isolation is the default of `verify`, which no job may do without; see docs/submitting.md on how many runs."""
    assert "isolation" not in "".join(commands(job) for job in JOBS)
    assert RerunSettings(count=1, seed=0).require_isolation
    assert commands("rerun").rstrip().endswith('fsvi-bench verify "$SUBMISSION" --rerun 2')
    assert commands("verify-all").rstrip().endswith("fsvi-bench verify --all leaderboard --rerun 5")


def test_the_site_is_built_of_what_holds_though_some_submission_is_refused():
    *before, upload = steps("verify-all")
    assert "--all" in before[-1]["run"]
    assert before[-1]["timeout-minutes"] < JOBS["verify-all"]["timeout-minutes"]
    assert "continue-on-error" not in TEXT  # the run shows red
    assert upload["if"] == "${{ !cancelled() }}"
    assert JOBS["site"]["if"] == "${{ !cancelled() && github.event_name == 'push' }}"
    names = [step.get("uses", step.get("run", "")) for step in steps("site")]
    assert names.index("rm -rf leaderboard/verified") < names.index("actions/download-artifact@v4")


@pytest.mark.parametrize("job", JOBS)
def test_shells_parse(job):
    for step in steps(job):
        if "run" in step:
            done = subprocess.run(["bash", "-n"], input=step["run"], text=True, capture_output=True, check=False)
            assert done.returncode == 0, done.stderr


# --- changed.py -------------------------------------------------------------------------------------------------------


class Repository:
    """A leaderboard with one submission on main."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git("init", "--quiet", "--initial-branch=main")
        self.write("leaderboard/submissions/old/submission.yaml", "old")
        self.write("README.md", "read me")
        self.base = self.commit()
        self.git("switch", "--quiet", "--create", "proposed")

    def git(self, *words: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", *identity, *words], cwd=self.folder, check=True, capture_output=True, text=True
        ).stdout

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def commit(self) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "change")
        return self.git("rev-parse", "HEAD").strip()

    def ask(self, base: str | None = None) -> tuple[int, str, str]:
        environment = {**os.environ, "BASE": base or self.base, "HEAD": self.commit()}
        done = subprocess.run(
            [sys.executable, "-I", str(CI / "changed.py")], cwd=self.folder, env=environment, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path)


NEW = "leaderboard/submissions/new"


def test_a_new_submission_is_named(repository):
    for name in ("submission.yaml", "cells.json", "mine.py", "posteriors/boston/split-00.safetensors"):
        repository.write(f"{NEW}/{name}", "x")
    assert repository.ask() == (0, f"{NEW}\n", "")


def test_an_own_submission_may_be_changed_and_renamed_files_are_both(repository):
    repository.write("leaderboard/submissions/old/submission.yaml", "new words")
    assert repository.ask() == (0, "leaderboard/submissions/old\n", "")
    repository.git("mv", "leaderboard/submissions/old", "leaderboard/submissions/stolen")
    status, _, said = repository.ask()
    assert (status, said) == (1, "refused: two submissions are changed (old, stolen); open a pull request for each\n")


def test_what_main_did_meanwhile_is_not_the_pull_requests_doing(repository):
    repository.write(f"{NEW}/submission.yaml", "x")
    repository.commit()
    repository.git("switch", "--quiet", "main")
    repository.write("README.md", "changed on main")
    base = repository.commit()
    repository.git("switch", "--quiet", "proposed")
    assert repository.ask(base) == (0, f"{NEW}\n", "")


@pytest.mark.parametrize(
    "name",
    [
        "README.md", ".github/workflows/verify.yml", "leaderboard/verified/new.json", "leaderboard/reference.json",
        "leaderboard/ci/changed.py", "leaderboard/submissions/stray.yaml", "leaderboard/submissions/UPPER/x",
        f"{NEW}/deep/er/than/that", f"{NEW}/posteriors/boston/deep/er", "leaderboard/submissions/$(touch pwned)/x",
        "leaderboard/submissions/a\nb/x", "pip.py",
    ],
)  # fmt: skip
def test_anything_outside_one_submission_is_refused(repository, name):
    repository.write(f"{NEW}/submission.yaml", "x")
    repository.write(name, "x")
    status, out, said = repository.ask()
    assert (status, out) == (1, "")
    assert said.startswith("refused: ")
    assert said.count("\n") == 1
    assert "change nothing outside one" in said
    assert not (repository.folder / "pwned").exists()


def test_links_and_executables_are_refused(repository):
    repository.write(f"{NEW}/mine.py", "x")
    (repository.folder / NEW / "mine.py").chmod(0o755)
    assert "not a plain file (mode 100755)" in repository.ask()[2]
    (repository.folder / NEW / "mine.py").unlink()
    (repository.folder / NEW / "mine.py").symlink_to("/etc/passwd")
    assert "not a plain file (mode 120000)" in repository.ask()[2]


def test_no_change_and_no_commits_are_refused(repository):
    assert "nothing is changed" in repository.ask()[2]
    assert "is not a commit" in repository.ask("--output=pwned")[2]
    assert "git cannot compare" in repository.ask("0" * 40)[2]
