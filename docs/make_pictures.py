"""Writes the outputs, figures and verdicts of the commands in the documentation into its pages: `make pictures`.

    python docs/make_pictures.py [PART]...     default: every part
    python docs/make_pictures.py NAME=DIR      one reproduction, from the output folder of a run elsewhere

The parts are

 - transcripts: the output below each `$ command` of a ```console block, in README.md and docs/;
 - exact, report, leaderboard: the pictures of these names in docs/pictures;
 - reproductions: command, figure and verdicts between `<!-- reproduction: NAME -->` and `<!-- end -->`, and the
   gallery. `SHOWN` has the scales of those that train networks, and the pages say them;
 - the name of a reproduction, such as ksw2015-fig2: this one alone.

Networks at medium or paper scale take hours, so they are not run here. `NAME=DIR` takes the JSON files of these scales
and the picture from DIR, and keeps the JSON in docs/reproductions/results, from which later calls write the page.

Everything runs in build/pictures, where a second call resumes. From scratch it takes about 15 minutes on two cores.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from PIL import Image

from fsvi_bench.maths.blr import mean_field_optimum_scale
from fsvi_bench.papers.burt2020.toy import curve
from fsvi_bench.papers.claims import Verdict
from fsvi_bench.papers.registry import REPRODUCTIONS
from fsvi_bench.papers.workspace import Scale, stem_of
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian
from fsvi_bench.presenting.plots import FigureSpec, Layer, Panel
from fsvi_bench.presenting.summary import cells_of
from fsvi_bench.running.cell import Record
from fsvi_bench.tasks.build import build_task
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.task import bind_task

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
WORK = ROOT / "build" / "pictures"
COLUMNS = 118  #: of the terminal that transcripts show; all scores fit
TOY_SPLIT = 1
CHROMIUM = "/usr/bin/chromium"
#: The scales that pages show of reproductions that train networks; the first has the picture. Others: the paper's.
SHOWN: dict[str, tuple[Scale, ...]] = {
    "ksw2015-variance": ("paper", "medium", "quick"),
    "ksw2015-fig1": ("paper", "quick"),
    "gal2016-elbo": ("medium",),
    "gal2016-uncertainty": ("medium",),
    "linear-vs-network": ("paper",),
}
TITLES: dict[Scale, str] = {"quick": "preview", "medium": "medium scale", "paper": "full scale"}
#: Reproductions whose figure is one of the study's, in docs/study, with their times on two cores.
OF_STUDY = {
    "burt2020-fig2": ("scores-1.png", "shown together with figure 3; takes hours, or 4 minutes with `--quick`"),
    "burt2020-fig3": ("scores-1.png", "drawn from the records of the study"),
    "burt2020-fig4": ("scores-2.png", "drawn from the records of the study"),
    "burt2020-study": ("steps.png", "takes days, or seconds from the published tables"),
}
OWN_PAGE = {"validation", "tuning"}  #: which they write themselves, with `--out docs`
WIDTH = 1000  #: of a reproduction's picture, in pixels
GALLERY = DOCS / "reproductions" / "index.md"
KEPT = DOCS / "reproductions" / "results"


def main() -> None:
    parts: dict[str, Callable[[], None]] = {
        each.__name__: each for each in (transcripts, exact, report, leaderboard, reproductions)
    }
    asked = [each.partition("=")[::2] for each in sys.argv[1:] or parts]
    if not all(name in published() or (name in parts and not folder) for name, folder in asked):
        sys.exit(__doc__)
    WORK.mkdir(parents=True, exist_ok=True)
    for name, folder in asked:
        if folder:
            keep(name, Path(folder))
    for name in dict.fromkeys(name for name, _ in asked):
        parts[name]() if name in parts else reproduction(name)


def transcripts() -> None:
    for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]:
        rewrite(page, r"(?<=```console\n)\$ (?P<command>[^\n]*)\n.*?(?=```)", _transcript)


def _transcript(found: re.Match[str]) -> str:
    command = found["command"]
    lines = [line.rstrip() for line in on_terminal(f"{command} --wandb off" if " run " in command else command)]
    return "\n".join([f"$ {command}", *filter(None, lines), ""])


def rewrite(page: Path, pattern: str, text: Callable[[re.Match[str]], str]) -> None:
    old = page.read_text(encoding="utf-8")
    page.write_text(re.sub(pattern, text, old, flags=re.DOTALL), encoding="utf-8")


def on_terminal(command: str) -> list[str]:
    """The lines that a command prints on a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    environment = {**os.environ, "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": str(COLUMNS)}
    with subprocess.Popen(shlex.split(command), stdout=theirs, cwd=WORK, env=environment) as process:
        os.close(theirs)
        pieces = []
        while piece := _read(ours):
            pieces.append(piece)
    os.close(ours)
    if process.returncode:
        sys.exit(f"{command} ended with status {process.returncode}")
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(pieces).decode()).replace("\r\n", "\n").split("\n")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # the other end is closed
        return b""


def bench(*arguments: str) -> None:
    subprocess.run(["fsvi-bench", *arguments], cwd=WORK, check=True, stdout=subprocess.DEVNULL)


# --- The README's picture ---------------------------------------------------------------------------------------------

OF_CURVES = {"frame": "curves", "by": "name", "x": "x"}
FIGURE = FigureSpec(
    height=3.4,
    width=10.0,
    columns=2,
    panels=(
        Panel(
            title="Toy problem: mean ± 2 standard deviations of f",
            x="x",
            y="f(x)",
            ylim=(-3.5, None),
            legend={"loc": "lower center", "ncols": 3},
            layers=(
                Layer(kind="band", **OF_CURVES, alpha=0.18),
                *(Layer(**OF_CURVES, y=edge, width=0.8) for edge in ("low", "high")),
                Layer(**OF_CURVES, y="mean", width=1.8, label="{}"),
                Layer(kind="points", frame="data", colour="black", size=2.5, label="training data"),
            ),
        ),
        Panel(
            title="The price of factorising",
            x="20 splits each; bar: mean ± standard error",
            y="KL(EXACT-FFG ‖ exact) [nats]",
            ylim=(0.0, None),
            names="dataset",
            layers=(
                Layer(kind="points", frame="cells", x="place", y="kl", shift="shift", colour="vermillion", alpha=0.35),
                Layer(kind="intervals", frame="means", x="place", y="mean", colour="black", marker="_", size=16),
            ),
        ),
    ),
)


def exact() -> None:
    datasets = [word for name in ("yacht", "boston", "energy", "concrete", "wine") for word in ("--dataset", name)]
    bench("run", *datasets, "--method", "exact", "--family", "ffg", "--wandb", "off", "--out", "exact")
    records = [Record.model_validate_json(path.read_bytes()) for path in sorted(WORK.glob("exact/**/record.json"))]
    cells_of(records)  # refuses a folder that mixes tasks or versions
    problem = bind_task(build_task(load_card("toy"), TOY_SPLIT).task)
    truth = problem.truth.posterior
    posteriors = {
        "exact posterior": FullGaussian(truth.mean, problem.truth.covariance_tril),
        "factorised (same mean)": FactorisedGaussian(truth.mean, mean_field_optimum_scale(truth.precision_tril)),
    }
    curves = pd.concat([curve(problem, q).assign(name=name) for name, q in posteriors.items()])
    data = pd.DataFrame({"x": problem.X[:, 0], "y": problem.y})
    kls = kl_by_dataset(records)
    means = kls.groupby(["place", "dataset"])["kl"].agg(["mean", "sem"]).reset_index()
    means = means.assign(low=means["mean"] - means["sem"], high=means["mean"] + means["sem"])
    frames = {"curves": curves, "data": data, "cells": kls, "means": means}
    FIGURE.of(frames).savefig(DOCS / "pictures" / "exact.png", dpi=160)


def kl_by_dataset(records: Sequence[Record]) -> pd.DataFrame:
    """The KL of every cell of EXACT-FFG, side by side in the column of its data set, the smallest first."""
    finished = [r for r in records if (r.method, r.family) == ("exact", "ffg") and r.scores is not None]
    found = [(r.dataset, load_card(r.dataset).n, r.scores.kl) for r in finished]
    cells = pd.DataFrame(found, columns=["dataset", "n", "kl"]).sort_values("n", kind="stable")
    cells["place"] = cells.groupby("n").ngroup()
    cells["shift"] = 0.36 * (cells.groupby("n").cumcount() / (cells.groupby("n")["kl"].transform("size") - 1) - 0.5)
    return cells


# --- Pages in a browser -----------------------------------------------------------------------------------------------


def report() -> None:
    bench("run", "--protocol", "quick", "--wandb", "off", "--out", "quick")
    bench("report", "quick")
    photograph(WORK / "quick/report/report.html", DOCS / "pictures" / "report.png", 1232, 849, "#results")


def leaderboard() -> None:
    for edition, name in (("v2", "leaderboard"), ("networks-v1", "leaderboard-networks")):
        bench("leaderboard", "build", "--root", str(ROOT / "leaderboard"), "--edition", edition, "--out", name)
        photograph(WORK / name / "index.html", DOCS / "pictures" / f"{name}.png", 1500, 1200)


def photograph(page: Path, picture: Path, width: int, height: int, anchor: str = "") -> None:
    """The upper part of a page, or the part below an anchor."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        view = chromium.new_page(viewport={"width": width, "height": height})
        view.goto(page.resolve().as_uri())
        if anchor:  # pages scroll smoothly to a fragment in the address, and a picture would catch them on the way
            view.locator(anchor).evaluate("part => part.scrollIntoView({behavior: 'instant'})")
            view.wait_for_timeout(500)
        view.screenshot(path=str(picture))
        chromium.close()


# --- Reproductions ----------------------------------------------------------------------------------------------------


def reproductions() -> None:
    for name in published():
        _on_page(name)
    shown = [name for name in published() if name not in OWN_PAGE or (DOCS / f"{name}.md").is_file()]
    gallery = "\n".join(map(_card, shown))
    rewrite(
        GALLERY, r"(<!-- gallery -->).*?(?=<!-- end -->)",
        lambda found: f'{found[1]}\n<div class="grid cards" markdown>\n\n{gallery}\n</div>\n',
    )  # fmt: skip


def reproduction(name: str) -> None:
    """One reproduction and its card, which the gallery has already."""
    _on_page(name)
    rewrite(GALLERY, rf"-   \[!\[{re.escape(name)}\].*?(?=\n-   \[!\[|\n</div>)", lambda _: _card(name))


def _on_page(name: str) -> None:
    """Nothing where no page of docs/reproductions shows it, such as the study's figures."""
    for page in sorted((DOCS / "reproductions").glob("*.md")):
        block = rf"(?<=<!-- reproduction: {re.escape(name)} -->).*?(?=<!-- end -->)"
        rewrite(page, block, lambda _: _reproduction(name))


def published() -> list[str]:
    return sorted((path.stem for path in (ROOT / "conf/reproductions").glob("*.yaml")), key=_order)


def _order(name: str) -> tuple[int, str]:
    groups = ["burt2020", "ksw2015", "gal2016", "hron2018", "atlas", "linear", "numerics", "tuning", "validation"]
    return groups.index(name.partition("-")[0]), name


def _command(name: str, scale: Scale) -> str:
    return f"fsvi-bench reproduce {name}{'' if scale == 'paper' else f' --{scale}'}"


def _shown(name: str) -> tuple[Scale, ...]:
    return SHOWN.get(name, ("paper",))


def keep(name: str, folder: Path) -> None:
    """Takes results that were computed elsewhere, of the scales that are shown, and the picture of the first scale."""
    files = {scale: folder / f"{stem_of(name, scale)}.json" for scale in _shown(name)}
    found = {scale: path for scale, path in files.items() if path.is_file()}
    if not found:
        sys.exit(f"{folder} has none of {', '.join(path.name for path in files.values())}; run one, or change SHOWN")
    for scale, path in found.items():
        document(path, name, scale)  # refuses other settings before anything is written
        if not path.with_suffix(".png").is_file():
            sys.exit(f"{path.with_suffix('.png')} is missing; copy it beside its JSON")
    KEPT.mkdir(exist_ok=True)
    for path in found.values():
        (KEPT / path.name).write_bytes(path.read_bytes())
    if _shown(name)[0] in found:
        save_picture(name, folder)


def save_picture(name: str, folder: Path) -> None:
    """The figure of the first scale shown, reduced, goes beside the page."""
    image = Image.open(folder / f"{stem_of(name, _shown(name)[0])}.png").convert("RGB")
    image = image.resize((WIDTH, round(image.height * WIDTH / image.width)), Image.Resampling.LANCZOS)
    image.quantize(128).save(DOCS / "reproductions" / f"{name}.png", optimize=True)


def document(path: Path, name: str, scale: Scale) -> dict[str, Any]:
    """A reproduction's JSON, made with the settings that its YAML has now: the page says which these are."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    settings = REPRODUCTIONS[name]._settings(scale).model_dump(mode="json")
    if tuple(map(content.get, ("figure", "scale", "settings"))) != (name, scale, settings):
        sys.exit(f"{path} was not made with the {scale} settings of conf/reproductions/{name}.yaml; rerun it")
    if declared(name) != [(each["says"], each["side"], each["threshold"]) for each in content["claims"]]:
        sys.exit(f"the claims of {path} are not those of conf/reproductions/{name}.yaml; rerun it")
    return content


def declared(name: str) -> list[tuple[str, str, float]]:
    """The claims of a YAML: wording, side and threshold."""
    return [(each.says, each.side, each.threshold) for each in REPRODUCTIONS[name].file.claims]


@cache
def results(name: str) -> dict[Scale, dict[str, Any]]:
    """The documents that a page shows, by scale: kept ones, and others computed here."""
    found = {}
    for scale in _shown(name):
        path = KEPT / f"{stem_of(name, scale)}.json"
        if not path.is_file():
            if name in SHOWN and scale != "quick":
                sys.exit(f"{name} takes hours at this scale; run `{_command(name, scale)}`, then give {name}=DIR")
            bench(*_command(name, scale).split()[1:])
            path = WORK / "fsvi-bench-results" / name / path.name
            if scale == _shown(name)[0]:
                save_picture(name, path.parent)
        found[scale] = document(path, name, scale)
    return found


def _verdicts(name: str) -> dict[Scale, list[Verdict]]:
    return {
        scale: [Verdict.model_validate(each) for each in content["claims"]] for scale, content in results(name).items()
    }


def _reproduction(name: str) -> str:
    """A page's block: commands, scales, figure and verdicts."""
    verdicts = _verdicts(name)
    commands = "\n".join(_command(name, scale) for scale in verdicts)
    said = "".join(f"\n{_scale_said(name, scale)}\n" for scale in verdicts if name in SHOWN)
    return (
        f"\n<!-- test: parse (make pictures runs it) -->\n```sh\n{commands}\n```\n{said}\n"
        f"![Figure of {name}]({name}.png)\n\n{_table(verdicts)}\n"
    )


def _scale_said(name: str, scale: Scale) -> str:
    """A sentence about a result's scale, with its numbers if they are kept."""
    kept = f"{stem_of(name, scale)}.json"
    numbers = f" ([numbers](results/{kept}))" if (KEPT / kept).is_file() else ""
    if scale == "quick":
        subject = "This is a preview" if len(_shown(name)) == 1 else "The preview is"
        return f"*{subject} at reduced scale; do not cite it*{numbers}: {REPRODUCTIONS[name].changes(scale)}."
    if scale == "medium":
        return f"Run at medium scale{numbers}: {REPRODUCTIONS[name].changes(scale)}."
    return f"Run at full scale{numbers}."


def _table(verdicts: dict[Scale, list[Verdict]]) -> str:
    """Verdicts, with a column for each scale if there are several."""
    (first, *_), claims = verdicts.values(), list(zip(*verdicts.values(), strict=True))
    if not first:
        return "This reproduction draws a figure and has no claims."
    if len(verdicts) == 1:
        lines = ["| verdict | claim | found | 95% interval | threshold |", "|---|---|---|---|---|"]
        lines += map(_claim, first)
    else:
        titles = "".join(f" {TITLES[scale]} |" for scale in verdicts)
        lines = [f"| claim | threshold |{titles}", "|---|---|" + "---|" * len(verdicts)]
        lines += map(_claims, claims)
    return "\n".join(lines)


def _claim(claim: Verdict) -> str:
    exact = claim.low == claim.high and claim.interval is None
    interval = "none (deterministic)" if exact else claim.between
    return f"| {claim.outcome} | {_says(claim)} | {claim.found} | {interval} | {claim.side} {claim.threshold:g} |"


def _claims(claim: tuple[Verdict, ...]) -> str:
    """One claim at several scales: verdict, value and interval of each."""
    cells = "".join(f" {each.outcome}: {each.found}{_interval(each)} |" for each in claim)
    return f"| {_says(claim[0])} | {claim[0].side} {claim[0].threshold:g} |{cells}"


def _interval(claim: Verdict) -> str:
    return "" if claim.low == claim.high else f" ({claim.between})"


def _says(claim: Verdict) -> str:
    return claim.says.replace("|", r"\|")


def _card(name: str) -> str:
    summary = yaml.safe_load((ROOT / "conf/reproductions" / f"{name}.yaml").read_text())["summary"]
    paper = name.partition("-")[0]
    picture, page, found = f"{name}.png", f"{paper}.md#{_anchor(name)}", ""
    if name in OF_STUDY:
        picture, found = f"../study/{OF_STUDY[name][0]}", OF_STUDY[name][1]
        page = "../study.md"
    elif name in OWN_PAGE:
        picture, page = f"../{name}.png", f"../{name}.md"
    else:
        scale = _shown(name)[0]
        outcomes = [verdict.outcome for verdict in _verdicts(name)[scale]]
        counts = [
            f"{outcomes.count(each)} {each}"
            for each in ("held", "did not hold", "undecided", "not judged")
            if each in outcomes
        ]
        found = ", ".join(counts) + (f" ({TITLES[scale]})" if scale != "paper" else "")
    command = _command(name, _shown(name)[0])
    lines = [
        f"[![{name}]({picture})]({page})",
        f"**[{name}]({page})**: {summary}",
        f"`{command}`",
        found,
    ]
    first, *rest = filter(None, lines)
    return "\n\n".join([f"-   {first}", *(f"    {line}" for line in rest)]) + "\n"


def _anchor(name: str) -> str:
    return re.sub(r"[^\w-]", "", name)


if __name__ == "__main__":
    main()
