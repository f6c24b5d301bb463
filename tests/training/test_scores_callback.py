"""`Scores` in a Trainer of the user's own: what it logs, when, and that training does not notice."""

import math

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from fsvi_bench import BernoulliDropout, InputError, RandA, RandANgd, Scores, score
from fsvi_bench.tasks.task import Task
from tests.training import Recorder, trained


def scored(logger):
    return {step: metrics for step, metrics in logger.seen if "kl" in metrics}


def test_kl_and_nlpd_at_the_start_on_the_way_and_at_the_end(toy):
    logger, method = Recorder(), RandA(toy, "ffg", max_steps=25, M=10)
    trainer = trained(method, Scores(toy, every=10), logger=logger, log_every_n_steps=5)
    found = scored(logger)
    assert list(found) == [0, 10, 20, 25]
    assert all(set(metrics) == {"kl", "nlpd"} for metrics in found.values())
    final = score(method.posterior()[0], toy)
    assert found[25] == {"kl": final["kl"], "nlpd": final["nlpd"]}
    assert trainer.callback_metrics["kl"] == final["kl"]
    assert any("loss" in metrics for _, metrics in logger.seen)


def test_several_problems_have_a_mean_and_their_own(toy):
    logger, method = Recorder(), RandANgd([toy, toy, toy], seeds=[4, 5, 6], max_steps=6, M=10)
    trained(method, Scores([toy] * 3, every=3), logger=logger)
    found = scored(logger)
    assert list(found) == [0, 3, 6]
    for place, q in enumerate(method.posterior()[each] for each in range(3)):
        assert found[6][f"kl/{place}"] == pytest.approx(score(q, toy)["kl"], rel=1e-12)
    own = [found[6][f"kl/{place}"] for place in range(3)]
    assert found[6]["kl"] == pytest.approx(sum(own) / 3)
    assert len(set(own)) == 3
    assert set(found[3]) == {f"{name}{end}" for name in ("kl", "nlpd") for end in ("", "/0", "/1", "/2")}


def test_scoring_does_not_affect_training(toy):
    watched, alone = (RandA(toy, "full", max_steps=12, M=10) for _ in range(2))
    trained(watched, Scores(toy, every=1), logger=Recorder())
    trained(alone)
    assert torch.equal(watched.posterior().scale_tril, alone.posterior().scale_tril)


def test_a_posterior_without_a_density_has_an_infinite_kl(toy):
    logger = Recorder()
    trained(BernoulliDropout(toy, training="masks", max_steps=4), Scores(toy, every=2), logger=logger)
    found = scored(logger)
    assert [metrics["kl"] for metrics in found.values()] == [math.inf] * 3
    assert all(math.isfinite(metrics["nlpd"]) for metrics in found.values())


def test_a_checkpoint_can_follow_it(toy, tmp_path):
    logger, best = Recorder(), ModelCheckpoint(tmp_path, monitor="kl", every_n_train_steps=5)
    trained(RandA(toy, "ffg", max_steps=20, M=10), Scores(toy, every=5), best, logger=logger, enable_checkpointing=True)
    assert best.best_model_score == min(metrics["kl"] for step, metrics in scored(logger).items() if step)


def test_without_a_logger_it_keeps_the_metrics(toy):
    assert "nlpd" in trained(RandA(toy, "ffg", max_steps=3, M=10), Scores(toy)).callback_metrics


@pytest.mark.parametrize("wrong", ["another task", "too many"])
def test_tasks_that_are_not_the_methods_are_refused(toy, wrong):
    other = Task(toy.frozen, toy.feature_map, toy.X, toy.y + 1, toy.X_test, toy.y_test)
    tasks = {"another task": [other], "too many": [toy, toy]}[wrong]
    with pytest.raises(InputError, match="expected the method's 1 tasks in the same order"):
        trained(RandA(toy, "ffg", max_steps=3, M=10), Scores(tasks))


def test_what_is_no_method_is_refused(toy):
    class Other(pl.LightningModule):
        def training_step(self, batch, batch_idx):
            return None

        def configure_optimizers(self):
            return None

        def data(self):
            return pl.LightningDataModule.from_datasets(torch.utils.data.TensorDataset(torch.zeros(1)))

    with pytest.raises(InputError, match="Scores got a Other, expected a Method of fsvi-bench"):
        trained(Other(), Scores(toy))


@pytest.mark.parametrize("accelerator", ["cpu", *(["gpu"] if torch.cuda.is_available() else [])])
def test_scores_are_the_cpus_on_every_device(toy, accelerator):
    found = {}
    for place in ("cpu", accelerator):
        logger = Recorder()
        trained(RandA(toy, "full", max_steps=20, M=10), Scores(toy, every=10), logger=logger, accelerator=place)
        found[place] = scored(logger)
    for step, metrics in found[accelerator].items():
        assert metrics == pytest.approx(found["cpu"][step], rel=1e-6)
