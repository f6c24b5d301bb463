"""Records, traces and output folders for tests of the report."""

import math
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np

from fsvi_bench.presenting.report.study import make_study
from fsvi_bench.running.cell import Cell, Record, Seconds
from fsvi_bench.running.store import Store
from fsvi_bench.scoring.scores import Overconfidence, Scores
from fsvi_bench.training.trace import Trace, TracePoint

SPECTRUM = tuple(np.geomspace(0.01, 4.0, 21).tolist())


def scores(kl, **changes):
    """Scores of a Gaussian q with this KL; for an infinite one, of a q whose moments have KL 50."""
    singular = math.isinf(kl)
    single = dict.fromkeys(Scores.model_fields, 1.0) | {"kl": kl, "singular": singular, "intervals": None}
    single |= {"kl_moment_matched": 50.0 if singular else kl, "kl_marginals": {}}
    single |= {"coverage": {"50": 0.4, "90": 0.8, "95": 0.9}, "coverage_exact": {"50": 0.5, "90": 0.9, "95": 0.94}}
    for place in ("test", "box"):
        single[f"joint_predictive_kl_{place}"] = {"1": 0.1, "10": 0.5, "100": 2.0}
        single[f"joint_predictive_kl_{place}_error"] = {"1": 0.01, "10": 0.02, "100": None}
    spectrum = Overconfidence(smallest=SPECTRUM[0], median=SPECTRUM[10], largest=SPECTRUM[-1], quantiles=SPECTRUM)
    return Scores(**(single | {"overconfidence": spectrum} | changes))


def record(method, split, kl=None, **changes):
    """One cell; without a KL it failed. Keywords are fields of a record, `M`, or scores."""
    own = {name: changes.pop(name) for name in [*changes] if name in Scores.model_fields}
    settings = {"M": changes.pop("M")} if "M" in changes else {}
    decides = {
        "task_sha256": f"{split:064x}", "dataset": "boston", "split": split, "method": method, "family": "full",
        "hyperparameters": settings, "seed": 0, "code_sha256": "c" * 64,
    }  # fmt: skip
    decides |= {name: changes.pop(name) for name in [*changes] if name in decides}
    outcome = {
        "cell": Cell(**decides).key,
        "status": "failed" if kl is None else "ok",
        "reason": "RuntimeError: it broke" if kl is None else None,
        "scores": None if kl is None else scores(kl, **own),
        "seconds": Seconds(train=2.0, batch_train=4.0, batch_size=2, score=0.5),
        "provenance": {"fsvi_bench": "0.1.0", "hardware": "a machine", "started": "2026-01-02T03:04:05+00:00"},
    }
    return Record(**decides, **(outcome | changes))


def cells(method, values, **changes):
    """A record for each split."""
    return [record(method, split, value, **changes) for split, value in enumerate(values)]


def curve(values, seconds_per_step=0.5):
    """A trace with these KLs after 0, 1, 2, 4, 8, ... steps."""
    steps = [0, *(2**place for place in range(len(values) - 1))]
    moments = [50.0 if math.isinf(value) else value for value in values]
    points = zip(steps, values, moments, strict=True)
    return Trace([TracePoint(step, step * seconds_per_step, kl, 1.0, own, 1.0, None) for step, kl, own in points])


def study_of(records, traces=None, **counts):
    found = {"plans": [], "records": list(records), "planned": len(records), "missing": 0, "stale": 0}
    return make_study(SimpleNamespace(**(found | counts)), traces or {})


def save(root, records, traces=None):
    """Writes records, and traces by `record.cell`, as a run does."""
    store = Store(root)
    for each in records:
        store.save(each, None, (traces or {}).get(each.cell))
    return root


class Page(HTMLParser):
    """Tables as rows of cells, and every element with its attributes."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.tables, self.said = [], [], {}
        self._cell, self._section, self._hidden, self._bold = None, None, 0, False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.elements.append((tag, attributes))
        classes = (attributes.get("class") or "").split()
        if tag == "section":
            self._section = attributes["id"]
        if tag in ("script", "style", "small"):
            self._hidden += 1
        if tag == "table":
            self.tables.append({"class": classes, "dataset": attributes.get("data-dataset"), "rows": []})
        if tag == "tr":
            self.tables[-1]["rows"].append([])
        if tag in ("td", "th"):
            self._cell = {"text": "", "v": attributes.get("data-v"), "bold": "", "ci": ""}
            self.tables[-1]["rows"][-1].append(self._cell)
        if tag == "strong":
            self._bold = True

    def handle_endtag(self, tag):
        if tag in ("script", "style", "small"):
            self._hidden -= 1
        if tag in ("td", "th"):
            self._cell["text"] = " ".join(self._cell["text"].split())
            self._cell = None
        if tag == "strong":
            self._bold = False

    def handle_data(self, data):
        if self._cell is not None:
            self._cell["ci" if self._hidden else "text"] += data
            if self._bold:
                self._cell["bold"] += data
        if not self._hidden:
            self.said[self._section] = self.said.get(self._section, "") + data

    def results(self, dataset):
        """(method, family and settings) -> column -> cell."""
        (table,) = [t for t in self.tables if t["dataset"] == dataset]
        head, *rows = table["rows"]
        names = [cell["text"] for cell in head]
        return {(row[0]["text"], row[1]["text"]): dict(zip(names, row, strict=True)) for row in rows}
