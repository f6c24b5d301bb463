"""`fsvi-bench leaderboard serve`: a built site on this machine, for nobody else."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fsvi_bench.errors import InputError
from fsvi_bench.files import is_file

HOST = "127.0.0.1"


class _Quiet(SimpleHTTPRequestHandler):
    """Says nothing of each request; a page that was built again is not kept by the browser."""

    def log_message(self, format: str, *args: object) -> None:
        pass

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()


def make_server(site: Path, port: int) -> ThreadingHTTPServer:
    """A server of the files of a site, on the loopback address alone; port 0 takes any that is free.

    Raises:
        InputError: there is no built site in the folder, or the port is taken.
    """
    if not is_file(site / "index.html"):
        raise InputError(f"{site} holds no built site; make it with `fsvi-bench leaderboard build`")
    try:
        return ThreadingHTTPServer((HOST, port), partial(_Quiet, directory=str(site)))
    except (OSError, OverflowError) as error:
        raise InputError(f"port {port} cannot be used ({error}); choose another with --port") from error


def address(server: ThreadingHTTPServer) -> str:
    """Where a browser finds it."""
    return f"http://{HOST}:{server.server_address[1]}/"
