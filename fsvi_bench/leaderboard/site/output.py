"""Files of a site put in the place of those of an earlier build, and of nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from fsvi_bench.errors import InputError
from fsvi_bench.files import require_writable_directory, write_atomically

MANIFEST = "site-files.json"
FORMAT = "fsvi-site/1"
TEMPORARY = ".build-"  #: start of the name of a folder in which a build writes
LEFT_OVER = 3600  #: seconds; a build that has not ended by then was killed


def write_site(folder: Path, files: Iterable[tuple[str, bytes]]) -> list[str]:
    """Writes files by their paths within a folder; removes those of an earlier build that are not among them.

    All are written beside their places first, so that an error or a full disk leaves the earlier site as it was; then
    each takes its place at once, so that a reader never sees half a file. A file that stays as it was is not touched.
    Which files are a build's is kept in `site-files.json`: what else lies in the folder is left alone. While files take
    their places it names the old and the new ones, so that a build that is cut short there can be made again.

    Raises:
        InputError: the folder cannot be written, or a file that is no build's stands in the way.
    """
    require_writable_directory(folder, "site folder", "choose another with --out")
    earlier = _earlier(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_left_over(folder)
        with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=folder) as temporary:
            names = _write(Path(temporary), files)
            _require_ours(folder, names, earlier)
            if earlier != set(names):
                write_atomically(folder / MANIFEST, _manifest(sorted(earlier | set(names))))
            for name in names:
                if name != MANIFEST:
                    _swap(Path(temporary) / name, folder / name)
            _remove(folder, earlier - set(names))
            _swap(Path(temporary) / MANIFEST, folder / MANIFEST)
    except OSError as error:
        raise InputError(f"cannot write the site in {folder}: {error.strerror}; choose another with --out") from error
    return names


def _write(temporary: Path, files: Iterable[tuple[str, bytes]]) -> list[str]:
    names = []
    for name, content in files:
        path = temporary / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        names.append(name)
    names = sorted([*names, MANIFEST])
    (temporary / MANIFEST).write_bytes(_manifest(names))
    return names


def _manifest(names: list[str]) -> bytes:
    return (json.dumps({"format": FORMAT, "files": names}, indent=1) + "\n").encode()


def _remove_left_over(folder: Path) -> None:
    """What killed builds left; by its age, since another build may be at work."""
    for path in folder.glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):
            if path.is_dir() and not path.is_symlink() and time.time() - path.stat().st_mtime > LEFT_OVER:
                shutil.rmtree(path)


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
