"""Identity on a leaderboard: titles must not resemble others, and sources must not be copies of others."""

from __future__ import annotations

import hashlib
import operator
import re
import string
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import accumulate
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
_AS_WHOLE = {"prior", "reference"}  #: reserved only as a whole: names of other methods start with these
_LETTERS = {
    "Lu",
    "Ll",
    "Lt",
    "Lo",
    "Nd",
    "Nl",
    "No",
    "Sm",
    "Sc",
}  #: categories without marks, spaces, punctuation and ornaments
_FILLERS = "\u115f\u1160"  #: invisible letters
#: ASCII letters and digits that resemble each other.
_ALIKE = str.maketrans({"1": "l", "i": "l", "|": "l", "0": "o"})


@cache
def _look_alikes() -> Mapping[str, str]:
    """Character -> representative of all that look like it (Unicode confusables, UTS 39), in ASCII if possible."""
    from confusable_homoglyphs.confusables import confusables_data

    plain = {*string.ascii_letters, *string.digits}
    alike = {character: {character, *(each["c"] for each in found)} for character, found in confusables_data.items()}
    return {character: min(found & plain or found) for character, found in alike.items() if character not in plain}


@cache
def skeleton(title: str) -> str:
    """The appearance of a title: titles with equal skeletons can be confused by a reader."""
    decomposed = unicodedata.normalize("NFKD", title)
    letters = [each for each in decomposed if unicodedata.category(each) in _LETTERS and each not in _FILLERS]
    plain = "".join(_look_alikes().get(each, each) for each in letters)
    return plain.casefold().translate(_ALIKE).replace("rn", "m").replace("vv", "w")


def require_own_title(entry: Entry, others: Iterable[Entry]) -> None:
    """Raises InputError if a title looks blank or like that of another entry, or starts like a reserved one, such as
    "Exact, tuned", or if the class of a source has the name of a built-in method.

    The entry of a built-in method may have the name of that method, and start with that of another.
    """
    title, name = skeleton(entry.manifest.title), skeleton(entry.name)
    if not title:
        raise InputError(f"the title {quoted(entry.manifest.title)} looks blank; choose one with letters or digits")
    built_in = isinstance(entry.manifest.method, BuiltIn)
    if not built_in and entry.method in _built_in_sources():
        raise InputError(f"the class '{entry.method}' of {entry.name} is named like a built-in method; rename it")
    own = _EXACT if built_in and entry.method == "exact" else {entry.method} if built_in else set[str]()
    begun = {*_beginnings(entry.manifest.title), *_beginnings(entry.name)}
    for reserved in sorted({*RESERVED, *_built_in_sources()} - own):
        whole = reserved in _AS_WHOLE or (built_in and reserved not in RESERVED)
        if skeleton(reserved) in ({title, name} if whole else begun):
            which = f"the title {quoted(entry.manifest.title)} or the name {entry.name}"
            raise InputError(
                f"{which} looks like the reserved name '{reserved}'; choose others with --title and --name"
            )
    for other in others:
        if {skeleton(other.manifest.title), skeleton(other.name)} & {title, name}:
            raise InputError(f"the title or name of {entry.name} looks like that of {other.name}; choose another")


def _beginnings(text: str) -> Iterator[str]:
    """Skeletons of the first word of a text, of its first two words, and so on: with the characters between them, which
    may look like letters, and without."""
    parts = re.split(r"([\W_]+)", text)
    return (skeleton(each) for own in (parts, parts[::2]) for each in accumulate(own))


def require_own_source(entry: Entry, others: Iterable[Entry]) -> None:
    """Raises InputError if an entry's source is equivalent to that of a built-in method or of another entry.

    The comparison uses syntax trees without comments and docstrings. An owner may use one source for several entries,
    with different families or settings.
    """
    own, manifest = _code(entry), entry.manifest
    for name, source in _built_in_sources().items() if entry.source is not None else ():
        if _tree(source) == own:
            raise InputError(
                f"the source of {entry.name} is that of the built-in method '{name}'; submit that method by name"
            )
    for other in others:
        its = other.manifest
        if _code(other) != own:
            continue
        if entry.source is not None and its.owner.lower() != manifest.owner.lower():
            raise InputError(f"the source of {entry.name} is that of {other.name}, by {its.owner}; submit your own")
        if its.family == manifest.family and any(map(operator.eq, _settings(entry), _settings(other))):
            raise InputError(
                f"{entry.name} duplicates {other.name}: the same method, family and settings, defaults included; "
                "remove one of them"
            )


def _settings(entry: Entry) -> list[Mapping[str, Any]]:
    """The settings; of a built-in method with its defaults on linear models, and with those on networks."""
    manifest = entry.manifest
    if not isinstance(manifest.method, BuiltIn):
        return [manifest.settings]
    from fsvi_bench.methods.registry import load_installed  # takes seconds

    try:
        found = load_installed(manifest.method.name)
        defaults = [{}, found.defaults.network_options] if found.cls.networks else [{}]
        return [found.options({**usual, **manifest.settings}).model_dump() for usual in defaults]
    except InputError:  # an unknown method, or settings that it refuses
        return [manifest.settings]


def _code(entry: Entry) -> str:
    """Identifies the code of an entry: a built-in method by name, a source by its syntax tree."""
    return entry.method if entry.source is None else _tree(entry.source)


@cache
def _tree(source: bytes) -> str:
    """Hash of a source's syntax tree, or of its bytes if it is not valid Python."""
    try:
        return tree_sha256(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return hashlib.sha256(source).hexdigest()


@cache
def _built_in_sources() -> dict[str, bytes]:
    """Name of a built-in method -> text of its file."""
    found = {}
    for path in sorted((resource_dir("conf") / "methods").glob("*.yaml")):
        module = str(cast(dict[str, Any], read_yaml(path))["class"]).partition(":")[0]
        found[path.stem] = (PACKAGE.parent / Path(*module.split("."))).with_suffix(".py").read_bytes()
    return found
