"""The lane: deliveries of one topic in, messages out, acknowledgements back.

Deliveries wait in a local queue that the credit bounds. Credit goes back when a delivery is handed to the application.
Acknowledgements are gathered into ranges and leave at the end of the loop's turn, or a few milliseconds later when
there were some just before. Those that the broker did not confirm are sent again after a lost connection. The queue is
dropped then: the broker delivers those messages again.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from danubius.client.connection.attachment import Attachment
from danubius.client.connection.gate import Gate, finish
from danubius.client.consuming.consumer import Consumer
from danubius.client.consuming.pieces import ConsumerPieces
from danubius.client.consuming.timeouts import ReceiveTimeout
from danubius.client.core.acks import RangeGatherer
from danubius.client.core.credit import CreditWindow
from danubius.client.core.moves import MoveGuard
from danubius.client.core.repeat import fresh
from danubius.client.core.retry import Backoff
from danubius.client.messages import Handout, Message, ReceivedBatch, open_delivery
from danubius.client.options import check_count, check_reason, check_timeout, to_milliseconds
from danubius.errors import (
    ClientClosed,
    ConsumerReplaced,
    DanubiusError,
    InvalidArgument,
    Retry,
    SubscriptionMoved,
)
from danubius.runtime import ambient
from danubius.wire.commands import Ack, AnyCommand, CloseConsumer, Deliver, Flow, Nack, Subscribed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.client.connection.route import Route
    from danubius.client.connection.session import Session
    from danubius.client.core.acks import Range
    from danubius.client.options import ConsumerOptions

ACK_INTERVAL_S: Final = 0.005
"""At most this often acks are sent: 200 small frames a second are nothing, one per message is a burden."""
RANGES_MAX: Final = 10_000
"""Ranges in one frame, well below what a frame may hold; when there are as many, they are sent at once."""
_DETACH_TIMEOUT_S: Final = 5.0
_YIELD_DELIVERIES: Final = 16
_YIELD_MESSAGES: Final = 1024


class ConsumerLane(Consumer):
    """The consumer of a plain topic, or of one partition."""

    def __init__(
        self, route: Route, options: ConsumerOptions, *, arrivals: Gate | None = None
    ) -> None:
        """`arrivals` opens when there is something to take: messages, or the end."""
        self._route = route
        self._options = options
        self._topic: str = options.topic
        self._loop = asyncio.get_running_loop()
        self.attachment = Attachment(route, self, Subscribed)
        self._credit = CreditWindow(options.prefetch_messages, options.prefetch_bytes)
        self._session: Session | None = None
        self._handle = 0
        self._is_active = False
        self._generation = 0
        self._queue: deque[tuple[Deliver, memoryview] | ReceivedBatch | DanubiusError] = deque()
        """Deliveries as they came; before them what came of one whose messages were put together from pieces."""
        self._pieces: ConsumerPieces | None = None
        """Made when the first piece of a larger message comes."""
        self._arrivals = Gate() if arrivals is None else arrivals
        self._handout = Handout()
        self._handed = 0
        self._streak = 0
        self._acks = RangeGatherer()
        self._nacks: dict[tuple[int, str], RangeGatherer] = {}
        """By delay and reason."""
        self._moves = MoveGuard()
        self._unconfirmed = 0
        self._confirmed: asyncio.Future[None] | None = None
        self._flush_handle: asyncio.Handle | None = None
        self._flushed_s = 0.0
        self._ack_backoff = Backoff(ambient.chance)
        self._is_pausing = False
        self._error: DanubiusError | None = None

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def subscription(self) -> str:
        return self._options.subscription

    @property
    def name(self) -> str:
        return self._options.name

    @property
    def is_active(self) -> bool:
        return self._is_active

    def generation_of(self, topic: str) -> int:
        del topic
        return self._generation

    # ------------------------------------------------------------ receiving

    async def __anext__(self) -> Message:
        self._handed += 1
        if not self._handed % _YIELD_MESSAGES:
            # The connection needs its turn in a loop that never waits; before anything is taken, so that a
            # cancellation here loses nothing.
            await asyncio.sleep(0)
        message = self._handout.next_or_none()
        return await self._receive(None) if message is None else message

    async def receive(
        self,
        timeout: float | None = None,  # noqa: ASYNC109  # the public word for it
    ) -> Message:
        message = self._handout.next_or_none()
        if message is None:
            timeout = check_timeout("timeout", timeout)
            message = await self._receive(timeout)
        return message

    async def receive_batch(
        self,
        timeout: float | None = None,  # noqa: ASYNC109  # the public word for it
        max_messages: int | None = None,
    ) -> ReceivedBatch:
        timeout = check_timeout("timeout", timeout)
        if max_messages is not None:
            check_count("max_messages", max_messages, 1, sys.maxsize)
        await self._fill(self._deadline_s(timeout), timeout)
        return self._take_held(max_messages)

    def _take_held(self, max_messages: int | None) -> ReceivedBatch:
        batch = self._handout.take_rest()
        assert batch is not None
        if max_messages is not None and len(batch) > max_messages:
            self._handout.hold(batch.part(max_messages, len(batch)))
            batch = batch.part(0, max_messages)
        return batch

    def next_or_none(self) -> Message | None:
        """The next message if it is here; None if it is not. Raises why the lane ended once all are handed out."""
        while True:
            message = self._handout.next_or_none()
            if message is not None or not self._hold_or_end():
                return message

    def take_or_none(self, max_messages: int | None) -> ReceivedBatch | None:
        """The next delivery, or what is left of one, if it is here; else as `next_or_none`."""
        while self._handout.is_empty:
            if not self._hold_or_end():
                return None
        return self._take_held(max_messages)

    def _hold_or_end(self) -> bool:
        if not self._has_next:
            if self._error is not None:
                raise fresh(self._error)
            return False
        self._hold_next()
        return True

    async def _receive(self, timeout_s: float | None) -> Message:
        deadline_s = self._deadline_s(timeout_s)
        while True:
            await self._fill(deadline_s, timeout_s)
            message = self._handout.next_or_none()
            if message is not None:
                return message

    def _deadline_s(self, timeout_s: float | None) -> float | None:
        return None if timeout_s is None else self._loop.time() + timeout_s

    async def _fill(self, deadline_s: float | None, timeout_s: float | None) -> None:
        """Return once messages are held: the next delivery, or what another task left of its own.

        Several tasks may receive at once, so what is held is looked at again after every wait.
        """
        while self._handout.is_empty:
            if not self._has_next:
                if self._error is not None:
                    raise fresh(self._error)
                await self._wait_delivery(deadline_s, timeout_s)
                self._streak = 0
            elif self._streak >= _YIELD_DELIVERIES:
                self._streak = 0
                await asyncio.sleep(0)
            else:
                self._streak += 1
                self._hold_next()

    def _hold_next(self) -> None:
        item = self._queue.popleft()
        if not isinstance(item, tuple):
            if isinstance(item, DanubiusError):
                raise item
            self._handout.hold(item)
            return
        delivery, data = item
        if self._moves.is_on:
            self._moves.note(delivery.first, delivery.end)
        grant = self._credit.used(delivery.messages, len(data))
        if grant is not None and self._session is not None:
            self._session.tell(Flow(self._handle, grant.messages, grant.bytes))
        batch = open_delivery(
            self._topic, data, delivery.first, delivery.end, delivery.redelivery_count
        )
        if batch.has_pieces:
            self._gather(batch)
        else:
            self._handout.hold(batch)

    def _gather(self, batch: ReceivedBatch) -> None:
        """Hold a delivery with whole messages instead of pieces, at once or when they are there."""
        if self._pieces is None:
            patience_s = self._options.chunk_patience_s
            self._pieces = ConsumerPieces(self._route, self._topic, self, patience_s)
        whole = self._pieces.open(batch)
        if whole is not None:
            self._handout.hold(whole)

    @property
    def _has_next(self) -> bool:
        """Whether a delivery is here that does not wait for pieces of its messages, or of those before it."""
        return bool(self._queue) and (self._pieces is None or not self._pieces.is_waiting)

    async def _wait_delivery(self, deadline_s: float | None, timeout_s: float | None) -> None:
        if deadline_s is None:
            await self._arrivals.wait()
            return
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._arrivals.wait()
        except TimeoutError:
            raise ReceiveTimeout(
                f"no message came from {self.topic} within {timeout_s:g} s"
            ) from None

    # ------------------------------------------------------------ acknowledging

    async def ack(self, message: Message | ReceivedBatch) -> None:
        self.ack_nowait(message)

    async def ack_cumulative(self, message: Message | ReceivedBatch) -> None:
        self.ack_cumulative_nowait(message)

    async def nack(
        self, message: Message | ReceivedBatch, *, delay: float = 0.0, reason: str = ""
    ) -> None:
        self.nack_nowait(message, delay=delay, reason=reason)

    def ack_nowait(self, message: Message | ReceivedBatch) -> None:
        is_one = type(message) is Message
        if not is_one or self._error is not None or message.topic != self._topic:
            self.check_own(message)
        if self._moves.is_on and not self._is_current(message):
            return
        acks = self._acks
        if is_one:
            acks.add(message.offset)
        else:
            for first, end in message.ranges:
                acks.add_range(first, end)
        if self._flush_handle is None or acks.closed_count >= RANGES_MAX:
            self._schedule_flush()

    def ack_cumulative_nowait(self, message: Message | ReceivedBatch) -> None:
        self.check_own(message)
        if not self._is_current(message):
            return
        if isinstance(message, ReceivedBatch) and not len(message):
            return
        end = 1 + (message.offset if isinstance(message, Message) else message.last_offset)
        self.ack_ranges(((0, end),) if self._pieces is None else self._pieces.all_below(end))

    def ack_ranges(self, ranges: Sequence[Range]) -> None:
        for first, end in ranges:
            self._acks.add_range(first, end)
        self._schedule_flush()

    def nack_nowait(
        self, message: Message | ReceivedBatch, *, delay: float = 0.0, reason: str = ""
    ) -> None:
        self.check_own(message)
        if not self._is_current(message):
            return
        delay_ms = to_milliseconds("delay", delay) or 0
        self.nack_ranges(message.ranges, delay_ms, reason)

    def nack_ranges(self, ranges: Sequence[Range], delay_ms: int, reason: str) -> None:
        nacks = self._nacks.setdefault((delay_ms, check_reason(reason)), RangeGatherer())
        for first, end in ranges:
            nacks.add_range(first, end)
        self._schedule_flush()

    def check_own(self, message: Message | ReceivedBatch) -> None:
        if not isinstance(message, Message | ReceivedBatch):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidArgument(f"{message!r} is neither a message nor a batch that was received")
        if self._error is not None:
            raise fresh(self._error)
        if message.topic != self._topic:
            raise InvalidArgument(
                f"a message of {message.topic} given to a consumer of {self.topic}"
            )

    def _schedule_flush(self) -> None:
        if len(self._acks) >= RANGES_MAX and not self._is_pausing:
            self.flush_nowait()
        elif self._flush_handle is None:
            wait_s = self._flushed_s + ACK_INTERVAL_S - self._loop.time()
            self._flush_handle = (
                self._loop.call_later(wait_s, self.flush_nowait)
                if wait_s > 0
                else self._loop.call_soon(self.flush_nowait)
            )

    def flush_nowait(self) -> None:
        """Send the gathered acks now; without a connection they stay."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        self._is_pausing = False
        session = self._session
        if session is None or not (len(self._acks) or self._nacks):
            return
        self._flushed_s = self._loop.time()
        ranges = self._acks.take()
        for start in range(0, len(ranges), RANGES_MAX):
            part = ranges[start : start + RANGES_MAX]
            self._unconfirmed += 1
            session.call(
                Ack(self._handle, part),
                partial(self._on_ack_reply, session, self._moves.count, part),
            )
        nacks, self._nacks = self._nacks, {}
        for (delay_ms, reason), gatherer in nacks.items():
            ranges = gatherer.take()
            for start in range(0, len(ranges), RANGES_MAX):
                part = ranges[start : start + RANGES_MAX]
                session.tell(Nack(self._handle, part, delay_ms, reason))

    def _on_ack_reply(
        self,
        session: Session,
        moves: int,
        ranges: list[Range],
        reply: AnyCommand | DanubiusError,
        _payload: memoryview,
    ) -> None:
        self._unconfirmed -= 1
        if moves != self._moves.count:
            pass  # they were about another position
        elif isinstance(reply, DanubiusError) and reply.is_retryable and self._error is None:
            for first, end in ranges:
                self._acks.add_range(first, end)
            if reply.retry is Retry.AFTER_LOOKUP and session is self._session:
                self.attachment.look_again(reply)
            if self._session is not None:
                self._pause_acks()
        elif not isinstance(reply, DanubiusError):
            self._ack_backoff.reset()
        if not self._unconfirmed and self._confirmed is not None and not self._confirmed.done():
            self._confirmed.set_result(None)

    def _pause_acks(self) -> None:
        """The broker cannot take acks now: send them again after a wait that grows, together with later ones."""
        if self._is_pausing:
            return
        if self._flush_handle is not None:
            self._flush_handle.cancel()
        self._is_pausing = True
        self._flush_handle = self._loop.call_later(
            self._ack_backoff.next_delay_s(), self.flush_nowait
        )

    def _is_current(self, message: Message | ReceivedBatch) -> bool:
        """Whether a message was received since the subscription was moved, if it was."""
        if isinstance(message, ReceivedBatch) and not len(message):
            return True
        offset = message.offset if isinstance(message, Message) else message.first_offset
        return self._moves.knows(offset)

    # ------------------------------------------------------------ life

    async def open(self) -> None:
        await self.attachment.open(self._route.options.request_timeout_s)

    async def close(self) -> None:
        if len(self._acks):
            await self.attachment.outwait_move(_DETACH_TIMEOUT_S)
        if self._error is not None:
            return
        self.flush_nowait()
        session, handle = self._session, self._handle
        self.attachment.end()
        self._end(ClientClosed(f"the consumer of {self.topic} is closed"))
        self._drop_queue()
        if session is None:
            return
        session.consumers.pop(handle, None)
        closed: asyncio.Future[None] = self._loop.create_future()
        self._confirmed = self._loop.create_future()
        if not self._unconfirmed:
            self._confirmed.set_result(None)
        session.call(CloseConsumer(handle), partial(finish, closed))
        await asyncio.wait((self._confirmed, closed), timeout=_DETACH_TIMEOUT_S)

    def _end(self, error: DanubiusError) -> None:
        if self._error is None:
            self._error = error
        if self._session is not None:
            self._session.consumers.pop(self._handle, None)
        self._session = None
        self._is_active = False
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        self._arrivals.open()

    def _drop_queue(self) -> None:
        self._queue.clear()
        if self._pieces is not None:
            self._pieces.clear()
        self._handout.clear()
        self._generation += 1

    # ------------------------------------------------------------ the attachment and the session call these

    def attach_command(self) -> AnyCommand:
        return self._options.to_command()

    def detach_command(self, handle: int) -> AnyCommand:
        return CloseConsumer(handle)

    def on_attached(self, session: Session, reply: Subscribed) -> None:
        self._session = session
        self._handle = reply.handle
        self._is_active = reply.is_active
        session.consumers[reply.handle] = self
        self.attachment.calm()
        self.flush_nowait()  # before any credit: what is acknowledged now is not delivered again
        grant = self._credit.open()
        session.tell(Flow(reply.handle, grant.messages, grant.bytes))

    def on_detached(self) -> None:
        if self._session is not None:
            self._session.consumers.pop(self._handle, None)
        self._session = None
        self._is_active = False
        self._nacks.clear()
        self._drop_queue()

    def on_ended(self, error: DanubiusError) -> None:
        self._end(error)

    def on_delivery(self, delivery: Deliver, data: memoryview) -> None:
        self._queue.append((delivery, data))
        self._arrivals.open()

    def put_first(self, items: Sequence[ReceivedBatch | DanubiusError]) -> None:
        self._queue.extendleft(reversed(items))
        self._arrivals.open()

    def on_active(self, is_active: bool) -> None:
        self._is_active = is_active

    def on_closed_by_broker(self, error: DanubiusError) -> None:
        if isinstance(error, SubscriptionMoved):
            self._acks.take()  # nothing that was received before is about the new position
            self._moves.moved()
        if error.retry is Retry.AFTER_LOOKUP:
            self.attachment.look_again(error)
            return
        if error.is_retryable:
            self.on_detached()
            self.attachment.attach_later()
            return
        if isinstance(error, ConsumerReplaced):
            self._drop_queue()  # the other consumer gets these
        self.attachment.end()
        self._end(error)
