"""Writes the files of a site; replaces only files of an earlier build."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from fsvi_bench.errors import InputError
from fsvi_bench.files import read_bounded, require_writable_directory, write_atomically

MANIFEST = "site-files.json"
FORMAT = "fsvi-site/1"
MANIFEST_BYTES = 2**24


def write_site(folder: Path, files: Mapping[str, bytes]) -> list[str]:
    """Writes files by their relative paths in a folder, and removes files of an earlier build that are not among them.

    Each file is written atomically. `site-files.json` lists the files of a build, and other files in the folder are not
    touched. During a build it lists the old and the new files, so that an interrupted build can be repeated.

    Raises:
        InputError: the folder cannot be written, or there is a symbolic link or another file at a path of the site.
    """
    require_writable_directory(folder, "site folder", "choose another with --out")
    earlier, names = built_files(folder), {*files, MANIFEST}
    for name in sorted(names):
        if links := _behind_links(folder, name):
            raise InputError(f"{links[0]} is a symbolic link; choose another --out")
        if os.path.lexists(folder / name) and name not in earlier:
            raise InputError(
                f"{folder / name} exists and was not written by `leaderboard build`; remove it or choose another --out"
            )
    write_atomically(folder / MANIFEST, _manifest(earlier | names))
    for name, content in files.items():
        write_atomically(folder / name, content)
    for name in sorted(earlier - names):
        with contextlib.suppress(OSError):
            (folder / name).unlink()
            (folder / name).parent.rmdir()  # only if it is empty
    write_atomically(folder / MANIFEST, _manifest(names))
    return sorted(names)


def built_files(folder: Path) -> set[str]:
    """The files of an earlier build. The list may have been edited: paths out of the folder are ignored."""
    try:
        manifest = json.loads(read_bounded(folder / MANIFEST, MANIFEST_BYTES))
        names = manifest["files"] if manifest["format"] == FORMAT else []
        inside = [name for name in map(str, names) if "\0" not in name and ".." not in PurePosixPath(name).parts]
        return {name for name in inside if not name.startswith("/") and not _behind_links(folder, name)}
    except (InputError, ValueError, KeyError, TypeError, RecursionError):
        return set()


def _behind_links(folder: Path, name: str) -> list[Path]:
    """The parent folders of a file that are symbolic links, including that of the site."""
    return [folder / above for above in PurePosixPath(name).parents if (folder / above).is_symlink()]


def _manifest(names: set[str]) -> bytes:
    return (json.dumps({"format": FORMAT, "files": sorted(names)}, indent=1) + "\n").encode()
