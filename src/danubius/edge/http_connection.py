"""Connections of the HTTP port: uvicorn's, with strict heads and with bounds.

Invariants:
- There are at most `connections_max`. When one more comes, the one goes that has been without a request for longest: so
  connections that are only held open keep nobody out.
- A connection without a whole head within `header_s` of its beginning, or of the first byte after an answer, is ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from danubius.edge.rest.bounds import CONNECTIONS_MAX, HEADER_BYTES_MAX, HEADER_S, STOP_S
from danubius.edge.rest.problems import HttpError, respond
from danubius.edge.rest.strict_heads import make_strict

if TYPE_CHECKING:
    import asyncio

    from starlette.types import ASGIApp

_CAN_ANSWER: Final = (h11.IDLE, h11.SEND_RESPONSE)


class ConnectionBounds(NamedTuple):
    """Of one port."""

    connections_max: int = CONNECTIONS_MAX
    header_s: float = HEADER_S


class HttpConfig(uvicorn.Config):
    """How uvicorn serves the port; all its connections share it."""

    def __init__(self, app: ASGIApp, host: str, port: int, bounds: ConnectionBounds) -> None:
        super().__init__(
            cast("Any", app),  # uvicorn has types of its own for the same
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
        self.bounds = bounds
        self.waiting: dict[HttpConnection, None] = {}
        """Connections without a request under way, the longest waiting first."""


class HttpConnection(H11Protocol):
    """One connection."""

    config: HttpConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._buffer = make_strict(self.conn)
        # Found by whoever answers, in the scope of a request.
        self.app_state = {**self.app_state, "abort": self._abort}
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        waiting = self.config.waiting
        if len(self.connections) > self.config.bounds.connections_max:
            longest = next(iter(waiting), self)
            longest._give_way()  # noqa: SLF001  # of this class
            if longest is self:
                return
        waiting[self] = None
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return  # uvicorn would answer what comes behind something that was refused
        super().data_received(data)
        if self.cycle and not self.cycle.response_complete:
            self._expect_nothing()
            self.config.waiting.pop(self, None)
        elif self._deadline is None and not self.transport.is_closing():
            self._expect_headers()

    def on_response_complete(self) -> None:
        # Before uvicorn goes on with what the peer has sent meanwhile, which may be the next request.
        # From here the keep-alive time-out counts; what is left of an old deadline does not.
        self._expect_nothing()
        if not self.transport.is_closing():
            self.config.waiting[self] = None
        super().on_response_complete()
        if self.cycle and not self.cycle.response_complete:
            self.config.waiting.pop(self, None)

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self._abort()  # the last answer was not taken: closing would wait for that
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """The peer does not speak HTTP as it should: say why, which uvicorn's `msg` does not, and end."""
        del msg
        if self.cycle and not self.cycle.response_complete:
            # Whoever answers the request before must not write behind this.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in _CAN_ANSWER:
            self._abort()  # in the middle of an answer there is no place for another
            return
        answer = respond(
            HttpError(
                self._buffer.problem
                or f"this is no HTTP/1.1 request, or its head has more than {HEADER_BYTES_MAX:,} bytes"
            )
        )
        headers = [*answer.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=answer.status_code, headers=headers, reason=b"Bad Request"),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event))
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        self.config.waiting.pop(self, None)
        super().connection_lost(exc)

    def _give_way(self) -> None:
        self.config.waiting.pop(self, None)
        self._abort()

    def _expect_headers(self) -> None:
        self._deadline = self.loop.call_later(self.config.bounds.header_s, self._abort)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _abort(self) -> None:
        self.transport.abort()
