"""Editions of a leaderboard: which data sets it ranks on, and the secret that its ranked tasks and seeds come from.

While an edition is open only its maintainer has the secret, so that nobody can tune to the ranked tasks. Its SHA-256
is published from the start, and the secret itself when the edition closes: then anyone can make every task and number
again.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from fsvi_bench.errors import InputError
from fsvi_bench.files import read_bounded, sha256_of_json, write_atomically
from fsvi_bench.leaderboard.entry import DEVELOPMENT_DATASETS, ENTRIES, Name, Sha256
from fsvi_bench.strict import Strict, checked, parse_toml, toml_text

EDITIONS, EDITION_FILE = "editions", "edition.toml"
SECRET_BYTES = 32
PROTOCOL = "redrawn-tasks/1"  #: which tasks, and how they are drawn: `leaderboard.ranked_tasks`


class Edition(Strict):
    """`edition.toml`."""

    name: Name
    protocol: Literal["redrawn-tasks/1"]
    datasets: Annotated[list[Name], Field(min_length=1, max_length=100)]
    status: Literal["open", "closed"]
    secret_sha256: Sha256
    secret: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None  #: published when the edition closes
    seeds: Annotated[int, Field(ge=1, le=20)] = 1  #: of each entry on each ranked task
    allow_without_isolation: bool = False  #: whether results that were made without a jail are ranked

    @model_validator(mode="after")
    def _consistent(self) -> Edition:
        if (self.status == "closed") != (self.secret is not None):
            raise ValueError("a closed edition publishes its secret, and an open one keeps it")
        if self.secret is not None and Secret(bytes.fromhex(self.secret)).sha256 != self.secret_sha256:
            raise ValueError("the secret does not have the SHA-256 'secret_sha256'")
        if len(set(self.datasets)) < len(self.datasets):
            raise ValueError("a data set stands twice in 'datasets'")
        return self

    @property
    def ranked_datasets(self) -> list[str]:
        """All but those to tune on, unless there are no others."""
        return [name for name in self.datasets if name not in DEVELOPMENT_DATASETS] or list(self.datasets)

    @property
    def sha256(self) -> str:
        """Names what an edition's numbers depend on; it stays the same when the edition closes."""
        return sha256_of_json([self.name, self.protocol, self.datasets, self.secret_sha256, self.seeds])


@dataclass(frozen=True)
class Secret:
    """An edition's secret bytes. Everything that is drawn comes from a stream of its own purpose."""

    key: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.key).hexdigest()

    def seed(self, *purpose: str | int) -> int:
        """A 64-bit seed: HMAC-SHA256 of the purpose's parts, under the secret."""
        words = "\x1f".join(map(str, purpose)).encode()
        return int.from_bytes(hmac.digest(self.key, words, "sha256")[:8], "little")

    def stream(self, *purpose: str | int) -> np.random.Generator:
        """NumPy's generator for one purpose."""
        return np.random.default_rng(self.seed(*purpose))


def read_edition(root: Path, name: str | None = None) -> Edition:
    """An edition of a leaderboard's folder, by default the latest by name; v10 comes after v9.

    Raises:
        InputError: there is none of that name, or its file is not `edition.toml`.
    """
    if name is None:
        names = [path.parent.name for path in (root / EDITIONS).glob(f"*/{EDITION_FILE}")]
        if not names:
            raise InputError(f"{root} holds no editions; make a leaderboard there: fsvi-bench leaderboard init")
        name = max(names, key=lambda name: re.sub(r"\d+", lambda digits: digits[0].zfill(9), name))
    path = root / EDITIONS / name / EDITION_FILE
    edition = parse_toml(Edition, read_bounded(path, 2**16), path)
    if edition.name != name:
        raise InputError(f"{path}: name is '{edition.name}', expected '{name}', as its folder is called")
    return edition


def read_secret(edition: Edition, path: Path | None) -> Secret:
    """An edition's secret: from its maintainer's file, or, once it is closed, from the edition itself.

    Raises:
        InputError: the edition is open and no file is named, others may read the file, or it holds another secret.
    """
    if path is None:
        if edition.secret is None:
            raise InputError(f"edition {edition.name} is open; name the file of its secret with --secret FILE")
        return Secret(bytes.fromhex(edition.secret))
    content = read_bounded(path, 1024).strip()
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise InputError(f"{path} can be read by others; run: chmod 600 {path}")
    try:
        secret = Secret(bytes.fromhex(content.decode()))
    except ValueError as error:
        raise InputError(f"{path} does not hold {SECRET_BYTES} bytes in hexadecimal; is it the right file?") from error
    if secret.sha256 != edition.secret_sha256:
        raise InputError(f"{path} is not the secret of edition {edition.name}: its SHA-256 differs")
    return secret


def make_board(root: Path, name: str, datasets: list[str], secret: Path, **more: Any) -> Edition:
    """Makes a leaderboard of one's own, or a further edition of one that is there, with a secret of its own.

    Args:
        more: the edition's other fields.

    Raises:
        InputError: the edition or the secret's file exists, a name is not one, or a place cannot be written.
    """
    drawn = Secret(secrets.token_bytes(SECRET_BYTES))
    values = {"name": name, "protocol": PROTOCOL, "datasets": datasets, "status": "open", "secret_sha256": drawn.sha256}
    edition = checked(Edition, values | more, "the edition")
    if (root / EDITIONS / name).exists():
        raise InputError(f"{root / EDITIONS / name} exists; choose another name with --edition")
    _write_secret(secret, drawn)
    write_edition(root, edition)
    (root / ENTRIES).mkdir(exist_ok=True)
    if not (root / ".gitignore").exists():
        write_atomically(root / ".gitignore", b".verifying/\nsite/\n")
    return edition


def _write_secret(path: Path, secret: Secret) -> None:
    """In a file that only its owner can read, and that is never written over another."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            stream.write(f"{secret.key.hex()}\n")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another file with --secret") from error


def close_edition(root: Path, edition: Edition, secret: Secret) -> Edition:
    """Publishes an edition's secret: results made after that are labelled, since anyone could have known the tasks."""
    closed = edition.model_copy(update={"status": "closed", "secret": secret.key.hex()})
    write_edition(root, closed)
    return closed


def write_edition(root: Path, edition: Edition) -> None:
    """Raises InputError if the place cannot be written."""
    write_atomically(root / EDITIONS / edition.name / EDITION_FILE, toml_text(edition).encode())
