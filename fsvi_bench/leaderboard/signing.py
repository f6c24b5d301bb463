"""Signatures of results by OpenSSH's `ssh-keygen -Y`: `<result>.json.sig` beside the result."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fsvi_bench.errors import InputError, plain
from fsvi_bench.files import is_file, read_bounded

NAMESPACE = "fsvi-bench-result"  #: a signature made for anything else, such as a commit, does not hold here
ALLOWED_SIGNERS = "allowed_signers"  #: in the leaderboard's folder; see ssh-keygen(1)
SIGNATURE_BYTES = 2**14
SECONDS = 60


def signature_path(result: Path) -> Path:
    return result.with_name(f"{result.name}.sig")


def sign(content: bytes, key: Path) -> bytes:
    """A signature by a private key; of one with a passphrase, ssh-keygen asks for it or for an agent.

    Raises:
        InputError: the key cannot be used, or ssh-keygen is not there.
    """
    if not is_file(key):
        raise InputError(f"there is no key {key}; name the private key's file with --key")
    done = _ssh_keygen(["sign", "-f", str(key), "-n", NAMESPACE], content)
    if done.returncode:
        raise InputError(f"cannot sign with {key}: {plain(done.stderr.decode(errors='replace'))}")
    return done.stdout


def require_key(key: Path | None, root: Path) -> None:
    """Raises InputError if a leaderboard would not count what is signed with this key, or what is not signed at all."""
    signed = os.path.lexists(root / ALLOWED_SIGNERS)
    if key is None:
        if signed:
            raise InputError(f"{root} counts signed results only; sign with --key FILE, or remove {ALLOWED_SIGNERS}")
        return
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "probe"
        signature_path(probe).write_bytes(sign(b"probe", key))
        if signed and signer(probe, b"probe", root) is None:
            raise InputError(f"{key} is no key of {root / ALLOWED_SIGNERS}; add its public half, or sign with another")


def signer(result: Path, content: bytes, root: Path) -> str | None:
    """Who of a leaderboard's `allowed_signers` signed a result; None if nobody has.

    Args:
        content: the result's bytes as they were read; they, and not the file, are what is verified.

    Raises:
        InputError: ssh-keygen is not there.
    """
    signature, allowed = signature_path(result), root / ALLOWED_SIGNERS
    try:
        read_bounded(signature, SIGNATURE_BYTES)
        read_bounded(allowed, 2**20)
    except InputError:
        return None
    files = ["-s", str(signature), "-f", str(allowed)]
    found = _ssh_keygen(["find-principals", *files], content)
    for principal in found.stdout.decode(errors="replace").splitlines() if found.returncode == 0 else ():
        if _ssh_keygen(["verify", "-I", principal, "-n", NAMESPACE, *files], content).returncode == 0:
            return principal
    return None


def _ssh_keygen(arguments: Sequence[str], content: bytes) -> subprocess.CompletedProcess[bytes]:
    try:
        command = ["ssh-keygen", "-Y", *arguments]
        return subprocess.run(command, input=content, capture_output=True, timeout=SECONDS, check=False)
    except FileNotFoundError as error:
        raise InputError("ssh-keygen is not installed; install OpenSSH's client to sign and check results") from error
    except subprocess.TimeoutExpired as error:
        raise InputError(f"ssh-keygen did not answer within {SECONDS} s; does the key ask for a passphrase?") from error
