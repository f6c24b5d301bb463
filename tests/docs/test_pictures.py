"""`docs/make_pictures.py`: blocks of pages from results that were computed elsewhere, at one scale or several."""

from __future__ import annotations

import importlib.util
import json

import pytest
from PIL import Image

from fsvi_bench.papers.registry import REPRODUCTIONS
from tests.docs.pages import ROOT

NAME = "gal2016-elbo"


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    """The script, with a page of one reproduction and its card in an empty folder."""
    spec = importlib.util.spec_from_file_location("make_pictures", ROOT / "docs" / "make_pictures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pages = tmp_path / "docs" / "reproductions"
    pages.mkdir(parents=True)
    (pages / "gal2016.md").write_text(f"before\n<!-- reproduction: {NAME} -->\nold\n<!-- end -->\nafter\n")
    (pages / "index.md").write_text(f"<div>\n\n-   [![{NAME}](old.png)](old.md)\n\n</div>\n")
    for name, path in {
        "DOCS": tmp_path / "docs", "WORK": tmp_path / "work", "GALLERY": pages / "index.md", "KEPT": pages / "results",
    }.items():  # fmt: skip
        monkeypatch.setattr(module, name, path)
    monkeypatch.setattr(module, "declared", lambda name: [("a|b", "above", 0.5), ("c", "above", 0.5)])
    monkeypatch.setattr(module, "bench", lambda *words: pytest.fail(f"computes {words}"))
    return module


def claim(says, value, low, high):
    verdict = {"statistic": f"of {says}", "says": says, "unit": "nats", "side": "above", "threshold": 0.5}
    return {**verdict, "value": value, "low": low, "high": high, "holds": low > 0.5}


def write_result(folder, scale, claims, **changes):
    """An output folder with a JSON file and a picture."""
    folder.mkdir(exist_ok=True)
    stem = NAME if scale == "paper" else f"{NAME}-{scale}"
    settings = REPRODUCTIONS[NAME]._settings(scale).model_dump(mode="json")
    content = {"figure": NAME, "scale": scale, "settings": {**settings, **changes}, "claims": claims}
    (folder / f"{stem}.json").write_text(json.dumps(content))
    Image.new("RGB", (50, 20)).save(folder / f"{stem}.png")
    return folder


def write_pages(pictures, monkeypatch, scales, *arguments):
    """Runs the script; returns the page's block and the card."""
    monkeypatch.setitem(pictures.SHOWN, NAME, scales)
    monkeypatch.setattr("sys.argv", ["make_pictures.py", *arguments])
    pictures.results.cache_clear()
    pictures.main()
    page = (pictures.DOCS / "reproductions" / "gal2016.md").read_text()
    assert page.startswith("before\n<!-- reproduction")
    assert page.endswith("<!-- end -->\nafter\n")
    return page, pictures.GALLERY.read_text()


def test_a_page_is_written_from_a_folder_and_again_from_the_kept_numbers(pictures, monkeypatch, tmp_path):
    claims = [claim("a|b", 0.6, 0.55, 0.65), claim("c", 0.4, 0.4, 0.4)]
    folder = write_result(tmp_path / "out", "medium", claims)
    page, gallery = write_pages(pictures, monkeypatch, ("medium",), f"{NAME}={folder}")
    assert f"```sh\nfsvi-bench reproduce {NAME} --medium\n```\n" in page
    said = "Run at medium scale ([numbers](results/gal2016-elbo-medium.json)): repeats 10 (full scale: 3); network.width 256 (full scale: 1024);"
    assert said in page
    assert "| held | a\\|b | 0.6 nats | 0.55 to 0.65 | above 0.5 |" in page
    assert "| did not hold | c | 0.4 nats | none (deterministic) | above 0.5 |" in page
    assert "preview" not in page
    assert "    1 held, 1 did not hold (medium scale)\n" in gallery
    with Image.open(pictures.DOCS / "reproductions" / f"{NAME}.png") as image:
        assert image.size == (1000, 400)
    for path in folder.iterdir():
        path.unlink()
    assert write_pages(pictures, monkeypatch, ("medium",), NAME) == (page, gallery)


def test_several_scales_are_columns_of_one_table(pictures, monkeypatch, tmp_path):
    gpu = write_result(tmp_path / "gpu", "paper", [claim("a|b", 0.6, 0.55, 0.65), claim("c", 0.4, 0.4, 0.4)])
    here = write_result(tmp_path / "here", "quick", [claim("a|b", 0.6, 0.2, 0.9), claim("c", 0.7, 0.7, 0.7)])
    page, gallery = write_pages(pictures, monkeypatch, ("paper", "quick"), f"{NAME}={gpu}", f"{NAME}={here}")
    assert f"```sh\nfsvi-bench reproduce {NAME}\nfsvi-bench reproduce {NAME} --quick\n```\n" in page
    assert "\nRun at full scale ([numbers](results/gal2016-elbo.json)).\n" in page
    assert "\n*The preview is at reduced scale; do not cite it* (" in page
    assert page.splitlines()[-6:-2] == [
        "| claim | threshold | full scale | preview |",
        "|---|---|---|---|",
        "| a\\|b | above 0.5 | held: 0.6 nats (0.55 to 0.65) | undecided: 0.6 nats (0.2 to 0.9) |",
        "| c | above 0.5 | did not hold: 0.4 nats | held: 0.7 nats |",
    ]
    assert "    1 held, 1 did not hold\n" in gallery


@pytest.mark.parametrize(
    ("scale", "changes", "said"),
    [
        ("quick", {}, r"has none of gal2016-elbo-medium\.json; run one, or change SHOWN"),
        ("medium", {"repeats": 11}, r"not made with the medium settings of conf/reproductions/gal2016-elbo\.yaml"),
    ],
)
def test_a_folder_without_what_is_shown_is_refused_and_nothing_changes(
    pictures, monkeypatch, tmp_path, scale, changes, said
):
    folder = write_result(tmp_path / "out", scale, [claim("a", 0.6, 0.55, 0.65)], **changes)
    with pytest.raises(SystemExit, match=said):
        write_pages(pictures, monkeypatch, ("medium",), f"{NAME}={folder}")
    assert "\nold\n" in (pictures.DOCS / "reproductions" / "gal2016.md").read_text()
    assert not list(pictures.DOCS.rglob("*.json"))


def test_what_takes_hours_is_never_started(pictures, monkeypatch):
    with pytest.raises(SystemExit, match=f"run `fsvi-bench reproduce {NAME} --medium`, then give {NAME}=DIR"):
        write_pages(pictures, monkeypatch, ("medium",), NAME)


def test_results_with_other_claims_than_the_files_are_refused(pictures, monkeypatch, tmp_path):
    folder = write_result(tmp_path / "out", "paper", [claim("a|b", 0.6, 0.55, 0.65), claim("other", 0.4, 0.4, 0.4)])
    with pytest.raises(SystemExit, match=r"the claims of .* are not those of conf/reproductions/gal2016-elbo\.yaml"):
        write_pages(pictures, monkeypatch, ("paper",), f"{NAME}={folder}")
    assert not list(pictures.DOCS.rglob("*.json"))


def test_a_result_without_a_picture_is_refused(pictures, monkeypatch, tmp_path):
    folder = write_result(tmp_path / "out", "paper", [claim("a|b", 0.6, 0.55, 0.65), claim("c", 0.4, 0.4, 0.4)])
    (folder / "gal2016-elbo.png").unlink()
    with pytest.raises(SystemExit, match="is missing; copy it beside its JSON"):
        write_pages(pictures, monkeypatch, ("paper",), f"{NAME}={folder}")
    assert not list(pictures.DOCS.rglob("*.json"))


def test_every_shown_scale_is_declared(pictures):
    for name, scales in pictures.SHOWN.items():
        for scale in scales:
            REPRODUCTIONS[name].require(scale)
