"""Requests are checked whole before anything starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.files import sha256_of_json
from fsvi_bench.methods.registry import built_in_names, default_names, load_method
from fsvi_bench.running.cell import Plan
from fsvi_bench.running.options import parse_setting, parse_settings, setting, setting_words
from fsvi_bench.running.plan import FAMILIES, Protocol, Request, load_protocol, make_plan, protocols
from fsvi_bench.running.runner import require_data
from fsvi_bench.tasks.official import read_official
from tests.conftest import REFERENCE

BOSTON = REFERENCE / "tasks" / "boston-00.safetensors"


@pytest.fixture
def tunable(tmp_path):
    """A method file with options, as a user would bring one."""
    path = tmp_path / "tunable.py"
    path.write_text(
        "from fsvi_bench.methods.base import Method, MethodOptions\n"
        "class Options(MethodOptions):\n"
        "    M: int = 80\n"
        "    max_steps: int = 100\n"
        "    lr: float = 0.01\n"
        "class Tunable(Method):\n"
        "    'Has settings.'\n"
        "    Options = Options\n"
        "    def loss(self, q, batch): ...\n"
    )
    return f"{path}:Tunable"


#: Issue 30: no other method runs unless it is named, so that a plain run and `make run` stay quick.
TWELVE = {
    "bernoulli-dropout", "concrete-dropout", "exact", "fixed-a", "gaussian-dropout", "mean-field-vi", "rand-a",
    "rand-a-ngd", "sparse-variational-dropout", "spike-and-slab", "ssge", "variational-dropout",
}  # fmt: skip


def test_twelve_methods_of_this_package_run_by_default():
    assert set(built_in_names()) & set(default_names()) == TWELVE
    for request in (Request(), Request(protocol="quick"), Request(protocol="official")):
        assert {variant.method for variant in make_plan(request).variants} == set(default_names())


def test_by_default_every_default_method_and_split_of_diabetes():
    plan = make_plan(Request())
    assert plan.splits == [("diabetes", split) for split in range(20)]
    planned = [(variant.method, variant.family) for variant in plan.variants]
    assert planned == [
        (name, family) for name in default_names() for family in FAMILIES if family in load_method(name).cls.families
    ]
    assert {("exact", "full"), ("exact", "ffg"), ("rand-a", "full"), ("mean-field-vi", "ffg")} <= set(planned)
    assert ("mean-field-vi", "full") not in planned


def test_a_deterministic_method_is_one_cell_whatever_the_seeds():
    plan = make_plan(Request(methods=["exact", "rand-a"], seeds="0-4"))
    seeds = {(variant.method, variant.family): variant.seeds for variant in plan.variants}
    every = {("rand-a", family): (0, 1, 2, 3, 4) for family in ("full", "ffg")}
    assert seeds == {("exact", "full"): (0,), ("exact", "ffg"): (0,), **every}


def test_seeds_and_sizes_multiply_a_method_that_has_them(tunable):
    plan = make_plan(Request(methods=[tunable, "exact"], measurement_points=[20, 80], max_steps=7, seeds="0-2"))
    settings = [(v.method, v.family, v.hyperparameters, v.seeds) for v in plan.variants]
    assert len(settings) == 4 + 2
    assert settings[0] == ("Tunable", "full", {"M": 20, "max_steps": 7, "lr": 0.01}, (0, 1, 2))
    assert settings[1][2]["M"] == 80
    assert settings[-1] == ("exact", "ffg", {}, (0,))
    assert plan.unused == ()


def test_options_are_typed_finite_and_known(tunable):
    (variant, _) = make_plan(Request(methods=[tunable], options=["lr=1e-3"])).variants
    assert variant.hyperparameters["lr"] == 1e-3
    for value in ("fast", ".nan", ".inf"):
        with pytest.raises(InputError, match="option 'lr'"):
            make_plan(Request(methods=[tunable], options=[f"lr={value}"]))
    with pytest.raises(InputError, match=r"--set lrr: none of the chosen methods \(Tunable\).*did you mean 'lr'"):
        make_plan(Request(methods=[tunable], options={"lrr": 1}))


def test_an_option_is_set_for_one_method_or_for_all_that_have_it(tunable):
    def rates(*options, **given):
        plan = make_plan(Request(methods=[tunable, "rand-a", "exact"], families=["full"], options=options, **given))
        return {v.method: v.hyperparameters.get("lr") for v in plan.variants}, plan.shared

    assert rates("lr=0.5") == ({"Tunable": 0.5, "rand-a": 0.5, "exact": None}, {"lr": ("Tunable", "rand-a")})
    for name in ("Tunable", tunable):  # as the table shows it, or as --method gives it
        assert rates(f"{name}.lr=0.5") == ({"Tunable": 0.5, "rand-a": 0.1, "exact": None}, {})
        assert rates("lr=0.5", f"{name}.lr=0.2") == ({"Tunable": 0.2, "rand-a": 0.5, "exact": None}, {})
    assert rates("averaging=0.2")[1] == {}
    plan = make_plan(Request(protocol="quick", options={"rand-a.max_steps": 7}))
    steps = {v.method: v.hyperparameters["max_steps"] for v in plan.variants if "max_steps" in v.hyperparameters}
    assert {name for name, number in steps.items() if number == 7} == {"rand-a"}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("rand-b.lr=1", "--set rand-b.lr: 'rand-b' is not among the chosen methods; did you mean 'rand-a'? they are "),
        ("tunable.lr=1", "'tunable' is not among the chosen methods; did you mean 'Tunable'?"),
        ("rand-a.lrr=1", "--set rand-a.lrr: rand-a has no option 'lrr'; did you mean 'lr'? its options: "),
        ("rand-a.lr=fast", "method rand-a, option 'lr': got 'fast', expected a number"),
        ("rand-a.M=20", "--set M is not supported"),
    ],
)
def test_an_option_of_one_method_is_checked(tunable, option, message):
    with pytest.raises(InputError) as raised:
        make_plan(Request(methods=[tunable, "rand-a"], options=[option]))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("given", "unused"),
    [
        ({"methods": ["exact"], "measurement_points": [80], "max_steps": 10}, ("--measurement-points", "--max-steps")),
        (
            {"methods": ["exact", "mean-field-vi"], "measurement_points": [80], "max_steps": 10},
            ("--measurement-points",),
        ),
        ({"measurement_points": [80], "max_steps": 10}, ()),
        ({"methods": ["exact"], "protocol": "official"}, ()),  # nobody gave a flag
        ({"methods": ["gwi"], "max_steps": 10, "options": {"lr": 0.1, "weight": 2.0}}, ("--max-steps", "--set lr")),
        ({"methods": ["gwi", "rand-a"], "options": {"gwi.lr": 0.1, "minibatch": 40}}, ("--set gwi.lr",)),
        ({"methods": ["gwi"], "max_steps": 10, "options": {"lr": 0.1, "training": "adam"}}, ()),
        ({"methods": ["gfsvi"], "max_steps": 10, "task_files": ["yacht:0:collapsed-10"]}, ()),  # there it trains
    ],
)
def test_flags_that_no_method_uses_are_reported(given, unused):
    assert make_plan(Request(**given)).unused == unused


def test_a_task_file_stands_for_its_own_split():
    plan = make_plan(Request(task_files=[BOSTON]))
    assert plan.splits == []
    assert [(task.dataset, task.split) for task in plan.tasks] == [("boston", 0)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"datasets": ["protein"], "splits": "5"}, "protein has no split 5; its splits run from 0 to 4"),
        ({"families": ["fulll"]}, "unknown family 'fulll': did you mean 'full'"),
        ({"protocol": ""}, "unknown protocol ''"),
        ({"splits": ""}, "--splits '' is not understood"),
        ({"seeds": ""}, "--seeds '' is not understood"),
        ({"seeds": "a"}, "--seeds 'a' is not understood"),
        ({"task_files": [BOSTON], "splits": "0"}, "--splits applies to data sets, but a task is one split"),
        ({"task_files": [BOSTON, BOSTON]}, "boston split 0 is given twice"),
        ({"task_files": [BOSTON], "datasets": ["boston"]}, "boston split 0 is given twice"),
    ],
)
def test_nonsense_is_refused(given, message):
    """Besides what `cli/test_refusals.py` has."""
    with pytest.raises(InputError, match=message):
        make_plan(Request(**given))


@pytest.mark.parametrize(
    "text", ["=1", "lr=[", "M=3", "lr={a", "lr=!!timestamp 2024-01-01", "lr=!!binary aGk=", "lr=" + "[" * 3000]
)
def test_nonsense_settings_are_refused(text):
    with pytest.raises(InputError, match="--set"):
        parse_settings([text])


def test_numbers_may_be_numpys():
    plan = make_plan(Request(datasets=["toy"], splits=np.int64(3), seeds=np.arange(2), methods=["exact"]))
    assert plan.splits == [("toy", 3)]


def test_tasks_that_are_fitted_need_the_cache_and_official_ones_do_not(monkeypatch):
    monkeypatch.setenv("FSVI_BENCH_CACHE", "/proc/none")
    require_data([("diabetes", 0)], None, official=True)
    with pytest.raises(InputError, match="the cache /proc/none/tasks is not writable"):
        require_data([("diabetes", 0)], None)


def test_an_option_has_one_value():
    assert parse_settings(["lr=0.1", "lr=0.10"]) == {"lr": 0.1}
    with pytest.raises(InputError, match=r"--set lr is given twice, as 0\.1 and 0\.2; make one run for each value"):
        parse_settings(["lr=0.1", "lr=0.2"])


@pytest.mark.parametrize(
    "value",
    [0.01, 1e-6, 3, True, None, "lbfgs", "no", "1", "",
     "a: b", "[x", "1e5", [1, "b"], {"a": None}, [1e-6], {"a": 1e-6},
     1e16, [1e16], "😀: x", "12:30", "2024-01-01", "1_000", "true"],
)  # fmt: skip
def test_a_setting_is_read_as_it_was_written(value):
    assert parse_setting(setting("name", value)) == ("name", value)


def test_words_that_yaml_1_1_takes_for_something_else_are_text():
    for text in ("no", "on", "12:30", "2024-01-01", "1_000", "0x1f"):
        assert parse_setting(f"a={text}") == ("a", text)


def test_words_stand_plainly_and_what_has_a_flag_of_its_own_takes_it():
    given = {"optimizer": "lbfgs", "M": 80, "max_steps": 7, "lr": 0.01, "x": None}
    flags = ["--set", "optimizer=lbfgs", "--measurement-points", "80", "--max-steps", "7", "--set", "lr=0.01"]
    assert setting_words(given) == [*flags, "--set", "x=null"]


@pytest.mark.parametrize("name", protocols())
def test_every_shipped_protocol_plans(name):
    assert load_protocol(name).summary
    assert make_plan(Request(protocol=name)).variants


def test_the_command_line_overrides_the_protocol():
    plan = make_plan(Request(protocol="quick", datasets=["yacht"], splits="1", families=["ffg"]))
    assert plan.splits == [("yacht", 1)]
    assert {variant.family for variant in plan.variants} == {"ffg"}
    factorised = [name for name in default_names() if "ffg" in load_method(name).cls.families]
    assert [variant.method for variant in plan.variants] == factorised
    plan = make_plan(Request(protocol="quick", methods=["rand-a"], max_steps=7))
    assert [(v.method, v.family, v.hyperparameters["max_steps"]) for v in plan.variants] == [
        ("rand-a", "full", 7),
        ("rand-a", "ffg", 7),
    ]
    assert plan.splits == [("diabetes", split) for split in range(3)]


def test_two_methods_of_one_name_are_refused_and_one_given_twice_is_one(tunable, tmp_path):
    path = Path(tunable.partition(":")[0])
    other = tmp_path / "other.py"
    other.write_text(path.read_text() + "CHANGED = True\n")
    with pytest.raises(InputError, match="two different methods are called 'Tunable'"):
        make_plan(Request(methods=[tunable, f"{other}:Tunable"]))
    again = f"{path.parent}/./{path.name}:Tunable"
    assert len(make_plan(Request(methods=[tunable, again])).variants) == 2
    path.write_text(path.read_text().replace("class Tunable", "class exact"))
    with pytest.raises(InputError, match="the name 'exact' is taken"):
        make_plan(Request(methods=[f"{path}:exact"]))


def cells_of(**request):
    plan = make_plan(Request(protocol="burt2020", **request))
    return [
        (name, split, variant.method, variant.family, variant.hyperparameters)
        for name, split in plan.splits
        for variant in plan.variants
        if variant.is_for(name)
    ]


def settings_of(dataset, method="rand-a", **request):
    found = (c for c in cells_of(splits="0", **request) if c[0] == dataset and c[2:4] == (method, "full"))
    return {(options["M"], options["kl_jitter"]) for *_, options in found}


def test_a_study_has_sub_grids_on_some_of_its_data_sets():
    """Four sizes on all eight, jitter on three at M = 80; EXACT has no A: 20 splits, four other methods, two families."""
    cells = cells_of()
    assert len(cells) == len({repr(cell) for cell in cells}) == 20 * (8 * (2 + 4 * 8) + 3 * 8)
    assert settings_of("boston") == {(20, 0), (40, 0), (80, 0), (160, 0), (80, 1e-6)}
    assert settings_of("wine") == {(20, 0), (40, 0), (80, 0), (160, 0)}
    assert sum(cell[2] == "exact" for cell in cells) == 20 * 8 * 2


def test_what_the_command_line_gives_takes_the_place_of_sub_grids_too():
    assert settings_of("boston", options={"kl_jitter": 0}) == {(20, 0), (40, 0), (80, 0), (160, 0)}
    assert settings_of("boston", measurement_points=[30]) == {(30, 0), (30, 1e-6)}
    assert settings_of("diabetes", datasets=["diabetes"]) == {(20, 0), (40, 0), (80, 0), (160, 0)}
    assert all(v.datasets is None for v in make_plan(Request(protocol="burt2020", datasets=["naval"])).variants)


@pytest.mark.parametrize(
    ("sub_grid", "message"),
    [
        ({"datasets": ["boston"]}, "needs measurement_points or a grid"),
        ({"datasets": ["wine"], "measurement_points": [20]}, "'wine', which is not among the data sets"),
        ({"datasets": ["boston"], "grid": {"M": [20]}}, "set measurement_points and max_steps"),
        ({"datasets": ["boston"], "grid": {"kl_jitter": []}}, "grid has no values for 'kl_jitter'"),
    ],
)
def test_sub_grids_that_contradict_their_protocol_are_refused(sub_grid, message):
    with pytest.raises(ValueError, match=message):
        Protocol(summary="s", datasets=["boston"], sub_grids=[sub_grid])


def test_a_plans_file_keeps_which_variants_are_for_which_data_sets():
    plan = make_plan(Request(protocol="burt2020", datasets=["boston", "naval"], splits="0", methods=["rand-a"]))
    tasks = [read_official("boston", 0).task]
    tasks.append(replace(tasks[0], dataset="naval"))
    kept = plan.bind(tasks, {}, "cpu")
    assert [cell.dataset for cell in kept.cells()].count("naval") == 8
    assert [cell.dataset for cell in kept.cells()].count("boston") == 10
    assert len({cell.key for cell in kept.cells()}) == 18
    assert Plan.model_validate_json(kept.model_dump_json()).model_dump() == kept.model_dump()
    refused = plan.bind(tasks[:1], {("naval", 0): "no"}, "cpu").refused_records()
    assert len(refused) == 8


def test_a_plan_without_sub_grids_keeps_its_name():
    """That of a file from before there were any."""
    plan = make_plan(Request(datasets=["boston"], splits="0", methods=["exact"]))
    kept = plan.bind([read_official("boston", 0).task], {}, "cpu")
    before = [v.model_dump(mode="json", exclude={"code_sha256", "datasets"}) for v in kept.variants]
    assert kept.name == sha256_of_json([[["boston", 0]], before])[:16]
