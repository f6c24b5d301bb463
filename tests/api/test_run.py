"""`fsvi_bench.run` is the command: the same options, records and refusals."""

import json
import math

import numpy as np
import pytest

import fsvi_bench
from fsvi_bench import InputError, Method, RandA

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


def test_single_values_and_classes_of_methods_are_accepted(tmp_path):
    frame = fsvi_bench.run(
        datasets="toy", splits=[0], methods=fsvi_bench.Exact, seeds=0, wandb="off", out=str(tmp_path)
    )
    assert list(frame["method"]) == ["exact", "exact"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dataset": ["toy"]}, "unknown option 'dataset': did you mean 'datasets'"),
        ({"datasets": ["bostn"]}, "did you mean 'boston'"),
        ({"workers": 0}, "option workers is 0"),
        ({"options": ["lr"]}, "^options 'lr' is not of the form key=value"),
        ({"options": [1]}, r"^options \[1\] is neither a mapping of names to values nor a list of key=value words"),
        ({"options": {1: 2}}, r"^options {1: 2} is neither"),
        ({"options": 3}, "^options 3 is neither"),
        ({"seeds": 1.5}, "option seeds is 1.5, expected text"),
        ({"splits": np.array(0)}, "option splits is array"),
        ({"options": {"M": 3}}, "set the size of the measurement set with measurement_points"),
        ({"max_steps": 3, "options": {"max_steps": 3}}, "the number of steps is given by both"),
        ({"measurement_points": [0]}, r"option measurement_points.0 is 0, expected 1 or more"),
        ({"datasets": 2.5}, "option datasets is 2.5, expected a list"),
        ({"out": 3}, "option out is 3, expected a path"),
        ({"splits": []}, "^splits '' is not understood"),
        ({"methods": [Method]}, "'Method' is not a complete"),
        ({"methods": [type("Mine", (RandA,), {})]}, "name it as path/file.py:Mine"),
        ({"device": "tpu"}, "option device is 'tpu', expected 'auto', 'cpu' or 'cuda'"),
        ({"protocol": "official"}, "asks for portable kernels, but this process has the processor's own"),
        (
            {"protocol": "burt2020-fig1", "methods": ["spike-and-slab"]},
            "^the protocol has the family full: none of the chosen methods",
        ),
        ({"ray_address": "x:1"}, "ray_address requires executor ray"),
        ({"gpu_share": 0.5}, "gpu_share requires executor ray"),
        ({"executor": "ray", "gpu_share": 1.5}, "option gpu_share is 1.5, expected at most 1"),
        ({"executor": "ray", "gpu_share": 0}, "option gpu_share is 0, expected more than 0"),
        ({"rerun": "some"}, "option rerun is 'some', expected 'none', 'failed', 'diverged' or 'all'"),
        ({"executor": "slurm"}, "expected 'local' or 'ray'"),
        ({"wandb": "maybe"}, "expected 'auto', 'online', 'offline' or 'off'"),
    ],
)
def test_invalid_options_are_refused_before_anything_is_written(tmp_path, options, words):
    with pytest.raises(InputError, match=words):
        fsvi_bench.run(**{**ASKED, "out": tmp_path / "out", **options})
    assert list(tmp_path.iterdir()) == []
