"""The pages of the documentation and their blocks of code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import typer

from fsvi_bench.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "GLOSSARY.md", "CONTRIBUTING.md", "leaderboard/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(
    r"(?P<mark><!-- test: parse [^\n]*-->\n)?```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)```",
    re.DOTALL,
)


class Block(NamedTuple):
    language: str
    title: str | None  #: the file that the reader is to save it as
    text: str
    runs: bool  #: False below `<!-- test: parse (reason) -->`

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command of a shell block, without comments, prompts and line continuations."""
        if self.language not in ("sh", "bash", "console"):
            return []
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [words for line in lines if "fsvi-bench" in line or self.language == "sh" if (words := split(line))]


def split(line: str) -> list[str]:
    return shlex.split(line, comments=True)


def blocks(page: Path) -> list[Block]:
    found = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(each["language"], each["title"], each["text"], each["mark"] is None) for each in found]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def named(words: list[str]) -> tuple[Any, str, list[str]]:
    """The command named by the words after `fsvi-bench`, its full name, and the remaining words."""
    command, path = typer.main.get_command(app), "fsvi-bench"
    while words and hasattr(command, "resolve_command"):
        context = command.context_class(command, info_name=path)
        word, command, words = command.resolve_command(context, words)
        path = f"{path} {word}"
    return command, path, words


def parse(words: list[str]) -> None:
    """Parses the words after `fsvi-bench`; raises the parser's error if they are not valid."""
    command, path, own = named(words)
    command.make_context(path, list(own))
