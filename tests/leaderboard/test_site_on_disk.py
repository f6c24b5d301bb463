"""The site as files: built twice, cut short, in the way of other files, and served."""

from __future__ import annotations

import json
import os
import threading
import time
from urllib.request import urlopen

import pytest

from fsvi_bench.cli.app import main
from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.site import output
from fsvi_bench.leaderboard.site.build import build_site
from fsvi_bench.leaderboard.site.output import write_site
from fsvi_bench.leaderboard.site.serve import address, make_server
from tests.leaderboard.sites import Page, save_board


def tree(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def test_built_twice_from_disk_it_is_the_same_and_only_its_own_files_go(tmp_path, capsys):
    root = save_board(tmp_path / "board")
    with pytest.raises(SystemExit) as ended:
        main(["leaderboard", "build", "--root", str(root)])
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (0, f"{root / 'site' / 'index.html'}\n")
    assert "shown without scores: broken: " in said.err
    site = root / "site"
    before, touched = tree(site), (site / "methods" / "beta.html").stat().st_mtime_ns
    (site / "mine.txt").write_text("kept")
    (site / "methods" / "mine.html").write_text("kept")
    build_site(root, site)
    assert tree(site) == before | {"mine.txt": b"kept", "methods/mine.html": b"kept"}
    assert (site / "methods" / "beta.html").stat().st_mtime_ns == touched
    build_site(root, tmp_path / "other")
    assert tree(tmp_path / "other") == before
    assert "broken" in Page(before["index.html"]).words
    for path in sorted((root / "submissions" / "beta").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (root / "submissions" / "beta").rmdir()
    build_site(root, site)
    assert {"methods/beta.html", "data/beta.json", "data/beta.js"} == before.keys() - tree(site).keys()
    assert (site / "mine.txt").read_text() == "kept"


class Killed(BaseException):
    """What no build catches, as Ctrl-C."""


def test_a_first_build_that_is_cut_short_can_be_made_again(tmp_path, monkeypatch):
    files = [("a.html", b"1"), ("index.html", b"1"), ("z.html", b"1")]
    write_site(tmp_path / "whole", files)
    swap, site = output._swap, tmp_path / "site"

    def cut_short(new, place):
        if place.name == "z.html":
            raise Killed
        swap(new, place)

    with monkeypatch.context() as patched:
        patched.setattr(output, "_swap", cut_short)
        with pytest.raises(Killed):
            write_site(site, files)
    assert tree(site).keys() == {"a.html", "index.html", "site-files.json"}
    (site / "mine.html").write_text("kept")
    write_site(site, files[1:])
    assert tree(site).keys() == {"index.html", "z.html", "mine.html", "site-files.json"}  # a.html went with its list
    write_site(site, files)
    (site / "mine.html").unlink()
    assert tree(site) == tree(tmp_path / "whole")


def test_what_killed_builds_left_goes_and_what_another_build_writes_stays(tmp_path):
    for name, age in ((".build-old", 7200), (".build-new", 0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").write_text("half")
        os.utime(tmp_path / name, (time.time() - age, time.time() - age))
    write_site(tmp_path, [("index.html", b"1")])
    assert {path.name for path in tmp_path.iterdir()} == {".build-new", "index.html", "site-files.json"}


def test_a_site_never_takes_the_place_of_someones_own_files(tmp_path):
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(InputError, match=r"index\.html is there and was not made by `leaderboard build`; remove it"):
        write_site(tmp_path, [("index.html", b"new"), ("a/b.html", b"new")])
    assert tree(tmp_path) == {"index.html": b"mine"}


def test_a_changed_list_of_files_removes_nothing_outside(tmp_path):
    site, outside = tmp_path / "site", tmp_path / "outside.txt"
    outside.write_text("kept")
    write_site(site, [("index.html", b"1")])
    listed = {"format": "fsvi-site/1", "files": ["index.html", "site-files.json", "../outside.txt", str(outside)]}
    (site / "site-files.json").write_text(json.dumps(listed))
    write_site(site, [("index.html", b"2")])
    assert outside.read_text() == "kept"
    assert (site / "index.html").read_bytes() == b"2"


def test_an_error_on_the_way_leaves_the_earlier_site(tmp_path):
    write_site(tmp_path, [("index.html", b"1")])

    def breaks():
        yield "index.html", b"2"
        raise InputError("broken")

    with pytest.raises(InputError, match="broken"):
        write_site(tmp_path, breaks())
    assert tree(tmp_path)["index.html"] == b"1"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".build")] == []


def test_links_in_the_site_folder_are_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "methods").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="is a symbolic link"):
        write_site(tmp_path / "site", [("methods/a.html", b"1")])
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_without_references_of_its_own_a_board_has_the_projects(tmp_path, capsys):
    root = save_board(tmp_path / "board")
    (root / "reference.json").unlink()
    with pytest.raises(SystemExit) as ended:
        main(["leaderboard", "build", "--root", str(root)])
    assert ended.value.code == 0
    assert (root / "site" / "datasets" / "concrete.html").is_file()  # which the board's own references did not have


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda root: (root / "submissions").rename(root / "away"), "submissions"),
        (lambda root: (root / "reference.json").write_text("{}"), "reference.json"),
    ],
)
def test_a_folder_that_is_no_leaderboard_is_refused_in_one_sentence(tmp_path, capsys, damage, said):
    root = save_board(tmp_path / "board")
    damage(root)
    with pytest.raises(SystemExit) as ended:
        main(["leaderboard", "build", "--root", str(root)])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert said in error
    assert error.count("\n") == 1
    assert not (root / "site").exists()


def test_served_on_the_loopback_address_alone(tmp_path):
    write_site(tmp_path, [("index.html", b"<p>here</p>"), ("data/a.js", b"1")])
    server = make_server(tmp_path, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        assert server.server_address[0] == "127.0.0.1"
        with urlopen(address(server)) as answer:
            assert answer.read() == b"<p>here</p>"
        with urlopen(f"{address(server)}data/a.js") as answer:
            assert answer.headers["Content-Type"] in ("text/javascript", "application/javascript")
        with pytest.raises(InputError, match=r"port \d+ cannot be used .*; choose another with --port"):
            make_server(tmp_path, server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()


def test_nothing_to_serve_says_how_to_make_it(tmp_path):
    with pytest.raises(InputError, match="holds no built site; make it with `fsvi-bench leaderboard build`"):
        make_server(tmp_path, 0)
