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
_EXACT = {"exact", "exact posterior", "the exact posterior"}
RESERVED = {*_EXACT, "map", "prior", "reference"}
#: Reserved names with what tables say beside them are reserved too.
_WITH = ("", "full", "full covariance", "ffg", "factorised", "bernoulli", "spike slab")
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
        character: min((each["c"] for each in alike if each["c"] in plain), default="")
        for character, alike in confusables_data.items()
    }
    return {character: twin for character, twin in twins.items() if twin and character not in plain}


@cache
def skeleton(title: str) -> str:
    """What a title looks like: equal skeletons are titles that a reader may take for one another."""
    decomposed = unicodedata.normalize("NFKD", title)
    letters = [each for each in decomposed if unicodedata.category(each) in _LETTERS and each not in _FILLERS]
    twins = "".join(_ascii_twins().get(each, each) for each in letters)
    return twins.casefold().translate(_ALIKE).replace("rn", "m").replace("vv", "w")


def require_own_title(entry: Entry, others: Iterable[Entry]) -> None:
    """Raises InputError if a title looks blank, like a reserved one, or like another entry's.

    An entry of a built-in method may bear that method's name.
    """
    title = skeleton(entry.manifest.title)
    if not title:
        raise InputError(f"the title {quoted(entry.manifest.title)} looks blank; give one of letters or digits")
    method = entry.method if isinstance(entry.manifest.method, BuiltIn) else None
    own = _EXACT if method == "exact" else {method}
    for reserved in sorted({*RESERVED, *_built_in_sources()} - own):
        if {skeleton(f"{reserved} {more}") for more in _WITH} & {title, skeleton(entry.name)}:
            raise InputError(f"the title or name of {entry.name} looks like '{reserved}', a reserved name; change it")
    for other in others:
        if {skeleton(other.manifest.title), skeleton(other.name)} & {title, skeleton(entry.name)}:
            raise InputError(f"the title or name of {entry.name} looks like that of {other.name}; choose another")


def require_own_source(entry: Entry, others: Iterable[Entry]) -> None:
    """Raises InputError if an entry's source says the same as a built-in method's, or as another entry's.

    Syntax trees are compared, without comments and docstrings. One's own source may stand for several entries, of other
    families or settings.
    """
    own, manifest = _code(entry), entry.manifest
    for name, source in _built_in_sources().items() if entry.source is not None else ():
        if _tree(source) == own:
            raise InputError(f"the source of {entry.name} is that of the built-in method '{name}'; enter that method")
    for other in others:
        its = other.manifest
        if _code(other) != own:
            continue
        if entry.source is not None and its.owner.lower() != manifest.owner.lower():
            raise InputError(f"the source of {entry.name} is that of {other.name}, by {its.owner}; enter your own")
        if (its.family, its.settings) == (manifest.family, manifest.settings):
            raise InputError(f"{entry.name} is {other.name} again: the same method, family and settings; remove one")


def _code(entry: Entry) -> str:
    """Names what an entry runs: a built-in method by its name, a source by what it says."""
    return entry.method if entry.source is None else _tree(entry.source)


@cache
def _tree(source: bytes) -> str:
    """Names a source by its syntax tree; one that is no Python, by its bytes."""
    try:
        return tree_sha256(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return hashlib.sha256(source).hexdigest()


@cache
def _built_in_sources() -> dict[str, bytes]:
    """The text of each built-in method's file, by the method's name."""
    found = {}
    for path in sorted((resource_dir("conf") / "methods").glob("*.yaml")):
        module = str(cast(dict[str, Any], read_yaml(path))["class"]).partition(":")[0]
        found[path.stem] = (PACKAGE.parent / Path(*module.split("."))).with_suffix(".py").read_bytes()
    return found
