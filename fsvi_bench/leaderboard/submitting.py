"""`fsvi-bench submit`: makes an entry's folder, holds its method to the rules in the jail, and runs two tasks.

The folder appears whole, or not at all.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsvi_bench.errors import InputError
from fsvi_bench.files import require_writable_directory, write_atomically
from fsvi_bench.leaderboard.board import read_entries, require_identity
from fsvi_bench.leaderboard.entry import (
    ENTRIES,
    ENTRY_FILE,
    Entry,
    Manifest,
    SourceFile,
    read_entry,
    require_name,
)
from fsvi_bench.leaderboard.jailed.run import check_entry, find_method
from fsvi_bench.leaderboard.verifying import Verification
from fsvi_bench.strict import checked, toml_text


@dataclass(frozen=True)
class Draft:
    """An entry before it is written.

    Args:
        content: of `entry.toml`, not yet checked.
        source: the text of the method's file, of one that is not built in.
    """

    name: str
    content: Mapping[str, Any]
    source: bytes | None = None


def write_entry(draft: Draft, root: Path, replace: bool, check: Callable[[Entry], object]) -> Entry:
    """Writes `root/entries/<name>/`, read as a verifier would, once it passes a further check.

    Raises:
        InputError: a field is not what the format takes, the entry may not stand beside the others, the folder exists
            and `replace` is not given, or `check` raises it.
    """
    require_name(draft.name)
    entries = root / ENTRIES
    require_writable_directory(entries, "folder of entries", "choose another leaderboard with --root")
    folder = entries / draft.name
    if folder.exists() and not replace:
        raise InputError(f"{folder} exists; give --replace to write it anew, or another --name")
    manifest = checked(Manifest, draft.content, folder / ENTRY_FILE)
    entries.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=entries, ignore_cleanup_errors=True) as workshop:
        made = Path(workshop, draft.name)
        write_atomically(made / ENTRY_FILE, toml_text(manifest).encode())
        if isinstance(manifest.method, SourceFile):
            write_atomically(made / manifest.method.file, draft.source or b"")
        entry = read_entry(made)
        require_identity(entry, read_entries(root)[0])
        check(entry)
        if folder.exists():
            folder.rename(Path(workshop, "earlier"))
        made.rename(folder)
    return entry


def require_conformance(entry: Entry, verification: Verification) -> int:
    """Raises InputError if the method breaks a rule, with what to mend; returns how many it kept.

    A built-in method is checked by this project's own tests.
    """
    find_method(entry)
    return 0 if entry.source is None else check_entry(entry, verification.jail, verification.limits)
