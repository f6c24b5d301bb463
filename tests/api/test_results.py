"""`results` reads what `run` wrote."""

import json

import numpy as np
import pandas as pd
import pytest

from fsvi_bench import InputError, results, score
from fsvi_bench.posteriors.io import read_posterior
from tests.conftest import shorten_scores


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from fsvi_bench.cli.app import main

    out = tmp_path_factory.mktemp("results")
    words = (
        "run --dataset diabetes --splits 0-1 --method exact --method rand-a --method bernoulli-dropout --max-steps 5"
    )
    words += f" --seeds 0-1 --wandb off --workers 1 --json --out {out}"
    with pytest.MonkeyPatch.context() as patched:
        shorten_scores(patched)
        with pytest.raises(SystemExit) as ended:
            main(words.split())
    assert ended.value.code == 0
    return out


def test_a_row_per_cell(folder, diabetes):
    frame = results(folder)
    # EXACT and Bernoulli dropout in closed form draw nothing: one cell whatever the seeds.
    cells = frame.value_counts(["method", "family"]).to_dict()
    assert cells == {
        ("exact", "full"): 2, ("exact", "ffg"): 2, ("rand-a", "full"): 4, ("rand-a", "ffg"): 4,
        ("bernoulli-dropout", "bernoulli"): 2,
    }  # fmt: skip
    assert list(frame.columns[:11]) == [
        "dataset", "split", "method", "family", "seed", "settings", "status", "reason", "task_sha256", "code_sha256",
        "seconds",
    ]  # fmt: skip
    assert set(frame.status) == {"ok"}
    assert (frame[frame.method == "rand-a"]["settings.max_steps"] == 5).all()
    assert json.loads(frame[frame.method == "rand-a"].settings.iloc[0])["M"] == 80
    assert np.isinf(frame[frame.method == "bernoulli-dropout"].kl).all()
    assert frame.kl.dtype == np.float64
    assert (frame.seconds >= 0).all()


def test_a_rows_scores_are_those_of_score(folder, diabetes):
    frame = results(str(folder))
    rows = frame[(frame.method == "rand-a") & (frame.split == 0) & (frame.seed == 1)].set_index("family")
    for path in folder.glob("cells/diabetes/rand-a-*/split-00-seed-1-*/posterior.safetensors"):
        family = path.parents[1].name.removeprefix("rand-a-")
        scores = score(read_posterior(path), diabetes)
        assert set(scores) <= set(frame.columns)
        for name, value in scores.items():
            if isinstance(value, float):
                assert rows.loc[family, name] == value, name


def test_failures_are_rows_without_scores(tmp_path, folder):
    (path,) = folder.glob("cells/diabetes/rand-a-full/split-01-seed-1-*/record.json")
    record = json.loads(path.read_text()) | {
        "status": "diverged",
        "reason": "the loss was not finite at step 3",
        "scores": None,
    }
    copy = tmp_path / path.relative_to(folder)
    copy.parent.mkdir(parents=True)
    copy.write_text(json.dumps(record))
    frame = results(tmp_path)
    assert frame.reason.tolist() == ["the loss was not finite at step 3"]
    assert "kl" not in frame or pd.isna(frame.kl[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder, "contains neither records nor a plan"),
        (lambda folder: folder / "none", "does not exist"),
        (lambda folder: 7, "the folder is of type int, expected a path"),
    ],
)
def test_a_folder_without_results_is_refused(tmp_path, make, message):
    with pytest.raises(InputError, match=message):
        results(make(tmp_path))
