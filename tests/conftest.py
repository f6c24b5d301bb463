"""What every test shares: shapes checked at run time, one thread, a cache of its own, the raw data where they are."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import jaxtyping
import pytest
from jaxtyping import config as shape_checks

from tests.shapes import once

# Shapes in signatures are checked in quick tests; in use they are documentation.
_CHECKED = [
    f"fsvi_bench.{name}"
    for name in (
        "maths",
        "networks",
        "papers.ksw2015",
        "papers.gal2016",
        "papers.hron2018",
        "posteriors",
        "scoring",
        "statistics",
        "tasks.task",
    )
]
jaxtyping.jaxtyped = once  # by this name the hook decorates functions
_hook = jaxtyping.install_import_hook(_CHECKED, "beartype.beartype")

from fsvi_bench.tasks.frozen import FrozenTask, read_task  # noqa: E402
from fsvi_bench.tasks.task import Task, bind_task  # noqa: E402
from fsvi_bench.threads import use_one_thread  # noqa: E402
from tests.requirements import skip_or_fail  # noqa: E402

REFERENCE = Path(__file__).parent / "reference_data"
DATA_VARIABLE = "FSVI_BENCH_DATA"
BROWSER_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run", "--disable-quic",
]  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until collected: the collector would look at all modules and tests again and again
    use_one_thread()
    config.addinivalue_line("markers", "data: needs the raw data in $FSVI_BENCH_DATA")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without the raw data, tests of them are skipped with a reason; where data are required (CI) that is an error."""
    if os.environ.get(DATA_VARIABLE):
        return
    if os.environ.get("FSVI_BENCH_REQUIRE_DATA"):
        raise pytest.UsageError(f"FSVI_BENCH_REQUIRE_DATA is set but ${DATA_VARIABLE} is not")
    for item in items:
        if item.get_closest_marker("data"):
            item.add_marker(pytest.mark.skip(reason=f"needs the raw data: set ${DATA_VARIABLE}"))


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _private_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests never read or write the user's cache; tasks fitted by one test serve the others of its process."""
    os.environ["FSVI_BENCH_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["WANDB_MODE"] = "offline"


@pytest.fixture(autouse=True, scope="session")
def _external_callbacks_looked_for_once() -> None:
    """Each Trainer reads the metadata of every installed package, where it may find callbacks: a tenth of the time of
    short trainings."""
    if registry := sys.modules.get("lightning_fabric.utilities.registry"):  # imported by a test module
        registry.entry_points = cache(registry.entry_points)


@pytest.fixture(autouse=True)
def _unchecked_shapes_where_slow(request: pytest.FixtureRequest):
    """Slow tests make the calls that quick ones have made, a hundred thousand times: checks would be a third of their
    time, and most of that of CI."""
    before = shape_checks.jaxtyping_disable
    if request.node.get_closest_marker("slow"):
        shape_checks.update("jaxtyping_disable", True)
    yield
    shape_checks.update("jaxtyping_disable", before)


@pytest.fixture
def cli(capsys):
    """Runs the command in this process; returns status, stdout and stderr."""
    from fsvi_bench.cli.app import main

    def call(*arguments):
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return exit_.value.code, captured.out, captured.err

    return call


def shorten_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores without a mixture's integrals, with few draws of the others and without steps to an objective's optimum:
    for tests of who shows which score, not of its value."""
    from fsvi_bench.methods import functional
    from fsvi_bench.networks import comparison
    from fsvi_bench.scoring import distances, joint, predictive

    for module, name, value in (
        (predictive, "MAX_WORK", 0), (joint, "DRAWS", 20), (joint, "SWITCHED_DRAWS", 5), (distances, "PART", 500),
        (functional, "REFERENCE_STEPS", 3), (functional, "_read", lambda path: None),
        (functional, "_write", lambda path, optimum: None), (comparison, "JOINT_DRAWS", 200), (comparison, "GROUPS", 5),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def no_figures(monkeypatch):
    """Reports without figures, for tests that do not look at them: a second each."""
    monkeypatch.setattr("fsvi_bench.presenting.report.page._figures", lambda study, folder: defaultdict(list))


@pytest.fixture
def short_scores(monkeypatch):
    shorten_scores(monkeypatch)


@pytest.fixture(scope="session")
def reference() -> Path:
    """Folder of the independent values."""
    return REFERENCE


@pytest.fixture(scope="session")
def boston_task() -> FrozenTask:
    return read_task(REFERENCE / "tasks" / "boston-00.safetensors")


@pytest.fixture(scope="session")
def boston(boston_task: FrozenTask) -> Task:
    """The reference task on boston split 0, bound to its data (mark the test with `data`)."""
    return bind_task(boston_task)


@pytest.fixture(scope="session")
def toy() -> Task:
    """A problem that needs no file: 40 points, 20 radial basis functions."""
    from fsvi_bench.tasks.build import build_task
    from fsvi_bench.tasks.card import load_card

    return bind_task(build_task(load_card("toy"), 0).task)


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium; a module's, since Playwright keeps an event loop in the thread while it runs."""
    chromium = "/usr/bin/chromium" if Path("/usr/bin/chromium").is_file() else shutil.which("chromium")
    if chromium is None:
        skip_or_fail("there is no chromium; install Debian's package of that name")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        skip_or_fail("playwright is not installed; pip install -e '.[dev]'")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=BROWSER_FLAGS)
        yield started
        started.close()
