"""Editions of networks: tasks from the secret, entries in the sandbox, scores, ranks and pages."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

import fsvi_bench
from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard import verifying
from fsvi_bench.leaderboard.board import read_board
from fsvi_bench.leaderboard.edition import Place, Secret, write_edition
from fsvi_bench.leaderboard.entry import BuiltIn, Entry
from fsvi_bench.leaderboard.jailed.jail import Jail
from fsvi_bench.leaderboard.jailed.messages import Message, RunFailed
from fsvi_bench.leaderboard.jailed.run import Run, Snapshot, _posterior
from fsvi_bench.leaderboard.network_tasks import TRIAL, make_network, ranked_networks, targets_seed
from fsvi_bench.leaderboard.ranked_tasks import runs, training_seed
from fsvi_bench.leaderboard.ranking import comparison, rank
from fsvi_bench.leaderboard.result import NetworkFacts, ShortNetworkScores, result_path, write_result
from fsvi_bench.leaderboard.site.build import Site, site_files
from fsvi_bench.leaderboard.verifying import Verification, verify
from fsvi_bench.methods.networks import NetworkData
from fsvi_bench.methods.registry import load_installed
from fsvi_bench.networks.official import official_path
from fsvi_bench.networks.reference import Functions, write_reference
from fsvi_bench.networks.scores import score_functions
from fsvi_bench.networks.task import PLACES, build, write_network_task
from fsvi_bench.posteriors.base import unstack
from fsvi_bench.posteriors.gaussian import FactorisedGaussian
from fsvi_bench.posteriors.io import posterior_file
from fsvi_bench.posteriors.particles import ParticlesPosterior
from fsvi_bench.running.executors import LocalExecutor
from fsvi_bench.running.network_job import score_network
from fsvi_bench.running.progress import Silent
from fsvi_bench.training.trainer import train
from tests.leaderboard.boards import SECRET, edition, entry, make_board, manifest, read_result, write_entry
from tests.leaderboard.jailing import shared, working_jail  # noqa: F401 -- a fixture of every test
from tests.leaderboard.sites import Page
from tests.networks.test_tasks import certificate, functions

TOY = "toy-collapsed-2"
NETWORKS = edition([TOY], protocol="network-tasks/1")
FIRST = Place("ranked", TOY, 0)


def task_of(secret=SECRET, number=0):
    return build(
        "toy", number, "collapsed-2", "simulated", 0.5, targets_seed=targets_seed(TOY, number, NETWORKS, secret)
    )


def save_task(folder, secret=SECRET):
    """A ranked task with a reference that any functions serve as."""
    path, task, reference = (
        official_path("toy", 0, "collapsed-2", "simulated", folder),
        task_of(secret),
        functions(400, 0),
    )
    write_network_task(path, task)
    write_reference(path, reference, certificate(task, reference))
    return path


def test_an_entry_runs_on_the_ranked_tasks():
    assert runs(NETWORKS) == [(FIRST, 0), (Place("ranked", TOY, 1), 0)]
    of = partial(edition, ["yacht-collapsed-10"], protocol="network-tasks/1", seeds=3)
    assert (len(runs(of())), len(runs(of(replicated_tasks=1)))) == (6, 4)
    with pytest.raises(InputError, match="unknown network 'yacht': expected one of boston-collapsed-50"):
        runs(edition(["yacht"], protocol="network-tasks/1"))
    with pytest.raises(InputError, match="edition v2 is not an edition of networks; create one"):
        list(ranked_networks(edition(), SECRET))
    found = {planned.name: seed for planned, seed in ranked_networks(NETWORKS, SECRET)}
    assert list(found) == ["toy:0:collapsed-2:simulated", "toy:1:collapsed-2:simulated"]
    assert len({*found.values(), *(seed for _, seed in ranked_networks(NETWORKS, Secret(b"\7" * 32)))}) == 4


def test_targets_come_from_the_secret_and_the_model():
    task, official = task_of(), build("toy", 0, "collapsed-2", "simulated", 0.5)
    assert task.name == official.name
    assert task.inputs_test.equal(official.inputs_test)
    assert not task.simulated_targets.equal(official.simulated_targets)
    X, y = task.training()
    residuals = (y - task.network.values(task.true_weights, X)) / 0.5
    assert abs(float(residuals.square().mean()) - 1) < 4 * (2 / len(y)) ** 0.5
    assert abs(float(residuals.mean())) < 4 / len(y) ** 0.5


def test_a_reference_is_that_of_the_secret(tmp_path):
    with pytest.raises(InputError, match=r"toy-collapsed-2 task 0 of edition v2 has no reference in .*; sample its"):
        make_network(FIRST, NETWORKS, SECRET, tmp_path)
    path = save_task(tmp_path)
    found = make_network(FIRST, NETWORKS, SECRET, tmp_path)
    assert found.sha256 == task_of().sha256
    # With other kernels the targets round differently.
    rounded = replace(found.task, simulated_targets=found.task.simulated_targets * (1 + 1e-15))
    assert rounded.sha256 != found.sha256
    write_network_task(path, rounded)
    write_reference(path, found.reference, certificate(rounded, found.reference))
    assert make_network(FIRST, NETWORKS, SECRET, tmp_path).sha256 == rounded.sha256
    save_task(tmp_path, Secret(b"\7" * 32))
    with pytest.raises(InputError, match="is not toy-collapsed-2 task 0 of edition v2: its targets differ"):
        make_network(FIRST, NETWORKS, SECRET, tmp_path)


def built_in(name, family, **settings):
    method = BuiltIn(name=name, version="0.2.0")
    return Entry(f"{name}-{family}", manifest(title=name, family=family, method=method, settings=settings), None)


def run(each, root, only, jail=None):
    its = Verification(NETWORKS, SECRET, jail or working_jail(), networks=root)
    return verify(each, its, root, LocalExecutor(1), Silent(), only)


@pytest.mark.slow
@pytest.mark.usefixtures("short_scores")
@pytest.mark.parametrize(
    ("name", "family", "settings"),
    [
        ("mean-field-vi", "ffg", {"max_steps": 60, "collapsed": True, "minibatch": "full"}),
        ("laplace", "full", {}),
        ("ensemble", "particles", {"max_steps": 60}),
    ],
)
def test_the_verifier_scores_functions_of_what_the_sandbox_returns(tmp_path, name, family, settings):
    """As the method itself would draw them: from its hidden weights, its tangent, or each of its particles."""
    (cell,) = run(built_in(name, family, **settings), tmp_path, [TRIAL]).cells
    network = fsvi_bench.load_network("toy:0:collapsed-2:simulated")
    task, found = network.task, load_installed(name)
    data = NetworkData.of(task.network, [(*task.training(), task.noise_variance)])
    options = found.options({**found.defaults.network_options, **settings})
    seed = training_seed(TRIAL, network.sha256, 0, NETWORKS, SECRET)
    method = found.cls(data, family, [seed], options)
    train(method, "cpu", None, [])
    (q,) = unstack(method.posterior())
    own = score_network(q, method.problems, network)[0]
    assert (cell.status, cell.scores.functions) == ("ok", own.functions)
    for score in ("energy_distance_20_test", "energy_distance_20_box", "predictive_kl_test", "nlpd"):
        atoms = family == "particles" and score.startswith("energy")
        f = method.functions(0, task.inputs[score[19:]]) if atoms else None
        expected = own.scores[score].value + (
            0.0 if f is None else float(torch.cdist(f, f).sum()) / (len(f) - 1) / len(f) ** 2
        )
        assert getattr(cell.scores, score) == pytest.approx(expected, rel=1e-6, abs=1e-9), score
    assert (cell.scores.kl is None) == ("kl" not in own.scores)
    assert (cell.task.log_z, cell.task.level) == (network.certificate.log_z.value, "C0")


def test_particles_far_apart_do_not_score_below_the_posterior():
    """Chosen for their spread: the unbiased distance is below 0 for them, the one of q as it is cannot be."""
    network = fsvi_bench.load_network("toy:0:collapsed-2:simulated")
    f = {place: network.reference.at(place) for place in PLACES}
    spread = (f["test"] - f["test"].mean(0)).norm(dim=1)
    chosen = spread.topk(200).indices[::20]
    particles = Functions(*(f[place][chosen] for place in PLACES))
    scores = score_functions(particles, network.task, network.reference)
    assert ShortNetworkScores.of(scores, particles).energy_distance_20_test > 0
    exact = ShortNetworkScores.of(score_functions(network.reference[::4], network.task, network.reference), None)
    assert exact.energy_distance_20_test < ShortNetworkScores.of(scores, particles).energy_distance_20_test


@pytest.mark.parametrize(
    ("over", "mode", "known"),
    [("weights", 0, True), ("hidden", 0, True), ("tangent", 7, True), ("tangent", 6, False), ("weights", 7, False)],
)
def test_a_message_says_what_its_posterior_is_over(over, mode, known):
    task = build("toy", 0, "collapsed-2", "simulated", 0.5)
    data = NetworkData.of(task.network, [(*task.training(), task.noise_variance)])
    k = 4 if over == "hidden" else data.k
    q = FactorisedGaussian(torch.zeros(k, dtype=torch.float64), torch.ones(k, dtype=torch.float64))
    message = Message(status="ok", posterior=posterior_file(q), over=over, mode=[0.5] * mode)
    if known:
        assert _posterior(message, data, "ffg").k == k
    else:
        with pytest.raises(RunFailed, match=f"it sent a posterior over '{over}' with {mode} numbers for the mode"):
            _posterior(message, data, "ffg")
    if over != "weights":
        with pytest.raises(RunFailed, match="which does not fit its task"):
            _posterior(message, SimpleNamespace(k=data.k), "ffg")


@pytest.mark.parametrize(
    ("changes", "valid"),
    [
        ({"a": {"ffg_floor": 0.4}}, {"b", "c"}),  # not that of the first, if others agree
        ({"a": {"ffg_floor": 0.4}, "b": {"N": 99}, "c": {"k": 6}}, {"a"}),  # a whole result, not a mixture of them
        ({"a": {"ffg_floor": 0.4, "N": 101}, "b": {"ffg_floor": 0.4, "N": 101}}, {"a", "b"}),
    ],
)
def test_the_facts_of_tasks_are_those_of_most_results(tmp_path, changes, valid):
    root = make_board(tmp_path, {name: lambda place, seed: 1.0 for name in ("a", "b", "c")}, edition(["yacht"]))
    for name, change in changes.items():
        found = read_result(path := result_path(root, "v2", name))
        first, *others = found.cells
        moved = first.model_copy(update={"task": first.task.model_copy(update=change)})
        write_result(path, found.model_copy(update={"cells": (moved, *others)}))
    assert {each.name for each in read_board(root).standings if each.stale is None} == valid


@pytest.mark.parametrize(("k", "n", "most"), [(2, 1000, 1000), (2, 1001, 1000), (1001, 1001, 1001), (1001, 1002, 1001)])
def test_particles_are_at_most_a_thousand_or_as_many_as_weights(k, n, most):
    message = Message(status="ok", posterior=posterior_file(ParticlesPosterior(torch.ones(n, k, dtype=torch.float64))))
    if n <= most:
        assert len(_posterior(message, SimpleNamespace(k=k), "particles").particles) == n
    else:
        with pytest.raises(RunFailed, match=f"it sent {n:,} particles, expected at most {most:,}"):
            _posterior(message, SimpleNamespace(k=k), "particles")


@pytest.mark.parametrize(
    ("of", "changed", "value", "why"),
    [
        (NETWORKS, "reference_sha256", "0" * 64, "its result is for other tasks or references than"),
        (NETWORKS, "sha256", "0" * 64, "its result is for other tasks or references than"),
        (edition(["yacht"]), "sha256", "0" * 64, "its result is for other tasks or references than"),
        (NETWORKS, "log_z", -20.1, "the sizes or reference scores of its tasks differ from those of most"),
        (edition(["yacht"]), "N", 101, "the sizes or reference scores of its tasks differ from those of most"),
        (edition(["yacht"]), "map_joint_predictive_kl_box", None, "the sizes or reference scores of its tasks differ"),
        (edition(["yacht"]), "ffg_floor", 0.5 * (1 + 1e-9), None),  # rounding of another processor
    ],
)
def test_results_of_other_tasks_or_references_do_not_count(tmp_path, of, changed, value, why):
    root = make_board(tmp_path, {name: lambda place, seed: 1.0 for name in ("a", "b", "c")}, of)
    path = result_path(root, "v2", "b")
    found = read_result(path)
    first, *others = found.cells
    moved = first.model_copy(update={"task": first.task.model_copy(update={changed: value})})
    write_result(path, found.model_copy(update={"cells": (moved, *others)}))
    stale = {each.name: each.stale for each in read_board(root).standings}
    assert (stale["a"], stale["c"]) == (None, None)
    assert (stale["b"] or "").startswith(why or "")
    assert (stale["b"] is None) == (why is None)


@pytest.mark.usefixtures("short_scores")
def test_kept_runs_belong_to_a_reference(tmp_path, monkeypatch):
    made = []

    def prior(each, task, seed, jail, limits):
        made.append(seed)
        q = FactorisedGaussian(torch.zeros(task.k, dtype=torch.float64), torch.ones(task.k, dtype=torch.float64))
        return Run("ok", None, 1.0, (Snapshot(1, 1.0, q),), "none")

    monkeypatch.setattr(verifying, "run_entry", prior)
    path, each, hashes = save_task(tmp_path), built_in("mean-field-vi", "ffg"), []
    for seed in (0, 0, 1):
        write_reference(path, reference := functions(400, seed), certificate(task_of(), reference))
        (cell,) = run(each, tmp_path, [FIRST], Jail(None)).cells
        assert cell.status == "ok", cell.reason
        hashes.append(cell.task.reference_sha256)
    assert len(made) == len(set(hashes)) == 2
    assert made[0] == made[1]


def test_a_method_for_linear_models_is_refused(tmp_path):
    with pytest.raises(InputError, match="uses exact, a method for linear models only, but the edition has networks"):
        run(built_in("exact", "full"), tmp_path, [FIRST], Jail(None))


def test_a_board_of_networks_leaves_out_methods_for_linear_models(tmp_path):
    root = make_board(tmp_path, {"a": None}, NETWORKS)
    write_entry(root, entry("linear", method=BuiltIn(name="exact", version="0.2.0"), settings={}))
    write_entry(root, entry("source", b"class M: ..."))
    write_entry(root, entry("masks", method=BuiltIn(name="bernoulli-dropout", version="0.2.0"), settings={}))
    write_entry(root, entry("newer", method=BuiltIn(name="not-known-here", version="9.0.0"), settings={}))
    assert [each.name for each in read_board(root).standings] == ["a", "masks", "newer", "source"]
    write_edition(root, edition([TOY, "yacht-logit-100"], protocol="network-tasks/1"))
    assert [each.name for each in read_board(root).standings] == ["a", "newer", "source"]  # no hidden units to drop


def test_entries_are_ranked_by_energy_distance_and_ties_are_two_errors(tmp_path):
    levels = {"draws": 0.0, "near": 0.1, "far": 2.0, "lost": None}
    root = make_board(tmp_path, {name: lambda place, seed, kl=kl: kl for name, kl in levels.items()}, NETWORKS)
    board = read_board(root)
    table = rank(board, "networks")
    # 0.1 / 100 is within two standard errors (0.002) of 0 on test inputs, 0.1 / 10 is not on box inputs.
    assert {line.name: line.mean_rank for line in table.lines} == {"draws": 1.25, "near": 1.75, "far": 3.0, "lost": 4.0}
    assert list(Site(board).tables) == ["networks"]
    by_name = {each.name: each for each in board.standings}
    assert comparison(board, by_name["far"], by_name["near"]).scores == table.scores
    cell = by_name["far"].cells[0]
    assert isinstance(cell.task, NetworkFacts)
    assert isinstance(cell.scores, ShortNetworkScores)


def test_the_site_of_networks_shows_what_they_have(tmp_path):
    root = make_board(tmp_path, {"a": lambda place, seed: 1.0, "b": lambda place, seed: 2.0, "new": None}, NETWORKS)
    board = read_board(root)
    files = dict(site_files(Site(board)))
    index, data = Page(files["index.html"]), Page(files[f"datasets/{TOY}.html"])
    assert "Its posterior has no closed form" in index.words
    assert "energy, box" in index.words
    for absent in ("NLPD gap", "joint KL", "variance ratio", "Bayesian linear model", "converge"):
        assert absent not in index.words + data.words, absent
    assert "log Z, nats" in data.words
    method = files["methods/a.html"].decode()
    assert "--task toy:0:collapsed-2:simulated" in method
    assert "--networks DIR" not in method
    still_open = replace(board, edition=board.edition.model_copy(update={"status": "open", "secret": None}))
    assert "--networks DIR" in dict(site_files(Site(still_open)))["methods/a.html"].decode()
