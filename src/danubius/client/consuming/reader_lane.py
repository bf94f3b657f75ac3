"""The lane: a topic's messages by offset, without a subscription and without acknowledgements.

While the application works on one batch the next is fetched. At the end of the topic the broker holds the fetch
until something new is there. A reader remembers its own position, so a lost connection only costs one fetch.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from danubius.client.connection.gate import Gate
from danubius.client.connection.session import expect
from danubius.client.consuming.gathering import Gatherer
from danubius.client.consuming.reader import Reader
from danubius.client.consuming.timeouts import ReceiveTimeout
from danubius.client.core.repeat import fresh
from danubius.client.core.retry import Backoff
from danubius.client.messages import Handout, Message, ReceivedBatch, open_delivery
from danubius.client.options import check_timeout
from danubius.errors import ClientClosed, DanubiusError, Retry
from danubius.model.subscription import AtOffset, Position
from danubius.runtime import ambient
from danubius.wire.commands import AnyCommand, Fetch, Fetched, OffsetResolved, ResolveOffset

if TYPE_CHECKING:
    from danubius.client.connection.route import Route
    from danubius.client.connection.session import Session
    from danubius.client.core.acks import Range
    from danubius.client.options import ReaderOptions

LONG_POLL_MS: Final = 10_000
_TROUBLES_MAX: Final = 10
"""Refusals in a row after which a reader gives up; with the back-off about ten seconds."""


class ReaderLane(Reader):
    """The reader of a plain topic, or of one partition."""

    def __init__(
        self, route: Route, options: ReaderOptions, *, arrivals: Gate | None = None
    ) -> None:
        """`arrivals` opens when there is something to take: messages, or the end."""
        self._route = route
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._fetch_at = 0
        self._stop: int | None = None
        self._position = 0
        self._ready: ReceivedBatch | None = None
        self._handout = Handout()
        self._gatherer: Gatherer | None = None
        self._is_gathering = False
        """Whether what was read waits for pieces of its messages."""
        self._mishaps: list[DanubiusError] = []
        self._call = 0
        self._is_fetching = False
        self._backoff = Backoff(ambient.chance)
        self._timer: asyncio.TimerHandle | None = None
        self._arrivals = Gate() if arrivals is None else arrivals
        self._error: DanubiusError | None = None

    @property
    def topic(self) -> str:
        return self._options.topic

    @property
    def position(self) -> int:
        rest = self._handout.rest
        return self._position if rest is None else rest.first_offset

    @property
    def positions(self) -> dict[str, int]:
        return {self.topic: self.position}

    # ------------------------------------------------------------ reading

    async def __anext__(self) -> Message:
        message = self._handout.next_or_none()
        while message is None:
            if not await self._fill(None, None):
                raise StopAsyncIteration
            message = self._handout.next_or_none()
        return message

    async def read_batch(
        self,
        timeout: float | None = None,  # noqa: ASYNC109  # the public word for it
    ) -> ReceivedBatch | None:
        timeout = check_timeout("timeout", timeout)
        deadline_s = None if timeout is None else self._loop.time() + timeout
        return self._handout.take_rest() if await self._fill(deadline_s, timeout) else None

    async def _fill(self, deadline_s: float | None, timeout_s: float | None) -> bool:
        """Return once messages are held, fetched now or left by another task; False at the end."""
        while self._handout.is_empty:
            if self._hold_or_end():
                continue
            if self.is_at_end:
                return False
            self.fetch()
            await self._wait_fetched(deadline_s, timeout_s)
        return True

    def _hold_or_end(self) -> bool:
        """Hold what was fetched and ask for the next; False if nothing is there."""
        if self._mishaps:
            raise self._mishaps.pop(0)
        if self._ready is None or self._is_gathering:
            if self._error is not None:
                raise fresh(self._error)
            return False
        batch, self._ready = self._ready, None
        self._position = batch.last_offset + 1
        if batch.has_pieces:
            self._gather(batch)
        else:
            self._handout.hold(batch)
        self.fetch()
        return not self._is_gathering

    def _gather(self, batch: ReceivedBatch) -> None:
        """Hold what was read with whole messages instead of pieces, at once or when they are there."""
        if self._gatherer is None:
            self._gatherer = Gatherer(self._route, self.topic, self, None)
        whole = self._gatherer.open(batch)
        if whole is not None:
            self._handout.hold(whole)
        else:
            self._is_gathering = True

    def next_or_none(self) -> Message | None:
        """The next message if it is here; None if it is not. Raises why the lane ended once all are handed out."""
        while True:
            message = self._handout.next_or_none()
            if message is not None or not self._hold_or_end():
                return message

    def take_or_none(self) -> ReceivedBatch | None:
        """What is here, as columns; else as `next_or_none`."""
        while self._handout.is_empty:
            if not self._hold_or_end():
                return None
        return self._handout.take_rest()

    async def _wait_fetched(self, deadline_s: float | None, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._arrivals.wait()
        except TimeoutError:
            raise ReceiveTimeout(
                f"nothing new came from {self.topic} within {timeout_s:g} s"
            ) from None

    @property
    def is_at_stop(self) -> bool:
        """Whether all was fetched that `stop_at_end` asks for."""
        return self._stop is not None and self._fetch_at >= self._stop

    @property
    def is_at_end(self) -> bool:
        """Whether nothing more comes: all was fetched, and no message waits for its pieces."""
        return self.is_at_stop and not self._is_gathering

    # ------------------------------------------------------------ fetching

    def fetch(self) -> None:
        """Ask for the next batches, unless they are there or asked for."""
        session = self._route.session_or_none
        if self._is_fetching or self._ready is not None or self.is_at_stop:
            return
        if self._error is not None or self._timer is not None or session is None:
            return
        self._is_fetching = True
        self._call += 1
        options = self._options
        command = Fetch(
            options.topic,
            AtOffset(self._fetch_at),
            options.fetch_bytes,
            0 if self._stop is not None else LONG_POLL_MS,
            options.skip_damaged,
        )
        session.call(command, partial(self._on_reply, session, self._call))

    def _on_reply(
        self,
        session: Session,
        call: int,
        reply: AnyCommand | DanubiusError,
        data: memoryview,
    ) -> None:
        if call != self._call or self._error is not None:
            return
        self._is_fetching = False
        if type(reply) is Fetched:
            self._backoff.reset()
            self._on_fetched(reply, data)
            return
        error = reply if isinstance(reply, DanubiusError) else expect(reply, "FETCH")
        if error.retry is Retry.AFTER_LOOKUP:
            self._route.look_again(session)
            return
        if error.is_retryable and self._backoff.attempts < _TROUBLES_MAX:
            self._timer = self._loop.call_later(self._backoff.next_delay_s(), self._retry)
            return
        self._end(error)

    def _on_fetched(self, reply: Fetched, data: memoryview) -> None:
        end = reply.next if self._stop is None else min(reply.next, self._stop)
        try:
            batch = open_delivery(self._options.topic, data, reply.first, end, 0)
        except DanubiusError as error:
            self._end(error)
            return
        self._fetch_at = max(end, self._fetch_at)
        if len(batch):
            self._ready = batch
        elif self._stop is not None and reply.next >= reply.end_offset:
            self._stop = self._fetch_at  # the end came nearer: the topic was made anew
        else:
            self.fetch()
        self._arrivals.open()

    def _retry(self) -> None:
        self._timer = None
        self.fetch()

    # ------------------------------------------------------------ life

    async def open(self) -> None:
        start: Position = self._options.start
        found, _ = await self._route.request(
            ResolveOffset(self._options.topic, start), OffsetResolved
        )
        # An offset is taken at its word: if it is gone, the fetch says so.
        self._fetch_at = start.offset if isinstance(start, AtOffset) else found.offset
        self._position = self._fetch_at
        if self._options.stop_at_end:
            self._stop = found.end_offset
        self._route.add(self)

    async def close(self) -> None:
        self._end(ClientClosed(f"the reader of {self.topic} is closed"))
        self._ready = None
        self._is_gathering = False
        if self._gatherer is not None:
            self._gatherer.clear()
        self._handout.clear()

    def _end(self, error: DanubiusError) -> None:
        if self._error is None:
            self._error = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._route.remove(self)
        self._arrivals.open()

    # ------------------------------------------------------------ the gatherer calls these

    def on_gathered(self, batch: ReceivedBatch, errors: list[DanubiusError]) -> None:
        self._is_gathering = False
        self._mishaps += errors
        self._handout.hold(batch)
        self._arrivals.open()

    def on_unwhole(self, ranges: list[Range], reason: str) -> None:
        """A reader has nothing to give back."""

    def on_left_behind(self, ranges: list[Range]) -> None:
        """A reader has nothing to acknowledge."""

    # ------------------------------------------------------------ the link calls these

    def on_link_up(self, session: Session) -> None:
        del session
        if self._gatherer is not None:
            self._gatherer.resume()
        if len(self._arrivals):
            self.fetch()

    def on_link_down(self) -> None:
        self._call += 1
        self._is_fetching = False

    def on_link_writable(self) -> None:
        """A reader writes next to nothing."""

    def on_link_failed(self, error: DanubiusError) -> None:
        self._end(error)

    def flush_nowait(self) -> None:
        """A reader has nothing to flush."""
