"""Requests as they are read from gRPC: in turns, so that what is unfinished is bounded over all connections.

gRPC opens a stream's window for a whole message as soon as somebody asks for it, and has no bound over streams that can
be set from Python. So nobody asks before it is its turn; until then a stream holds its first window at the most.
"""

from __future__ import annotations

import asyncio
import ctypes
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc import aio

from danubius.edge.core.reading_turns import ReadingTurns, TurnBounds

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.edge.core.reading_turns import Turn

READ_AT_ONCE_MAX: Final = 16
"""Requests; with the largest there may be, this bounds memory."""
READ_PER_CONNECTION_MAX: Final = 12
"""So that one connection, however many calls it has, leaves room for others."""
WAITING_MAX: Final = 10_000
"""Requests that wait for their turn; more are refused as UNAVAILABLE."""
PATIENCE_S: Final = 0.25
"""While other connections wait, a request that is read for longer is cut off."""
REQUEST_S: Final = 10.0
"""A request that is read for longer is cut off in any case."""
TICK_S: Final = 0.1
"""Time is counted in these: whoever did not run did not read, and what lay there meanwhile is not late."""
TRIM_BYTES: Final = 16 * 1024 * 1024
"""After so much was read, or a request did not come to its end, free memory is given back to the system:"""
QUIET_S: Final = 1.0
"""when nothing like that has happened for so long,"""
TRIM_S: Final = 5.0
"""and every so often while it goes on."""
TURNS: Final = TurnBounds(
    READ_AT_ONCE_MAX, READ_PER_CONNECTION_MAX, WAITING_MAX, PATIENCE_S, REQUEST_S
)

Context = aio.ServicerContext[Any, Any]


class Requests:
    """Reads the one request of each call."""

    def __init__(
        self, bounds: TurnBounds = TURNS, give_back: Callable[[], object] | None = None
    ) -> None:
        """`give_back` gives free memory back to the system; it may block for some milliseconds."""
        self._loop = asyncio.get_running_loop()
        self.turns = ReadingTurns(bounds)
        self._give_back = give_back or trimmer()
        self._ticking: asyncio.TimerHandle | None = None
        self._listened_s = 0.0
        """Time of the turns."""
        self._trimming: asyncio.Future[object] | None = None
        self._read_bytes = 0
        """Since memory was given back."""
        self._is_untidy = False
        self._untidy_s = 0.0
        """When that was so last."""
        self._trimmed_s = 0.0

    async def read(self, context: Context) -> bytes:
        """The one request of a call; the call is aborted if it does not come."""
        request = await self.next(context)
        if request is None:
            sentence = "the call ended without a request"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, sentence)
        assert request is not None
        return request

    async def next(self, context: Context) -> bytes | None:
        """The next request of a call, None after the last; the call is aborted if it takes too long."""
        turn: Turn | None = None
        request: Any = None
        try:
            async with asyncio.timeout(None) as limit:
                now_s = self._loop.time()

                def cut_off() -> None:
                    if not limit.expired():
                        limit.reschedule(now_s)

                turn = self.turns.ask(context.peer(), self._listened_s, cut_off)
                if self._ticking is None:
                    self._ticking = self._loop.call_later(TICK_S, self._tick)
                if turn is None:
                    sentence = "too many requests wait; try again in a second"
                    await context.abort(grpc.StatusCode.UNAVAILABLE, sentence)
                    raise AssertionError  # abort raises
                if not turn.is_reading:
                    await self._begin(turn)
                request = await context.read()
        except TimeoutError:
            sentence = (
                "the request did not arrive in time, or others waited for its place; send it again"
            )
            await context.abort(grpc.StatusCode.UNAVAILABLE, sentence)
            raise AssertionError from None  # abort raises
        finally:
            if turn is not None:
                self._ended(turn, request)
        return None if request is aio.EOF else request

    async def _begin(self, turn: Turn) -> None:
        begun: asyncio.Future[None] = self._loop.create_future()

        def begin() -> None:
            if not begun.done():
                begun.set_result(None)

        turn.on_begin = begin
        await begun

    def _ended(self, turn: Turn, request: Any) -> None:
        now_s = self._loop.time()
        self.turns.end(turn, self._listened_s)
        if isinstance(request, bytes):
            self._read_bytes += len(request)
        if request is None or self._read_bytes >= TRIM_BYTES:
            self._is_untidy = True
            self._untidy_s = now_s

    def _tick(self) -> None:
        now_s = self._loop.time()
        self._listened_s += TICK_S
        self.turns.tick(self._listened_s)
        is_quiet = now_s - self._untidy_s >= QUIET_S or now_s - self._trimmed_s >= TRIM_S
        if self._is_untidy and is_quiet and self._trimming is None:
            self._read_bytes = 0
            self._trimmed_s = now_s
            self._is_untidy = now_s - self._untidy_s < QUIET_S
            self._trimming = self._loop.run_in_executor(None, self._give_back)
            self._trimming.add_done_callback(self._trimmed)
        if self.turns.reading or self.turns.waiting or self._is_untidy:
            self._ticking = self._loop.call_later(TICK_S, self._tick)
        else:
            self._ticking = None

    def _trimmed(self, done: asyncio.Future[object]) -> None:
        done.exception()  # nothing to be done about it
        self._trimming = None


def trimmer() -> Callable[[], object]:
    """malloc_trim of glibc; elsewhere nothing."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return lambda: None
    return lambda: trim(0)
