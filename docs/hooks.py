"""MkDocs hooks: pages that live outside `docs/`, links to them, and the command reference."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
#: Files of the repository that are pages of the site, too.
OUTSIDE = {
    "GLOSSARY.md": "reference/glossary.md",
    "CHANGELOG.md": "reference/changelog.md",
    "CONTRIBUTING.md": "reference/contributing.md",
    "benchmarks/README.md": "reference/benchmarks.md",
    "benchmarks/defaults.md": "reference/defaults.md",
}
COMMANDS_GO_HERE = "<!-- The site lists every command here. -->"
INLINE_CODE = re.compile(r"(?<!</span>)<code>[^<]*</code>")
HYPHENATED = re.compile(r"[^\s<>]*-[^\s<>]*(?=[\s<])")
LONG_CELL = re.compile(r"<td>(?=(?:(?!</td>).){80})")
LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]+)")


def on_files(files: Files, *, config: Any) -> Files:
    for source, place in OUTSIDE.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    place = page.file.src_uri
    sources = {page: source for source, page in OUTSIDE.items()}
    source = sources.get(place, f"docs/{place}")
    markdown = LINK.sub(lambda found: _in_site(found[1], source, place), markdown)
    return markdown.replace(COMMANDS_GO_HERE, _commands()) if COMMANDS_GO_HERE in markdown else markdown


def on_page_content(html: str, **_: Any) -> str:
    """Marks for site.css: words with hyphens in inline code, which a browser would break, and long table cells."""
    html = LONG_CELL.sub('<td class="long">', html)
    return INLINE_CODE.sub(lambda code: HYPHENATED.sub(_whole, code[0]), html)


def _whole(word: re.Match[str]) -> str:
    """A word to keep in one line, or in as few lines as a phone has room for."""
    return f'<span class="long">{word[0]}</span>' if len(word[0]) > 24 else f"<span>{word[0]}</span>"


def on_post_page(output: str, **_: Any) -> str:
    """The theme's search dialog has no name for screen readers."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


def on_post_template(output_content: str, **_: Any) -> str:
    """404.html is a template, not a page."""
    return on_post_page(output_content)


def _in_site(target: str, source: str, place: str) -> str:
    """A link that holds in the repository, as it must be in the site; unchanged where it leads to no page."""
    meant = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    page = OUTSIDE.get(meant, meant.removeprefix("docs/") if meant.startswith("docs/") else None)
    return target if page is None else posixpath.relpath(page, posixpath.dirname(place))


def _commands() -> str:
    """Typer's own documentation of every command, below this page's title."""
    import typer
    from typer.cli import get_docs_for_click

    from fsvi_bench.cli.app import app

    command = typer.main.get_command(app)
    text = get_docs_for_click(
        obj=command, ctx=command.context_class(command, info_name="fsvi-bench"), name="fsvi-bench"
    )
    _, *sections = re.split(r"(?m)^(?=##+ `)", text)
    shortened = r"(?ms)^\*\*Commands\*\*:\n\n(\* [^\n]*\n)+"  # ends in "...", and the commands follow anyway
    return "".join(re.sub(shortened, "", section) for section in sections)
