"""`fsvi-bench leaderboard serve`: serves a built site on this machine only."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from http.client import HTTP_PORT
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.site.output import built_files

HOST = "127.0.0.1"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".json": "application/json"}


class _Handler(SimpleHTTPRequestHandler):
    """Serves the files of a build, without following links, and only to requests for this host: otherwise another web
    page could read the site through its own host name (DNS rebinding)."""

    server: ThreadingHTTPServer
    timeout = 60
    extensions_map = {suffix: f"{each}; charset=utf-8" for suffix, each in TYPES.items()} | {"": "text/plain"}

    def send_head(self) -> Any:
        port = self.server.server_address[1]
        ours = [f"{name}:{port}" for name in (HOST, "localhost")] + ([HOST, "localhost"] if port == HTTP_PORT else [])
        if self.headers.get_all("Host") not in [[each] for each in ours]:
            return self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
        name = unquote(self.path.partition("?")[0]).removeprefix("/") or "index.html"
        site = Path(self.directory)
        path = site / name
        if name not in built_files(site) or path.resolve() != site.resolve() / name or not path.is_file():
            return self.send_error(HTTPStatus.NOT_FOUND)
        return super().send_head()

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-cache")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Does not log requests."""


def make_server(site: Path, port: int) -> ThreadingHTTPServer:
    """A server for the files of a site, on the loopback address only; port 0 picks a free one.

    Raises:
        InputError: the folder has no built site, or the port cannot be used.
    """
    if "index.html" not in built_files(site):
        raise InputError(f"{site} is not a built site; build it with `fsvi-bench leaderboard build`")
    try:
        return ThreadingHTTPServer((HOST, port), partial(_Handler, directory=str(site)))
    except (OSError, OverflowError) as error:
        raise InputError(f"port {port} cannot be used ({error}); choose another with --port") from error


def address(server: ThreadingHTTPServer) -> str:
    """The address for a browser."""
    return f"http://{HOST}:{server.server_address[1]}/"
