"""Every block of code in the documentation: run in an empty folder, in order; and every command that it names, parsed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fsvi_bench.methods.registry import built_in_names, load_method
from tests.docs.pages import PAGES, ROOT, blocks, name, named, parse

CASES = [(page, block, words) for page in PAGES for block in blocks(page) for words in block.commands]
FSVI = [(name(page), words[1:]) for page, _, words in CASES if words[0] == "fsvi-bench"]
INLINE = sorted(
    {
        (name(page), command)
        for page in PAGES
        for command in re.findall(r"`(fsvi-bench (?!COMMAND)[^`]*[^`.…])`", page.read_text(encoding="utf-8"))
    }
)
#: Pages of which something takes longer than a test that is not marked slow may.
SLOW = {"README.md", "docs/get-started.md", "docs/concepts/scores.md", "docs/how-to/other-tools.md",
        "docs/how-to/own-data.md", "docs/how-to/grids.md", "docs/how-to/wandb.md", "CONTRIBUTING.md"}  # fmt: skip
ELSEWHERE = {"docs/how-to/method.md", "docs/how-to/python.md"}  #: run by tests of their own
DATA = re.compile(r"concrete|boston|yacht")
NOT_HERE = {"submit", "reproduce"}  #: run by test_method.py, and by the tests of reproductions


@pytest.mark.parametrize(
    ("page", "words"), FSVI, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_every_command_in_a_block_is_parsed(page, words):
    parse(words)


@pytest.mark.parametrize(("page", "command"), INLINE)
def test_every_command_in_a_sentence_exists_and_has_its_options(page, command):
    """Sentences leave arguments out."""
    found, _, words = named([word for word in command.replace("|", " ").split()[1:] if word not in "[]"])
    flags = {flag for parameter in found.params for flag in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= flags | {"--help"}


def test_every_make_target_exists():
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    asked = {
        each for page in PAGES for each in re.findall(r"(?m)(?:^|`)make ([a-z-]+)", page.read_text(encoding="utf-8"))
    }
    assert {"run", "check", "test", "docs"} <= asked
    assert asked <= targets


def smaller(words):
    """A command with less to compute."""
    shortened = {"--max-steps": "20", "--splits": "0-1"}
    words = [shortened.get(before, word) for before, word in zip(["", *words], words, strict=False)]
    if words[0] == "run":
        words += ["--workers", "1", *([] if "--wandb" in words else ["--wandb", "off"])]
        if "--max-steps" not in words:
            words += ["--max-steps", "20"]
    return words


def shorter(text):
    """Python with a tenth of the steps, of training and between looks at it."""
    return re.sub(r"\b(max_steps=|every=|every_n_train_steps=|step=)(\d+)0\b", r"\1\2", text)


def pages_that_run():
    for page in PAGES:
        if name(page) not in ELSEWHERE and any(
            block.runs and block.language in ("python", "sh", "console") for block in blocks(page)
        ):
            marks = [pytest.mark.slow] if name(page) in SLOW else []
            text = "".join(block.text for block in blocks(page) if block.runs)
            yield pytest.param(page, marks=[*marks, pytest.mark.data] if DATA.search(text) else marks, id=name(page))


@pytest.mark.usefixtures("short_scores")
@pytest.mark.parametrize("page", list(pages_that_run()))
def test_what_a_page_says_to_do_works(page, tmp_path, monkeypatch, cli):
    """Files are saved, commands and Python run, in the page's order; with fewer steps and splits."""
    monkeypatch.chdir(tmp_path)
    session: dict = {}
    for block in blocks(page):
        if not block.runs:
            continue
        if block.title:
            Path(block.title).write_text(block.text)
        elif block.language == "python":
            exec(compile(shorter(block.text), name(page), "exec"), session)
        for words in block.commands:
            run(words, cli)


def run(words, cli):
    if words[0] == "python":
        subprocess.run([sys.executable, *words[1:]], check=True)
    elif words[0] == "fsvi-bench" and words[1] not in NOT_HERE and "--protocol" not in words:
        status, _, err = cli(*smaller(words[1:]))
        assert status == 0, (words, err)


def test_the_readme_is_short_and_its_python_and_method_are_those_of_the_guides():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 120
    python, method = (block.text for block in blocks(ROOT / "README.md") if block.language == "python")
    assert len(python.strip().splitlines()) <= 10
    assert len(method.strip().splitlines()) <= 20
    assert python in (ROOT / "docs/how-to/python.md").read_text(encoding="utf-8")
    assert method in (ROOT / "docs/how-to/method.md").read_text(encoding="utf-8")


def test_transcripts_show_the_output_of_their_command():
    """`make pictures` fills them; an empty one was forgotten."""
    transcripts = [block.text for page in PAGES for block in blocks(page) if block.language == "console"]
    assert transcripts
    for text in transcripts:
        assert text.startswith("$ ")
        assert len(text.splitlines()) > 3


def test_the_glossary_has_every_option_of_the_methods():
    text = (ROOT / "GLOSSARY.md").read_text().split("## Options of the methods")[1]
    options = {name for method in built_in_names() for name in load_method(method).cls.Options.model_fields}
    assert {name for name in options if f"`{name}`" not in text} == set()
