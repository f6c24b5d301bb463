"""Signatures of results by OpenSSH's `ssh-keygen -Y`: `<result>.json.sig` beside the result."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from fsvi_bench.errors import InputError, plain
from fsvi_bench.files import read_bounded

NAMESPACE = "fsvi-bench-result"  #: a signature made for anything else, such as a commit, does not hold here
ALLOWED_SIGNERS = "allowed_signers"  #: in the leaderboard's folder; see ssh-keygen(1)
SIGNATURE_BYTES = 2**14
SECONDS = 60


def signature_path(result: Path) -> Path:
    return result.with_name(f"{result.name}.sig")


def sign(result: Path, key: Path) -> Path:
    """Signs a result's file with a private key; with a passphrase, ssh-keygen asks for it or for an agent.

    Returns:
        The signature's path.

    Raises:
        InputError: the key cannot be used, or ssh-keygen is not there.
    """
    signature_path(result).unlink(missing_ok=True)
    done = _ssh_keygen(["sign", "-f", str(key), "-n", NAMESPACE, str(result)], b"")
    if done.returncode:
        raise InputError(f"cannot sign {result} with {key}: {plain(done.stderr.decode(errors='replace'))}")
    return signature_path(result)


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
