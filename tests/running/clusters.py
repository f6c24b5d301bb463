"""Ray nodes for tests: processes that end with the test, in network namespaces joined by one cable."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.requirements import skip_or_fail

ROOT = Path(__file__).parents[2]
#: What docs/how-to/cluster.md tells to set on every node: a link that goes silent is noticed.
NODE_SETTINGS = {
    "RAY_grpc_client_keepalive_time_ms": "5000",
    "RAY_grpc_client_keepalive_timeout_ms": "3000",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # by default Ray's workers give way to everything else
}
HEAD_PORT = 6379


def require_ray():
    if importlib.util.find_spec("ray") is None:
        skip_or_fail("Ray is not installed: pip install -e '.[cluster]'")


def require_namespaces():
    require_ray()
    if shutil.which("ip") is None:
        skip_or_fail("there is no command ip (Debian's iproute2), by which network namespaces are made")
    if os.geteuid() != 0:
        skip_or_fail("network namespaces can be made by root only")
    name = f"fsvi-try-{secrets.token_hex(3)}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        skip_or_fail(f"network namespaces cannot be made here: {tried.stderr.strip()}")
    ip("netns", "del", name)


def cluster_environment(cache):
    """The environment of the nodes and of the run: a secret of the test's own."""
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**kept, **NODE_SETTINGS, **secret, "PYTHONPATH": path, "FSVI_BENCH_CACHE": str(cache)}


def ray_start(*arguments):
    """The command `ray start`, whatever is on the path."""
    return [sys.executable, "-m", "ray.scripts.scripts", "start", "--disable-usage-stats", *arguments]


def ip(*arguments):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def end(process):
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


class TwoNodes:
    """Two namespaces with one cable between them; a Ray head with one core in the first, a node in the second.

    Nothing that runs in them reaches any other interface. Their names are random, their processes are ended one by one.
    """

    def __init__(self, environment):
        tag = secrets.token_hex(3)
        self.names = [f"fsvi-{tag}-{place}" for place in "ab"]
        self.links = [f"fs{tag}{place}" for place in "ab"]
        self.addresses = ["10.77.0.1", "10.77.0.2"]
        self.folders = [Path(f"/tmp/fsvi-{tag}-{place}") for place in "ab"]  # socket paths have to be short
        self.head = f"{self.addresses[0]}:{HEAD_PORT}"
        self.environment = environment

    def __enter__(self):
        try:
            for name in self.names:
                ip("netns", "add", name)
            ip("link", "add", self.links[0], "type", "veth", "peer", "name", self.links[1])
            for name, link, address in zip(self.names, self.links, self.addresses, strict=True):
                ip("link", "set", link, "netns", name)
                ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
                for device in ("lo", link):
                    ip("-n", name, "link", "set", device, "up")
            self.start(0, "--head", f"--port={HEAD_PORT}", "--include-dashboard=false")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for place in (0, 1):
            self.kill(place)
            subprocess.run(["ip", "netns", "del", self.names[place]], capture_output=True, check=False)
            shutil.rmtree(self.folders[place], ignore_errors=True)

    def command(self, place, command):
        return ["ip", "netns", "exec", self.names[place], *map(str, command)]

    def start(self, place, *arguments):
        """A node of one core; returns when it runs."""
        own = (
            f"--node-ip-address={self.addresses[place]}",
            f"--temp-dir={self.folders[place]}",
            "--num-cpus=1",
            "--num-gpus=1",
        )  # Ray believes in the GPU; nothing is computed on it
        command = self.command(place, ray_start(*arguments, *own))
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def join(self):
        """The second node, as if its machine had been started anew."""
        self.kill(1)
        for place in (0, 1):
            ip("-n", self.names[place], "neigh", "flush", "dev", self.links[place], "nud", "permanent")
        self.start(1, f"--address={self.head}")

    def processes(self, place):
        done = subprocess.run(["ip", "netns", "pids", self.names[place]], capture_output=True, text=True, check=False)
        return [int(process) for process in done.stdout.split()]

    def at_work(self, place):
        """Whether a call is being made in this namespace; Ray names its workers by what they do."""
        for process in self.processes(place):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{process}/cmdline").read_bytes().startswith(b"ray::_attempt"):
                    return True
        return False

    def end_head_service(self):
        """The head's own process, without which there is no cluster."""
        for process in self.processes(0):
            with contextlib.suppress(OSError):
                if b"/gcs_server" in Path(f"/proc/{process}/cmdline").read_bytes():
                    end(process)

    def kill(self, place):
        """Every process of the node, as when its machine loses power."""
        while processes := self.processes(place):
            for process in processes:
                end(process)
            time.sleep(0.05)

    def cut(self):
        """The cable swallows everything from now on and nobody is told: frames go to an address that nobody has.

        (An interface that is taken down would be noticed at once, by an error.)
        """
        for place in (0, 1):
            to = ("neigh", "replace", self.addresses[1 - place], "lladdr", "02:00:00:00:00:01")
            ip("-n", self.names[place], *to, "dev", self.links[place], "nud", "permanent")
