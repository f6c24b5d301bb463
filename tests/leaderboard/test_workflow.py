"""Pull requests: the workflow holds no secret and trusts the base commit alone; changed.py names the one entry that a
pull request changes, on throwaway repositories."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
CI = ROOT / "leaderboard" / "ci"
TEXT = (CI / "verify.yml").read_text()
WORKFLOW = yaml.safe_load(TEXT)
STEPS = WORKFLOW["jobs"]["check"]["steps"]
COMMANDS = "\n".join(step.get("run", "") for step in STEPS)


def test_it_starts_on_pull_requests_to_the_board_and_can_write_nothing():
    assert WORKFLOW[True] == {"pull_request": {"paths": ["leaderboard/**"]}}  # YAML 1.1 reads `on` as true
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert [*WORKFLOW["jobs"]] == ["check"]
    assert "permissions" not in WORKFLOW["jobs"]["check"]
    words = re.sub(r"#.*", "", TEXT)
    assert not re.search(r"pull_request_target|secrets\.|github\.token|actions/cache|--secret|--key", words)


def test_everything_that_judges_is_of_the_base_commit_and_pinned():
    assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", step["uses"]) for step in STEPS if "uses" in step)
    assert STEPS[0]["with"]["ref"] == "${{ github.event.pull_request.base.sha }}"
    assert "--require-hashes --only-binary :all: -r leaderboard/ci/requirements.txt" in COMMANDS
    assert "../trusted/leaderboard/ci/changed.py" in COMMANDS
    install = next(step for step in STEPS if "pip install" in step.get("run", ""))
    assert install["working-directory"] == "trusted"
    installs = [line for line in COMMANDS.splitlines() if "pip install" in line]
    assert [line.split("install ")[1] for line in installs if "--require-hashes" not in line] == [
        "--quiet --no-deps --no-build-isolation ."
    ]


def locked():
    """name: version of requirements.txt, each line of which pins one package and names its files' hashes."""
    text = re.sub(r"(?m)^#.*\n", "", (CI / "requirements.txt").read_text()).replace("\\\n", "")
    lines = [line.split() for line in text.splitlines()]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", pin) for pin, *_ in lines)  # no local version, no address
    for _, *hashes in lines:
        assert hashes
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", word) for word in hashes)
    pins = dict(pin.split("==") for pin, *_ in lines)
    assert len(pins) == len(lines)
    return pins


def test_the_lock_is_what_the_verifier_needs_and_no_more():
    """Its own requirements and its build backend, at the versions of constraints.txt; and what torch takes beside them."""
    pins, project = locked(), tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    for requirement in map(Requirement, needed):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement
    extras = project["project"]["optional-dependencies"]
    own = {canonicalize_name(Requirement(words).name) for words in needed}
    tools = {
        canonicalize_name(Requirement(words).name) for words in [*extras["dev"], *extras["cluster"], *extras["export"]]
    }
    assert not (tools - own - {"mpmath"}) & set(pins)  # mpmath is sympy's, which torch needs
    lines = re.findall(r"(?m)^([A-Za-z0-9._-]+)==(\S+)", (ROOT / "constraints.txt").read_text())
    elsewhere = {canonicalize_name(name): version for name, version in lines}
    assert {name: elsewhere[name] for name in pins if name in elsewhere} == {
        name: version for name, version in pins.items() if name in elsewhere
    }
    unconstrained = {name for name in pins if name not in elsewhere}
    assert all(re.match(r"cuda-|nvidia-|triton$|setuptools$", name) for name in unconstrained), unconstrained


def test_nothing_from_outside_is_pasted_into_a_shell_and_no_token_stays_behind():
    assert "${{" not in COMMANDS
    for step in STEPS:
        if step.get("uses", "").startswith("actions/checkout"):
            assert step["with"]["persist-credentials"] is False
        if "run" in step:
            done = subprocess.run(["bash", "-n"], input=step["run"], text=True, capture_output=True, check=False)
            assert done.returncode == 0, done.stderr


# --- changed.py -------------------------------------------------------------------------------------------------------


class Repository:
    """A leaderboard with one entry, of ada's, on main."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git("init", "--quiet", "--initial-branch=main")
        self.write("leaderboard/entries/old/entry.toml", 'owner = "ada"\n')
        self.write("README.md", "read me")
        self.base = self.commit()
        self.git("switch", "--quiet", "--create", "proposed")

    def git(self, *words: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        command = ["git", *identity, *words]
        return subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True).stdout

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def commit(self) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "change")
        return self.git("rev-parse", "HEAD").strip()

    def ask(self, base: str | None = None, actor: str = "eve") -> tuple[int, str, str]:
        given = {**os.environ, "BASE": base or self.base, "HEAD": self.commit(), "ACTOR": actor}
        command = [sys.executable, "-I", str(CI / "changed.py")]
        done = subprocess.run(command, cwd=self.folder, env=given, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path)


NEW = "leaderboard/entries/new"
MINE = 'owner = "Eve"\n'


def test_a_new_entry_is_named(repository):
    repository.write(f"{NEW}/entry.toml", MINE)
    repository.write(f"{NEW}/mine.py", "x")
    assert repository.ask() == (0, f"{NEW}\n", "")


def test_only_the_owner_may_change_an_entry(repository):
    repository.write("leaderboard/entries/old/entry.toml", 'owner = "ada"\ntitle = "new"\n')
    assert repository.ask(actor="ada") == (0, "leaderboard/entries/old\n", "")
    assert "is owned by 'ada', and 'eve' opened" in repository.ask()[2]
    repository.write("leaderboard/entries/old/entry.toml", MINE)  # taken over
    assert "is owned by 'ada', and 'eve' opened" in repository.ask()[2]


def test_an_entry_in_anothers_name_is_refused(repository):
    repository.write(f"{NEW}/entry.toml", 'owner = "ada"\n')
    assert "is owned by 'ada', and 'eve' opened" in repository.ask()[2]
    repository.write(f"{NEW}/entry.toml", "title = 1\n")
    assert "does not name its owner" in repository.ask()[2]


def test_changes_on_main_are_not_attributed_to_the_pull_request(repository):
    repository.write(f"{NEW}/entry.toml", MINE)
    repository.commit()
    repository.git("switch", "--quiet", "main")
    repository.write("README.md", "changed on main")
    base = repository.commit()
    repository.git("switch", "--quiet", "proposed")
    assert repository.ask(base) == (0, f"{NEW}\n", "")


@pytest.mark.parametrize(
    "name",
    [
        "README.md", ".github/workflows/verify.yml", "leaderboard/results/v2/new.json", "leaderboard/allowed_signers",
        "leaderboard/ci/changed.py", "leaderboard/editions/v2/edition.toml", "leaderboard/entries/stray.toml",
        "leaderboard/entries/UPPER/entry.toml", f"{NEW}/deep/er.py", f"{NEW}/data.safetensors", "pip.py",
        "leaderboard/entries/$(touch pwned)/entry.toml", "leaderboard/entries/a\nb/entry.toml", f"{NEW}/Entry.toml",
        "leaderboard/Entries/old/entry.toml", f"{NEW}/..b/entry.toml", ".gitattributes",
    ],
)  # fmt: skip
def test_anything_outside_one_entry_is_refused(repository, name):
    repository.write(f"{NEW}/entry.toml", MINE)
    repository.write(name, "x")
    status, out, said = repository.ask()
    assert (status, out, said.count("\n")) == (1, "", 1)
    assert "change nothing outside one" in said
    assert not (repository.folder / "pwned").exists()


def test_two_entries_links_and_executables_are_refused(repository):
    repository.write(f"{NEW}/entry.toml", MINE)
    repository.write("leaderboard/entries/newer/entry.toml", MINE)
    assert "two entries are changed (new, newer)" in repository.ask()[2]
    (repository.folder / "leaderboard/entries/newer/entry.toml").unlink()
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


def submodule(proposed, old):
    head = proposed.commit()
    proposed.git("update-index", "--add", "--cacheinfo", f"160000,{head},{NEW}/mine.py")
    proposed.git("commit", "--quiet", "--message", "x")
    proposed.commit = lambda: proposed.git("rev-parse", "HEAD").strip()  # `--all` would drop what is in no working tree


def type_change(proposed, old):
    old.unlink()
    old.symlink_to("../new/entry.toml")


def rename(proposed, old):
    proposed.git("mv", "leaderboard/entries/old/entry.toml", f"{NEW}/stolen.py")


def deleted(proposed, old):
    old.unlink()


@pytest.mark.parametrize("attack", [submodule, type_change, rename, deleted], ids=lambda each: each.__name__)
def test_a_pull_request_cannot_reach_beyond_its_entry(repository, attack):
    repository.write(f"{NEW}/entry.toml", MINE)
    attack(repository, repository.folder / "leaderboard/entries/old/entry.toml")
    status, out, said = repository.ask()
    assert (status, out, said.startswith("refused: ")) == (1, "", True)
