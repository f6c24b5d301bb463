"""Who is who on a leaderboard: titles that cannot be mistaken for others, and sources that are not others' copies."""

from __future__ import annotations

import hashlib
import string
import unicodedata
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

import fsvi_bench
from fsvi_bench.errors import InputError, quoted
from fsvi_bench.leaderboard.entry import BuiltIn, Entry
from fsvi_bench.resources import read_yaml, resource_dir
from fsvi_bench.sources import tree_sha256

PACKAGE = Path(fsvi_bench.__file__).parent
RESERVED = ("exact", "exact posterior", "the exact posterior", "map", "prior", "reference")
_WITH = (
    "",
    " full",
    " full covariance",
    " ffg",
    " factorised",
    " bernoulli",
    " spike slab",
)  #: reserved names, and these
_LETTERS = {"Lu", "Ll", "Lt", "Lo", "Nd", "Nl", "No", "Sm", "Sc"}  #: no marks, spaces, punctuation, ornaments
_FILLERS = "\u115f\u1160"  #: letters that are not seen


#: Letters and digits of ASCII that stand for each other.
_ALIKE = str.maketrans({"1": "l", "i": "l", "|": "l", "0": "o"})


@cache
def _ascii_twins() -> Mapping[str, str]:
    """Character -> the letter or digit of ASCII that it looks like (Unicode's confusables, UTS 39)."""
    from confusable_homoglyphs.confusables import confusables_data

    plain = string.ascii_letters + string.digits
    twins = {
        c: [each["c"] for each in alike if each["c"] in plain]
        for c, alike in confusables_data.items()
        if c not in plain
    }
    return {character: min(found) for character, found in twins.items() if found}


def skeleton(title: str) -> str:
    """What a title looks like: equal skeletons are titles that a reader may take for one another."""
    decomposed = unicodedata.normalize("NFKD", title)
    letters = [each for each in decomposed if unicodedata.category(each) in _LETTERS and each not in _FILLERS]
    twins = "".join(_ascii_twins().get(each, each) for each in letters)
    return twins.casefold().translate(_ALIKE).replace("rn", "m").replace("vv", "w")


def require_own_title(entry: Entry, others: Iterable[Entry]) -> None:
    """Raises InputError if a title looks blank, like a reserved one, or like another entry's."""
    own = skeleton(entry.manifest.title)
    if not own:
        raise InputError(f"the title {quoted(entry.manifest.title)} looks blank; give one of letters or digits")
    if not isinstance(entry.manifest.method, BuiltIn):
        for reserved in (*RESERVED, *_built_in_sources()):
            if {skeleton(reserved + more) for more in _WITH} & {own, skeleton(entry.name)}:
                raise InputError(
                    f"the title or name of {entry.name} looks like '{reserved}', a reserved name; change it"
                )
    for other in others:
        if {skeleton(other.manifest.title), skeleton(other.name)} & {own, skeleton(entry.name)}:
            raise InputError(f"the title or name of {entry.name} looks like that of {other.name}; choose another")


def require_own_source(entry: Entry, others: Iterable[Entry]) -> None:
    """Raises InputError if an entry's source says the same as a built-in method's, or as another entry's.

    Syntax trees are compared, without comments and docstrings. One's own source may stand for several entries, of other
    families or settings.
    """
    own = _tree(entry.source)
    for name, source in _built_in_sources().items() if own else ():
        if _tree(source) == own:
            raise InputError(f"the source of {entry.name} is that of the built-in method '{name}'; enter that method")
    for other in others:
        if (own, entry.method if own is None else "") != (_tree(other.source), other.method if own is None else ""):
            continue
        if own is not None and other.manifest.owner.lower() != entry.manifest.owner.lower():
            raise InputError(f"the source of {entry.name} is that of {other.name}, by {other.manifest.owner}")
        if _run(other) == _run(entry):
            raise InputError(f"{entry.name} is {other.name} again: the same method, family and settings; remove one")


@cache
def _tree(source: bytes | None) -> str | None:
    """Names a source by its syntax tree; one that is no Python, by its bytes."""
    try:
        return None if source is None else tree_sha256(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return hashlib.sha256(source or b"").hexdigest()


def _run(entry: Entry) -> tuple[object, ...]:
    return entry.manifest.family, entry.manifest.settings


@cache
def _built_in_sources() -> dict[str, bytes]:
    """The text of each built-in method's file, by the method's name."""
    found = {}
    for path in sorted((resource_dir("conf") / "methods").glob("*.yaml")):
        module = str(cast(dict[str, Any], read_yaml(path))["class"]).partition(":")[0]
        found[path.stem] = (PACKAGE.parent / Path(*module.split("."))).with_suffix(".py").read_bytes()
    return found
