"""The page in headless Chromium, opened from disk: nothing is fetched, nothing complains, tables sort, nothing sticks out."""

import math

import numpy as np
import pytest

from fsvi_bench.presenting.report.page import write_report
from tests.presenting.studies import curve, record, save

pytestmark = pytest.mark.slow

METHODS = {"exact": 0.0, "fixed-a": 30.0, "rand-a": 9.0, "rand-a-ngd": 100.0, "mean-field-vi": None, "ssge": 2.0}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Two data sets, one singular method, failures with markup in their reasons, and names that need escaping."""
    rng, records = np.random.default_rng(0), []
    for dataset in ("boston", "yacht"):
        for split in range(4):
            for method, kl in METHODS.items():
                value = None if kl is None else kl * (1 + 0.1 * rng.random())
                records.append(
                    record(method, split, value, dataset=dataset, reason="<b>it broke</b>" if kl is None else None)
                )
            records.append(record("bernoulli-dropout", split, math.inf, dataset=dataset, family="bernoulli"))
            records.append(record("<i>mine<i>", split, 5.0, dataset=dataset, nlpd=None))
    traces = {each.cell: curve([90.0, 40.0, each.scores.kl]) for each in records if each.scores is not None}
    root = save(tmp_path_factory.mktemp("results") / "r", [r for r in records if "<" not in r.method], traces)
    for place, each in enumerate(r for r in records if "<" in r.method):
        path = root / "cells" / "mine" / "full" / str(place) / "record.json"
        path.parent.mkdir(parents=True)
        path.write_text(each.model_dump_json())
    return write_report(root, root / "report")


@pytest.fixture
def visit(browser, report):
    """Opens the report; at the end, nothing may have been asked for but the file itself, and nothing complained."""
    complaints, requests, contexts = [], [], []

    def call(width=1280, **options):
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("requestfailed", lambda request: complaints.append(f"failed: {request.url}"))
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.goto(report.as_uri())
        page.wait_for_load_state("networkidle")
        return page

    yield call
    for context in contexts:
        context.close()
    assert complaints == []
    assert {url for url in requests if not url.startswith("data:")} == {report.as_uri()}


def column(page, place, body="rivals"):
    """`data-v` of a column of the first table, from top to bottom."""
    cells = page.locator(f"table.results >> nth=0 >> tbody.{body} >> tr > :nth-child({place + 1})")
    return cells.evaluate_all("cells => cells.map(cell => cell.dataset.v)")


def heading(page, name):
    return page.locator("table.results >> nth=0 >> thead th", has=page.get_by_role("button", name=name, exact=True))


def test_a_click_sorts_numbers_with_infinity_and_what_is_missing_last(visit):
    page = visit()
    kl = heading(page, "KL(q‖P_D)")
    place = kl.evaluate("th => th.cellIndex")
    assert kl.get_attribute("aria-sort") == "none"
    before = column(page, place, "reference")
    kl.get_by_role("button").click()
    assert kl.get_attribute("aria-sort") == "ascending"
    rising = column(page, place)
    numbers = [float(value) for value in rising[:-2]]
    assert rising[-2:] == ["Infinity", ""]
    assert numbers == sorted(numbers)
    assert [str(value) for value in numbers] != sorted(map(str, numbers))  # not as text: 100 is more than 9
    kl.get_by_role("button").click()
    assert kl.get_attribute("aria-sort") == "descending"
    assert column(page, place) == [*reversed(rising[:-2]), "Infinity", ""]
    assert column(page, place, "reference") == before
    heading(page, "method").get_by_role("button").click()
    assert kl.get_attribute("aria-sort") == "none"
    assert column(page, 0) == sorted(column(page, 0), key=str.lower)


def test_markup_in_names_and_reasons_is_shown_as_text(visit):
    page = visit()
    assert page.locator("#failures .reason").first.inner_text() == "<b>it broke</b>"
    assert page.locator("b, i.mine").count() == 0
    assert page.get_by_text("<i>mine<i>").first.is_visible()
