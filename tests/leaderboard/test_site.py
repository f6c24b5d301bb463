"""The site without a browser: what it says, that nothing in it is anybody's markup, and what it leaves alone."""

import http.client
import json
import math
import posixpath
import re
import socket
import threading
import warnings
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import urldefrag

import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.board import Refused, read_board
from fsvi_bench.leaderboard.edition import write_edition
from fsvi_bench.leaderboard.entry import SourceFile
from fsvi_bench.leaderboard.ranking import comparison, variation
from fsvi_bench.leaderboard.result import result_path
from fsvi_bench.leaderboard.signing import ALLOWED_SIGNERS
from fsvi_bench.leaderboard.site import output
from fsvi_bench.leaderboard.site.build import Site, build_site, dataset_page, site_files
from fsvi_bench.leaderboard.site.output import MANIFEST, write_site
from fsvi_bench.leaderboard.site.render import WORDS, visible
from fsvi_bench.leaderboard.site.serve import make_server
from fsvi_bench.presenting.plots import digits
from tests.leaderboard.boards import KEY, edition, make_board, read_result
from tests.leaderboard.sites import DATASETS, Page, kls, save_board

HOSTILE = "<b onclick=alert(1)>'\"&{{ 7 * 7 }}</b></script><script>alert(2)</script>\u202e\x1b[31m"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return save_board(tmp_path_factory.mktemp("board"))


@pytest.fixture(scope="module")
def site(root):
    return Site(read_board(root))


@pytest.fixture(scope="module")
def files(site):
    return dict(site_files(site))


@pytest.fixture(scope="module")
def pages(files):
    return {name: Page(content) for name, content in files.items() if name.endswith(".html")}


def first_page(site):
    """Alone, since it comes first, and the pages of entries take a second each."""
    return next(content for name, content in site_files(site) if name == "index.html")


def tree(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_numbers_are_the_tables_own(site, pages):
    shown = set(pages["index.html"].every("data-v"))
    for table in site.tables.values():
        for line in table.lines:
            medians = [line.spreads[name].median for name in (*table.scores, "nlpd_gap", "median_variance_ratio")]
            means = [line.spreads[name].mean for name in table.scores]
            own = [each[table.scores[0]].median for each in line.by_dataset.values()]
            numbers = (line.mean_rank, line.seconds, *own, *medians, *means)
            assert {str(value).replace("inf", "Infinity") for value in numbers} <= shown


def test_an_open_editions_secret_is_in_no_file_and_commands_ask_for_it(tmp_path, cli):
    save_board(tmp_path, edition(DATASETS, status="open"))
    (tmp_path / ALLOWED_SIGNERS).write_text("")
    made = dict(site_files(Site(read_board(tmp_path))))
    assert not any(KEY.hex().encode() in content for content in made.values())
    assert (
        "verify leaderboard/entries/near --edition v2 --secret FILE --key FILE" in Page(made["methods/near.html"]).words
    )
    assert "No entry has a valid result yet." in Page(made["index.html"]).words  # nobody signed
    assert "its result is not signed by an allowed signer" in Page(made["methods/near.html"]).words
    err = cli("leaderboard", "build", "--root", tmp_path, "--out", tmp_path / "site")[2]
    assert f"run: fsvi-bench verify {tmp_path / 'entries' / 'near'} --edition v2 --secret FILE --key FILE\n" in err


def test_json_holds_what_the_pages_show(site, root, files):
    board = json.loads(files["leaderboard.json"])
    assert board["edition"]["secret"] == KEY.hex()
    for key, table in site.tables.items():
        found = board["tables"][key]["lines"]
        assert [(line["name"], line["mean_rank"], line["ranks"]) for line in found] == [
            (line.name, line.mean_rank, line.ranks) for line in table.lines
        ]
        assert found[0]["spreads"][table.scores[0]].keys() == {"median", "low", "high", "mean"}
    by_name = {each["name"]: each for each in board["entries"]}
    assert by_name["far"]["result"] == json.loads(read_result(result_path(root, "v2", "far")).text())
    assert by_name["far"]["manifest"]["method"] == {"file": "method.py", "class": "M"}
    assert by_name["dropout"]["result"]["cells"][0]["scores"]["kl"] == "Infinity"
    assert by_name["fresh"]["stale"] == "not verified yet"
    assert board["refused"][0]["name"] == "broken"


def test_pages_separate_seeds_from_tasks_if_there_are_several(tmp_path, site):
    of = edition(DATASETS, seeds=2, replicated_tasks=2)
    kl = lambda place, seed: 1.0 + place.number + seed  # noqa: E731
    made = Site(read_board(make_board(tmp_path, {"a": kl, "b": lambda place, seed: 3.0}, of)))
    written = dict(site_files(made))
    page, first = (Page(written[name]) for name in ("methods/a.html", "index.html"))
    cells, shown = made.shown["a"].cells, page.every("data-v")
    for score in ("kl", "joint_predictive_kl_box"):
        found = variation(cells, score, of.ranked_datasets)
        assert min(found[:2]) > 0
        assert {str(found.seeds), str(found.tasks), str(found.factor)} <= set(shown)
        assert str(found.seeds) in first.every("data-v")
    assert "between seeds between tasks largest factor between seeds" in page.words
    assert "2.00, on energy" in page.words  # where the first task has KLs of 1 and 2
    assert all("between the 2 seeds of a task (the first 2 of each data set)" in each.words for each in (page, first))
    assert "the first 2 with 2 seeds and the others with one" in first.words
    for name in ("methods/near.html", "index.html"):
        assert "between seeds" not in Page(dict(site_files(site))[name]).words  # has one seed


def test_the_first_comparison_is_of_the_best_two_that_are_not_exact(site):
    names, first = site.to_compare
    assert names == [line.name for line in site.tables["joint"].lines]
    assert names[0] == "exact-full"  # its scores are 1e-12: zero but for rounding
    assert first == names[1:3]


@pytest.mark.parametrize(("datasets", "says"), [(DATASETS, True), (DATASETS[:3], False)])  # boston is not ranked
def test_a_p_value_is_explained_only_where_there_is_one(tmp_path, datasets, says):
    made = Site(read_board(make_board(tmp_path, {"a": kls(1.0), "b": kls(2.0)}, edition(datasets))))
    words = Page(made.page("compare.html.j2", root="")).words
    assert ("p is from Wilcoxon’s signed-rank test" in words) == says
    assert ("No p-value: Wilcoxon’s test over data sets needs at least 3 ranked ones." in words) != says


def test_pairs_are_compared_by_python(site, files):
    """The earlier of two has the pair, and each entry the medians of the scores that it is compared by."""
    waiting = list(site.shown.values())
    assert len(waiting) == 6
    while waiting:
        a = waiting.pop(0)
        script = files[f"data/{a.name}.js"].decode()
        found = json.loads(script.removeprefix("fsviBenchCompared(").removesuffix(");\n"))
        assert found["name"] == a.name
        assert found["comparisons"].keys() == {b.name for b in waiting}
        for b in waiting:
            expected = comparison(site.board, a, b)
            key = "posterior" if expected.scores == ("kl",) else "joint"
            assert found[key]["score"] == " / ".join(WORDS["scores"][score] for score in expected.scores)
            medians = [" / ".join(map(digits, each.a)) for each in expected.differences]
            assert [text for text, _ in found[key]["medians"]] == medians
            p, *numbers = found["comparisons"][b.name]
            assert p == digits(expected.p_value, 2)
            rows = [[each.log_ratio, *each.interval] for each in expected.differences]
            assert numbers == pytest.approx([100 * number for row in rows for number in row], abs=0.5 + 1e-9)


def test_results_made_after_closing_are_marked_if_others_were_made_before(site, files):
    """On the page of the entry, always."""
    after = "verified after closing"
    assert after in Page(files["methods/near.html"]).words
    words = Page(files["index.html"]).words
    assert (words.count(after), "all were verified after closing, when the tasks were public" in words) == (1, True)
    early = next(each for each in site.board.standings if each.name == "near")
    early = replace(early, result=early.result.model_copy(update={"edition_status": "open"}))
    standings = [early if each.name == "near" else each for each in site.board.standings]
    index = first_page(Site(replace(site.board, standings=standings)))
    assert Page(index).words.count(after) == 5 + 3 + 1  # the other entries of the three tables


def test_the_first_page_says_what_is_converged_and_shows_floors_beside_scores(pages):
    words = pages["index.html"].words
    assert "ada · full · converged" in words
    assert "ada · full · not converged (median objective gap 3.00 nats)" in words
    assert "ada · particles · convergence not known" in words
    assert "2.40 2.20 to 2.60 floor 0.500" in words
    assert "0.0720 0.0660 to 0.0780 exact draws 0.0100" in words
    assert re.search(r"The MAP, a point mass reference, as if entered \d\.\d\d .{,90} 0\.250", words)


def test_built_in_methods_that_do_not_train_say_so_and_the_steps_of_files_are_not_believed(site):
    """One that diverges at its start or takes a single step trains all the same: it sends its initial posterior."""

    def sent(each, steps, status="ok"):
        def changed(cell):
            if cell.scores is None:
                return cell
            scores = cell.scores.model_copy(update={"objective_gap": None}) if status == "ok" else None
            waypoints = tuple(cell.waypoints[0].model_copy(update={"steps": step}) for step in steps)
            update = {"status": status, "steps": steps[-1], "scores": scores, "waypoints": waypoints}
            return cell.model_copy(update=update)

        cells = tuple(map(changed, each.result.cells))
        return replace(each, result=each.result.model_copy(update={"cells": cells}))

    points, far = (next(each for each in site.board.standings if each.name == name) for name in ("points", "far"))
    found = [sent(points, [1]), sent(points, [0, 1]), sent(points, [0], "diverged"), sent(far, [1])]
    assert [each.is_untrained for each in found] == [True, False, False, False]
    changed = {each.name: each for each in (found[0], found[3])}
    board = replace(site.board, standings=[changed.get(each.name, each) for each in site.board.standings])
    files = dict(site_files(Site(board)))
    index, points, far = (Page(files[name]).words for name in ("index.html", "methods/points.html", "methods/far.html"))
    assert ("ada · particles · no training" in index, "ada · full · convergence not known" in index) == (True, True)
    assert ("no training" in points, "no training" in far, "convergence not known" in far) == (True, False, True)


def test_the_page_of_a_data_set_numbers_the_places_there(root):
    site = Site(read_board(root))
    table = site.tables["posterior"]
    assert [line.place for line in table.lines][:2] == [1, 2]
    site.tables["posterior"] = replace(
        table, lines=[replace(line, ranks={"yacht": 3.0 - (line.place == 2)}) for line in table.lines]
    )
    section = dataset_page(site, "yacht").decode().partition('id="posterior"')[2].partition("</section>")[0]
    assert re.findall(r'class="place[^"]*">(\d+)<', section) == ["1"] + ["2"] * (len(table.lines) - 1)
    assert re.search(r"methods/([^.]*)", section)[1] == table.lines[1].name


def test_the_first_page_says_what_its_results_are_worth_and_how_to_enter(site, pages):
    words, board = pages["index.html"].words, site.board
    later = "All results were computed after that, when the tasks were already public."
    assert f"{len(board.edition.ranked_datasets)} + 1 for tuning" in words
    assert later in words
    assert "fsvi-bench verify leaderboard/entries/NAME --edition v2 Since this edition is closed" in words
    assert "fsvi-bench submit my_method.py:MyMethod --root leaderboard --edition v2 --author" in words
    opened = edition(DATASETS, status="open")
    standings = [
        replace(each, result=each.result and each.result.model_copy(update={"edition_status": "open"}))
        for each in board.standings
    ]
    index = first_page(Site(replace(board, edition=opened, standings=standings)))
    words = Page(index).words
    assert (later in words, "Since this edition is closed" in words) == (False, False)
    assert "This edition is open to entries." in words
    assert "needs the secret, which only the maintainer has: fsvi-bench submit" in words
    assert "entries/NAME --edition v2 --secret FILE" in words


def test_the_first_page_says_when_and_where_results_were_made_and_how_many_are_outranked_by_no_other(site, pages):
    """The board's own results do not say when."""
    assert "fsvi-bench 0.3.0" not in pages["index.html"].words

    def made(each, place):
        facts = {
            "fsvi_bench": "0.3.0",
            "hardware": f"processor {place % 2}",
            "started": f"2026-11-0{1 + place}T10:00:00",
        }
        facts |= {"hardware": "processor 0 and processor 7"} if place == 2 else {}
        return replace(each, result=each.result and each.result.model_copy(update={"provenance": facts}))

    standings = [made(each, place) for place, each in enumerate(site.board.standings)]
    table = site.tables["joint"]
    changed = Site(replace(site.board, standings=standings))
    first = [table.lines[0].name]
    changed.tables["joint"] = replace(
        table, lines=[replace(line, outranked_by=first * (line.place > 2)) for line in table.lines]
    )
    words = Page(first_page(changed)).words
    last = max(place for place, each in enumerate(standings) if each.result) + 1
    assert (
        f"from 2026-11-01 to 2026-11-0{last}, with fsvi-bench 0.3.0, on processor 0, processor 1, processor 7;" in words
    )
    few = sum(line.place <= 2 for line in table.lines)
    assert (
        f"{few} of the {len(table.lines)} entries are outranked by no other: no entry is significantly better than any of them"
        in words
    )


def test_the_first_page_says_how_many_runs_have_a_posterior_only_where_some_have_none(pages):
    """One of the 15 ranked runs of "far", which is in two tables."""
    assert re.findall(r"\d+/\d+ runs", pages["index.html"].words) == ["14/15 runs"] * 2


def test_the_first_page_says_what_few_data_sets_cannot_tell(site, pages):
    """The board has three ranked data sets. A single one is too few even for intervals."""
    none, unequal = "there are no intervals", "no entry can be significantly better"
    words = pages["index.html"].words
    assert (none in words, unequal in words, "sign-flip" in words) == (False, True, False)
    few = replace(site.board, edition=edition(["boston", "wine", "yacht"]))
    words = Page(first_page(Site(few))).words
    assert (none in words, unequal in words) == (True, True)


def test_with_six_ranked_data_sets_entries_are_tested_and_the_strip_shows_their_ranks(tmp_path):
    """a is best everywhere but ties with b on yacht. The MAP would be ahead of c."""
    names = ["boston", "energy", "kin8nm", "naval", "power", "wine", "yacht"]
    yacht = lambda place, seed: 1.0 if place.dataset == "yacht" else 2.0  # noqa: E731
    root = make_board(tmp_path, {"a": lambda place, seed: 1.0, "b": yacht, "c": kls(9.0)}, edition(names))
    files = dict(site_files(Site(read_board(root))))
    page = files["index.html"].decode()
    assert "Joint predictive: outranked by a; b. Posterior: outranked by a; b." in Page(files["methods/c.html"]).words
    assert "sign-flip test for all pairs" in page
    joint = page[page.index('id="table-joint"') : page.index("Medians by data set", page.index('id="table-joint"'))]
    strips = re.findall(r'class="strip" role="img" aria-label="([^"]*)".*?</svg>', joint)
    ranked = names[1:]
    ahead = ", ".join(f"{name} {'1.50' if name == 'yacht' else '1.00'}" for name in ranked)
    third = ", ".join(f"{name} 3.00" for name in ranked)
    assert strips == [third, ahead, ahead.replace(" 1.00", " 2.00"), third]
    assert "its mean rank would be 3.00, ahead of 1 of the 3 entries." in Page(files["index.html"]).words
    assert [f'fill-opacity="{value}"' in joint for value in ("1.00", "0.75", "0.50", "0.00")] == [True] * 4
    assert re.findall(r'rotate\(-90\)">(\w+)<', joint) == ranked
    assert "<title>yacht: rank 1.50</title>" in joint
    # Six data sets tell c apart from a, which is better on all, and b.
    assert re.findall(r'<span(?: title="([^"]*)")?>(\d)</span>', joint) == [("", "0"), ("", "0"), ("a; b", "2")]


def hostile(site):
    """A stranger's texts wherever one could stand, past what entries and results are checked for."""
    plain = site.shown["far"]
    method = SourceFile.model_construct(file=HOSTILE, class_=HOSTILE)
    words = dict.fromkeys(("title", "owner", "licence", "notes"), HOSTILE)
    lists = {"authors": [HOSTILE], "settings": {HOSTILE: HOSTILE}, "link": "javascript:alert(3)", "method": method}
    manifest = plain.entry.manifest.model_copy(update=words | lists)
    cells = [cell.model_copy(update={"reason": HOSTILE}) for cell in plain.result.cells]
    facts = {"isolation": HOSTILE, "provenance": {HOSTILE: HOSTILE}, "cells": tuple(cells)}
    result = plain.result.model_copy(update=facts)
    stranger = replace(plain, entry=replace(plain.entry, manifest=manifest, source=HOSTILE.encode()), result=result)
    unread = replace(next(each for each in site.board.standings if each.name == "fresh"), stale=HOSTILE)
    standings = [
        stranger if each.name == "far" else unread if each.name == "fresh" else each for each in site.board.standings
    ]
    return replace(site.board, standings=standings, refused=[Refused(HOSTILE, HOSTILE)])


def test_texts_from_entries_are_escaped_everywhere(site, root, pages):
    board = hostile(site)
    board.standings[0] = replace(board.standings[0], signer=HOSTILE)
    for name, content in site_files(Site(board)):
        if not name.endswith(".html"):
            continue
        page = Page(content)
        assert {tag for tag, _ in page.elements} <= {tag for tag, _ in pages[name].elements} | {"strong"}, name
        assert not {attribute for _, found in page.elements for attribute in found if attribute.startswith("on")}, name
        assert not any(target.lower().startswith("javascript") for target in page.every("href")), name
        assert not set("\u202e\x1b") & set(content.decode()), name
        if name in ("index.html", "methods/far.html", "compare.html"):
            assert visible(HOSTILE) in " ".join(page.text), name


def test_pages_run_nothing_of_their_own_and_lead_to_files_of_the_site(files, pages):
    for name, page in pages.items():
        ids = page.every("id")
        assert len(set(ids)) == len(ids), name
        policies = [found["content"] for tag, found in page.elements if "http-equiv" in found]
        assert policies == [
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; base-uri 'none'; form-action 'none'"
        ]
        assert page.every("style") == []
        assert not any(tag == "style" or (tag == "script" and "src" not in found) for tag, found in page.elements), name
        for target in page.every("href") + page.every("src"):
            path, fragment = urldefrag(target)
            if target.startswith(("data:", "https://")):
                continue
            there = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
            assert there in files, (name, target)
            assert not fragment or "=" in fragment or fragment in pages[there].every("id"), (name, target)


def test_equal_folders_give_equal_files_whatever_the_order(files, tmp_path, cli):
    """And the command writes them, and says what does not count."""
    other = save_board(tmp_path / "other", order=-1)
    status, out, err = cli("leaderboard", "build", "--root", other, "--out", tmp_path / "site")
    assert (status, out) == (0, f"{tmp_path / 'site' / 'index.html'}\n")
    command = f"fsvi-bench verify {other / 'entries' / 'fresh'} --edition v2\n"
    assert f"fresh has no valid result: not verified yet; run: {command}" in err
    assert "broken was refused" in err
    written = tree(tmp_path / "site")
    assert written.pop(MANIFEST)
    assert written == files


def test_the_command_says_that_a_board_has_no_results(tmp_path, cli):
    save_board(tmp_path)
    assert "no valid result yet" not in cli("leaderboard", "build", "--root", tmp_path)[2]
    for path in (tmp_path / "results").rglob("*.json"):
        path.unlink()
    assert "the leaderboard has no valid result yet" in cli("leaderboard", "build", "--root", tmp_path)[2]


def test_a_board_without_results_and_one_with_absurd_numbers_have_pages(tmp_path):
    save_board(tmp_path / "empty")
    for path in (tmp_path / "empty/results").rglob("*.json"):
        path.unlink()
    of = edition(["boston"], status="open")  # a data set to tune on, ranked where there is no other
    make_board(tmp_path / "absurd", {"huge": lambda *_: 1e251, "lost": lambda *_: None, "one": lambda *_: 1.0}, of)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("empty", "absurd"):
            build_site(tmp_path / name, tmp_path / name / "site")
    page = Page((tmp_path / "absurd/site/index.html").read_bytes()).words
    assert "10²⁵¹" in page
    assert "0/5" in page
    assert "nan" not in page.split()


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (math.nan, "–"), (math.inf, "∞"), (-math.inf, "−∞"), (0, "0"), (-1e-14, "≈ 0"), (0.01234, "0.0123"),
     (9.996, "10.0"), (0.9999, "1.00"), (12345.6, "12,346"), (-3.25e-5, "−3.25·10⁻⁵"), (1e6, "10⁶")],
)  # fmt: skip
def test_numbers_have_three_digits(value, text):
    assert digits(value) == text


def test_only_a_builds_own_files_go(tmp_path):
    site = tmp_path / "site"
    write_site(site, {"index.html": b"1", "methods/a.html": b"1", "methods/b.html": b"1"})
    (site / "mine.txt").write_text("kept")
    write_site(site, {"index.html": b"1", "methods/b.html": b"2"})
    assert tree(site).keys() == {"index.html", "methods/b.html", "mine.txt", MANIFEST}
    (site / "data").mkdir()
    (site / "data/a.js").write_text("mine")
    with pytest.raises(InputError, match=r"a\.js exists and was not written by `leaderboard build`; remove it"):
        write_site(site, {"data/a.js": b"1"})
    assert (site / "index.html").read_bytes() == b"1"


def test_a_changed_list_of_files_removes_nothing_outside(tmp_path):
    site, outside = tmp_path / "site", tmp_path / "outside"
    outside.mkdir()
    (outside / "kept.txt").write_text("kept")
    write_site(site, {"index.html": b"1"})
    (site / "linked").symlink_to(outside)
    names = ["index.html", MANIFEST, "../outside/kept.txt", str(outside / "kept.txt"), "linked/kept.txt", "a\0b", 7, ""]
    (site / MANIFEST).write_text(json.dumps({"format": "fsvi-site/1", "files": names}))
    write_site(site, {"index.html": b"2"})
    assert (outside / "kept.txt").read_text() == "kept"
    assert (site / "index.html").read_bytes() == b"2"


def test_links_are_not_followed_in_writing(tmp_path):
    elsewhere, site = tmp_path / "elsewhere", tmp_path / "site"
    elsewhere.mkdir()
    site.mkdir()
    (site / "methods").symlink_to(elsewhere)
    (tmp_path / "link").symlink_to(elsewhere)
    for folder, name in ((site, "methods/a.html"), (tmp_path / "link", "index.html")):
        with pytest.raises(InputError, match="is a symbolic link"):
            write_site(folder, {name: b"1"})
    assert list(elsewhere.iterdir()) == []


def test_a_build_that_is_cut_short_can_be_made_again(tmp_path, monkeypatch):
    class Killed(BaseException):
        """What no build catches, as Ctrl-C."""

    files, write = {"a.html": b"1", "index.html": b"1"}, output.write_atomically

    def cut_short(place, content):
        if place.name == "index.html":
            raise Killed
        write(place, content)

    with monkeypatch.context() as patched:
        patched.setattr(output, "write_atomically", cut_short)
        with pytest.raises(Killed):
            write_site(tmp_path, files)
    assert tree(tmp_path).keys() == {"a.html", MANIFEST}
    write_site(tmp_path, {"index.html": b"2"})
    assert tree(tmp_path).keys() == {"index.html", MANIFEST}


@contextmanager
def served(folder):
    server = make_server(folder, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address
    finally:
        server.shutdown()
        server.server_close()


def asked(place, path, method="GET", **headers):
    connection = http.client.HTTPConnection(*place, timeout=10)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value) if value else None
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read(), answer.headers


def test_served_to_this_machine_by_its_own_name_alone(tmp_path):
    write_site(tmp_path, {"index.html": b"<p>here</p>", "data/a.js": b"1"})
    with served(tmp_path) as place:
        assert place[0] == "127.0.0.1"
        status, content, headers = asked(place, "/")
        assert (status, content, headers["Content-Type"]) == (200, b"<p>here</p>", "text/html; charset=utf-8")
        assert asked(place, "/data/a.js?x=1", Host=f"localhost:{place[1]}")[2]["Content-Type"].startswith(
            "text/javascript"
        )
        assert asked(place, "/data/a.js", method="HEAD")[:2] == (200, b"")
        for host in (None, "evil.example", f"evil.example:{place[1]}", "127.0.0.1", f"127.0.0.1:{place[1]}, x"):
            assert asked(place, "/", Host=host)[0] == 421
        assert [asked(place, "/", method=each)[0] for each in ("POST", "PUT", "DELETE")] == [501] * 3
        with pytest.raises(InputError, match=r"port \d+ cannot be used .*; choose another with --port"):
            make_server(tmp_path, place[1])
    with pytest.raises(OSError), socket.create_connection(place, timeout=1):  # noqa: PT011 - it is closed again
        pass


def test_at_the_port_of_http_browsers_leave_it_out(tmp_path, monkeypatch):
    write_site(tmp_path, {"index.html": b"here"})
    with served(tmp_path) as place:
        monkeypatch.setattr("fsvi_bench.leaderboard.site.serve.HTTP_PORT", place[1])
        assert asked(place, "/", Host="localhost")[:2] == (200, b"here")
        assert asked(place, "/", Host="evil.example")[0] == 421


def test_served_are_files_of_the_build_no_folders_and_nothing_behind_links(tmp_path):
    site, secret = tmp_path / "site", tmp_path / "secret"
    secret.mkdir()
    (secret / "a.js").write_text("secret")
    write_site(site, {"index.html": b"1", "data/a.js": b"1", "b.html": b"1"})
    (site / "mine.txt").write_text("mine")
    with served(site) as place:
        (site / "b.html").unlink()
        (site / "b.html").symlink_to(secret / "a.js")
        (site / "data/a.js").unlink()
        (site / "data").rmdir()
        (site / "data").symlink_to(secret)
        for path in ("/mine.txt", "/b.html", "/data/a.js", "/data/", "/data", "/../secret/a.js", "/%2e%2e/secret/a.js",
                     "//etc/passwd", "/index.html%00", "/index.html/", "//["):  # fmt: skip
            status, content, _ = asked(place, path)
            assert (status, b"secret" in content) == (404, False), path
    with pytest.raises(InputError, match="is not a built site; build it with `fsvi-bench leaderboard build`"):
        make_server(secret, 0)


def test_a_board_without_entries_is_refused(tmp_path, cli):
    write_edition(tmp_path, edition())
    assert cli("leaderboard", "build", "--root", tmp_path)[0] == 2
