"""Boards and pages for the tests of the site: entries of every table, without running anything."""

from __future__ import annotations

import math
from html.parser import HTMLParser

from fsvi_bench.leaderboard.edition import write_edition
from fsvi_bench.leaderboard.entry import ENTRIES, BuiltIn
from fsvi_bench.leaderboard.result import Waypoint, result_path, write_result
from tests.leaderboard.boards import JOINT, edition, entry, result, write_entry

DATASETS = ["boston", "wine", "yacht", "energy"]
PAGES = ("index.html", "methods/far.html", "methods/fresh.html", "datasets/yacht.html", "compare.html")
SOURCE = b"class M:\n    '''<b>bold</b> & more'''\n"
STEPS = (0, 1, 10, 100, 1000)


def on_the_way(found, singular):
    """A result with waypoints towards each score; of a singular posterior, an infinite KL."""

    def course(cell):
        if cell.scores is None:
            return cell
        kl = math.inf if singular else cell.scores.kl
        points = tuple(
            Waypoint(steps=n, seconds=n / 100, kl=kl + 9 / (1 + n), **dict.fromkeys(JOINT, 0.1 + 1 / (1 + n)))
            for n in STEPS
        )
        return cell.model_copy(update={"waypoints": points, "scores": cell.scores.model_copy(update={"kl": kl})})

    return found.model_copy(update={"cells": tuple(map(course, found.cells))})


def kls(level, lost=()):
    """KLs that differ by task; None on those that were lost."""

    def kl(place, seed):
        return None if (place.kind, place.dataset, place.number) in lost else level * (1 + place.number / 10)

    return kl


def save_board(root, of=None, order=1):
    """Entries of every kind, one that was not verified, and a folder that is no entry; written in either order."""
    of = of or edition(DATASETS)
    write_edition(root, of)
    made = [
        (entry("exact-full", family="full", method=BuiltIn(name="exact", version="0.2.0"), settings={}), kls(1e-12)),
        (entry("near", family="full"), kls(3.0)),
        (entry("far", SOURCE, family="full", notes="Tuned on boston.\nSlow."), kls(50.0, [("ranked", "yacht", 1)])),
        (entry("factors", family="ffg"), kls(2.0)),
        (entry("dropout", family="bernoulli"), kls(4.0)),
        (entry("points", family="particles"), kls(6.0)),
        (entry("fresh", family="full"), None),
    ]
    for each, kl in made[::order]:
        write_entry(root, each)
        if kl is not None:
            found = result(each, of, kl)
            if each.name in ("far", "dropout", "points"):  # curves take long to draw
                found = on_the_way(found, singular=each.name != "far")
            write_result(result_path(root, of.name, each.name), found)
    (root / ENTRIES / "broken").mkdir()
    return root


class Page(HTMLParser):
    """Elements with their attributes, and the words between them."""

    def __init__(self, content: bytes):
        super().__init__()
        self.elements, self.text = [], []
        self.feed(content.decode())
        self.words = " ".join(" ".join(self.text).split())

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text.append(data)

    def every(self, name):
        """The values of an attribute."""
        return [attributes[name] for _, attributes in self.elements if name in attributes]
