"""The HTTP face: health for supervisors, metrics for Prometheus, and REST for everybody else."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from danubius.edge.http_connection import ConnectionBounds, HttpConfig
from danubius.edge.rest.host_check import HostCheck
from danubius.edge.rest.measuring import Measured
from danubius.edge.rest.serving import not_allowed, not_found
from danubius.errors import InvalidArgument
from danubius.runtime.listening import open_socket

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Sequence

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from danubius.edge.core.hosts import AllowedHosts
    from danubius.edge.rest.measuring import RequestFigures


HEALTH_PATHS: Final = ("/health", "/ready")
"""They say nothing that is worth a site's trouble, and supervisors call the broker by any name."""


class HealthReport:
    """What /health and /ready answer from."""

    def __init__(
        self, problems: Callable[[], list[str]], facts: Callable[[], dict[str, object]]
    ) -> None:
        self.problems = problems
        self.facts = facts


def build_app(
    report: HealthReport,
    metrics: Callable[[], Awaitable[tuple[bytes, str]]],
    routes: Sequence[Route],
    figures: RequestFigures,
    hosts: AllowedHosts,
) -> Starlette:
    """The routes of the HTTP port: these, and those of the REST interface, whose requests are counted.

    Of requests for other hosts than `hosts` only those after the broker's health are answered.
    """

    async def health(_request: Request) -> Response:
        problems = report.problems()
        body = {"status": "failing" if problems else "ok", "problems": problems, **report.facts()}
        return JSONResponse(body, status_code=503 if problems else 200)

    async def prometheus(_request: Request) -> Response:
        body, content_type = await metrics()
        return Response(body, headers={"content-type": content_type})

    app = Starlette(
        routes=[
            *(Route(path, health) for path in HEALTH_PATHS),
            Route("/metrics", prometheus),
            *routes,
        ],
        exception_handlers={404: not_found, 405: not_allowed},
        middleware=[Middleware(Measured, figures), Middleware(HostCheck, hosts, HEALTH_PATHS)],
    )
    app.router.redirect_slashes = False
    return app


class HttpServer(uvicorn.Server):
    """Uvicorn inside the broker's loop; signals are the broker's own business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def open(self) -> int:
        """Start listening; returns the real port."""
        config = self.config
        if not config.loaded:
            config.load()
        self.lifespan = config.lifespan_class(config)
        try:
            every = open_socket(config.host, config.port, config.backlog)
            await self.startup(None if every is None else [every])
        except (OSError, SystemExit):
            raise InvalidArgument(
                f"cannot listen on {config.host}:{config.port} for HTTP"
            ) from None
        return int(self.servers[0].sockets[0].getsockname()[1])


def make_server(
    app: ASGIApp, host: str, port: int, bounds: ConnectionBounds | None = None
) -> HttpServer:
    """One port; `bounds` are those of its connections."""
    return HttpServer(HttpConfig(app, host, port, bounds or ConnectionBounds()))
