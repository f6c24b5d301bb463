"""Requests that differ from another in some fields."""

from __future__ import annotations

from fsvi_bench.running.plan import Request


def changed(request: Request, **changes: object) -> Request:
    return Request(**(dict(request) | changes))
