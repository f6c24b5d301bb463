"""Two Ray nodes, one of which is lost in the middle of a run: nothing else is."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from fsvi_bench.running.cell import Record
from tests.running.cells import comparable
from tests.running.clusters import TwoNodes, cluster_environment, require_namespaces
from tests.running.test_executors import until

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

SIZES = (3, 5, 8)
CELLS = 4 * 2 * len(SIZES)
GRID = ("--splits", "0-3", "--max-steps", 20, *(word for size in SIZES for word in ("--measurement-points", size)))


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    require_namespaces()
    with TwoNodes(cluster_environment(tmp_path_factory.mktemp("cache"))) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def expected(nodes, tmp_path_factory):
    """The same grid without Ray."""
    run = fsvi_bench_run(nodes, tmp_path_factory.mktemp("local"), *GRID, "--executor", "local", "--workers", 1)
    out, err = finish(run)
    assert run.returncode == 0, err
    return [Record.model_validate(record) for record in json.loads(out)]


def on_ray(nodes):
    return "--executor", "ray", "--ray-address", nodes.head


def fsvi_bench_run(nodes, out, *options):
    """What a user types on the head's machine."""
    command = [sys.executable, "-m", "fsvi_bench", "run", "--dataset", "toy", "--method", "rand-a", "--device", "cpu",
               "--wandb", "off", "--json", "--out", out, *options]  # fmt: skip
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(nodes.command(0, command), env=nodes.environment, **pipes)


def finish(run, seconds=180):
    """Its output and errors; it has to end by itself in that time."""
    try:
        return run.communicate(timeout=seconds)
    finally:
        run.kill()
        run.communicate()


def written(out):
    return len(list(out.rglob("record.json")))


def in_the_middle(nodes, run, out):
    """Waits until some cells are finished, others are not, and the second node is at one of them."""
    deadline = (
        time.monotonic() + 300
    )  # starting Ray's workers takes half a minute, and many times that on a busy machine
    while not (written(out) >= 4 and nodes.at_work(1)):
        if run.poll() is not None or time.monotonic() > deadline:
            run.kill()
            pytest.fail(
                f"{written(out)} of {CELLS} cells written, exit status {run.returncode}\n{run.communicate()[1]}"
            )
        time.sleep(0.02)


@pytest.mark.parametrize("loss", ["kill", "cut"])
def test_a_node_lost_in_the_middle_costs_nothing(nodes, expected, tmp_path, loss):
    """Every process of the node killed, or its link cut silently: the run ends by itself with the local run's records."""
    nodes.join()
    run = fsvi_bench_run(nodes, tmp_path / "out", *GRID, *on_ray(nodes))
    try:
        in_the_middle(nodes, run, tmp_path / "out")
        nodes.kill(1) if loss == "kill" else nodes.cut()
        assert written(tmp_path / "out") < CELLS
    except BaseException:
        run.kill()
        raise
    out, err = finish(run)
    assert run.returncode == 0, err
    assert "Traceback" not in err
    records = [Record.model_validate(record) for record in json.loads(out)]
    assert len(records) == written(tmp_path / "out") == CELLS
    assert [comparable(record) for record in records] == [comparable(record) for record in expected]
    assert {record.provenance["threads"] for record in records} == {1}


SEES = """
import os, sys, time
from fsvi_bench.running.executors import make_executor

executor, patience = make_executor("ray", None, sys.argv[1], 0.5), time.monotonic() + 60
while executor.on("cuda").workers > 1 and time.monotonic() < patience:
    time.sleep(0.5)  # Ray takes some seconds to notice that a node is gone
print(executor.has_gpu, executor.on("cuda").workers)
for device in ("cuda", "cpu"):
    print(*(outcome or "none" for _, outcome in executor.on(device).map(os.getenv, ["CUDA_VISIBLE_DEVICES"] * 2)))
"""


def test_calls_on_a_gpu_take_their_share_and_others_see_none(nodes):
    """One (pretended) GPU and one core on the only node that is left."""
    nodes.kill(1)
    command = nodes.command(0, [sys.executable, "-c", SEES, nodes.head])
    done = subprocess.run(command, env=nodes.environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True 1", "0 0", "none none"]


def test_a_run_without_its_head_ends_and_says_so(nodes, tmp_path):
    """The last test, since it takes the cluster away: a call that would go on for hours is not waited for."""
    run = fsvi_bench_run(nodes, tmp_path / "out", "--splits", "0-1", "--max-steps", 10**7, *on_ray(nodes))
    try:
        until(lambda: nodes.at_work(0) or run.poll() is not None, 120)
        nodes.end_head_service()
    except BaseException:
        run.kill()
        raise
    out, err = finish(run, 90)
    assert (run.returncode, out) == (1, ""), err
    # For so many seconds, or at once where it is noticed between two stages.
    assert f"fsvi-bench: the Ray cluster at {nodes.head} is lost: its head has not answered" in err
    assert "Traceback" not in err
