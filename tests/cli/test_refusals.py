"""Every kind of mistake, through the command line: status 2, one sentence, no traceback, nothing written.

`refused` checks all of that; words here are the few that say what was got, what was expected and how to fix it.
"""

from __future__ import annotations

import pickle
import re

import pytest
import torch
from safetensors.torch import save_file

from fsvi_bench.errors import plain_demands
from fsvi_bench.papers.experiment import Experiment
from fsvi_bench.posteriors.gaussian import FactorisedGaussian
from fsvi_bench.posteriors.io import read_posterior, write_posterior
from fsvi_bench.tasks.card import load_image_card
from fsvi_bench.tasks.frozen import read_task
from fsvi_bench.tasks.official import read_official
from tests.conftest import REFERENCE

TASK = REFERENCE / "tasks" / "boston-00.safetensors"
FULL = REFERENCE / "posteriors" / "boston-00-full.safetensors"
IMAGES = "mnist is a data set of images, expected one for regression,"
BUILD = "needs either --out FOLDER, to write tasks, or --check"

SAID = [
    # what Typer finds: the option, its value if only one was given, and where the help is
    ("run --foo", "(see fsvi-bench run --help)"),
    ("tasks export nope", "(see fsvi-bench tasks export --help)"),
    ("rum", "(see fsvi-bench --help)"),
    ("run --splits", "requires an argument"),
    ("run --max-steps x", "--max-steps is 'x', expected a whole number (see "),
    ("run --max-steps=many", "--max-steps is 'many', expected a whole number (see "),
    ("run --measurement-points 8 --measurement-points x", "--measurement-points, expected a whole number (see "),
    ("leaderboard serve --port 99999", "--port is '99999', expected at most 65535 (see "),
    # names
    ("run --dataset bostn", "did you mean 'boston'? expected one of airfoil, boston, concrete"),
    ("run --method exat", "did you mean 'exact'"),
    ("methods list exat", "did you mean 'exact'"),
    ("run --protocol quik", "did you mean 'quick'"),
    ("reproduce burt2020-fig9", "unknown reproduction 'burt2020-fig9': did you mean 'burt2020-fig"),
    ("tasks show bosten", "did you mean 'boston'?"),
    ("tasks build --check --dataset diabetis", "did you mean 'diabetes'"),
    # images, which have no tasks
    ("run --dataset mnist", f"{IMAGES} such as boston; use mnist with `fsvi-bench reproduce ksw2015-variance` or"),
    ("run --dataset mnist --dry-run", IMAGES),
    ("run --task mnist", IMAGES),
    ("run --task mnist:0", IMAGES),
    ("score --posterior x --task mnist:0", IMAGES),
    ("tasks build --dataset mnist --out out", IMAGES),
    ("tasks build --dataset mnist --check", IMAGES),
    ("tasks show mnist", IMAGES),
    ("tasks verify mnist:0", IMAGES),
    ("tasks export mnist --out out", IMAGES),
    ("datasets prepare mnst", "unknown data set 'mnst': did you mean 'mnist'"),
    ("datasets verify mnist --data-dir empty", "fsvi-bench datasets prepare mnist"),
    ("run --device tpu", "--device is 'tpu', expected 'auto', 'cpu' or 'cuda'"),
    ("reproduce burt2020-fig1 --device tpu", "expected auto, cpu or cuda"),
    ("run --executor slurm", "--executor is 'slurm', expected 'local' or 'ray'"),
    ("run --wandb maybe", "expected 'auto', 'online', 'offline' or 'off'"),
    ("run --rerun some", "expected 'none', 'failed', 'diverged' or 'all'"),
    # numbers, ranges and settings
    ("run --dataset boston --splits 20", "boston has no split 20; its splits run from 0 to 19"),
    ("tasks build --check --splits 20", "diabetes has no split 20"),
    ("run --task boston:x", "boston:x: split 'x' is not understood; write a range such as 0-19"),
    ("run --task boston:collapsed-10", "'boston:collapsed-10' is not a linear task; expected a name such as boston:0"),
    ("tasks show yacht:0:collapsed-10", "`fsvi-bench networks list` has the names of network tasks"),
    ("run --dataset yacht-collapsed-10", "'yacht-collapsed-10' is not a data set; networks are tasks"),
    ("run --task boston", "--task boston is a data set, expected a task; give boston:0 for its split 0"),
    ("score --posterior x --task boston", "give boston:0 for its split 0"),
    ("run --task toy", "--task toy is a data set without official tasks"),
    ("run --task bostn:0", "unknown task 'bostn:0': did you mean 'boston'?"),
    ("run --task empty", "--task empty is a folder, expected a task file"),
    ("run --max-steps 0", "--max-steps is '0', expected 1 or more"),
    ("verify x --max-seconds inf", "--max-seconds is inf, expected a finite number"),
    ("run --measurement-points 0", "--measurement-points is 0, expected 1 or more"),
    ("run --ray-address x:1", "--ray-address requires --executor ray"),
    ("run --set lr", "of the form key=value"),
    ("run --method ssge --set ssge.SS=1", "--set ssge.SS: ssge has no option 'SS'; did you mean 'S'? its options: "),
    ("run --method ssge --set sge.S=9", "'sge' is not among the chosen methods; did you mean 'ssge'? they are ssge"),
    ("run --method ssge --set S=1", "method ssge, option 'S': got 1, expected 2 or more; its options: "),
    (
        "run --method ssge --set score_estimator=kde",
        "method ssge, option 'score_estimator': got 'kde', expected 'ssge', 'stein', 'kef', 'nu' or 'gaussian-oracle'",
    ),
    (
        "run --task yacht:0:collapsed-10 --method low-rank-vi --set parametrisation=eigenbasis",
        "parametrisation=weights",
    ),
    ("run --method f-svgd --set particles=1", "method f-svgd, option 'particles': got 1, expected 2 or more"),
    ("run --method hmc --set max_steps=2", "leave particles=1, expected 2 to 9999; change max_steps"),
    ("run --method rand-a --set minibatch=1.5", "got 1.5, expected a whole number or 'full' or 'M'; its options: "),
    # what does not go together
    ("score", "score needs either --task with --posterior, or --posteriors"),
    (
        "score q.safetensors",
        "(q.safetensors); give a file as --posterior FILE --task TASK, or a folder as --posteriors",
    ),
    ("score --task boston:0 --posteriors x", "give one of these combinations"),
    ("tasks build", BUILD),
    ("tasks build --check --out x", BUILD),
    ("tasks build --check --dataset toy", "toy has no official tasks"),
    ("tasks verify toy", "toy has no official tasks"),
    ("reproduce ksw2015-fig2 --no-compute", "which --no-compute shows; drop it"),
    ("reproduce ksw2015-fig1 --quick --medium", "got both --quick and --medium, expected one scale; drop one of them"),
    (
        "reproduce ksw2015-fig2 --medium",
        "ksw2015-fig2 has no medium scale, expected one of gal2016-elbo, gal2016-uncertainty",
    ),
    ("reproduce burt2020-study --medium --no-compute", "has no medium scale"),
    ("submit exact", "needs --author (a name) and --owner"),
    ("submit mine.py: --author a --owner b", "method mine.py: names a file but no class; give it as mine.py:Class"),
    (
        "run --method rand-a --set S=99999999999999999999",
        "method rand-a, option 'S' is a number of 67 bits, expected fewer than 63 bits",
    ),
    # files and folders that are not there, or not what they should be
    ("tasks show none.safetensors", "cannot read"),
    ("tasks verify split-00.certificate.json", "is a certificate, expected a task"),
    ("tasks verify empty", "contains no task files"),
    ("score --posteriors none", "there is no folder none; give --posteriors a folder"),
    ("score --posteriors file", "--posteriors file is a file; score it with --task and --posterior"),
    ("status none", "folder none does not exist"),
    ("status empty", "contains neither records nor a plan"),
    ("export empty", "contains neither records nor a plan"),
    ("report empty", "contains neither records nor a plan"),
    ("report none", "folder none does not exist"),
    ("run --dataset toy --out file/out", "is not writable"),
    ("run --dataset toy --out /proc/fsvi-bench", "is not writable"),
    ("run --dataset toy --dry-run --out file", "output folder file is not writable"),
    ("tasks build --dataset toy --out file", "is not writable"),
    ("run --dataset yacht --data-dir none", "which is not a folder"),
    ("datasets verify yacht --data-dir empty", "fsvi-bench datasets prepare yacht"),
]


@pytest.mark.parametrize(("command", "words"), SAID, ids=[command for command, _ in SAID])
def test_a_mistake_is_one_sentence_and_nothing_is_written(refused, tmp_path, command, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    said = refused(*command.split())
    assert words in said
    assert re.search(r"Input|a valid|unable to parse", said) is None  # Pydantic's words


@pytest.mark.parametrize("words", [["--out", ""], ["--out="], ["--dataset", "toy", "--out", ""]])
def test_an_empty_option_is_not_the_current_folder(refused, words):
    assert "--out is empty, expected a value; is a variable of the shell not set?" in refused("run", *words)


def test_an_empty_argument_is_not_the_current_folder(refused):
    assert "an argument is empty, expected a value" in refused("report", "")


def test_an_empty_part_of_a_setting_is_not_an_empty_option(refused):
    assert "is empty, expected a value" not in refused("run", "--set=lr=")


def test_messages_are_changed_in_what_pydantic_demands_only():
    for said in ("unknown data set 'should be': expected one of yacht", "unknown method 'exact or expected y'"):
        assert plain_demands(said) == said


def test_a_cache_that_cannot_be_written(refused, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FSVI_BENCH_CACHE", str(tmp_path / "file"))
    assert "set $FSVI_BENCH_CACHE" in refused("run", "--dataset", "toy", "--out", tmp_path / "out")


def test_data_that_are_missing_or_altered(refused, tmp_path, monkeypatch):
    monkeypatch.delenv("FSVI_BENCH_DATA", raising=False)
    monkeypatch.setenv("FSVI_BENCH_MIRROR", "http://127.0.0.1:9")
    (tmp_path / "cache" / "data" / "UCI_Datasets" / "yacht" / "data").mkdir(parents=True)
    arguments = ("run", "--dataset", "yacht", "--out", tmp_path / "o")
    assert re.search(r"put the file at.*\$FSVI_BENCH_DATA", refused(*arguments))
    folder = tmp_path / "mirror" / "UCI_Datasets" / "yacht" / "data"
    folder.mkdir(parents=True)
    (folder / "data.txt").write_bytes(b"1 2 3\n")
    assert "is not the yacht data: its SHA-256 is" in refused(*arguments, "--data-dir", tmp_path / "mirror")


def test_images_that_are_missing_or_altered(refused, tmp_path, monkeypatch):
    monkeypatch.delenv("FSVI_BENCH_DATA", raising=False)
    monkeypatch.setenv("FSVI_BENCH_MIRROR", "http://127.0.0.1:9")
    (tmp_path / "cache" / "data" / "mnist").mkdir(parents=True)
    folder = tmp_path / "mirror" / "mnist"
    folder.mkdir(parents=True)
    monkeypatch.setattr(Experiment, "make", lambda *_: pytest.fail("the experiment has started"))
    for name in load_image_card("mnist").reproductions:
        said = refused("reproduce", name)
        assert re.search(r"the mnist data are not on this machine.*put the file at.*\$FSVI_BENCH_DATA", said)
        (folder / "train-images-idx3-ubyte.gz").write_bytes(b"\x1f\x8b")
        said = refused("reproduce", name, "--data-dir", tmp_path / "mirror", "--out", tmp_path / "o")
        assert "is not the mnist data: it is a truncated or damaged gzip file" in said


f64 = {"dtype": torch.float64}


@pytest.mark.parametrize(
    ("metadata", "tensors", "words"),
    [
        ({}, {"input_mean": torch.zeros(5, **f64)}, "'input_mean' has shape [5], expected [13]"),
        ({}, {"lengthscales": torch.full((13,), float("nan"), **f64)}, "'lengthscales' contains NaN or infinity"),
        ({}, {"extra": torch.zeros(1, **f64)}, "unknown tensor 'extra'"),
        ({"format": "fsvi-task/0"}, {}, "has format 'fsvi-task/0'"),
        ({}, {"noise_variance": torch.tensor(-0.1, **f64)}, "'noise_variance' contains -0.1, expected positive"),
    ],
)
def test_a_broken_task_file(refused, tmp_path, metadata, tensors, words):
    task, path = read_task(TASK), tmp_path / "task.safetensors"
    save_file({**{n: t.clone() for n, t in task.tensors.items()}, **tensors}, path, {**task.metadata, **metadata})
    said = refused("run", "--task", path, "--out", tmp_path)
    assert words in said
    assert refused("score", "--task", path, "--posterior", FULL) == said


def test_a_pickle_is_refused_as_task_and_posterior(refused, tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(pickle.dumps([1.0]))
    for arguments in (("run", "--task", path), ("score", "--task", TASK, "--posterior", path)):
        assert "is not a safetensors file" in refused(*arguments)


def test_posteriors_of_another_task_and_of_no_task(refused, tmp_path):
    path = tmp_path / "q.safetensors"
    metadata = {"format": "fsvi-posterior/1", "kind": "gaussian-ffg"}
    save_file({"mean": read_posterior(FULL).mean[:99].clone(), "scale": torch.ones(99, **f64)}, path, metadata)
    said = refused("score", "--task", TASK, "--posterior", path)
    assert (
        "the posterior has 99 weights, expected 100, one per feature of the task; use the task it was trained on"
        in said
    )
    write_posterior(path, read_posterior(FULL), read_task(TASK).sha256[::-1])
    assert "it belongs to task" in refused("score", "--task", TASK, "--posterior", path)
    write_posterior(path, read_posterior(FULL), read_official("diabetes", 1).task.sha256)
    said = refused("score", "--task", "diabetes:0", "--posterior", path)
    assert "belongs to diabetes:1, but --task is diabetes:0; use --task diabetes:1" in said
    write_posterior(path, FactorisedGaussian(torch.zeros(100, **f64), torch.full((100,), 1e300, **f64)))
    assert "the posterior's numbers reach" in refused("score", "--task", "diabetes:0", "--posterior", path)
    path.unlink()
    assert "cannot read" in refused("score", "--task", TASK, "--posterior", path)


def test_another_tasks_certificate(cli, refused, tmp_path):
    cli("tasks", "build", "--dataset", "toy", "--splits", "0,1", "--out", tmp_path)
    first, second = (tmp_path / "toy" / f"split-0{split}.safetensors" for split in (0, 1))
    first.write_bytes(second.read_bytes())
    for command in ("tasks show", "tasks verify", "run --task", f"score --posterior {FULL} --task"):
        assert "certifies task" in refused(*command.split(), first)


@pytest.mark.parametrize(
    ("kind", "tensors", "message"),
    [
        ("particles", {"particles": torch.zeros(1, 100, **f64)}, "it has 1 particle, expected 2 or more; draw more"),
        ("particles", {"particles": torch.zeros(3, 99, **f64)}, "the posterior has 99 weights, expected 100"),
        ("particles", {"particles": torch.full((3, 100), torch.nan, **f64)}, "'particles' contains NaN or infinity"),
        ("function-samples", {"f_test": torch.zeros(3, 7, **f64), "f_box": torch.zeros(3, 1000, **f64)}, "f_test has values at 7 inputs, expected the task's 44"),
        ("function-samples", {"f_test": torch.zeros(1, 44, **f64), "f_box": torch.zeros(1, 1000, **f64)}, "it has 1 function, expected 2 or more"),
        ("function-samples", {"f_test": torch.zeros(3, 44, **f64)}, "tensor 'f_box' is missing"),
    ],
)  # fmt: skip
def test_draws_that_cannot_be_scored_are_refused(cli, tmp_path, kind, tensors, message):
    save_file(tensors, path := tmp_path / "q.safetensors", {"format": "fsvi-posterior/1", "kind": kind})
    status, out, error = cli("score", "--task", "diabetes:0", "--posterior", path)
    assert (status, out) == (2, "")
    assert message in " ".join(error.split())


LONG = 300 * "a"  #: longer than any file's name may be


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"submit {LONG}.py:X --author a --owner b", f"file {LONG}.py does not exist"),
        (f"verify board/entries/{LONG}", "is not a folder"),
        (f"submit --check board/entries/{LONG}", "is not a folder"),
        (f"leaderboard init --root {LONG} --secret secret", "File name too long"),
        (f"run --dataset toy --method exact --out {LONG}", "File name too long"),
        (f"run --protocol {LONG}", "unknown protocol"),
    ],
)
def test_names_that_are_too_long_are_of_nothing(refused, words, said):
    assert said in refused(*words.split())
