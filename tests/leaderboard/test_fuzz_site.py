"""The site of a few hundred mutated submissions, accepted and refused: nobody's text becomes markup or a script."""

from __future__ import annotations

import json

import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.reading import read_submission
from fsvi_bench.leaderboard.references import REFERENCE_FILE, freeze, write_references
from fsvi_bench.leaderboard.site.build import build_site
from fsvi_bench.leaderboard.verification import verification_path, write_verification
from fsvi_bench.leaderboard.verifying import verify_submission
from fsvi_bench.running.progress import Silent
from fsvi_bench.seeds import derived_generator
from tests.leaderboard.mutations import MANIFEST, mutate, write
from tests.leaderboard.planted import plant_submission, planted_manifest, planted_tasks
from tests.leaderboard.sites import Page

EACH = 300
SOURCE = b"class Planted:\n    'a method'\n"
SCRIPT = b"<script>alert(1)</script>"


def hand_in(root, name, files, tasks):
    """Lays a submission out and verifies it, as `verify --all` would; says whether it holds."""
    folder = root / "submissions" / name
    renamed = dict(files)
    if isinstance(renamed.get(MANIFEST), bytes):  # by its own name, or all but one would be refused for that
        renamed[MANIFEST] = renamed[MANIFEST].replace(b"name: planted\n", f"name: {name}\n".encode())
        renamed[MANIFEST] = renamed[MANIFEST].replace(b'"name": "planted"', f'"name": "{name}"'.encode())
    folder.mkdir(parents=True)
    write(renamed, folder)
    try:
        verification = verify_submission(read_submission(folder, tasks), tasks, None, 1, Silent())
    except InputError:
        return False
    write_verification(verification_path(root, name), verification)
    return True


def tampered(files, number):
    """Mutations of all kinds; in every third the source and a text of the manifest hold a script besides."""
    random = derived_generator("fuzz the site", number)
    mutated = mutate(files, random)
    if number % 3 == 0 and isinstance(mutated.get("method.py"), bytes):
        mutated["method.py"] += SCRIPT
    if number % 5 == 0 and isinstance(mutated.get(MANIFEST), bytes):
        mutated[MANIFEST] = mutated[MANIFEST].replace(b"Of plain text", SCRIPT)
    return mutated


def built(root, out):
    build_site(root, out)
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def kind(name):
    """Pages of one kind have the same elements."""
    return name.split("/")[0]


def require_no_other_markup(name, content, allowed):
    """Elements that a clean page of the kind has too, no handler, no address that runs, no script within the page."""
    page = Page(content)
    assert {tag for tag, _ in page.elements} <= allowed, (name, {tag for tag, _ in page.elements} - allowed)
    for tag, attributes in page.elements:
        assert not any(each.startswith("on") for each in attributes), (name, tag)
        assert not (attributes.get("href") or "").lower().startswith(("javascript", "data:text")), name
    assert len(page.all("script")) == content.count(b"<script src=") + content.count(b"<script defer src="), name
    assert content.count(b"></script>") == content.lower().count(b"</script") == len(page.all("script")), name


@pytest.mark.slow
def test_nothing_of_a_submission_becomes_markup(tmp_path):
    tasks = planted_tasks()
    manifest = planted_manifest(
        "planted",
        source={"file": "method.py", "class": "Planted"},
        hyperparameters={"lr": 0.01, "minibatch": "full", "S": 3},
        link="https://example.org/a",
        notes="Two lines.\nOf plain text: it's 'quoted'.",
        budget={"steps": 10, "seconds": 60.0, "likelihood_rows": 100},
    )
    origin = plant_submission(tmp_path / "origin", tasks, manifest, source=SOURCE)
    files = {path.relative_to(origin).as_posix(): path.read_bytes() for path in origin.rglob("*") if path.is_file()}
    boards = {name: tmp_path / name for name in ("clean", "hostile")}
    for root in boards.values():
        root.mkdir()
        write_references(root / REFERENCE_FILE, freeze(tasks, []))
        assert hand_in(root, "planted", files, tasks)
        assert not hand_in(root, "unread", {**files, MANIFEST: b"name: [unread"}, tasks)
        cells = json.loads(files["cells.json"])
        cells["cells"][0]["kl"] += 1
        assert not hand_in(root, "unverified", {**files, "cells.json": json.dumps(cells).encode()}, tasks)
        del cells["cells"][:2]  # boston is missing
        without = {name: content for name, content in files.items() if "boston" not in name}
        assert hand_in(root, "missing", {**without, "cells.json": json.dumps(cells).encode()}, tasks)
    became = [hand_in(boards["hostile"], f"m-{number:03d}", tampered(files, number), tasks) for number in range(EACH)]
    assert EACH / 30 < sum(became) < EACH / 2
    clean, hostile = (built(root, tmp_path / f"{name} site") for name, root in boards.items())
    allowed = {}
    for name in clean:
        if name.endswith(".html"):
            allowed.setdefault(kind(name), set()).update(tag for tag, _ in Page(clean[name]).elements)
    shown = 0
    for name, content in hostile.items():
        shown += b"&lt;script&gt;alert(1)" in content
        assert SCRIPT not in content or name.endswith(".json"), name  # which no browser takes for a page
        if name.endswith(".html"):
            require_no_other_markup(name, content, allowed[kind(name)])
    assert len(hostile) > len(clean) + EACH / 3  # pages of accepted ones, and of many that were refused
    assert shown > EACH / 20  # the texts are there, as texts
