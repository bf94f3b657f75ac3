"""The HTTP face: health for supervisors, metrics for Prometheus, and REST for everybody else."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from danubius.edge.rest.bounds import CONNECTIONS_MAX, HEADER_BYTES_MAX, HEADER_S, STOP_S
from danubius.edge.rest.measuring import Measured
from danubius.edge.rest.serving import not_allowed, not_found
from danubius.errors import InvalidArgument
from danubius.runtime.listening import open_socket

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Generator, Sequence

    from starlette.requests import Request

    from danubius.edge.rest.measuring import RequestFigures


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
) -> Starlette:
    """The routes of the HTTP port: these, and those of the REST interface, whose requests are counted."""

    async def health(_request: Request) -> Response:
        problems = report.problems()
        body = {"status": "failing" if problems else "ok", "problems": problems, **report.facts()}
        return JSONResponse(body, status_code=503 if problems else 200)

    async def prometheus(_request: Request) -> Response:
        body, content_type = await metrics()
        return Response(body, headers={"content-type": content_type})

    app = Starlette(
        routes=[
            Route("/health", health),
            Route("/ready", health),
            Route("/metrics", prometheus),
            *routes,
        ],
        exception_handlers={404: not_found, 405: not_allowed},
        middleware=[Middleware(Measured, figures)],
    )
    app.router.redirect_slashes = False
    return app


class HttpConnection(H11Protocol):
    """One connection: cut off if it never gets to a request, or if there are too many."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Found by whoever answers, in the scope of a request.
        self.app_state = {**self.app_state, "abort": self._abort}
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()
            return
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle and not self.cycle.response_complete:
            self._expect_nothing()
        elif self._deadline is None and not self.transport.is_closing():
            self._expect_headers()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # From here the keep-alive time-out counts; what is left of an old deadline does not.
        self._expect_nothing()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self._abort()  # the last answer was not taken: closing would wait for that
        else:
            super().timeout_keep_alive_handler()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        super().connection_lost(exc)

    def _expect_headers(self) -> None:
        self._deadline = self.loop.call_later(HEADER_S, self._abort)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _abort(self) -> None:
        self.transport.abort()


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


def make_server(app: Starlette, host: str, port: int) -> HttpServer:
    return HttpServer(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            http=HttpConnection,
            lifespan="off",
            log_config=None,
            access_log=False,
            ws="none",
            h11_max_incomplete_event_size=HEADER_BYTES_MAX,
            timeout_graceful_shutdown=STOP_S,
        )
    )
