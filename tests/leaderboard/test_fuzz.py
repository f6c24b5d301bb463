"""Mutated entries and results: refused in one sentence, or exactly what their text says; from a seed, so that what
fails can be made again."""

from __future__ import annotations

import copy
import json
import random
import tomllib

import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.files import json_in_lines
from fsvi_bench.leaderboard.board import read_board
from fsvi_bench.leaderboard.entry import ENTRY_FILE, Entry, Manifest, SourceFile, parse_manifest, read_entry
from fsvi_bench.leaderboard.ranking import rank
from fsvi_bench.leaderboard.result import result_path
from fsvi_bench.leaderboard.signing import ALLOWED_SIGNERS
from tests.leaderboard.boards import edition, entry, make_board, read_result, sign_file, write_entry
from tests.leaderboard.test_board import keys  # noqa: F401 - a fixture

QUICK, ENTRIES, RESULTS = 100, 10_000, 700
DIABETES = edition(["diabetes"])

#: What a value may turn into.
ODD = [
    None, True, False, 0, -1, 1, 2**63, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308, -1e308, 5e-324, float("inf"),
    float("-inf"), float("nan"), "", " ", "0", "1.0", "true", "Infinity", "NaN", "A title", "ada", "MIT", "é" * 50,
    "\u202eabc", "\u3164", "a\u0301\u0301\u0301\u0301\u0301\u0301", "\U0001f600", "\x00", "\x7f", "\x1b[2J", "<script>",
    "../../x", "x" * 5000, [], {}, [[]], [1, "a"], {"a": 1}, {"": None}, [None] * 300,
]  # fmt: skip
PIECES = [b"", b"\0", b"\xff", b"\n", b"\r", b'"', b"'''", b"[", b"]", b"{", b"}", b"=", b",", b":", b"#", b"\\u0000", b"\\",
          b"1e999", b"NaN", b"nan", b"inf", b"-", b"_", b"0x", b"9" * 400, "\u202e".encode(), b"[[", b"a.b.c"]  # fmt: skip


def mutated_bytes(content: bytes, rng: random.Random) -> bytes:
    """One to three changes: some bytes left out, doubled, or replaced by a piece or by bytes from elsewhere."""
    for _ in range(rng.randint(1, 3)):
        start, at = (rng.randrange(len(content) + 1) for _ in range(2))
        end = start + rng.choice([0, 1, 2, 8, 64])
        new = rng.choice([b"", 2 * content[start:end], content[at : at + 8], rng.choice(PIECES), rng.choice(PIECES)])
        content = content[:start] + new + content[end:]
    return content


def mutated(value: object, rng: random.Random) -> object:
    """One to three changes of a tree of dicts and lists: a node deleted, doubled, or another, of any type, nested or not."""
    value = copy.deepcopy(value)
    for _ in range(rng.randint(1, 3)):
        nodes = list(_nodes(value))
        if not nodes:
            return rng.choice(ODD)
        (parent, key), (other, its) = rng.choice(nodes), rng.choice(nodes)
        was = parent[key]
        new = rng.choice([rng.choice(ODD), rng.choice(ODD), other[its], str(was), {"a": was}, nested(was, 60)])
        match rng.randrange(4):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, dict):
                parent[rng.choice([f"{key}s", f"{key} ", key.upper(), str(its)])] = copy.deepcopy(was)
            case 1:
                parent.append(copy.deepcopy(was))
            case _:
                parent[key] = copy.deepcopy(new)
    return value


def nested(value: object, depth: int) -> object:
    return [nested(value, depth - 1)] if depth else value


def _nodes(value):
    for key, each in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(each, dict | list):
            yield from _nodes(each)


def as_toml(value: object) -> str:
    """Any tree as inline TOML, but for null, which TOML has not."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {as_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps("null" if value is None else value, ensure_ascii=False)


def sentence(said: object) -> None:
    assert len(str(said)) < 700
    assert str(said).isprintable()


@pytest.mark.parametrize("count", [QUICK, pytest.param(ENTRIES, marks=pytest.mark.slow)])
def test_a_mutated_entry_is_refused_or_is_what_it_says(tmp_path, count):
    rng = random.Random(26)
    first = write_entry(tmp_path, entry("first", b"class M: ...\n", notes="one\ntwo", link="https://a.org/b",
                                        settings={"lr": 0.1, "wide": True, "mode": "é", "steps": 10}))  # fmt: skip
    contents = [(each / ENTRY_FILE).read_bytes() for each in (first, write_entry(tmp_path, entry("second")))]
    accepted = 0
    for number in range(count):
        content = rng.choice(contents)
        if number % 2:
            content = mutated_bytes(content, rng)
        elif isinstance(tree := mutated(tomllib.loads(content.decode()), rng), dict):
            content = "".join(f"{json.dumps(key)} = {as_toml(each)}\n" for key, each in tree.items()).encode()
        try:
            found = parse_manifest(content, tmp_path / ENTRY_FILE)
        except InputError as error:
            sentence(error)
            continue
        accepted += 1
        said = tomllib.loads(content.decode())
        kept = found.model_dump(by_alias=True, exclude_unset=True)
        assert {**kept, "licence": ""} == {**said, "licence": ""}  # MIT for mit
        assert Manifest.model_validate(found.model_dump(by_alias=True)) == found
        assert not any(each in str(kept) for each in "<>\x00\x1b\x7f\u202e")
        if accepted % 10 == 0:
            source = b"" if isinstance(found.method, SourceFile) else None
            again = write_entry(tmp_path / str(accepted), Entry("again", found, source))
            assert read_entry(again).manifest == found
    assert count // 100 < accepted < count // 2  # neither all nor nothing is looked at


@pytest.fixture
def boards(tmp_path, keys):  # noqa: F811
    """A board that asks for signatures and one that does not, with one result each, and the result's text."""
    roots = [make_board(tmp_path / name, {"first": lambda place, seed: 1.0}, DIABETES) for name in ("signed", "own")]
    (roots[0] / ALLOWED_SIGNERS).write_text(f'lab namespaces="fsvi-bench-result" {(keys / "lab.pub").read_text()}')
    sign_file(result_path(roots[0], "v2", "first"), keys / "lab")
    assert all(rank(read_board(root), "joint").lines for root in roots)
    return roots, result_path(roots[0], "v2", "first").read_bytes()


@pytest.mark.parametrize("count", [QUICK, pytest.param(RESULTS, marks=pytest.mark.slow)])
def test_a_mutated_result_is_never_shown_as_signed_nor_read_two_ways(boards, count):
    rng = random.Random(26)
    (signed, own), original = boards
    accepted = 0
    for number in range(count):
        content = mutated_bytes(original, rng)
        if number % 2:
            tree = mutated(json.loads(original), rng)
            content = json_in_lines(json.dumps(tree), 2).encode(errors="surrogatepass")
        for root in (signed, own):
            result_path(root, "v2", "first").write_bytes(content)
        if content != original:
            (standing,) = read_board(signed).standings
            assert standing.result is None
        (standing,) = read_board(own).standings
        if standing.result is None:
            sentence(standing.stale)
            continue
        accepted += 1
        assert standing.result == read_result(result_path(own, "v2", "first"))
        assert standing.result.text() == content
        assert rank(read_board(own), "joint").lines[0].name == "first"
    assert accepted < count // 2
