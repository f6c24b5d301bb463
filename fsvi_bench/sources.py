"""Hashes of the package's own sources, so that a changed formula never answers to an old result's name."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


@cache
def source_sha256(*parts: str) -> str:
    """SHA-256 over the named files and folders of the package (e.g. `"maths"`, `"tasks/fit.py"`), names included."""
    digest = hashlib.sha256()
    for part in parts:
        root = _PACKAGE / part
        paths = sorted(root.rglob("*.py")) if root.is_dir() else [root]
        for path in paths:
            content = path.read_bytes()
            digest.update(f"{path.relative_to(_PACKAGE).as_posix()}:{len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()
