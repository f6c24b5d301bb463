"""`fsvi_bench.run` is the command: the same options, records and refusals."""

import json
import math

import pytest

import fsvi_bench
from fsvi_bench.errors import InputError

ASKED = {"datasets": ["toy"], "splits": "0-1", "methods": ["exact"], "wandb": "off", "workers": 1}
TYPED = ("run", "--dataset", "toy", "--splits", "0-1", "--method", "exact", "--wandb", "off", "--workers", 1, "--json")


def test_it_returns_what_the_command_prints(cli, tmp_path):
    frame = fsvi_bench.run(**ASKED, out=tmp_path)
    assert (frame["status"] == "ok").all()
    status, out, _ = cli(*TYPED, "--out", tmp_path)
    records = json.loads(out)
    assert (status, len(records), len(frame)) == (0, 4, 4)
    for row, record in zip(frame.to_dict("records"), records, strict=True):
        assert [row[name] for name in ("split", "family")] == [record[name] for name in ("split", "family")]
        assert math.isclose(row["kl"], record["scores"]["kl"], rel_tol=0, abs_tol=0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dataset": ["toy"]}, "unknown option 'dataset': did you mean 'datasets'"),
        ({"datasets": ["bostn"]}, "did you mean 'boston'"),
        ({"workers": 0}, "option workers is 0"),
        ({"options": ["lr"]}, "--set 'lr' is not understood; write key=value"),
        ({"rerun": "some"}, "expected failed, diverged or all"),
        ({"executor": "slurm"}, "expected local or ray"),
        ({"wandb": "maybe"}, "expected auto, online, offline or off"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(tmp_path, options, words):
    with pytest.raises(InputError, match=words):
        fsvi_bench.run(**{**ASKED, "out": tmp_path / "out", **options})
    assert list(tmp_path.iterdir()) == []
