"""Editions of a leaderboard: the data sets, and the secret from which the ranked tasks and seeds are derived.

While an edition is open, only its maintainer has the secret, so nobody can tune to the ranked tasks. Its SHA-256
is published from the start, and the secret itself when the edition closes: then anyone can regenerate every task and
score.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import shlex
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
from pydantic import Field, model_validator

from fsvi_bench.errors import InputError, unknown_name
from fsvi_bench.files import read_bounded, require_writable_directory, sha256_of_json, write_atomically
from fsvi_bench.leaderboard.entry import DEVELOPMENT_DATASETS, ENTRIES, Name, Sha256
from fsvi_bench.strict import Strict, checked, parse_toml, toml_text

EDITIONS, EDITION_FILE = "editions", "edition.toml"
SECRET_BYTES = 32
Protocol = Literal["redrawn-tasks/1", "network-tasks/1"]  #: see `leaderboard.ranked_tasks` and `network_tasks`
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)


Kind = Literal["ranked", "official"]


@dataclass(frozen=True)
class Place:
    """Identifies a task of an edition: a ranked one by its number, or an official one by its split."""

    kind: Kind
    dataset: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.dataset} {'task' if self.kind == 'ranked' else 'official split'} {self.number}"


class Edition(Strict):
    """`edition.toml`."""

    name: Name
    protocol: Protocol
    datasets: Annotated[list[Name], Field(min_length=1, max_length=100)]
    status: Literal["open", "closed"]
    secret_sha256: Sha256
    secret: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None  #: published when the edition closes
    seeds: Annotated[int, Field(ge=1, le=20)] = 1  #: number of seeds per entry and replicated task
    #: how many ranked tasks of each data set are replicated, the first ones; the others have one seed; None: all
    replicated_tasks: Annotated[int, Field(ge=1, le=20)] | None = None
    allow_without_isolation: bool = False  #: whether results without isolation are ranked

    @model_validator(mode="after")
    def _consistent(self) -> Edition:
        if (self.status == "closed") != (self.secret is not None):
            raise ValueError("a closed edition must have its secret, and an open one must not")
        if self.secret is not None and Secret(bytes.fromhex(self.secret)).sha256 != self.secret_sha256:
            raise ValueError("the SHA-256 of the secret differs from 'secret_sha256'")
        if len(set(self.datasets)) < len(self.datasets):
            raise ValueError("'datasets' names a data set twice")
        if self.replicated_tasks is not None and self.seeds == 1:
            raise ValueError("'replicated_tasks' needs several seeds, but 'seeds' is 1")
        return self

    @property
    def is_networks(self) -> bool:
        """Whether the tasks are networks; `datasets` are then names such as `yacht-collapsed-10`."""
        return self.protocol == PROTOCOLS[1]

    @property
    def has_private_networks(self) -> bool:
        """Whether its references are still in a folder of the verifier's own."""
        return self.is_networks and self.status == "open"

    def verify_command(self, entry: str, *, signed: bool = False) -> str:
        """The command that verifies the entry in a folder, with placeholders for files that the maintainer has."""
        needed = {
            "--secret FILE": self.status == "open",
            "--networks DIR": self.has_private_networks,
            "--key FILE": signed,
        }
        words = [option for option, given in needed.items() if given]
        return " ".join(["fsvi-bench verify", shlex.quote(entry), f"--edition {self.name}", *words])

    @property
    def ranked_datasets(self) -> list[str]:
        """All data sets but those for tuning, unless there are no others."""
        return [name for name in self.datasets if not self.is_for_tuning(name)] or list(self.datasets)

    def data_of(self, dataset: str) -> str:
        """The data set behind one of `datasets`: of the network `yacht-collapsed-10`, yacht."""
        return dataset.partition("-")[0] if self.is_networks else dataset

    def is_for_tuning(self, dataset: str) -> bool:
        """Whether it is for development, and not ranked if there are others."""
        return self.data_of(dataset) in DEVELOPMENT_DATASETS

    def ranked_runs(self, dataset: str, tasks: int) -> list[tuple[Place, int]]:
        """All runs of an entry on the ranked tasks of a data set: a task and the number of a seed."""
        replicated = tasks if self.replicated_tasks is None else self.replicated_tasks
        seeds = [range(self.seeds if number < replicated else 1) for number in range(tasks)]
        return [(Place("ranked", dataset, number), seed) for number in range(tasks) for seed in seeds[number]]

    @property
    def sha256(self) -> str:
        """Hash of everything the scores of an edition depend on; it does not change when the edition closes."""
        runs = [self.seeds] if self.replicated_tasks is None else [self.seeds, self.replicated_tasks]
        return sha256_of_json([self.name, self.protocol, self.datasets, self.secret_sha256, *runs])


@dataclass(frozen=True)
class Secret:
    """The secret bytes of an edition, from which a random stream for each purpose is derived."""

    key: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.key).hexdigest()

    def seed(self, *purpose: str | int) -> int:
        """A 64-bit seed: the HMAC-SHA256 of the purpose's parts, with the secret as key."""
        words = "\x1f".join(map(str, purpose)).encode()
        return int.from_bytes(hmac.digest(self.key, words, "sha256")[:8], "little")

    def stream(self, *purpose: str | int) -> np.random.Generator:
        """A NumPy generator for one purpose."""
        return np.random.default_rng(self.seed(*purpose))


def read_edition(root: Path, name: str | None = None) -> Edition:
    """Reads an edition of a leaderboard, by default the latest by name; v10 comes after v9.

    Raises:
        InputError: there is no such edition, or its file is not valid.
    """
    names = [path.parent.name for path in (root / EDITIONS).glob(f"*/{EDITION_FILE}")]
    if not names:
        raise InputError(
            f"{root} is not a leaderboard (it has no editions/); name another folder, or create a leaderboard with "
            "`fsvi-bench leaderboard init`"
        )
    if name is not None and name not in names:
        raise unknown_name("edition", name, names)
    if name is None:
        name = max(names, key=lambda name: re.sub(r"\d+", lambda digits: digits[0].zfill(9), name))
    path = root / EDITIONS / name / EDITION_FILE
    edition = parse_toml(Edition, read_bounded(path, 2**16), path)
    if edition.name != name:
        raise InputError(
            f"{path}: name is '{edition.name}', expected '{name}', the name of its folder; rename one of them"
        )
    return edition


def read_secret(edition: Edition, path: Path | None) -> Secret:
    """The secret of an edition: from the maintainer's file, or from the edition itself once it is closed.

    Raises:
        InputError: the edition is open and no file is given, other users may read the file, or it has another secret.
    """
    if path is None:
        if edition.secret is None:
            raise InputError(f"edition {edition.name} is open and needs its secret; give the file with --secret FILE")
        return Secret(bytes.fromhex(edition.secret))
    content = read_bounded(path, 1024).strip()
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise InputError(f"{path} is readable by other users; run: chmod 600 {path}")
    try:
        secret = Secret(bytes.fromhex(content.decode()))
    except ValueError as error:
        raise InputError(
            f"{path} does not contain {SECRET_BYTES} bytes in hexadecimal; is it the right file?"
        ) from error
    if secret.sha256 != edition.secret_sha256:
        raise InputError(
            f"{path} is not the secret of edition {edition.name}: its SHA-256 differs; give the right file"
        )
    return secret


def make_board(
    root: Path, name: str, datasets: list[str], secret: Path, protocol: Protocol = PROTOCOLS[0], **more: Any
) -> Edition:
    """Creates a leaderboard, or a new edition of an existing one, with a new secret.

    Args:
        more: other fields of the edition.

    Raises:
        InputError: the edition or the secret's file already exists, a name is not valid, or a folder is not writable.
    """
    drawn = Secret(secrets.token_bytes(SECRET_BYTES))
    values = {"name": name, "protocol": protocol, "datasets": datasets, "status": "open", "secret_sha256": drawn.sha256}
    edition = checked(Edition, values | more, "the edition")
    if os.path.lexists(root / EDITIONS / name):
        raise InputError(f"{root / EDITIONS / name} already exists; choose another name with --edition")
    for folder in (EDITIONS, ENTRIES):
        require_writable_directory(root / folder, "leaderboard's folder", "choose another with --root")
    _write_secret(secret, drawn)
    try:
        write_edition(root, edition)
    except InputError:
        secret.unlink()  # a secret of no edition
        raise
    (root / ENTRIES).mkdir(exist_ok=True)
    if not (root / ".gitignore").exists():
        write_atomically(root / ".gitignore", b".verifying/\nsite/\n")
    return edition


def _write_secret(path: Path, secret: Secret) -> None:
    """Writes the secret to a new file that only its owner can read."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            stream.write(f"{secret.key.hex()}\n")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another file with --secret") from error


def close_edition(root: Path, edition: Edition, secret: Secret) -> Edition:
    """Publishes the secret of an edition. Later results are labelled, since the tasks are then public."""
    closed = edition.model_copy(update={"status": "closed", "secret": secret.key.hex()})
    write_edition(root, closed)
    return closed


def write_edition(root: Path, edition: Edition) -> None:
    """Writes `edition.toml`; raises InputError if the folder is not writable."""
    write_atomically(root / EDITIONS / edition.name / EDITION_FILE, toml_text(edition).encode())
