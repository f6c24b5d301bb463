"""A user's own Lightning: what is trained is the module's, a run has a curve, and goes on where a checkpoint was."""

import pytest
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from fsvi_bench.conformance.subject import toy_problems
from fsvi_bench.errors import InputError
from fsvi_bench.methods import functional
from fsvi_bench.methods.rand_a import RandA
from fsvi_bench.methods.rand_a_ngd import RandANgd
from fsvi_bench.methods.registry import load_method
from fsvi_bench.methods.ssge import Ssge
from tests.methods.table import TABLE, label
from tests.training import Recorder, trained

STEPS, CUT = 30, 10

#: (method, family, settings): batches, streams of its own, an average, a schedule, an optimiser with a line search.
RESUMED = [
    ("rand-a", "full", {"M": 10, "minibatch": "full"}),
    ("rand-a", "full", {"M": 10, "minibatch": 7}),
    ("rand-a", "ffg", {"M": 15, "minibatch": 7, "averaging": 0.75, "lr_schedule": "cosine"}),
    ("ssge", "full", {"M": 10, "minibatch": 7, "S": 12, "prior_score": "ssge", "injected_noise": 0.01}),
    ("mean-field-vi", "ffg", {"minibatch": 7, "S": 3}),
    ("concrete-dropout", "bernoulli", {"minibatch": 7}),
    ("bernoulli-dropout", "bernoulli", {"minibatch": 7, "training": "masks"}),
    ("variational-dropout", "ffg", {"minibatch": 7}),
    ("rand-a-ngd", "full", {"M": 10, "averaging": 0.75}),
    ("rand-a-ngd", "ffg", {"M": 10, "averaging": 0.75}),
    ("fixed-a", "full", {"M": 10}),
    ("fixed-a", "ffg", {"M": 30}),
    ("fixed-a", "ffg", {"M": 10, "optimizer": "adam", "minibatch": 7}),
]


def make(name, family, settings, steps=STEPS):
    entry = load_method(name)
    options = entry.options({"max_steps": steps, **settings})
    return entry.cls(toy_problems(2), family, [3, 4], options)


def fitted(method, folder, ckpt_path=None, every=CUT):
    """By a Trainer with a logger and checkpoints, as a user writes it."""
    checkpoints = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=every, save_top_k=-1)
    settings = {"logger": Recorder(), "log_every_n_steps": 10, "enable_checkpointing": True}
    return trained(method, checkpoints, ckpt_path=ckpt_path, **settings)


def same(one, other):
    pairs = zip(one.tensors().values(), other.tensors().values(), strict=True)
    return all(torch.equal(mine, theirs) for mine, theirs in pairs)


def test_a_users_own_trainer_logs_a_curve_of_the_loss(tmp_path):
    task = toy_problems(1)[0]
    method = RandA([task] * 2, "full", [0, 1], max_steps=120, M=10)
    trainer = fitted(method, tmp_path, every=40)
    curve = [(step, metrics["loss"]) for step, metrics in trainer.logger.seen if "loss" in metrics]
    assert [step for step, _ in curve] == list(range(9, 120, 10))
    assert curve[-1][1] < 0.2 * curve[0][1]
    assert trainer.global_step == method.steps_done == 120
    assert len(list(tmp_path.glob("*.ckpt"))) == 3


@pytest.mark.parametrize(("name", "family", "settings"), RESUMED, ids=label)
def test_what_goes_on_from_a_checkpoint_ends_bitwise_where_the_whole_run_ends(tmp_path, name, family, settings):
    """A new module, a new data module, from step 10 of 30 on."""
    whole, resumed = make(name, family, settings), make(name, family, settings)
    fitted(whole, tmp_path)
    trainer = fitted(resumed, tmp_path / "again", checkpoint_at(tmp_path, CUT))
    assert resumed.steps_done == whole.steps_done
    assert same(resumed.posterior(), whole.posterior())
    assert resumed.stopped_after() == whole.stopped_after()
    assert resumed.details() == whole.details()
    assert resumed.work() == whole.work()
    # It did not begin anew.
    assert all(step is None or step >= CUT for step, _ in trainer.logger.seen)


def checkpoint_at(folder, steps):
    """By the method's own count: Lightning counts the steps of each problem's optimiser where there are several."""
    states = {path: torch.load(path, weights_only=True)["state_dict"] for path in folder.glob("*.ckpt")}
    (found,) = (path for path, state in states.items() if state["_extra_state"]["steps_done"] == steps)
    return str(found)


@pytest.mark.parametrize("cut", [1, 8, 13])
def test_a_checkpoint_may_lie_anywhere_in_a_chunk_of_batches(tmp_path, cut):
    settings = {"M": 10, "minibatch": 7}
    whole, resumed = (make("rand-a", "full", settings, steps=27) for _ in range(2))
    fitted(whole, tmp_path, every=cut)
    fitted(resumed, tmp_path / "again", checkpoint_at(tmp_path, cut))
    assert same(resumed.posterior(), whole.posterior())


@pytest.mark.parametrize("name", ["rand-a", "rand-a-ngd"])
def test_a_run_that_the_trainers_own_max_steps_cut_goes_on_from_its_checkpoint(tmp_path, name):
    """Lightning calls its epoch done, so that one more of `max_epochs=1` would do nothing without a word."""
    whole, begun, resumed = (make(name, "full", {"M": 10}, steps=27) for _ in range(3))
    fitted(whole, tmp_path)
    trained(begun, max_steps=11).save_checkpoint(tmp_path / "cut.ckpt")
    assert begun.steps_done == 11
    fitted(resumed, tmp_path / "again", tmp_path / "cut.ckpt")
    assert same(resumed.posterior(), whole.posterior())


def test_a_checkpoint_of_weights_alone_gives_the_posterior_back(tmp_path):
    begun = make("rand-a", "full", {"M": 10}, steps=27)
    trained(begun, max_steps=11).save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    settings = begun.options.model_dump()
    loaded = RandA.load_from_checkpoint(tmp_path / "weights.ckpt", tasks=toy_problems(2), **settings)
    assert same(loaded.posterior(), begun.posterior())


def test_printing_the_data_consumes_no_step():
    data = make("rand-a", "full", {"M": 10}, steps=3).data()
    assert str(data) == "TaskData(2 problems, step 0 of 3)"
    assert len(list(data.train_dataloader())) == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda losses: losses.mean(),
            r"loss has shape \[\], expected \[2\]: one number for each problem; reduce all other axes only",
        ),
        (
            lambda losses: losses[:, None] * losses,
            r"loss has shape \[2, 2\], expected \[2\]: one number for each problem",
        ),
        (lambda losses: None, r"loss returned NoneType, expected a tensor of shape \[2\]: one number for each problem"),
        (lambda losses: losses.float(), "loss has type float32, expected float64; compute it in float64"),
        (lambda losses: losses.detach(), "loss does not depend on the parameters of q; compute it from q"),
    ],
)
def test_what_is_no_loss_is_refused(change, said):
    class Other(RandA):
        def loss(self, q, batch):
            return change(super().loss(q, batch))

    with pytest.raises(InputError, match=said):
        trained(Other(toy_problems(2), "full", M=10, max_steps=2))


@pytest.mark.parametrize(("row", "settings"), [(r, r.variants[0]) for r in TABLE if r.trains], ids=label)
def test_what_is_trained_is_the_modules_and_its_state_is_the_posterior(row, settings, tmp_path):
    """Of every method that trains; the state comes from a checkpoint's file."""
    method = make(row.method, row.family, settings, steps=20)
    assert list(method.parameters())
    assert method.state_dict()
    before = {name: value.clone() for name, value in method.named_parameters()}
    fitted(method, tmp_path, every=20)
    assert any(not torch.equal(value, before[name]) for name, value in method.named_parameters())
    other = make(row.method, row.family, settings, steps=20)
    assert not same(other.posterior(), method.posterior())
    other.load_state_dict(torch.load(checkpoint_at(tmp_path, 20), weights_only=True)["state_dict"])
    assert same(other.posterior(), method.posterior())
    assert other.steps_done == method.steps_done
    assert other.work() == method.work()


def test_natural_gradients_log_the_objective():
    """What is logged after a step is its loss: q's value on that step's own set, not a stand-in."""
    method = RandANgd(toy_problems(1), "full", [0], max_steps=4, M=10, averaging=0.0)
    trainer = trained(method, logger=Recorder(), log_every_n_steps=2)
    batches = list(method.data().train_dataloader())
    with torch.no_grad():
        expected = float(method.loss(method.q(), batches[-1])[0])
    assert float(trainer.logged_metrics["loss"]) == pytest.approx(expected, rel=1e-12)


def test_ssge_logs_the_objective(tmp_path):
    """In closed form at the q and the set of the logged step, not the surrogate that it descends."""
    settings = {"M": 10, "minibatch": 7, "S": 12, "lr_schedule": "constant", "averaging": 0}
    before, method = (make("ssge", "full", settings, steps) for steps in (9, 10))
    fitted(before, tmp_path / "before")
    trainer = fitted(method, tmp_path / "logged")
    batch = list(method.data().train_dataloader())[9]
    before.eval()
    with torch.no_grad():
        expected = float(before.loss(before.q(), batch).mean())
    assert float(trainer.logged_metrics["loss"]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gradient_clip_val": 1.0}, "gradient_clip_val=1.0, which clips one norm over 2 problems"),
        ({"accumulate_grad_batches": 4}, "accumulate_grad_batches=4, expected 1"),
        ({"precision": "bf16-mixed"}, "precision='bf16-mixed', but tasks are float64"),
    ],
)
def test_a_trainer_that_would_couple_problems_or_skip_steps_is_refused(settings, message):
    method = make("rand-a", "full", {"M": 10}, steps=2)
    with pytest.raises(InputError, match=message) as caught:
        trained(method, **settings)
    assert "\n" not in str(caught.value)
    assert method.steps_done == 0


@pytest.mark.parametrize(("count", "algorithm"), [(1, "norm"), (2, "value")])
def test_clipping_that_couples_nothing_is_taken(count, algorithm):
    method = RandA(toy_problems(count), "full", M=10, max_steps=2)
    trained(method, gradient_clip_val=1.0, gradient_clip_algorithm=algorithm)
    assert method.steps_done == 2


@pytest.mark.parametrize(
    ("name", "settings"),
    [("rand-a", {"averaging": 0.5}), ("rand-a-ngd", {}), ("fixed-a", {}), ("fixed-a", {"optimizer": "adam"})],
    ids=label,
)
def test_a_finished_run_that_is_fitted_again_stays_as_it_is(name, settings):
    method = make(name, "full", {"M": 10, **settings}, steps=5)
    trained(method)
    ended = method.posterior()
    trained(method)
    assert method.steps_done == 5
    assert same(method.posterior(), ended)


def test_an_optimum_is_found_once_for_all_seeds_of_a_task(monkeypatch, tmp_path):
    monkeypatch.setenv("FSVI_BENCH_CACHE", str(tmp_path))
    asked, found = [], functional.Optimum(1.0, 2.0)
    monkeypatch.setattr(
        functional, "_reference", lambda _, places, tasks: asked.append(places) or [found] * len(places)
    )
    (task,) = toy_problems(1)
    assert list(RandA([task] * 3, "full", [0, 1, 2], M=10).optima([task] * 3)) == [found] * 3
    assert list(Ssge([task], "full", [0], M=10).optima([task])) == [found]
    assert [len(places) for places in asked] == [1]
