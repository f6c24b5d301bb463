"""Which entry a pull request changes; refuses one that touches anything else, or an entry of another owner.

Run in a checkout of the pull request with the commits to compare in $BASE and $HEAD and the account that opened it in
$ACTOR. Prints the entry's folder. It needs nothing but Python and git, and does not execute the files. File
names are untrusted: they are read NUL-separated and never go through a shell.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib

_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_FILE = re.compile(r"leaderboard/entries/([a-z0-9][a-z0-9-]{0,62})/(entry\.toml|[A-Za-z_][A-Za-z0-9_]{0,60}\.py)")
_MODES = {"000000", "100644"}  # absent, and a plain file: no link, no submodule, nothing executable
MOST_FILES = 20


class Refused(Exception):
    """The reason why a pull request is refused, in one sentence for its author."""


def changed_entry(base: str, head: str, actor: str) -> str:
    """The folder of the one entry that differs between the merge base and `head`.

    Raises:
        Refused: nothing differs, something outside one entry's folder does, or the entry is another account's.
    """
    changes = _changes(base, head)
    if not changes:
        raise Refused("nothing is changed; add a folder leaderboard/entries/<name>/")
    if len(changes) > MOST_FILES:
        raise Refused(f"{len(changes)} files are changed, expected one entry, {MOST_FILES} files at most")
    names = set()
    for modes, path in changes:
        found = _FILE.fullmatch(path)
        if found is None:
            raise Refused(f"{ascii(path)[:200]} is changed; change nothing outside one leaderboard/entries/<name>/")
        if not set(modes) <= _MODES:
            raise Refused(f"{ascii(path)[:200]} is not a plain file (mode {modes[1]}); add plain files only")
        names.add(found[1])
    if len(names) > 1:
        raise Refused(f"two entries are changed ({', '.join(sorted(names)[:2])}); open a pull request for each")
    folder = f"leaderboard/entries/{names.pop()}"
    for commit in (base, head):
        owner = _owner(commit, folder)
        if owner is not None and owner.lower() != actor.lower():
            raise Refused(f"{folder} is owned by {ascii(owner)[:60]}, and {ascii(actor)[:60]} opened the pull request")
    return folder


def _owner(commit: str, folder: str) -> str | None:
    """The owner named in an entry, in a commit; None if the entry is not there."""
    shown = _git("show", f"{commit}:{folder}/entry.toml")
    if shown.returncode:
        return None
    try:
        return str(tomllib.loads(shown.stdout[: 2**16].decode())["owner"])
    except (ValueError, KeyError, RecursionError) as error:
        raise Refused(f"{folder}/entry.toml does not name its owner; set `owner` to your account") from error


def _changes(base: str, head: str) -> list[tuple[tuple[str, str], str]]:
    """((mode before, mode after), path) of each file that differs, renames as a deletion and an addition."""
    for commit in (base, head):
        if not _COMMIT.fullmatch(commit):
            raise Refused(f"{ascii(commit)[:80]} is not a commit; set $BASE and $HEAD to full hashes")
    done = _git("diff", "--raw", "-z", "--no-renames", "--no-ext-diff", "--no-textconv", f"{base}...{head}")
    if done.returncode:
        raise Refused(f"git cannot compare the two: {done.stderr.decode(errors='replace').strip()[:200]}")
    fields = done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]
    heads, paths = fields[::2], fields[1::2]
    return [((line[1:7], line[8:14]), path) for line, path in zip(heads, paths, strict=True)]


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], capture_output=True, check=False)


def main() -> int:
    try:
        print(changed_entry(*(os.environ.get(name, "") for name in ("BASE", "HEAD", "ACTOR"))))
    except Refused as refused:
        print(f"refused: {refused}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
