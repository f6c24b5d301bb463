"""`fsvi-bench reproduce`: the paper's settings, files whose numbers are the records', resume, refusals."""

from __future__ import annotations

import json
import math
import statistics

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from fsvi_bench.errors import InputError
from fsvi_bench.methods import functional
from fsvi_bench.papers import experiment
from fsvi_bench.papers import registry as reproduce
from fsvi_bench.papers.base import Outcome
from fsvi_bench.papers.claims import Verdict
from fsvi_bench.papers.experiment import Experiment
from fsvi_bench.papers.parts import PartFailed
from fsvi_bench.papers.registry import REPRODUCTIONS
from fsvi_bench.posteriors.io import read_posterior
from fsvi_bench.running import plan as planning
from fsvi_bench.running.cell import Record
from fsvi_bench.running.plan import Protocol, Request, make_plan
from fsvi_bench.tasks.build import load_cached
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.task import bind_task

TINY = {
    "burt2020-fig1": {"max_steps": 3},
    "burt2020-fig2": {"datasets": ["toy"], "splits": "0-1", "max_steps": 3, "measurement_points": [10]},
}


@pytest.fixture
def tiny(monkeypatch):
    """`--quick` takes a few steps; returns a function that changes what it takes further."""
    small, read = dict(TINY), experiment.read_file

    def shrunk(name, model):
        file = read(name, model)
        return file.model_copy(update={"quick": small.get(name, file.quick)})

    # Most of the time would go into the optimum that objective scores are measured against.
    monkeypatch.setattr(functional, "REFERENCE_STEPS", 3)
    monkeypatch.setattr(functional, "_read", lambda path: None)
    monkeypatch.setattr(functional, "_write", lambda path, optimum: None)
    monkeypatch.setattr(experiment, "read_file", shrunk)
    return lambda name, **changes: small.update({name: {**TINY[name], **changes}})


def records_of(folder):
    paths = sorted(folder.rglob("record.json"))
    return {record.cell: record for record in (Record.model_validate_json(path.read_bytes()) for path in paths)}


def figure_files(folder, name):
    return [folder / f"{name}.{kind}" for kind in ("png", "svg", "json")]


def test_figure_1_writes_its_records_numbers_and_a_second_run_computes_nothing(cli, tiny, tmp_path):
    status, out, err = cli("reproduce", "burt2020-fig1", "--quick", "--out", tmp_path, "--workers", "1")
    assert status == 0
    files = figure_files(tmp_path, "burt2020-fig1-quick")
    assert out.split()[-3:] == [str(path) for path in files]
    assert "rand-a full kl_jitter=1e-06" in out
    assert "7 computed, 0 found finished" in err

    document, records = json.loads(files[2].read_text()), records_of(tmp_path)
    cells, curves, data = (pd.DataFrame(document["frames"][name]) for name in ("cells", "curves", "data"))
    problem = bind_task(load_cached(load_card("toy"), 0).task)
    order = problem.X_test[:, 0].argsort()
    assert len(records) == len(cells) == 7
    assert {*cells["task_sha256"]} == {problem.frozen.sha256}
    data = data.drop_duplicates(["x", "y"])
    assert (data["x"].tolist(), data["y"].tolist()) == (problem.X[:, 0].tolist(), problem.y.tolist())
    for cell in cells.itertuples():
        record, drawn = records[cell.cell], curves[curves["cell"] == cell.cell]
        assert (cell.kl, cell.nlpd) == (record.scores.kl, record.scores.nlpd)
        assert (cell.method, json.loads(cell.settings)) == (record.method, record.hyperparameters)
        (path,) = tmp_path.rglob(f"*{record.cell[:12]}/posterior.safetensors")
        q, Phi = read_posterior(path), problem.Phi_test[order].numpy()
        covariance = (q.covariance_tril() @ q.covariance_tril().mT).numpy()
        assert drawn["x"].tolist() == problem.X_test[order, 0].tolist()
        np.testing.assert_allclose(drawn["mean"], Phi @ q.mean.numpy(), rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(np.square(drawn["sd"]), np.einsum("nk,kl,nl->n", Phi, covariance, Phi), rtol=1e-10)

    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    status, _, err = cli("reproduce", "burt2020-fig1", "--quick", "--out", tmp_path, "--workers", "1")
    assert status == 0
    assert "0 computed, 7 found finished" in err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_two_runs_give_the_same_figure(cli, tiny, tmp_path):
    """Byte for byte, in two folders: nothing in it depends on when or where it was made."""
    for folder in ("a", "b"):
        assert cli("reproduce", "burt2020-fig1", "--quick", "--out", tmp_path / folder, "--workers", "1")[0] == 0
    for first, second in zip(*(figure_files(tmp_path / f, "burt2020-fig1-quick") for f in "ab"), strict=True):
        assert first.read_bytes() == second.read_bytes()


@pytest.mark.slow
def test_figure_2_writes_means_over_splits(cli, tiny, tmp_path):
    status, out, _ = cli("reproduce", "burt2020-fig2", "--quick", "--out", tmp_path, "--workers", "1", "--json")
    assert status == 0
    document = json.loads(out)
    files = figure_files(tmp_path, "burt2020-fig2-quick")
    assert document["files"] == [str(path) for path in files]
    assert (document["name"], document["quick"]) == ("burt2020-fig2", True)
    records = records_of(tmp_path)
    assert {record["cell"] for record in document["records"]} == set(records)
    lines, cells = (pd.DataFrame(json.loads(files[2].read_text())["frames"][name]) for name in ("scores", "cells"))
    assert len(lines) == 2 * (2 + 3 * 2 * 2)  # of KL and NLPD: EXACT, and three methods with two jitters; full and ffg
    assert {*cells["cell"]} == set(records)
    for cell in cells.itertuples():
        assert (cell.kl, cell.nlpd) == (records[cell.cell].scores.kl, records[cell.cell].scores.nlpd)
    for line in lines.itertuples():
        alike = (cells["method"] == line.method) & (cells["family"] == line.family)
        values = cells.loc[alike & (cells["kl_jitter"].eq(line.kl_jitter) | (line.method == "exact")), line.score]
        assert line.planned == line.finished == len(values) == 2
        assert line.mean == pytest.approx(statistics.mean(values), rel=1e-12, abs=1e-13)
        assert line.error == pytest.approx(statistics.stdev(values) / math.sqrt(2), rel=1e-9, abs=1e-13)


@pytest.mark.parametrize("name", TINY)
def test_a_figure_is_legible_in_print_and_says_what_it_shows(cli, tiny, tmp_path, monkeypatch, name):
    if name == "burt2020-fig2":
        tiny(name, splits="0", families=["full"])
    figures = []
    monkeypatch.setattr(experiment, "write_figure", lambda figure, stem: figures.append(figure) or [])
    assert cli("reproduce", name, "--quick", "--out", tmp_path, "--workers", "1")[0] == 0
    (figure,) = figures
    figure.draw_without_rendering()
    texts = [t for t in figure.findobj(Text) if t.get_text().strip() and t.get_visible()]
    assert figure.get_size_inches()[0] == 7.0
    assert min(text.get_fontsize() for text in texts) >= 8
    said = [text.get_text() for text in texts]
    assert all(any(title in text for text in said) for title in ("EXACT", "FIXEDA", "RANDA", "SSGE"))
    assert "up to 3 steps" in figure.get_suptitle()
    assert "M = 10" in figure.get_suptitle()
    assert "quick look: 7 cells" in figure.get_suptitle()
    assert any("KL jitter 1e-6" in text for text in said)
    if name == "burt2020-fig2":
        assert any(text.strip() == "0" for text in said)  # EXACT full
        assert "|A| = minibatch = M = 10 (FIXEDA: all rows)" in figure.get_suptitle()
        assert any("NLPD" in text and "nats per test point" in text for text in said)
    else:
        titles = [axes.get_title(loc="left") for axes in figure.axes]
        kls = [f"{record.scores.kl:.3g}" for record in records_of(tmp_path).values() if record.method != "exact"]
        assert [title.split(":")[0] for title in titles] == ["EXACT", "FIXEDA", "RANDA", "SSGE"]
        assert all("nats (jitter 1e-6: " in title for title in titles[1:])
        assert all(any(kl in title for title in titles) for kl in kls)


@pytest.mark.parametrize("name", TINY)
def test_what_diverges_is_listed_and_said_in_the_figure(cli, tiny, tmp_path, name):
    tiny(name, options={"lr": 1e308, "optimizer": "adam", "kl_jitter": 0.0}, splits="0")
    status, out, err = cli("reproduce", name, "--quick", "--out", tmp_path, "--workers", "1")
    assert status == 1
    assert "ssge full seed 0: diverged" in err
    assert "Traceback" not in err
    assert "(1 not ok)" in out
    frames = json.loads((tmp_path / f"{name}-quick.json").read_text())["frames"]
    svg = (tmp_path / f"{name}-quick.svg").read_text()
    cell = next(cell for cell in pd.DataFrame(frames["cells"]).itertuples() if cell.method == "ssge")
    assert (cell.status, cell.kl) == ("diverged", "NaN")
    if name == "burt2020-fig1":
        assert cell.cell not in frames["curves"]["cell"]
        assert "KL = diverged" in svg
    else:
        line = next(line for line in pd.DataFrame(frames["scores"]).itertuples() if line.method == "ssge")
        assert (line.finished, line.planned, line.mean) == (0, 1, "NaN")
        assert "<!-- 0/1 -->" in svg  # beneath its column
        assert "<!-- 2 ✗ -->" in svg  # full and ffg


def test_without_a_certified_task_nothing_is_drawn(cli, tiny, tmp_path, monkeypatch):
    from fsvi_bench.errors import TaskRefused
    from fsvi_bench.running import prepare

    def refuse(*_):
        raise TaskRefused("planted")

    monkeypatch.setenv("FSVI_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(prepare, "build_from", refuse)
    status, out, err = cli("reproduce", "burt2020-fig1", "--quick", "--out", tmp_path / "out", "--json")
    assert status == 1
    assert json.loads(out)["files"] == []
    assert "nothing is drawn" in err
    assert not list(tmp_path.rglob("burt2020*"))


def test_an_experiment_tells_what_became_of_its_claims(cli, tmp_path):
    status, out, err = cli("reproduce", "ksw2015-fig2", "--quick", "--out", tmp_path)
    assert status == 0  # a claim that does not hold is a finding
    assert "settles no claim" in out
    assert "did not hold: figure 2's caption" in out
    assert "undecided" not in out
    assert out.split()[-4:] == [str(tmp_path / f"ksw2015-fig2-quick.{kind}") for kind in ("png", "svg", "json", "csv")]
    assert err.strip() == f"results lie in {tmp_path}"  # no parts, nothing to count
    status, out, _ = cli("reproduce", "ksw2015-fig2", "--out", tmp_path, "--json")
    document = json.loads(out)
    assert [claim["holds"] for claim in document["claims"]] == [True, False, True]
    assert "settles no claim" not in cli("reproduce", "ksw2015-fig2", "--out", tmp_path)[1]


def test_an_undecided_claim_is_told_from_a_refuted_one(capsys):
    verdicts = [
        Verdict(
            statistic=f"s{low}", says="it is", side="above", threshold=0.5, value=0.6, low=low, high=high, holds=False
        )
        for low, high in ((0.4, 0.9), (0.6, math.inf))
    ]
    from fsvi_bench.cli.reproduce import _show

    _show(Outcome(name="x", quick=False, files=[], computed=0, reused=0, claims=verdicts))
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "undecided: it is"
    assert said[1].endswith("s0.4: 0.6 [0.4, 0.9], claimed above 0.5")
    assert said[2] == "did not hold: it is"
    assert said[3].endswith("s0.6: 0.6 [0.6, ∞], claimed above 0.5")


def test_a_part_that_fails_is_one_sentence_and_status_1(cli, tmp_path, monkeypatch):
    def investigate(settings, laboratory):
        raise PartFailed("1 of 2 parts failed; the first: value 1.0: ArithmeticError: planted")

    settings = REPRODUCTIONS["ksw2015-fig2"].settings
    monkeypatch.setitem(reproduce.REPRODUCTIONS, "ksw2015-fig2", Experiment("ksw2015-fig2", settings, investigate))
    status, out, err = cli("reproduce", "ksw2015-fig2", "--out", tmp_path)
    assert (status, out) == (1, "")
    assert err.startswith("1 of 2 parts failed")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_unknown_names_are_refused_with_the_nearest(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = cli("reproduce", "burt2020-fig9")
    assert (status, out) == (2, "")
    assert err.startswith("fsvi-bench: unknown reproduction 'burt2020-fig9': did you mean 'burt2020-fig")
    assert err.count("\n") == 1
    assert "expected auto, cpu or cuda" in cli("reproduce", "burt2020-fig1", "--device", "tpu")[2]
    assert list(tmp_path.iterdir()) == []


def test_without_a_name_it_lists_what_there_is(cli):
    status, out, err = cli("reproduce")
    assert (status, err) == (0, "")
    assert "burt2020-fig1" in out
    assert "toy problem" in out
    status, out, _ = cli("reproduce", "--json")
    assert [entry["name"] for entry in json.loads(out)] == list(REPRODUCTIONS)


def plan_of(name):
    return make_plan(REPRODUCTIONS[name]._settings(quick=False))


def settings(name, method, *keys):
    """The settings, family by family, with which a reproduction runs a method."""
    variants = plan_of(name).variants
    return [(v.family, *(v.options.model_dump()[key] for key in keys)) for v in variants if v.method.name == method]


def test_figure_1_has_the_papers_settings():
    keys = ("max_steps", "M", "lr", "minibatch", "kl_weight", "kl_jitter")
    for method in ("fixed-a", "rand-a", "ssge"):
        assert settings("burt2020-fig1", method, *keys) == [
            ("full", 5000, 10, 0.01, "full", 1.0, jitter) for jitter in (0, 1e-6)
        ]
    assert {optimizer for _, optimizer in settings("burt2020-fig1", "fixed-a", "optimizer")} == {"adam"}
    assert plan_of("burt2020-fig1").splits == (("toy", 0),)


def test_figure_2_has_the_papers_settings():
    keys = ("max_steps", "M", "minibatch", "kl_jitter")
    for method, minibatch in (("fixed-a", "full"), ("rand-a", "M"), ("ssge", "M")):
        assert settings("burt2020-fig2", method, *keys) == [
            (family, 15000, 80, minibatch, jitter) for family in ("full", "ffg") for jitter in (0, 1e-6)
        ]
    assert {optimizer for _, optimizer in settings("burt2020-fig2", "fixed-a", "optimizer")} == {"lbfgs"}
    assert plan_of("burt2020-fig2").splits == tuple(
        (name, split) for name in ("boston", "concrete", "energy") for split in range(20)
    )


def options(name, *keys, **request):
    """The settings of one method in a protocol with changes, without running it."""
    variants = make_plan(Request(protocol="burt2020-fig1", **request)).variants
    return [tuple(v.options.model_dump()[key] for key in keys) for v in variants if v.method.name == name]


def test_the_command_line_goes_before_a_protocols_grid_and_method_options():
    assert options("fixed-a", "kl_jitter", "optimizer") == [(0.0, "adam"), (1e-6, "adam")]
    changed = {"kl_jitter": 1e-4, "optimizer": "lbfgs"}
    assert options("fixed-a", "kl_jitter", "optimizer", options=changed) == [(1e-4, "lbfgs")]
    assert options("rand-a", "M", "kl_jitter", measurement_points=[5, 6]) == [(5, 0), (5, 1e-6), (6, 0), (6, 1e-6)]
    assert options("rand-a", "max_steps", options={"max_steps": 7, "kl_jitter": 0}) == [(7,)]
    assert options("rand-a", "max_steps", max_steps=8, options={"kl_jitter": 0}) == [(8,)]


def test_a_protocols_options_do_not_hinder_other_methods():
    variants = make_plan(Request(protocol="burt2020-fig1", methods=["exact"])).variants
    assert [(variant.method.name, variant.family) for variant in variants] == [("exact", "full")]
    with pytest.raises(InputError, match="--set lr: none of the chosen methods"):
        make_plan(Request(protocol="burt2020-fig1", methods=["exact"], options={"lr": 0.1}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"method_options": {"ssge": {}}}, "method_options has 'ssge', which is not among the methods"),
        ({"grid": {"M": [1]}}, "give measurement_points and max_steps"),
        ({"method_options": {"rand-a": {"max_steps": 1}}}, "give measurement_points and max_steps"),
        ({"grid": {"kl_jitter": []}}, "grid has no values for 'kl_jitter'"),
    ],
)
def test_protocols_that_contradict_themselves_are_refused(content, message):
    with pytest.raises(ValueError, match=message):
        Protocol(summary="s", methods=["rand-a"], **content)


@pytest.mark.parametrize("content", [{"grid": {"kl_jiter": (0,)}}, {"method_options": {"rand-a": {"kl_jiter": 0}}}])
def test_a_misspelt_option_of_a_protocol_is_refused(monkeypatch, content):
    monkeypatch.setattr(planning, "load_protocol", lambda _: Protocol(summary="s", methods=["rand-a"], **content))
    with pytest.raises(InputError, match=r"kl_jiter.*did you mean 'kl_jitter'"):
        make_plan(Request(protocol="any"))
