"""Files of a site put in the place of those of an earlier build, and of nothing else."""

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
    """Writes files by their paths within a folder; removes those of an earlier build that are not among them.

    Each takes its place at once, so that a reader never sees half a file. Which files are a build's is kept in
    `site-files.json`: what else lies in the folder is left alone. Until the end it names the old and the new ones, so
    that a build that is cut short can be made again.

    Raises:
        InputError: the folder cannot be written, or a link, or a file that is no build's, stands in the way.
    """
    require_writable_directory(folder, "site folder", "choose another with --out")
    earlier, names = built_files(folder), {*files, MANIFEST}
    for name in sorted(names):
        if links := _behind_links(folder, name):
            raise InputError(f"{links[0]} is a symbolic link; choose another --out")
        if os.path.lexists(folder / name) and name not in earlier:
            raise InputError(
                f"{folder / name} is there and was not made by `leaderboard build`; remove it or choose another --out"
            )
    write_atomically(folder / MANIFEST, _manifest(earlier | names))
    for name, content in files.items():
        write_atomically(folder / name, content)
    for name in sorted(earlier - names):
        with contextlib.suppress(OSError):
            (folder / name).unlink()
            (folder / name).parent.rmdir()  # only if nothing is left in it
    write_atomically(folder / MANIFEST, _manifest(names))
    return sorted(names)


def built_files(folder: Path) -> set[str]:
    """What an earlier build wrote; in a list that someone changed, what leads out of the folder is not."""
    try:
        manifest = json.loads(read_bounded(folder / MANIFEST, MANIFEST_BYTES))
        names = manifest["files"] if manifest["format"] == FORMAT else []
        inside = [name for name in map(str, names) if "\0" not in name and ".." not in PurePosixPath(name).parts]
        return {name for name in inside if not name.startswith("/") and not _behind_links(folder, name)}
    except (InputError, ValueError, KeyError, TypeError, RecursionError):
        return set()


def _behind_links(folder: Path, name: str) -> list[Path]:
    """The folders on the way to a file that are links, the site's own among them."""
    return [folder / above for above in PurePosixPath(name).parents if (folder / above).is_symlink()]


def _manifest(names: set[str]) -> bytes:
    return (json.dumps({"format": FORMAT, "files": sorted(names)}, indent=1) + "\n").encode()
