"""Results that code may not change by accident, and the command that makes them anew where a change is declared.

    python -m tests.frozen.freeze run [NAME...]
    python -m tests.frozen.freeze reproduce [NAME...]

in the root of the repository, with the raw data in $FSVI_BENCH_DATA. It runs this tree's own command, in portable
arithmetic and one thread, and writes `runs/NAME.json` and `reproductions/NAME.json` beside this file; `git diff` then
shows a line for each score that moved. Without names: all of them, 10 minutes in all.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from fsvi_bench.files import json_in_lines, sha256_of_json

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

#: Closed forms alone: where training ends is not frozen, but what its methods must reach is tested in `tests/methods`.
CLOSED_FORMS = "--method bernoulli-dropout --method exact --method spike-and-slab --max-steps 200"
RUNS = {"diabetes": "--dataset diabetes --splits 0-1", "boston": "--dataset boston --splits 0"}
#: What decides a cell and what came out; not its hashes, seconds and provenance.
FIELDS = (
    "dataset", "split", "method", "family", "seed", "hyperparameters", "task_sha256", "status", "reason", "scores",
    "work", "details",
)  # fmt: skip

#: At their quick scale. Those that train networks run in `tests/papers` alone: rounding makes other networks.
REPRODUCTIONS = (
    "atlas", "burt2020-fig1", "burt2020-roots", "burt2020-shrinkage", "burt2020-theory", "gal2016-6.3",
    "hron2018-fig1-3", "hron2018-fig5", "hron2018-limits", "hron2018-moments", "ksw2015-fig2", "validation",
)  # fmt: skip
CLAIM = ("side", "threshold", "value", "low", "high", "holds")
LINES = {"runs": 3, "reproductions": 2}  #: levels of a file that are written line by line
CASE = re.compile(
    r" \((?:[^()]|\([^()]*\))*\)$"
)  #: which of several decided a claim: among residues of rounding, any may


def run(name: str) -> list[dict[str, Any]]:
    """The frozen part of a run's records, computed now."""
    with TemporaryDirectory() as folder:
        said = _command(
            folder,
            "run",
            *RUNS[name].split(),
            *CLOSED_FORMS.split(),
            "--wandb",
            "off",
            "--out",
            f"{folder}/out",
            "--json",
        )
    return [{field: record[field] for field in FIELDS} for record in json.loads(said)]


def reproduce(name: str) -> dict[str, Any]:
    """The frozen part of a reproduction, computed now: claims, tables and digests of frames, or what is drawn."""
    with TemporaryDirectory() as folder:
        _command(folder, "reproduce", name, "--quick", "--out", f"{folder}/out")
        return reduced(json.loads(Path(folder, "out", f"{name}-quick.json").read_text()))


def reduced(document: dict[str, Any]) -> dict[str, Any]:
    """A reproduction's document without explanations, settings, cells' hashes, which cover the code, and seconds: KSW's
    claim and table about speed."""
    claims = {CASE.sub("", c["statistic"]): {key: c[key] for key in CLAIM} for c in document.get("claims", ())}
    found = {"claims": {name: claim for name, claim in claims.items() if not name.startswith("seconds")}}
    found["rows"] = [row for table in document.get("tables", ()) for row in table["rows"]]
    frames = document["frames"].items()
    if found["claims"]:
        found["frames"] = {name: {column: digest(of) for column, of in frame.items()} for name, frame in frames}
    else:  # a figure from records: what is drawn is all that there is
        found["numbers"] = _drawn({name: pd.DataFrame(frame) for name, frame in frames})
    return found


def digest(values: Sequence[Any]) -> dict[str, Any]:
    """A column in short: how many values, how many are finite numbers, sums of these and of their sizes; and a hash of
    the words there are, infinities among them."""
    finite = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)]
    words = sorted({str(value) for value in values if isinstance(value, str | bool)})
    sums = {"sum": math.fsum(finite), "size": math.fsum(map(abs, finite))}
    return {"count": len(values), "finite": len(finite), **sums, "words": sha256_of_json(words)[:12]}


def _drawn(frames: dict[str, pd.DataFrame]) -> dict[str, Any]:
    """The training data of figure 1 of Burt et al., and the curve of the exact posterior with its settings and scores."""
    data, cells = frames["data"].drop_duplicates(["x", "y"]), frames["cells"]
    curves = {cell: curve[["x", "mean", "sd"]].to_dict("list") for cell, curve in frames["curves"].groupby("cell")}
    settings = cells["settings"].map(json.loads).rename("hyperparameters")
    told = cells[[name for name in FIELDS if name in cells]].join(settings).join(cells[["kl", "kl_mean_term", "nlpd"]])
    return {
        "task_sha256": cells["task_sha256"][0],
        "x": curves[cells["cell"][0]]["x"],
        "x_train": data["x"].tolist(),
        "y_train": data["y"].tolist(),
        "curves": [
            {"cell": cell, **{name: curves[key][name] for name in ("mean", "sd")}}
            for key, cell in zip(cells["cell"], told.astype(object).to_dict("records"), strict=True)
            if cell["method"] == "exact"
        ],
    }


#: Makes each command of its standard input in a fork: a process of its own without the seconds that imports take. What
#: the fork prints goes into files, its exit status to the standard output.
SERVER = """
import json, os, sys
from fsvi_bench.arithmetic import use_kernels
use_kernels()  # before torch is imported
from fsvi_bench.cli import app, reproduce, run
from fsvi_bench.papers import experiment
experiment.write_figure = lambda figure, stem: []  # takes longer than the numbers, which are written before
for line in sys.stdin:
    arguments, folder = json.loads(line)
    if (child := os.fork()) == 0:
        for name, descriptor in (("out.txt", 1), ("err.txt", 2)):
            os.dup2(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT), descriptor)
        os.environ["FSVI_BENCH_CACHE"] = f"{folder}/cache"
        app.main(arguments)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@cache
def _server() -> subprocess.Popen[str]:
    """Rounds as any x86 processor does, and does one thing after the other; ends with this process, which closes its
    standard input."""
    given = {name: value for name, value in os.environ.items() if name not in ("ATEN_CPU_CAPABILITY", "MKL_CBWR")}
    chosen = {"FSVI_BENCH_KERNELS": "portable", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", SERVER], cwd=ROOT, env={**given, **ONE_THREAD, **chosen},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    )  # fmt: skip


def _command(folder: str, *arguments: str) -> str:
    """What `fsvi-bench` prints, with a cache of its own.

    Exit status 1 says that a cell diverged: records say so too.
    """
    server = _server()
    print(json.dumps([[*arguments, "--workers", "1"], folder]), file=server.stdin, flush=True)
    if (status := server.stdout.readline().strip()) not in ("0", "1"):
        said = Path(folder, "err.txt").read_text() if status else "its server has ended"
        raise RuntimeError(f"fsvi-bench {' '.join(arguments)}: exit status {status}\n{said}")
    return Path(folder, "out.txt").read_text()


def path_of(kind: str, name: str) -> Path:
    """Where a result is frozen: `kind` is `runs` or `reproductions`."""
    return HERE / kind / f"{name}.json"


def write(kind: str, name: str, found: Any) -> None:
    """Freezes a result: a line for each score, claim and row."""
    path = path_of(kind, name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json_in_lines(json.dumps(found), LINES[kind]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.frozen.freeze", description=__doc__.split("\n\n")[0])
    parser.add_argument("what", choices=("run", "reproduce"))
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; default: all")
    given = parser.parse_args(arguments)
    kind, make, known = ("runs", run, RUNS) if given.what == "run" else ("reproductions", reproduce, REPRODUCTIONS)
    for name in given.names or known:
        if name not in known:
            parser.error(f"there is no {name}; choose among {', '.join(known)}")
        write(kind, name, make(name))
        print(path_of(kind, name).relative_to(ROOT), flush=True)


if __name__ == "__main__":
    main()
