"""Which submission a pull request changes; refuses a pull request that touches anything else.

Run in a checkout of the pull request with the commits to compare in $BASE and $HEAD. Prints the submission's folder.
It needs nothing but Python and git, and runs nothing of what it looks at. Names come from strangers: they are read
NUL-separated and never go through a shell.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_FILE = re.compile(r"leaderboard/submissions/([a-z0-9][a-z0-9-]{0,62})/(?:[^/]+|posteriors/[^/]+/[^/]+)")
_MODES = {"000000", "100644"}  # absent, and a plain file: no link, no submodule, nothing executable
MOST_FILES = 2000


class Refused(Exception):
    """One sentence for whoever opened the pull request."""


def changed_submission(base: str, head: str) -> str:
    """The folder of the one submission that differs between the merge base and `head`.

    Raises:
        Refused: nothing differs, or something outside one submission's folder does.
    """
    names = set()
    changes = _changes(base, head)
    if not changes:
        raise Refused("nothing is changed; add a folder leaderboard/submissions/<name>/")
    if len(changes) > MOST_FILES:
        raise Refused(f"{len(changes)} files are changed, expected one submission, {MOST_FILES} files at most")
    for modes, path in changes:
        found = _FILE.fullmatch(path)
        if found is None:
            raise Refused(f"{ascii(path)[:200]} is changed; change nothing outside one leaderboard/submissions/<name>/")
        if not set(modes) <= _MODES:
            raise Refused(f"{ascii(path)[:200]} is not a plain file (mode {modes[1]}); add plain files only")
        names.add(found[1])
    if len(names) > 1:
        raise Refused(f"two submissions are changed ({', '.join(sorted(names)[:2])}); open a pull request for each")
    return f"leaderboard/submissions/{names.pop()}"


def _changes(base: str, head: str) -> list[tuple[tuple[str, str], str]]:
    """((mode before, mode after), path) of each file that differs, renames as a deletion and an addition."""
    for commit in (base, head):
        if not _COMMIT.fullmatch(commit):
            raise Refused(f"{ascii(commit)[:80]} is not a commit; set $BASE and $HEAD to full hashes")
    command = ["git", "diff", "--raw", "-z", "--no-renames", "--no-ext-diff", "--no-textconv", f"{base}...{head}"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise Refused(f"git cannot compare the two: {done.stderr.decode(errors='replace').strip()[:200]}")
    fields = done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]
    heads, paths = fields[::2], fields[1::2]
    return [((line[1:7], line[8:14]), path) for line, path in zip(heads, paths, strict=True)]


def main() -> int:
    try:
        print(changed_submission(os.environ.get("BASE", ""), os.environ.get("HEAD", "")))
    except Refused as refused:
        print(f"refused: {refused}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
