"""Signatures of results with OpenSSH's `ssh-keygen -Y`, in `<result>.json.sig`."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fsvi_bench.errors import InputError, plain
from fsvi_bench.files import is_file, read_bounded

NAMESPACE = "fsvi-bench-result"  #: a signature for another purpose, such as a commit, is not valid here
ALLOWED_SIGNERS = "allowed_signers"  #: file in the leaderboard's folder; see ssh-keygen(1)
SIGNATURE_BYTES = 2**14
SECONDS = 60


def signature_path(result: Path) -> Path:
    return result.with_name(f"{result.name}.sig")


def sign(content: bytes, key: Path) -> bytes:
    """A signature by a private key. If the key has a passphrase, ssh-keygen uses an agent or asks for it.

    Raises:
        InputError: the key cannot be used, or ssh-keygen is not installed.
    """
    if not is_file(key):
        raise InputError(f"key {key} does not exist; give the file of the private key with --key")
    done = _ssh_keygen(["sign", "-f", str(key), "-n", NAMESPACE], content)
    if done.returncode:
        reason = plain(done.stderr.decode(errors="replace"))
        raise InputError(f"cannot sign with {key}: {reason}; give the file of a private key with --key")
    return done.stdout


def require_key(key: Path | None, root: Path) -> None:
    """Raises InputError if a leaderboard rejects results signed with this key, or unsigned ones if there is no key."""
    signed = os.path.lexists(root / ALLOWED_SIGNERS)
    if key is None:
        if signed:
            raise InputError(f"{root} accepts only signed results; sign with --key FILE, or remove {ALLOWED_SIGNERS}")
        return
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "probe"
        signature_path(probe).write_bytes(sign(b"probe", key))
        if signed and signer(probe, b"probe", root) is None:
            raise InputError(
                f"{key} is not listed in {root / ALLOWED_SIGNERS}; add its public key, or sign with another key"
            )


def signer(result: Path, content: bytes, root: Path) -> str | None:
    """The signer of a result among the leaderboard's `allowed_signers`; None if there is none.

    Args:
        content: bytes of the result as read before; these are verified rather than the file.

    Raises:
        InputError: ssh-keygen is not installed.
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
        raise InputError("ssh-keygen is not installed; install the OpenSSH client to sign and check results") from error
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"ssh-keygen did not answer within {SECONDS} s; if the key has a passphrase, add it to ssh-agent first"
        ) from error
