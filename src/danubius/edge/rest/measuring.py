"""Counts of what the REST interface is asked: how often, with what result, and how long the answer took to begin.

Bounded whatever is sent: routes are those that are declared, methods those that HTTP has, everything else is one word.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.edge.rest.serving import Resource
from danubius.runtime.histogram import Histogram

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
UNKNOWN: Final = "unknown"
"""The route of a path that leads nowhere."""
NO_ANSWER: Final = "none"
"""In place of a status: the client went before there was one."""
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SERVER_ERROR: Final = 500


class Asked(NamedTuple):
    """What was asked: the labels of a duration."""

    method: str
    route: str


class RequestFigures:
    """Since the start of the broker."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[Asked, str]] = Counter()
        """By what was asked and the class of the status, as `2xx`."""
        self.durations: dict[Asked, Histogram] = {}

    def add(self, method: str, route: str, status: int | None, duration_s: float) -> None:
        asked = Asked(method if method in _METHODS else "other", route)
        self.counts[asked, NO_ANSWER if status is None else f"{status // 100}xx"] += 1
        if asked not in self.durations:
            self.durations[asked] = Histogram(BOUNDS_S)
        self.durations[asked].add(duration_s)


class Measured:
    """An ASGI application whose requests to the REST interface are counted."""

    def __init__(self, app: ASGIApp, figures: RequestFigures) -> None:
        self._app = app
        self._figures = figures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started_s = time.monotonic()
        is_counted = False

        def count(status: int | None) -> None:
            nonlocal is_counted
            endpoint = scope.get("endpoint")  # put there by the router, if a route leads anywhere
            if is_counted or not (endpoint is None or isinstance(endpoint, Resource)):
                return  # the pages beside the interface say how the broker does: they are no work of its own
            is_counted = True
            route = UNKNOWN if endpoint is None else endpoint.path
            self._figures.add(scope["method"], route, status, time.monotonic() - started_s)

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                count(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, tell)
        except Exception:
            count(_SERVER_ERROR)
            raise
        finally:
            count(None)
