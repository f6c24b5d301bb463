"""Titles that look like others', and sources that are others'."""

from pathlib import Path

import pytest

import fsvi_bench.methods.rand_a
from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.entry import BuiltIn, SourceFile
from fsvi_bench.leaderboard.identity import require_own_source, require_own_title, skeleton
from tests.leaderboard.boards import entry

SOURCE = b'"""Mine."""\nclass M:\n    x = 1\n'
REFORMATTED = b"class M:  # copied\n    x = (1)\n"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Exact", "Ехасt"),
        ("RANDA", "R A N D A"),
        ("Modern VI", "Modem Vl"),
        ("a-b", "A B"),
        ("ﬁt", "fit"),
        ("café", "cafe"),
        ("ΠΛ", "ПΛ"),  # Greek and Cyrillic
    ],
)
def test_confusable_titles_look_alike(one, other):
    assert skeleton(one) == skeleton(other)


@pytest.mark.parametrize(("one", "other"), [("RANDA 2", "RANDA 3"), ("full", "fall"), ("метод", "method")])
def test_other_titles_do_not(one, other):
    assert skeleton(one) != skeleton(other)


@pytest.mark.parametrize(
    "title",
    [
        "Exact", "ΕΧΑСТ", "the exact posterior", "rand-a", "Rand A", "SSGE", "MAP", "Exact GP", "Exact posterior, v2",
        "RANDA (tuned)", "MAP estimate", "Exactʼ", "Exact®", "Exact´", "E.x.a.c.t", "Exact, full covariance", "exact FFG",
        "Rand-A Full", "Ехасt — full", "E×act", "|VON, tuned", "⋿xact posterior", "Ⓔⓧⓐⓒⓣ", "Exact-tuned", "Exact/tuned",
        "Exact+", "Exact\xa0tuned", "RANDA(tuned)",
    ],
    ids=ascii,
)  # fmt: skip
def test_reserved_titles_are_refused(title):
    with pytest.raises(InputError, match="reserved"):
        require_own_title(entry("mine", SOURCE, title=title), [])


@pytest.mark.parametrize(
    "title",
    [
        "Exactly sparse VI", "Prior networks", "Mapped flows", "My exact method",
        "A" + "\u0301" * 4, "Điện tử Việt", "हिन्दी", "変分推論 2", "VI & MCMC: «β»", "ТЕОРИЯ",
    ],
    ids=ascii,
)  # fmt: skip
def test_titles_that_go_on_otherwise_and_of_any_script_are_not(title):
    require_own_title(entry("mine", SOURCE, title=title), [entry("other", SOURCE, title="Other")])


@pytest.mark.parametrize(
    "title",
    [
        "\u3164", "\u2800", "\uffa0\u115f", "A\u3164", "A\u2800B", "A\u200b", "A\u200fB", "A\u2066B\u2069", "A\U000e0041",
        "A" + "\u0301" * 5, "\U0001d159", "A\u2028B", "A" * 201, "<b>", "", " ", "a\u001bb", "a\u202eb",
    ],
    ids=ascii,
)  # fmt: skip
def test_a_title_that_is_not_seen_or_paints_over_others_is_refused(title):
    with pytest.raises(ValueError, match="title"):
        entry("mine", SOURCE, title=title)


@pytest.mark.parametrize(
    ("method", "own", "others"), [("exact", "The exact posterior", "Rand A"), ("rand-a", "RANDA", "Ехасt")]
)
def test_an_entry_of_a_built_in_method_may_have_its_name_and_no_other(method, own, others):
    its = BuiltIn(name=method, version="0.2.0")
    require_own_title(entry("ours", title=own, method=its), [])
    with pytest.raises(InputError, match="reserved"):
        require_own_title(entry("ours", title=others, method=its), [])
    with pytest.raises(InputError, match="reserved"):
        require_own_title(entry("ssge", title=own, method=its), [])


def test_a_class_may_not_be_named_like_a_built_in_method():
    """Nor could anybody run it: names of installed methods are taken."""
    mine = entry("mine", SOURCE, method=SourceFile(file="method.py", **{"class": "ssge"}))
    with pytest.raises(InputError, match=r"^the class 'ssge' of mine is named like a built-in method; rename it$"):
        require_own_title(mine, [])


@pytest.mark.parametrize("title", ["---", "·", "᠎.", "'", "́"])
def test_titles_without_letters_are_refused(title):
    blank = entry("mine", SOURCE)
    blank = type(blank)(blank.name, blank.manifest.model_copy(update={"title": title}), blank.source)
    with pytest.raises(InputError, match="blank"):
        require_own_title(blank, [])


@pytest.mark.parametrize(
    ("name", "title"),
    [("second", "My methοd"), ("walrus-fu11", "Mine"), ("mine", "WALRUS Full"), ("walrus--full", "Mine")],
)
def test_neither_name_nor_title_may_look_like_anothers(name, title):
    with pytest.raises(InputError, match="looks like that of walrus-full; choose another"):
        require_own_title(entry(name, SOURCE, title=title), [entry("walrus-full", SOURCE, title="My method")])


def test_a_built_in_methods_source_is_refused():
    source = Path(fsvi_bench.methods.rand_a.__file__).read_bytes()
    with pytest.raises(InputError, match="built-in method 'rand-a'"):
        require_own_source(entry("mine", b"# mine\n" + source), [])


@pytest.mark.parametrize("copy", [b"# mine\n" + SOURCE, REFORMATTED, b"class M:\n  '''Mine.'''\n  x = (0x1)\n"])
def test_another_owners_source_is_refused_however_it_is_written(copy):
    with pytest.raises(InputError, match="first, by ada"):
        require_own_source(entry("second", copy, owner="eve", settings={"lr": 2}), [entry("first", SOURCE)])


@pytest.mark.parametrize("copy", [SOURCE + b"pass\n", b"class M:\n    y = 1\n", b"class M:\n    x = 2 - 1\n"])
def test_what_is_not_caught_is_known(copy):
    """A statement that does nothing, another name or another spelling make another syntax tree. Nothing is gained by such
    a copy: it scores as the first does, and ties with it."""
    require_own_source(entry("second", copy, owner="eve"), [entry("first", SOURCE)])


def test_an_owner_is_the_same_in_capitals():
    """As accounts on forges are: one's own source may stand again, under either spelling."""
    first = entry("first", SOURCE, owner="Ada", settings={"lr": 0.1})
    require_own_source(entry("second", SOURCE, owner="ada", settings={"lr": 0.2}), [first])


@pytest.mark.parametrize("lr", [1, 1.0, True])
def test_numbers_written_otherwise_are_the_same_settings(lr):
    with pytest.raises(InputError, match="duplicates"):
        require_own_source(entry("second", SOURCE, settings={"lr": lr}), [entry("first", SOURCE, settings={"lr": 1})])


def test_defaults_that_are_written_out_are_the_same_settings():
    """On linear models or on networks, whose defaults differ."""
    method = BuiltIn(name="rand-a", version="0.1.0")
    plain = entry("plain", method=method, settings={})
    for settings in ({"lr": 0.1}, {"M": 80}, {"lr": 0.03}):
        with pytest.raises(InputError, match="copy duplicates plain"):
            require_own_source(entry("copy", method=method, settings=settings), [plain])
    require_own_source(entry("other", method=method, settings={"lr": 0.07}), [plain])


def test_an_owner_may_reuse_a_source_with_other_settings_or_another_family():
    first = entry("first", SOURCE, settings={"lr": 0.1})
    require_own_source(entry("second", REFORMATTED, settings={"lr": 0.2}), [first])
    require_own_source(entry("second", REFORMATTED, settings={"lr": 0.1}, family="ffg"), [first])
    with pytest.raises(InputError, match="duplicates first"):
        require_own_source(entry("second", REFORMATTED, settings={"lr": 0.1}), [first])


def test_a_built_in_method_stands_once_with_its_settings():
    first = entry("first", settings={"lr": 0.1})
    require_own_source(entry("second", settings={"lr": 0.2}), [first])
    require_own_source(entry("third", settings={"lr": 0.1}, method=BuiltIn(name="ssge", version="0.2.0")), [first])
    with pytest.raises(InputError, match="duplicates first"):
        require_own_source(entry("second", settings={"lr": 0.1}), [first])


@pytest.mark.parametrize("source", [b"def (", b"(" * 10_000, b"x" + b".x" * 20_000, b"\0"])
def test_invalid_python_has_an_identity_too(source):
    require_own_source(entry("second", source, owner="eve"), [entry("first", SOURCE)])
    with pytest.raises(InputError, match="by ada"):
        require_own_source(entry("second", source, owner="eve"), [entry("first", source)])
