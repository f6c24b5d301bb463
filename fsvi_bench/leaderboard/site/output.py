"""Files of a site put in the place of those of an earlier build, and of nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from fsvi_bench.errors import InputError
from fsvi_bench.files import require_writable_directory

MANIFEST = "site-files.json"
FORMAT = "fsvi-site/1"


def write_site(folder: Path, files: Iterable[tuple[str, bytes]]) -> list[str]:
    """Writes files by their paths within a folder; removes those of an earlier build that are not among them.

    All are written beside their places first, so that an error or a full disk leaves the earlier site as it was; then
    each takes its place at once, so that a reader never sees half a file. A file that stays as it was is not touched.
    Which files are a build's is kept in `site-files.json`: what else lies in the folder is left alone.

    Raises:
        InputError: the folder cannot be written, or a file that is no build's stands in the way.
    """
    require_writable_directory(folder, "site folder", "choose another with --out")
    earlier = _earlier(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as temporary:
            names = _write(Path(temporary), files)
            _require_ours(folder, names, earlier)
            for name in names:
                _swap(Path(temporary) / name, folder / name)
    except OSError as error:
        raise InputError(f"cannot write the site in {folder}: {error.strerror}; choose another with --out") from error
    _remove(folder, earlier - set(names))
    return names


def _write(temporary: Path, files: Iterable[tuple[str, bytes]]) -> list[str]:
    names = []
    for name, content in files:
        path = temporary / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        names.append(name)
    names = sorted([*names, MANIFEST])
    manifest = {"format": FORMAT, "files": names}
    (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return names


def _earlier(folder: Path) -> set[str]:
    """What an earlier build wrote; paths that lead out of the folder, in a manifest that someone changed, are not."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        names = manifest["files"] if manifest["format"] == FORMAT else []
        return {name for name in names if isinstance(name, str) and _stays_inside(name)}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _stays_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and path.parts != ()


def _require_ours(folder: Path, names: list[str], earlier: set[str]) -> None:
    """Someone's own `index.html` is not to be lost, nor may a link lead the writing elsewhere."""
    for name in names:
        path = folder / name
        if os.path.lexists(path) and name not in earlier:
            raise InputError(
                f"{path} is there and was not made by `leaderboard build`; remove it or choose another --out"
            )
        for above in path.relative_to(folder).parents:
            if (folder / above).is_symlink() and above != Path():
                raise InputError(f"{folder / above} is a symbolic link; choose another --out")


def _swap(new: Path, place: Path) -> None:
    with contextlib.suppress(OSError):
        if not place.is_symlink() and place.read_bytes() == new.read_bytes():
            return
    place.parent.mkdir(parents=True, exist_ok=True)
    new.replace(place)


def _remove(folder: Path, stale: set[str]) -> None:
    for name in sorted(stale):
        with contextlib.suppress(OSError):
            (folder / name).unlink()
            (folder / name).parent.rmdir()  # only if nothing is left in it
