"""`--device auto` on pretended devices: the rule gives back the speeds that it was measured with."""

from datetime import UTC, datetime

import pytest
import torch

from fsvi_bench.errors import InputError
from fsvi_bench.methods.registry import load_method
from fsvi_bench.running.devices import RANDA, SPEEDS, Work, device_for, fastest, steps_of, work_of
from fsvi_bench.running.options import Request
from fsvi_bench.running.plan import make_plan
from fsvi_bench.running.provenance import provenance


@pytest.mark.parametrize(
    ("speed", "of_20", "of_400", "of_core"), [(RANDA, 5442, 35689, 1227), (SPEEDS["ssge"], 497, 627, 505)]
)
def test_the_rule_gives_back_the_measurements(speed, of_20, of_400, of_core):
    for problems, expected in ((20, of_20), (400, of_400)):
        assert problems / (speed.step + speed.problem * problems) == pytest.approx(expected)
    assert 1 / speed.core == pytest.approx(of_core)
    assert min(speed) > 0


@pytest.mark.parametrize(
    ("method", "problems", "cores", "gpus", "expected"),
    [
        ("rand-a", 400, 29, 1, "cuda"),  # 35,689 problem-steps a second against 29 · 1,227 = 35,583
        ("rand-a", 400, 30, 1, "cpu"),  # against 36,810
        ("rand-a", 400, 30, 2, "cuda"),
        ("rand-a", 20, 4, 1, "cuda"),  # 5,442 against 4,908
        ("rand-a", 20, 5, 1, "cpu"),
        ("rand-a", 1, 1, 1, "cpu"),  # a GPU's step takes as long for one problem as for many
        ("rand-a", 4, 64, 1, "cpu"),
        ("ssge", 400, 1, 1, "cuda"),  # 627 against 505
        ("ssge", 400, 2, 1, "cpu"),
        ("ssge", 20, 1, 1, "cpu"),  # 497 against 505
        ("somebody's", 400, 29, 1, "cuda"),
    ],
)
def test_the_faster_device_for_one_batch(method, problems, cores, gpus, expected):
    assert fastest([Work(method, problems, 1000)], cores, gpus) == expected


def test_the_whole_grid_decides():
    fills_the_gpu, does_not = Work("rand-a", 400, 100), Work("ssge", 20, 100)
    assert fastest([fills_the_gpu] * 60 + [does_not], 4, 1) == "cuda"
    assert fastest([fills_the_gpu] + [does_not] * 60, 4, 1) == "cpu"
    assert fastest([], 1, 1) == "cpu"


def test_only_auto_is_decided_by_the_work():
    work = [Work("rand-a", 1, 1000)]
    assert device_for("auto", work, True) == "cpu"
    assert device_for("cuda", work, True) == "cuda"
    assert device_for("cpu", [Work("rand-a", 400, 1000)], True) == "cpu"
    assert device_for("auto", [Work("rand-a", 400, 1000)], True) == "cuda"
    assert device_for("auto", [Work("rand-a", 400, 1000)], False) == "cpu"
    with pytest.raises(InputError, match="no CUDA GPU"):
        device_for("cuda", work, False)


def test_the_work_of_a_plan():
    """All splits and seeds of a data set are one batch; formulas take no steps."""
    asked = Request(
        datasets=("toy",), methods=("exact", "rand-a"), splits="0-2", seeds="0,1", max_steps=7, families=("full",)
    )
    assert work_of(make_plan(asked)) == [Work("rand-a", 6, 7)]


@pytest.mark.parametrize("method", ["gwi", "gfsvi"])
def test_a_closed_form_that_is_trained_instead_takes_steps(method):
    entry = load_method(method)
    assert steps_of(entry, entry.options({})) == 0
    assert steps_of(entry, entry.options({"training": "adam", "max_steps": 7})) == 7


def test_dropout_takes_steps_with_masks_only():
    entry = load_method("bernoulli-dropout")
    assert steps_of(entry, entry.options({"max_steps": 7})) == 0
    assert steps_of(entry, entry.options({"training": "masks", "max_steps": 7})) == 7


def test_a_machine_without_a_gpu_plans_for_those_of_a_cluster():
    """The command's own machine needs none: what runs a cell says which GPU it was."""
    found = provenance("cuda", 0, datetime.now(UTC))
    assert (found["device"], found["hardware"]) == (
        "cuda", torch.cuda.get_device_name() if torch.cuda.is_available() else None
    )  # fmt: skip
