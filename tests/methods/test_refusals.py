"""What every method refuses, in one sentence: unknown options, nonsense, and what a data set is too small for."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fsvi_bench.cli.app import main
from fsvi_bench.errors import InputError
from fsvi_bench.methods.data import MeasurementDesign, TaskData
from fsvi_bench.methods.fixed_a import FixedA
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.registry import load_method
from tests.maths.draws import linspace, zeros
from tests.methods.table import (
    Row,
    rows,
    toys,
)
from tests.methods.test_conformance import same, trained

#: What no option of such a name may be; `S` besides, for methods that estimate a score from their samples.
NONSENSE: dict[str, tuple[Any, ...]] = {
    "M": (0, -3, 2.5, "many"),
    "lr": (0, -0.01, math.nan, math.inf, "fast"),
    "kl_weight": (-1, -1e-9, math.nan, "N/A"),
    "max_steps": (0, -1, 1.5),
    "minibatch": (0, -80, "ful"),
    "averaging": (1, -0.1),
    "kl_jitter": (-1e-6,),
    "S": (0, -1),
    "retain_probability": (0, -0.1, 1.2, math.nan),
    "alpha": (0, -1, math.nan),
    "temperature": (0, -0.1),
    "f": (0, 1, -0.5, 1.5),
    "l": (0, -1, math.inf),
    "kl_scale": (0, 2),
    "estimator": ("locl",),
    "step_size": (0, -0.1, 1.5, math.nan),
    "momentum": (1, -0.1),
    "burn_in": (1, -0.1),
    "every": (0, "step"),
    "beta1": (1, -0.1),
    "beta2": (1, -0.1),
    "hess_init": (-1, math.inf),
    "particles": (1, 0, 2.5, 10_000),
    "friction": (0, -1, 1.5),
    "structure": ("kron",),
    "rank": (0, -1, 2.5),
    "distance": ("w1",),
    "weight": (0, -1, math.nan, math.inf),
    "rho": ("test",),
    "training": ("sgd",),
    "gamma": (0, -1e-6, math.nan),
    "context": ("test",),
    "context_points": (0, -1, 1001),
    "truncation": ("all",),
    "draws": (0, 1, -3),
}
OF_SAMPLES = {
    "S": (1,),
    "bandwidth": (0, "mean"),
    "eigen_share": (0, 1.5),
    "prior_score": ("exakt",),
    "score_estimator": ("KEF", "gaussian"),
    "regularisation": (0, -1, 1e-300, "none"),
}
MORE_NONSENSE = {"ssge": OF_SAMPLES, "fbnn": OF_SAMPLES, "swag": {"rank": (1,)}}


def nonsense(row: Row) -> list[tuple[str, Any]]:
    fields = load_method(row.method).cls.Options.model_fields
    both = [*NONSENSE.items(), *MORE_NONSENSE.get(row.method, {}).items()]
    return [(name, value) for name, values in both if name in fields for value in values]


@rows
def test_unknown_options_are_refused_and_the_nearest_one_is_named(row):
    entry = load_method(row.method)
    for name in entry.cls.Options.model_fields:
        if len(name) > 2:
            with pytest.raises(InputError, match=f"method {row.method}, option '{name}_': .*did you mean '{name}'"):
                entry.options({f"{name}_": 1})
    with pytest.raises(InputError, match=f"method {row.method}, option 'zzz': .*its options: "):
        entry.options({"zzz": 1})


@rows
def test_nonsense_is_refused_in_one_sentence_that_says_what_was_got(row):
    entry = load_method(row.method)
    assert nonsense(row) or row.method == "exact"
    for name, value in nonsense(row):
        with pytest.raises(InputError) as caught:
            entry.options({name: value})
        message = str(caught.value)
        assert message.startswith(f"method {row.method}, option '{name}': got {value!r}, "), message
        assert "\n" not in message


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("variational-dropout", {"kl": "cubic", "free_alpha": True}, "kl=cubic holds for alpha up to 1 only"),
        ("variational-dropout", {"kl": "lower-bound", "free_alpha": True}, "kl=lower-bound holds for alpha up to 1"),
        ("variational-dropout", {"alpha": 1.5}, "alpha=1.5 is above 1"),
        ("variational-dropout", {"kl": "cubic", "prior": "task"}, "require the log-uniform prior"),
        (
            "bernoulli-dropout",
            {"training": "masks", "optimise": "shared"},
            "training=masks does not optimise the retain probability",
        ),
        ("bernoulli-dropout", {"training": "masks", "noise": "A"}, "got noise=A, expected it to be left out"),
        (
            "ssge",
            {"score_estimator": "gaussian-oracle", "M": 20, "S": 20},
            "score_estimator=gaussian-oracle fits a Gaussian at M=20 inputs to S=20 samples; set S to 21 or more",
        ),
        ("fixed-a", {"minibatch": 7}, "optimizer=lbfgs requires minibatch=full"),
        ("fixed-a", {"averaging": 0.5}, "optimizer=lbfgs requires minibatch=full and averaging=0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_in_one_sentence(method, settings, message):
    with pytest.raises(InputError) as caught:
        load_method(method).options(settings)
    assert str(caught.value).startswith(f"method {method}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "rand-a", "--set", "lrr=1"), "did you mean 'lr'"),
        (("--method", "rand-a", "--set", "M=10"), "--set M is not supported"),
        (
            ("--method", "mean-field-vi", "--family", "full"),
            "none of the chosen methods (mean-field-vi) has it; their families: ffg",
        ),
    ],
)
def test_the_command_line_refuses_nonsense_in_one_line_and_writes_nothing(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as exit_:
        main(["run", "--dataset", "toy", *arguments, "--out", str(tmp_path / "out"), "--wandb", "off"])
    out, err = capsys.readouterr()
    assert exit_.value.code == 2
    assert out == ""
    assert err.startswith("fsvi-bench: ")
    assert err.count("\n") == 1
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()


@rows
def test_the_defaults_suit_the_smallest_data_set(row):
    """`fsvi-bench run --dataset toy` runs every method on 40 rows: where fewer rows are than asked for, all are taken."""
    data = TrainingData.of(toys()[:1])
    trained(row, {}, data, steps=3 if row.one_go else 1)  # a chain's particles are at least two
    if "minibatch" in load_method(row.method).cls.Options.model_fields and row.method != "fixed-a":
        assert same(*(trained(row, {"minibatch": rows}, data, steps=2) for rows in ("full", 1000)))


@pytest.mark.parametrize(
    ("method", "settings"),
    [("rand-a", {"M": 82}), ("rand-a-ngd", {"M": 82}), ("ssge", {"M": 41, "draw_A": "data"}), ("fixed-a", {"M": 82})],
)
def test_settings_too_large_for_a_data_set_are_refused(method, settings):
    message = f"M={settings['M']} needs 41 distinct training inputs, but a split has only 40"
    with pytest.raises(InputError, match=message):
        trained(Row(method, "ffg"), settings, TrainingData.of(toys()[:1]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": [1]}, "got 1 seeds for 2 tasks, expected one for each"),
        ({"seeds": [1, -2]}, "seed is '-2', expected a whole number of 0 or more"),
        ({"steps": 0}, "steps is '0', expected a whole number of 1 or more"),
        ({"steps": 2.5}, "steps is '2.5', expected a whole number of 1 or more"),
        ({"minibatch": 0}, "minibatch is '0', expected a whole number of 1 or more"),
        ({"design": MeasurementDesign(82)}, "M=82 needs 41 distinct training inputs, but a split has only 40"),
        ({"tasks": []}, "tasks that are trained side by side must have equal shapes, got none"),
    ],
)
def test_task_data_refuses_invalid_arguments(changes, message):
    given = {"tasks": toys()[:2], "seeds": [0, 1], "steps": 3, **changes}
    with pytest.raises(InputError, match=message) as caught:
        TaskData(**given)
    assert "\n" not in str(caught.value)


def test_fixed_a_is_not_judged_by_an_option_that_its_own_inputs_replace():
    """M = 82 would need 41 distinct training inputs of 40."""
    A = linspace(-1, 1, 6)[None, :, None]
    method = FixedA(toys()[0], "full", A=A, M=82)
    assert method.data().fixed_A.shape == (1, 6, 20)
    assert method.cost()["measurement_rows"] == 6


@pytest.mark.parametrize("shape", [(6, 1), (2, 6, 1), (1, 6, 2), (1, 0, 1), (1, 1, 6, 1)])
def test_fixed_a_refuses_inputs_of_another_shape(shape):
    with pytest.raises(InputError, match=r"A has shape \[.*\], expected \[1, M, 1\]: ") as caught:
        FixedA(toys()[0], "full", A=zeros(shape))
    assert "\n" not in str(caught.value)
