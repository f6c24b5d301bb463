"""Places for raw data that are empty at first, and a mirror on a loopback address: no test leaves the machine."""

from __future__ import annotations

import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@pytest.fixture
def empty_places(monkeypatch, tmp_path):
    monkeypatch.setenv("FSVI_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FSVI_BENCH_DATA", raising=False)
    # An unset mirror would mean the public address.
    monkeypatch.setenv("FSVI_BENCH_MIRROR", "http://127.0.0.1:9")


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, bodies, declared, *args):
        self.bodies, self.declared = bodies, declared
        super().__init__(*args)

    def do_GET(self):
        body = self.bodies if isinstance(self.bodies, bytes) else self.bodies.get(self.path.removeprefix("/"))
        if body is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) if self.declared is None else self.declared))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        """Quiet."""


@pytest.fixture
def serve(monkeypatch):
    """Serves one body at every path of a loopback address, or bodies by path, makes it the mirror, and returns it."""
    servers = []

    def start(bodies, declared=None):
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, bodies, declared))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("FSVI_BENCH_MIRROR", address)
        return address

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
