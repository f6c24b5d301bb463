"""What the tests of the site share: a folder of a leaderboard with every kind of row, and pages read as a browser does."""

from __future__ import annotations

from html.parser import HTMLParser

from fsvi_bench.leaderboard.references import REFERENCE_FILE, write_references
from tests.leaderboard.boards import entry, references, save_entry

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'><b>bold</b>"
MANY = dict.fromkeys(("boston", "concrete", "energy", "kin8nm", "naval", "power", "wine", "yacht"), 2)
FEW = {"boston": 3, "concrete": 1, "energy": 20, "yacht": 2}
PAGES = ("index.html", "methods/alpha.html", "datasets/boston.html", "compare.html")


def every_kind(table):
    """Ranked in each track, re-scored only, missing a data set, diverged, a reference, not verified."""
    return [
        entry(
            "alpha", table, words={"method": "rand-a", "title": "RANDA, as it is", "link": "https://example.org/a?b=c"}
        ),
        entry("beta", table, words={"method": "ssge", "title": "Spectral Stein"}),
        entry("gamma", table, diverged={("yacht", 1)}, words={"title": "Diverges on yacht"}),
        entry("delta", table, again=False, words={"title": "Only files"}),
        entry("epsilon", table, missing=("energy",), words={"title": "Without energy"}),
        entry(
            "exact", table, kl=0.0, words={"method": "exact", "reference": True, "title": "Handed in to compare with"}
        ),
        entry("zeta", table, "ffg", kl=9.0, words={"title": "Factorised"}),
        entry("eta", table, "bernoulli", words={"method": "bernoulli-dropout", "title": "Dropout"}),
        entry("theta", table, verified=False, words={"title": "Just handed in"}),
    ]


def save_board(root):
    """A leaderboard's folder with three entries and a folder that is none."""
    table = references()
    write_references(root / REFERENCE_FILE, table)
    save_entry(root, "alpha", table, words={"title": "First of all", "method": "rand-a"})
    save_entry(root, "beta", table, "ffg", kl=9.0, again=False)
    save_entry(root, "gamma", table, "bernoulli")
    (root / "submissions" / "broken").mkdir()
    return root


class Page(HTMLParser):
    """Elements with their attributes, in order, and the text outside of scripts."""

    def __init__(self, content):
        super().__init__()
        self.elements, self.text, self.ids = [], [], []
        self.feed(content.decode())

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.ids += [value for name, value in attributes if name == "id"]

    def handle_data(self, data):
        self.text.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())


def heading(page, name, table="#table-full"):
    return page.locator(f"{table} thead th", has=page.get_by_role("button", name=name, exact=True))


def column(page, place, table="#table-full"):
    """`data-v` of a column, from top to bottom."""
    cells = page.locator(f"{table} tbody tr > :nth-child({place + 1})")
    return cells.evaluate_all("cells => cells.map(cell => cell.dataset.v)")
