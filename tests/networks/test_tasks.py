"""Network tasks, references and scores: files, refusals, floors, and the command."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy.stats import norm, wasserstein_distance

import fsvi_bench
from fsvi_bench.errors import InputError, TaskRefused
from fsvi_bench.maths.networks import Network
from fsvi_bench.methods.laplace import Laplace
from fsvi_bench.methods.networks import NetworkData
from fsvi_bench.networks import comparison, scores
from fsvi_bench.networks.official import load_network
from fsvi_bench.networks.reference import (
    Agreement,
    Bidirectional,
    Certificate,
    Estimate,
    Functions,
    Quadrature,
    certificate_path,
    packed,
    read_functions,
    read_reference,
    reference_path,
    write_reference,
)
from fsvi_bench.networks.scores import score_functions
from fsvi_bench.networks.task import PLACES, NetworkTask, build, read_network_task, simulate, write_network_task
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.raw import load_raw
from fsvi_bench.tensorfile import identity

GRID = Quadrature(change=1e-9, mean_z=2.0, variance_z=2.5)

BOTH = Bidirectional(
    data_sets=20, gap=Estimate(value=0.2, error=0.05), gap_upper=0.3, lower=-30.2, upper=-29.8,
    calibration_data_sets=100, calibration_p=0.4,
)  # fmt: skip
TWO = Agreement(
    log_z_nuts=Estimate(value=-30, error=0.1), log_z_smc=Estimate(value=-30.1, error=0.1), log_z_p=0.5, r_hat=1.001, ess_bulk=5000,
    ess_tail=4500, e_bfmi=0.8, divergences=0, mmd_p=0.5,
)  # fmt: skip


def functions(S: int, seed: int, scale: float = 0.5) -> Functions:
    generator = torch.Generator().manual_seed(seed)
    return Functions(*(scale * torch.randn(S, 20, generator=generator, dtype=torch.float64) for _ in PLACES))


def certificate(task: NetworkTask, reference: Functions, **changes: object) -> Certificate:
    values = {
        "task": task.name,
        "task_sha256": task.sha256,
        "reference_sha256": identity({}, packed(reference)),
        "level": "C0",
        "log_z": Estimate(value=-30.0, error=0.0),
        "agreement": TWO,
        "quadrature": GRID,
        "settings": {},
        "versions": {},
        "seconds": 1.0,
    }
    return Certificate(**values | changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def toy() -> NetworkTask:
    return build("toy", 0, "collapsed-2", "simulated", 0.1)


@pytest.fixture
def folder(toy: NetworkTask, tmp_path: Path) -> Path:
    """A task file with a reference whose functions are independent standard normal numbers, halved."""
    path, reference = tmp_path / "0-simulated.safetensors", functions(1000, 0)
    write_network_task(path, toy)
    write_reference(path, reference, certificate(toy, reference))
    return path


def write_functions(path: Path, q: Functions, **metadata: str) -> Path:
    save_file(q.tensors, path, {"format": "fsvi-posterior/1", "kind": "function-samples", **metadata})
    return path


def test_a_task_survives_its_file(toy: NetworkTask, folder: Path) -> None:
    again = read_network_task(folder)
    assert again.sha256 == toy.sha256
    assert again.name == "toy:0:collapsed-2:simulated"
    assert (again.network.D, again.network.H) == (1, 2)


def test_inputs_are_the_splits_own(toy: NetworkTask) -> None:
    X, y = toy.training()
    rows = {tuple(row) for row in X.tolist()}
    assert all(tuple(row) in rows for row in toy.inputs_train.tolist())
    assert not any(tuple(row) in rows for row in toy.inputs_test.tolist())
    assert bool((toy.inputs_box >= X.amin(0)).all() and (toy.inputs_box <= X.amax(0)).all())
    torch.testing.assert_close(X.mean(0), torch.zeros(1, dtype=torch.float64), atol=1e-12, rtol=0)
    assert len(y) == 40


@pytest.mark.data
def test_real_targets_are_the_data_sets(toy: NetworkTask) -> None:
    task = build("yacht", 1, "collapsed-10", "real", 0.1)
    X, y = task.training()
    assert X.shape == (277, 6)
    assert float(y.mean()) == pytest.approx(0, abs=1e-12)
    assert float(y.std(correction=0)) == pytest.approx(1)
    simulated = build("yacht", 1, "collapsed-10", "simulated", 0.1)
    assert torch.equal(simulated.training().X, X)
    assert not torch.equal(simulated.training().y, y)


def test_simulated_targets_have_the_models_variance() -> None:
    """Var y(0) = E tanh²(c) + 1 + σ², over 4,000 draws of all weights and the noise."""
    x = torch.zeros(1, 1, dtype=torch.float64)
    y = torch.cat([simulate(Network(1, 2), x, 0.5, seed) for seed in range(4000)])
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    expected = (weights * np.tanh(nodes) ** 2).sum() / weights.sum() + 1 + 0.25
    assert abs(float(y.square().mean()) - expected) < 4 * float(y.square().std()) / math.sqrt(len(y))


def test_true_weights_leave_noise_alone(toy: NetworkTask) -> None:
    X, y = toy.training()
    left = (y - toy.network.values(toy.true_weights, X)).square() / toy.noise_variance
    assert abs(float(left.sum()) - len(y)) < 4 * math.sqrt(2 * len(y))  # chi-square; y itself leaves far more
    assert float(y.square().sum() / toy.noise_variance) > 2 * len(y)
    with pytest.raises(InputError, match="the targets of toy:0:collapsed-2 are the data set's, so no weights"):
        _ = build("toy", 0, "collapsed-2", "real", 0.1).true_weights


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "collapsed-0"}, "model is 'collapsed-0', expected collapsed-H"),
        ({"dataset": "tyo"}, "unknown data set 'tyo'"),
        ({"targets": "drawn"}, "'targets' is 'drawn', expected real or simulated"),
        (
            {"noise_variance": torch.tensor(1e-6, dtype=torch.float64)},
            "standard deviation 0.001, expected at least 0.01",
        ),
        ({"noise_variance": torch.tensor(0.0, dtype=torch.float64)}, "'noise_variance' contains 0, expected positive"),
        ({"inputs_box": torch.zeros(19, 1, dtype=torch.float64)}, "'inputs_box' has shape [19, 1], expected [20, 1]"),
        ({"train_index": torch.zeros(40, dtype=torch.int64)}, "distinct row numbers from 0 to 239"),
    ],
)
def test_a_broken_task_is_refused(toy: NetworkTask, tmp_path: Path, change: dict[str, object], message: str) -> None:
    metadata = toy.metadata | {name: value for name, value in change.items() if isinstance(value, str)}
    tensors = toy.tensors | {name: value for name, value in change.items() if isinstance(value, torch.Tensor)}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "t", metadata)
    with pytest.raises(InputError) as refusal:
        read_network_task(tmp_path / "t")
    assert str(refusal.value).startswith(f"{tmp_path / 't'}: ")
    assert message in str(refusal.value)


def test_a_reference_survives_its_file(toy: NetworkTask, folder: Path) -> None:
    found = load_network(folder)
    assert found.certificate.failures() == []
    assert len(found.reference) == 1000


def test_a_task_without_a_valid_certificate_is_refused(toy: NetworkTask, folder: Path) -> None:
    reference, _ = read_reference(folder, toy)
    write_reference(folder, reference, certificate(toy, reference, log_z=Estimate(value=-30, error=0.6)))
    with pytest.raises(TaskRefused, match=r"the error of log Z is 0\.6, expected at most 0\.5"):
        load_network(folder)
    write_reference(folder, reference, certificate(toy, reference, reference_sha256="0" * 64))
    with pytest.raises(InputError, match=r"belongs to the reference 000000000000\.\.\., expected"):
        load_network(folder)
    certificate_path(folder).unlink()
    with pytest.raises(InputError, match=r"copy it from the folder that the task came from$"):  # it is no official task
        load_network(folder)


@pytest.mark.parametrize(
    ("level", "name", "field", "wrong"),
    [
        *[("C0", "quadrature", *each) for each in (("change", 1e-5), ("mean_z", 5.0), ("variance_z", 5.0))],
        *[("C1", "bidirectional", *each) for each in (("gap_upper", 0.6), ("calibration_p", 0.001))],
        *[("C1", "bidirectional", *each) for each in (("lower", -25.3), ("upper", -34.7))],
        *[("C1", "bidirectional", *each) for each in (("data_sets", 19), ("calibration_data_sets", 99))],
        *[("C2", "agreement", *each) for each in (("r_hat", 1.02), ("ess_bulk", 3999.0), ("ess_tail", 3999.0))],
        *[("C0", "agreement", *each) for each in (("e_bfmi", 0.1), ("mmd_p", 0.005), ("log_z_p", 0.005))],
        *[("C2", "agreement", name, Estimate(value=-30, error=0.6)) for name in ("log_z_nuts", "log_z_smc")],
    ],
)
def test_certificates_fail_closed(toy: NetworkTask, level: str, name: str, field: str, wrong: Any) -> None:
    evidence = {"quadrature": GRID if level == "C0" else None, "bidirectional": BOTH, "agreement": TWO}
    valid = certificate(toy, functions(3, 0), level=level, **evidence)
    assert valid.failures() == []
    nan = Estimate(value=-30, error=math.nan) if isinstance(wrong, Estimate) else math.nan
    for value in (wrong, nan):
        broken = evidence[name].model_copy(update={field: value})
        assert len(valid.model_copy(update={name: broken}).failures()) == 1


def test_quadratures_log_z_is_near_that_of_smc(toy: NetworkTask) -> None:
    """That by SMC is -30.1 with an error of 0.1."""
    for value, near in ((-30.49, True), (-30.51, False), (-29.71, True), (-29.69, False), (math.nan, False)):
        found = certificate(toy, functions(3, 0), log_z=Estimate(value=value, error=0.0))
        assert (found.failures() == []) == near, value


def test_without_quadrature_log_z_is_that_of_smc(tmp_path: Path) -> None:
    task, reference = build("yacht", 0, "collapsed-2", "real", 0.1), functions(1000, 0)
    path = tmp_path / "0-real.safetensors"
    write_network_task(path, task)
    valid = certificate(task, reference, level="C2", quadrature=None, log_z=TWO.log_z_smc)
    write_reference(path, reference, valid)
    assert load_network(path).certificate == valid
    for change in ({"log_z": Estimate(value=-30.0, error=0.1)}, {"quadrature": GRID}):
        write_reference(path, reference, valid.model_copy(update=change))
        with pytest.raises(InputError, match=r"expected -30\.1, the estimate by SMC, and no quadrature; restore"):
            load_network(path)


@pytest.mark.parametrize(("level", "name"), [("C0", "quadrature"), ("C1", "bidirectional")])
def test_a_level_needs_its_evidence(toy: NetworkTask, level: str, name: str) -> None:
    evidence = {"quadrature": GRID, "bidirectional": BOTH} | {name: None}
    assert len(certificate(toy, functions(3, 0), level=level, **evidence).failures()) == 1


def test_exact_draws_score_at_the_floor_and_overconfident_ones_above(toy: NetworkTask) -> None:
    """Of N(0, ½²) at every input: the same again, and four fifths of the standard deviation."""
    reference = functions(2000, 0)
    exact = score_functions(functions(1000, 1), toy, reference).scores
    narrow = score_functions(functions(2000, 2, scale=0.4), toy, reference).scores
    p, q = 0.25 + 0.01, 0.16 + 0.01  # variances of the predictives
    expected = {"predictive_kl": 0.5 * (p / q - 1 - np.log(p / q)), "w2": 0.1, "w1": 0.1 * np.sqrt(2 / np.pi)}
    for name, score in exact.items():
        if name == "nlpd" or name.startswith("variance_ranks"):
            continue
        assert abs(score.value - score.floor) < 4 * np.hypot(score.error, score.floor_error), name
        if not name.startswith(("energy_distance_1_", "mmd2_1_")):  # one input shows little
            assert narrow[name].value > narrow[name].floor + 4 * narrow[name].error, name
    for name, value in expected.items():
        for place in PLACES:
            found = narrow[f"{name}_{place}"]
            # Finite sets add their floor to distances. A finite mixture has thin tails, which adds to its KL.
            most = np.hypot(value, found.floor) + (0.04 if name == "predictive_kl" else 0)
            assert value - 4 * found.error < found.value < most + 4 * found.error, name


def test_nlpd_is_of_the_mean_density_in_the_targets_unit(toy: NetworkTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "JOINT_DRAWS", 200)  # which take longest, and are no part of it
    q = functions(500, 3)
    found = score_functions(q, toy, functions(1000, 0)).scores["nlpd"]
    y, sigma = toy.targets_test.numpy(), float(toy.noise_variance) ** 0.5
    density = norm.pdf(y, q.f_test.numpy(), sigma) / load_raw(load_card("toy"), 0).y[toy.train_index].std()

    def nlpd(of: np.ndarray) -> float:
        return float(-np.log(of.mean(0)).mean())

    assert found.value == pytest.approx(nlpd(density), rel=1e-12)
    generator = np.random.default_rng(0)
    resampled = [nlpd(density[generator.integers(500, size=500)]) for _ in range(400)]
    assert found.error == pytest.approx(np.std(resampled), rel=0.15)  # the bootstrap's own error is 4%


@pytest.mark.parametrize(
    ("n", "size", "sets"),
    [(5, 5, 8), (100, 103, 7), (1000, 1333, 1), (1333, 1999, 1), (2000, 2000, 1), (9999, 2000, 1)],
)
def test_floors_compare_disjoint_sets_of_one_half(n: int, size: int, sets: int) -> None:
    """With as large a sum of inverse sizes as q and the reference have: nS/(S − n) and S/2, where S/2 suffices."""
    found = scores.floor_sets(4000, n)
    assert {len(each) for each in found} == {size}
    assert len(found) == sets
    drawn = torch.cat(found)
    assert len(drawn.unique()) == len(drawn)
    assert int(drawn.max()) < 2000
    if n <= 1333:
        assert 1 / size + 1 / 2000 == pytest.approx(1 / n + 1 / 4000, rel=0.5 / n)


def test_finite_sets_are_as_far_apart_as_the_sum_of_their_inverse_sizes_says() -> None:
    """SciPy's W₁ of two samples of N(0, 1), and the KL of two sample means: q of 100 against a reference of 400 scores as
    the floor's 133 against 200, and lower than 100 against 200."""
    generator = np.random.default_rng(0)
    size = len(scores.floor_sets(400, 100)[0])
    pairs, repeats = {"scored": (100, 400), "floor": (size, 200), "halves": (100, 200)}, 4000

    def mean_of(distance: Any, *sizes: int) -> tuple[float, float]:
        found = [distance(*(generator.standard_normal(each) for each in sizes)) for _ in range(repeats)]
        return float(np.mean(found)), float(np.std(found)) / repeats**0.5

    for distance in (wasserstein_distance, lambda a, b: 0.5 * (a.mean() - b.mean()) ** 2):
        means = {name: mean_of(distance, *sizes) for name, sizes in pairs.items()}
        difference = means["floor"][0] - means["scored"][0], np.hypot(means["floor"][1], means["scored"][1])
        too_high = means["halves"][0] - means["scored"][0], np.hypot(means["halves"][1], means["scored"][1])
        assert abs(difference[0]) < 3 * difference[1]
        assert too_high[0] > 3 * too_high[1]


@pytest.mark.usefixtures("short_scores")
def test_a_file_scores_as_its_functions(toy: NetworkTask, folder: Path, tmp_path: Path, cli) -> None:
    q = functions(50, 3)
    file = write_functions(tmp_path / "q.safetensors", q, task_sha256=toy.sha256)
    status, out, _ = cli("score", "--task", folder, "--posterior", file, "--json")
    printed = json.loads(out)
    expected = score_functions(q, toy, load_network(folder).reference)
    assert status == 0
    assert printed == json.loads(expected.model_dump_json())
    status, out, _ = cli("score", "--task", folder, "--posterior", file)
    assert status == 0
    assert "predictive_kl_box" in out
    assert "floor" in out


def test_networks_are_problems_in_lists_of_three_parts(toy: NetworkTask) -> None:
    for wrong in ([toy.training()], (*toy.training(), toy.noise_variance), [(*toy.training(), toy.noise_variance, 0)]):
        with pytest.raises(InputError, match=r"give \[\(\*task.training\(\), task.noise_variance\)\]"):
            NetworkData.of(toy.network, wrong)
    data = NetworkData.of(toy.network, [(*toy.training(), toy.noise_variance)])
    with pytest.raises(InputError, match=r"Laplace has no steps to train; call posterior\(\), or functions\(\)"):
        Laplace(data).configure_optimizers()


def test_functions_of_a_network_are_refused_on_linear_tasks(
    folder: Path, toy: NetworkTask, tmp_path: Path, cli
) -> None:
    task = fsvi_bench.load_task("yacht:0")
    with pytest.raises(InputError, match="functions at a network's inputs, expected those of a linear task"):
        fsvi_bench.score(dict(functions(50, 3).tensors), task)
    with pytest.raises(InputError, match="methods take networks as NetworkData"):
        Laplace(load_network(folder))  # type: ignore[arg-type]
    file = write_functions(tmp_path / "q.safetensors", functions(50, 3))
    _, _, err = cli("score", "--task", "yacht:0", "--posterior", file)
    assert "its functions are at a network's inputs" in err
    official = load_network("toy:0:collapsed-2:simulated")
    file = write_functions(tmp_path / "q.safetensors", functions(50, 3), task_sha256=official.sha256)
    _, _, err = cli("score", "--task", "yacht:0", "--posterior", file)
    assert "belongs to toy:0:collapsed-2:simulated, but --task is yacht:0" in " ".join(err.split())


def test_a_network_says_what_it_is_and_where_it_does_not_belong(toy: NetworkTask, folder: Path) -> None:
    network = load_network(folder)
    assert repr(network).startswith("CertifiedNetwork('toy:0:collapsed-2:simulated', C0, log Z = ")
    assert repr(toy) == f"CollapsedTask('toy:0:collapsed-2:simulated', N={len(toy.train_index)}, sigma=0.1)"
    with pytest.raises(InputError, match="toy:0:collapsed-2:simulated without its reference"):
        fsvi_bench.score(dict(functions(50, 3).tensors), toy)  # type: ignore[arg-type]
    for of in (network, toy):
        with pytest.raises(InputError, match="run --task toy:0:collapsed-2:simulated`"):
            fsvi_bench.fit("ensemble", of)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "metadata", "message"),
    [
        (lambda q: {**q, "f_box": q["f_box"][:, :19]}, {}, "'f_box' has shape [50, 19], expected [S, 20]"),
        (lambda q: {**q, "f_box": q["f_box"][:49]}, {}, "'f_box' has shape [49, 20], expected [50, 20]"),
        (lambda q: {name: f[:2] for name, f in q.items()}, {}, ": 2 functions, expected 3 or more"),
        (lambda q: {name: f[:1] for name, f in q.items()}, {}, ": 1 function, expected 3 or more"),
        (lambda q: {**q, "f_test": q["f_test"] * torch.nan}, {}, "'f_test' contains NaN or infinity at [0, 0]"),
        (lambda q: {name: f * 1e80 for name, f in q.items()}, {}, "function values reach"),
        (lambda q: {"f_test": q["f_test"], "f_box": q["f_box"]}, {}, "tensor 'f_train' is missing"),
        (lambda q: {name: f.float() for name, f in q.items()}, {}, "has type float32, expected float64"),
        (lambda q: q, {"task_sha256": "0" * 64}, "it belongs to task '000000000000', expected"),
        (lambda q: q, {"kind": "particles"}, "kind is 'particles', but a network task compares functions"),
    ],
)
def test_functions_that_do_not_fit_are_refused(folder: Path, tmp_path: Path, cli, change, metadata, message) -> None:
    tensors = {name: f.contiguous() for name, f in change(functions(50, 3).tensors).items()}
    save_file(tensors, tmp_path / "q", {"format": "fsvi-posterior/1", "kind": "function-samples"} | metadata)
    status, out, err = cli("score", "--task", folder, "--posterior", tmp_path / "q")
    assert (status, out) == (2, "")
    assert message in err.replace("\n", " ")


def test_an_unknown_name_is_refused(cli, tmp_path: Path) -> None:
    status, _, err = cli("score", "--task", "toy:0:collapsed-3", "--posterior", tmp_path / "q")
    assert status == 2
    assert "there is no network task 'toy:0:collapsed-3'; " in err
    assert "`fsvi-bench networks list`" in err
    _, _, err = cli("score", "--task", "toy:0:collapsed-2", "--posterior", tmp_path / "q")
    assert "did you mean 'toy:0:collapsed-2:simulated'?" in err


@pytest.mark.usefixtures("short_scores")
def test_few_functions_have_errors(toy: NetworkTask) -> None:
    found = score_functions(functions(3, 4), toy, functions(400, 0)).scores
    assert all(np.isfinite(score.error) for score in found.values())
    one = Functions(*(tensor[:1].expand(5, -1) for tensor in functions(3, 4).tensors.values()))
    assert score_functions(one, toy, functions(400, 0)).scores["variance_ranks_box"].value is None


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: f * torch.nan, "contains NaN"),
        (lambda f: f * 1e6, "expected at least 100 below 10000σ"),
        (lambda f: f[:3], "it has 3 functions"),
    ],
)
def test_a_spoilt_reference_is_refused(toy: NetworkTask, folder: Path, spoil, message: str) -> None:
    reference, _ = read_reference(folder, toy)
    broken = Functions(*(spoil(tensor) for tensor in reference.tensors.values()))
    text = certificate(toy, broken).model_dump_json()
    save_file(packed(broken), reference_path(folder), {"format": "fsvi-network-reference/1", "task_sha256": toy.sha256})
    certificate_path(folder).write_text(text)
    with pytest.raises(InputError, match=message):
        load_network(folder)


def test_a_reference_is_rounded_to_steps_of_its_range(toy: NetworkTask, folder: Path) -> None:
    before = functions(1000, 5)
    before.f_box[:, 3] = 0.25  # all equal
    write_reference(folder, before, certificate(toy, before))
    after = load_network(folder).reference
    for place in PLACES:
        range_ = before.at(place).amax(0) - before.at(place).amin(0)
        assert bool(((after.at(place) - before.at(place)).abs() <= range_ / 255 / 2 * (1 + 1e-9)).all())
        assert bool((range_ / 255 < 0.04 * before.at(place).std(0)).logical_or(range_ == 0).all())
    assert after.f_box[:, 3].unique().tolist() == [0.25]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"f_test": torch.zeros(1000, 7, dtype=torch.uint8)}, "'f_test' has shape .1000, 7., expected .1000, 20."),
        ({"f_test": torch.zeros((), dtype=torch.uint8)}, "'f_test' has shape .., expected .20."),
        ({"f_test": torch.zeros(999, 20, dtype=torch.uint8)}, "'f_test' has shape .999, 20., expected .1000, 20."),
        ({f"f_{place}": torch.zeros(0, 20, dtype=torch.uint8) for place in PLACES}, "it has 0 functions"),
        ({"f_test": torch.zeros(1000, 20)}, "'f_test' has type float32, expected uint8"),
        ({"f_box_step": torch.zeros(7, dtype=torch.float64)}, "'f_box_step' has shape .7., expected .20."),
        ({"f_box_low": torch.full((20,), torch.inf, dtype=torch.float64)}, "'f_box_low' contains NaN or infinity"),
    ],
)
def test_tensors_of_other_shapes_are_no_reference(toy: NetworkTask, folder: Path, change, message: str) -> None:
    tensors = packed(functions(1000, 0)) | change
    save_file(tensors, reference_path(folder), {"format": "fsvi-network-reference/1", "task_sha256": toy.sha256})
    with pytest.raises(InputError, match=message):
        load_network(folder)


def test_a_certificate_is_of_its_task(toy: NetworkTask, folder: Path) -> None:
    reference, _ = read_reference(folder, toy)
    for change in ({"task": "yacht:9:other"}, {"level": "C2"}):
        write_reference(folder, reference, certificate(toy, reference).model_copy(update=change))
        with pytest.raises(InputError, match="expected toy:0:collapsed-2:simulated at C0"):
            load_network(folder)


def test_the_floor_is_that_of_as_many_draws(toy: NetworkTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty exact draws: their W₂ is far above that of 2,000, and at its floor."""
    monkeypatch.setattr(comparison, "JOINT_DRAWS", 200)  # of scores that are not looked at
    reference = functions(4000, 0)
    few = score_functions(functions(20, 5), toy, reference).scores["w2_test"]
    many = score_functions(functions(2000, 6), toy, reference).scores["w2_test"]
    assert few.value > 3 * many.value
    assert abs(few.value - few.floor) < 4 * np.hypot(few.error, few.floor_error)


def test_the_floor_of_few_draws_is_the_mean_of_many_sets(toy: NetworkTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five draws: the mean over 100 sets that are not the reference's, within the floor's error."""
    monkeypatch.setattr(comparison, "JOINT_DRAWS", 200)  # of scores that are not looked at
    reference, others = functions(4000, 0), functions(500, 7)
    found = score_functions(functions(5, 5), toy, reference).scores
    for name, distance in (("w2_box", 1), ("w1_box", 0)):
        values = [
            comparison.wasserstein_distances(
                comparison.Groups.split(others[first : first + 5].f_box),
                comparison.Groups.split(reference.f_box[2000:]),
            )[distance].value
            for first in range(0, 500, 5)
        ]
        error = np.hypot(found[name].floor_error, np.std(values) / np.sqrt(100))
        assert abs(found[name].floor - np.mean(values)) < 4 * error, name
        assert 0.2 < found[name].floor_error / np.std(values) < 0.7, name  # of 8 sets
    for name in ("energy_distance_20_box", "mmd2_20_box"):  # unbiased: of every second draw of both halves
        assert abs(found[name].floor) < 4 * found[name].floor_error < 0.1 * found[name].error, name


@pytest.mark.parametrize(("count", "size"), [(1001, 1335), (1999, 2000)])
def test_the_floor_of_many_draws_is_of_one_set(
    toy: NetworkTask, monkeypatch: pytest.MonkeyPatch, count: int, size: int
) -> None:
    """Of draws that are evenly spaced over half the reference."""
    monkeypatch.setattr(comparison, "JOINT_DRAWS", 200)  # of scores that are not looked at
    reference = functions(4000, 0)
    even = reference.f_box[[place * 2000 // size for place in range(size)]]
    expected = comparison.wasserstein_distances(
        comparison.Groups.split(even), comparison.Groups.split(reference.f_box[2000:])
    )
    found = score_functions(functions(count, 5), toy, reference).scores
    assert [found["w1_box"].floor, found["w2_box"].floor] == [each.value for each in expected]
    assert found["w2_box"].floor_error == pytest.approx(expected[1].error, rel=1e-12)


def test_only_the_sets_part_of_an_error_averages_out() -> None:
    """Of two sets of half as many draws as there are others, whose part of the variance is a third of 0.03."""
    found = scores._mean([comparison.Estimate(1.0, 0.03**0.5)] * 2, 0.5)
    assert found.value == 1.0
    assert found.error == pytest.approx((0.02 / 2 + 0.01) ** 0.5, rel=1e-12)


def test_reading_needs_no_reference(folder: Path, toy: NetworkTask, tmp_path: Path) -> None:
    reference_path(folder).unlink()
    file = write_functions(tmp_path / "q.safetensors", functions(50, 3))
    assert len(read_functions(file, toy)) == 50
