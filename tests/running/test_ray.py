"""Work on a Ray cluster of this machine: what `LocalExecutor` promises, and what only a cluster can do wrong."""

from __future__ import annotations

import importlib
import os
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

import fsvi_bench
from fsvi_bench.errors import InputError, WorkersLost
from fsvi_bench.running import ray_cluster
from fsvi_bench.running.executors import make_executor
from fsvi_bench.running.plan import Request
from fsvi_bench.running.ray_cluster import RayExecutor
from fsvi_bench.training.trainer import choose_device
from tests.running.cells import comparable, execute, posteriors
from tests.running.clusters import ROOT, require_ray
from tests.running.test_executors import is_running, until, waits_for_ever, work

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


def waits_after_the_first(argument):
    return argument if isinstance(argument, int) else waits_for_ever(argument)


def test_a_local_cluster_listens_on_loopback(ray_executor):
    assert (ray_executor.workers, ray_executor.has_gpu) == (2, False)
    assert ray_executor.address.startswith("127.0.0.")


def test_an_early_end_stops_running_calls(ray_executor, tmp_path):
    """As Ctrl-C does: the generator is closed while a call is under way."""
    outcomes = ray_executor.map(waits_after_the_first, [tmp_path / "process", 1])
    assert next(outcomes) == (1, 1)
    until(lambda: (tmp_path / "process").is_file() and (tmp_path / "process").read_text())
    process = int((tmp_path / "process").read_text().split()[0])
    assert is_running(process)
    outcomes.close()
    until(lambda: not is_running(process))
    assert list(ray_executor.map(work, [1])) == [(1, 2)]


def test_a_node_with_other_sources_takes_no_part(ray_executor, monkeypatch):
    """Its results would carry this version's code hash."""
    monkeypatch.setattr(ray_cluster, "package_sha256", lambda: "another")
    with pytest.raises(InputError, match="has a different version of fsvi-bench"):
        list(ray_executor.map(work, [1]))


def test_a_run_is_the_local_one(ray_executor, tmp_path, monkeypatch):
    """Records and posteriors, though the workers' cache is another than the driver's: tasks come back to it."""
    request = Request(datasets=["toy"], splits="0-2", methods=["exact", "rand-a"], measurement_points=[5], max_steps=20)
    local = execute(tmp_path / "local", request)
    monkeypatch.setenv("FSVI_BENCH_CACHE", str(tmp_path / "cache"))
    result = execute(tmp_path / "ray", request, executor=ray_executor)
    assert len(result.records) == 12
    assert [comparable(record) for record in result.records] == [comparable(record) for record in local.records]
    assert posteriors(tmp_path / "ray") == posteriors(tmp_path / "local")
    assert len(posteriors(tmp_path / "ray")) == 12
    assert len(list((tmp_path / "cache").rglob("*.safetensors"))) == 3
    again = execute(tmp_path / "ray", request, executor=ray_executor)
    assert (again.computed, again.records) == ([], result.records)


def test_a_second_cluster_in_one_process_is_refused(ray_executor):
    with pytest.raises(InputError, match="already connected to a Ray cluster"):
        make_executor("ray", 2)


NODES = [
    {"Alive": True, "Resources": {"CPU": 4.0}},
    {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 2.0}},
    {"Alive": True, "Resources": {"CPU": 1.0, "GPU": 8.0}},
    {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    {"Alive": True, "Resources": {"memory": 1.0}},
]


@pytest.mark.parametrize(
    ("device", "share", "limit", "workers"),
    [("cpu", None, None, 9), ("cpu", 0.5, 3, 3), ("cuda", None, None, 3), ("cuda", 0.5, None, 5), ("cuda", 0.3, None, 5),
     ("cuda", 0.7, None, 3), ("cuda", 0.1, None, 5), ("cuda", 0.5, 1, 1)],
)  # fmt: skip
def test_room_is_counted_in_cores_and_shares_of_gpus(monkeypatch, device, share, limit, workers):
    """A call takes a core, and on a GPU its share of a single one; dead nodes have no room."""
    require_ray()
    monkeypatch.setattr(importlib.import_module("ray"), "nodes", lambda: NODES)
    monkeypatch.setattr(ray_cluster, "_listens", lambda _: True)
    executor = RayExecutor("head:1", limit, share).on(device)
    assert executor.workers == workers
    assert executor.has_gpu
    assert choose_device("auto", executor.has_gpu) == "cuda"


def test_a_cluster_that_cannot_take_a_run_is_left_and_its_own_flags_keep_their_names(monkeypatch):
    require_ray()
    closed = []
    monkeypatch.setattr(ray_cluster, "_join", lambda address, workers: "head:1")
    monkeypatch.setattr(RayExecutor, "close", lambda self: closed.append(self.address))
    monkeypatch.setattr(RayExecutor, "room", lambda self: 0)
    with pytest.raises(InputError, match="start its nodes with --num-cpus 1 or more"):
        fsvi_bench.run(datasets=["toy"], methods=["exact"], executor="ray", ray_address="head:1", wandb="off")
    assert closed == ["head:1"]


@pytest.mark.parametrize(("nodes", "answering"), [([], True), (NODES, False)])
def test_a_cluster_that_is_gone_is_given_up(ray_executor, monkeypatch, tmp_path, nodes, answering):
    """No node left, or no head: the call that is under way is not waited for."""
    executor = replace(ray_executor, head_patience=2.5, worker_patience=2.5)
    outcomes = executor.map(waits_after_the_first, [1, tmp_path / "process"])
    assert next(outcomes) == (1, 1)
    monkeypatch.setattr(importlib.import_module("ray"), "nodes", lambda: nodes)
    monkeypatch.setattr(ray_cluster, "_listens", lambda _: answering)
    started = time.monotonic()
    with pytest.raises(WorkersLost, match="finished cells are kept"):
        next(outcomes)
    assert time.monotonic() - started < 30
    process = int((tmp_path / "process").read_text().split()[0])
    os.kill(process, signal.SIGKILL)  # the head that does not answer cannot do it


ADDRESSES = """
import sys, time
import fsvi_bench
from fsvi_bench.errors import InputError, WorkersLost
from fsvi_bench.running import ray_cluster
from fsvi_bench.running.executors import make_executor
ray_cluster.PATIENCE = 10.0
for address in sys.argv[1:]:
    try:
        make_executor("ray", 1, address)
    except InputError as error:
        print(error)
"""


def test_a_wrong_address_or_token_is_said_in_a_sentence_and_in_time(ray_executor, tmp_path):
    """Nothing there; something that is no Ray; Ray's client; no address at all; a cluster with another token."""
    server = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"], cwd=tmp_path, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        port = int(server.stdout.readline().partition("port ")[2].split()[0])
        addresses = [
            "127.0.0.1:9",
            f"127.0.0.1:{port}",
            "ray://localhost:10001",
            "head",
            ray_executor.address,
        ]
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        environment = {
            **os.environ,
            **token,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        command = [sys.executable, "-c", ADDRESSES, *addresses]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    finally:
        server.kill()
        server.communicate()
    assert (done.returncode, done.stderr) == (0, "")
    nothing, other, client, name, token = done.stdout.splitlines()
    assert nothing.startswith("nothing answers at 127.0.0.1:9; give --ray-address as host:port of the head")
    assert other.startswith(f"the Ray cluster at 127.0.0.1:{port} did not accept this process within 10 s; ")
    assert client.startswith("--ray-address is 'ray://localhost:10001', expected host:port; ")
    assert name.startswith("--ray-address is 'head', expected host:port; ")
    assert token.startswith(
        f"the Ray cluster at {addresses[-1]} has a different token from this process; set $RAY_AUTH_TOKEN"
    )


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install -c constraints.txt -e '.\[cluster\]'"):
        make_executor("ray", 1)
