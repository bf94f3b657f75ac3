"""The HTTP face: health for supervisors and metrics for Prometheus."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from danubius.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from starlette.requests import Request


class HealthReport:
    """What /health and /ready answer from."""

    def __init__(
        self, problems: Callable[[], list[str]], facts: Callable[[], dict[str, object]]
    ) -> None:
        self.problems = problems
        self.facts = facts


def build_app(report: HealthReport, metrics: Callable[[], tuple[bytes, str]]) -> Starlette:
    """The routes of the HTTP port."""

    async def health(_request: Request) -> Response:
        problems = report.problems()
        body = {"status": "failing" if problems else "ok", "problems": problems, **report.facts()}
        return JSONResponse(body, status_code=503 if problems else 200)

    async def prometheus(_request: Request) -> Response:
        body, content_type = metrics()
        return Response(body, headers={"content-type": content_type})

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/ready", health),
            Route("/metrics", prometheus),
        ]
    )


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
            await self.startup()
        except SystemExit:
            raise InvalidArgument(
                f"cannot listen on {config.host}:{config.port} for HTTP"
            ) from None
        return int(self.servers[0].sockets[0].getsockname()[1])


def make_server(app: Starlette, host: str, port: int) -> HttpServer:
    return HttpServer(
        uvicorn.Config(
            app, host=host, port=port, lifespan="off", log_config=None, access_log=False, ws="none"
        )
    )
