"""Messages to be delivered later: grouped by when they are due, sent on a way of their own.

A lane makes this on first use. A batch has one due time, so due times are rounded up a little (to 1/512 of the delay,
at least to a millisecond), and a million messages become a few thousand batches: late by 0.2 % of the delay at the
most, never early. The messages' publish time is their due time: that is when the broker publishes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Final

from danubius.client.connection.gate import Gate
from danubius.client.core.batching import Accumulator, Draft, cut, split
from danubius.client.core.repeat import fresh
from danubius.client.messages import SCHEDULED, Receipt, Receipts, to_time_us
from danubius.client.options import to_milliseconds
from danubius.client.producing.encoding import encode_draft
from danubius.client.producing.settlement import Bundle, Settlement, Waiters
from danubius.client.producing.shipper import Shipper
from danubius.errors import DanubiusError, InvalidArgument, Overloaded
from danubius.model.limits import DELAY_MAX_MS
from danubius.model.topic import Dispatch
from danubius.runtime import ambient
from danubius.wire.commands import AnyCommand, OpenProducer, Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from danubius.client.connection.route import Route
    from danubius.client.options import (
        DeliverAfter,
        DeliverAfterMany,
        DeliverAtMany,
        ProducerOptions,
    )

LINGER_S: Final = 0.05
"""Messages that nobody waits for are gathered this long, for batches by due time fill slowly."""
GRAIN_PARTS: Final = 512
_Times = tuple[int, int]
"""When messages are due, in ms since 1970, and how many µs they live from then on; 0: for ever."""
OPEN_BATCHES_MAX: Final = 4096
"""Batches being filled, each for another due time; one more sends them all."""


def now_ms() -> int:
    return ambient.wall_ns() // 1_000_000


def dues_of(
    deliver_after: DeliverAfterMany | None, deliver_at: DeliverAtMany | None, count: int
) -> list[int]:
    """When each of so many messages is due; given once for all, or for each."""
    now = now_ms()
    if isinstance(deliver_at, Sequence):
        _check_given("deliver_at", len(deliver_at), count, is_sole=deliver_after is None)
        return [due_ms_of(None, one, now) for one in deliver_at]
    if isinstance(deliver_after, Sequence):
        _check_given("deliver_after", len(deliver_after), count, is_sole=deliver_at is None)
        return [due_ms_of(one, None, now) for one in deliver_after]
    return [due_ms_of(deliver_after, deliver_at, now)] * count


def _check_given(name: str, given: int, count: int, *, is_sole: bool) -> None:
    if not is_sole:
        raise InvalidArgument("deliver_after and deliver_at are both given; give one of them")
    if given != count:
        raise InvalidArgument(
            f"{name} has {given} times for {count} payloads: give one for each, or one for all"
        )


def due_ms_of(deliver_after: DeliverAfter | None, deliver_at: datetime | None, now_ms: int) -> int:
    """When a message is due, in milliseconds since 1970, rounded up to its grain."""
    if deliver_at is not None:
        if deliver_after is not None:
            raise InvalidArgument("deliver_after and deliver_at are both given; give one of them")
        due_ms = _moment_ms(deliver_at)
    else:
        after_ms = to_milliseconds("deliver_after", deliver_after)
        assert after_ms is not None
        due_ms = now_ms + after_ms
    delay_ms = due_ms - now_ms
    if delay_ms > DELAY_MAX_MS:
        raise InvalidArgument(
            f"the message would be delivered in {delay_ms // 86_400_000} days; "
            f"at most {DELAY_MAX_MS // 86_400_000} days are allowed"
        )
    if delay_ms <= 0:
        return max(0, due_ms)
    grain_ms = 1 << max(0, (delay_ms // GRAIN_PARTS).bit_length() - 1)
    return -(-due_ms // grain_ms) * grain_ms


def _moment_ms(moment: object) -> int:
    if not isinstance(moment, datetime):
        raise InvalidArgument(
            f"deliver_at is {moment!r}; it must be a datetime with a time zone, or use deliver_after"
        )
    if moment.tzinfo is None:
        raise InvalidArgument(
            f"deliver_at is {moment.isoformat()} without a time zone; write datetime(..., tzinfo=UTC)"
        )
    return -(-to_time_us(moment) // 1000)


class DueBatch:
    """What waits for one batch, and when that is due."""

    __slots__ = ("_inner", "due_ms")

    def __init__(self, inner: Settlement, due_ms: int) -> None:
        self._inner = inner
        self.due_ms = due_ms

    def stored(self, offset: int) -> None:
        self._inner.stored(offset)

    def failed(self, error: DanubiusError) -> bool:
        return self._inner.failed(error)


class ScheduleShipper(Shipper):
    """Sends every batch with its due time; the sequence counts batches."""

    def attach_command(self) -> AnyCommand:
        options = self._options
        resume_epoch = 0 if self._is_renewing else self.outbox.producer_epoch
        return OpenProducer(
            options.topic, options.name, options.spec, resume_epoch, is_delayed=True
        )

    def attach(self) -> None:
        """Begin to attach, without waiting for it."""
        self._route.check_open()
        self._route.add(self.attachment)
        self.attachment.attach()

    def pump(self) -> None:
        session, produce = self._session, self._produce
        if session is None or produce is None or not session.is_writable:
            return
        if self._stall_timer is not None:
            return
        outbox = self.outbox
        for parcel in outbox.take():
            due = parcel.token
            assert isinstance(due, DueBatch)
            on_reply = partial(self._on_reply, parcel, outbox.generation)
            session.call(Schedule(produce.handle, due.due_ms), on_reply, (parcel.buffer,))


class _Open:
    """A batch being filled."""

    __slots__ = ("batch", "since_ns", "waiters")

    def __init__(self, options: ProducerOptions) -> None:
        self.batch = Accumulator(options.batch_bytes, options.batch_records)
        self.waiters = Waiters()
        self.since_ns = ambient.monotonic_ns()


class DelayedLane:
    """The delayed messages of one lane. Its buffer is as large as the lane's, and apart from it."""

    def __init__(
        self, route: Route, options: ProducerOptions, unheard: DanubiusError | None = None
    ) -> None:
        """`unheard` is what the one before this could not tell anybody."""
        if options.spec.dispatch is Dispatch.NON_RELIABLE:
            raise InvalidArgument(
                f"the producer of {options.topic} is non-reliable: nothing is stored, so nothing can be delivered "
                "later; use a reliable topic"
            )
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._shipper = ScheduleShipper(route, self, options)
        self._shipper.unheard = unheard
        self._outbox = self._shipper.outbox
        self._open: dict[_Times, _Open] = {}
        """By due time, and how long they live from then on."""
        self._open_bytes = 0
        self._seal_handle: asyncio.Handle | None = None
        self._is_seal_soon = False
        self._room = Gate()
        self._flushes: dict[asyncio.Future[None], int] = {}
        self._error: DanubiusError | None = None
        self._shipper.attach()

    @property
    def buffered_bytes(self) -> int:
        return self._outbox.bytes + self._open_bytes

    @property
    def unheard(self) -> DanubiusError | None:
        """The first failure of messages that nobody waits for."""
        return self._shipper.unheard

    @property
    def may_be_renewed(self) -> bool:
        """Whether it ended for a reason that may have gone."""
        return self._error is not None and self._error.is_retryable

    # ------------------------------------------------------------ sending

    async def send(
        self,
        payload: bytes,
        key: bytes | None,
        attributes: Mapping[str, str] | None,
        size: int,
        due_ms: int,
        ttl_us: int = 0,
    ) -> None:
        """Send one checked message; return once the broker keeps it."""
        while not self._has_room(size):
            await self._wait_room()
        self._check_alive()
        future: asyncio.Future[int] = self._loop.create_future()
        self._put(payload, key, attributes, size, (due_ms, ttl_us), future)
        await future

    def send_nowait(
        self,
        payload: bytes,
        key: bytes | None,
        attributes: Mapping[str, str] | None,
        size: int,
        due_ms: int,
        ttl_us: int = 0,
    ) -> None:
        self._check_alive()
        if not self._has_room(size):
            raise Overloaded(
                f"{self.buffered_bytes} bytes wait for their acknowledgement, at most"
                f" {self._options.buffer_bytes} may: await producer.flush(), or use send()"
            )
        self._put(payload, key, attributes, size, (due_ms, ttl_us), None)

    def put_nowait(
        self,
        payload: bytes,
        key: bytes | None,
        attributes: Mapping[str, str] | None,
        size: int,
        due_ms: int,
        ttl_us: int = 0,
    ) -> None:
        """Take a checked message from a caller that cannot be told of a failure: `flush` tells it."""
        if self._error is not None:
            self._shipper.unheard = self._shipper.unheard or fresh(self._error)
        else:
            self._put(payload, key, attributes, size, (due_ms, ttl_us), None)

    async def ship(
        self, draft: Draft, sizes: list[int], due: Sequence[int], ttl_us: int = 0
    ) -> Bundle:
        """Send measured messages, one due time each; return once each batch is kept or has failed."""
        self._check_alive()
        bundle = Bundle()
        try:
            for due_ms, indexes in _by_due(due).items():
                whole = len(indexes) == len(sizes)
                part = draft if whole else _pick(draft, indexes)
                part_sizes = sizes if whole else [sizes[i] for i in indexes]
                await self._ship_part(part, part_sizes, (due_ms, ttl_us), bundle)
            await bundle.wait()
        except BaseException:
            bundle.is_abandoned = True  # what fails from here on is flush()'s to tell
            raise
        return bundle

    async def _ship_part(
        self, draft: Draft, sizes: list[int], times: _Times, bundle: Bundle
    ) -> None:
        start = 0
        for stop in split(sizes, self._options.batch_bytes, self._options.batch_records):
            while not self._has_room(self._options.batch_bytes):
                await self._wait_room()
            self._check_alive()
            part = cut(draft, start, stop)
            self._encode(part, bundle.part(stop - start), times, ambient.monotonic_ns())
            self._shipper.pump()
            start = stop
        await asyncio.sleep(0)  # the socket and the answers have their turn

    async def flush(self) -> None:
        self.push()
        marker = self._outbox.next_ordinal
        if not self._outbox.is_settled_below(marker):
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._flushes[waiter] = marker
            try:
                await waiter
            finally:
                self._flushes.pop(waiter, None)
        unheard, self._shipper.unheard = self._shipper.unheard, None
        if unheard is not None:
            raise unheard

    def push(self) -> None:
        """Let the open batches go, without waiting for anything."""
        self._seal_all()
        self._shipper.pump()

    async def close(self, error: DanubiusError, timeout_s: float) -> None:
        """Let go; what is still under way fails with `error`."""
        await self._shipper.close(error, timeout_s)

    # ------------------------------------------------------------ batches

    def _check_alive(self) -> None:
        if self._error is not None:
            raise fresh(self._error)

    def _has_room(self, size: int) -> bool:
        buffered = self.buffered_bytes
        return not buffered or buffered + size <= self._options.buffer_bytes

    async def _wait_room(self) -> None:
        self.push()
        await self._room.wait()
        self._check_alive()

    def _put(
        self,
        payload: bytes,
        key: bytes | None,
        attributes: Mapping[str, str] | None,
        size: int,
        times: _Times,
        future: asyncio.Future[int] | None,
    ) -> None:
        opened = self._open.get(times)
        if opened is not None and not opened.batch.has_room(size):
            self._seal(times)
            opened = None
        if opened is None:
            if len(self._open) >= OPEN_BATCHES_MAX:
                self._seal_all()
            opened = self._open[times] = _Open(self._options)
        index = opened.batch.add(payload, key, attributes, size)
        self._open_bytes += size
        if future is None:
            opened.waiters.has_silent = True
        else:
            opened.waiters.futures.append((index, future))
        if opened.batch.is_full:
            self._seal(times)
            self._shipper.pump()
        elif self._seal_handle is None or (future is not None and not self._is_seal_soon):
            self._schedule_seal(is_awaited=future is not None)

    def _schedule_seal(self, *, is_awaited: bool) -> None:
        if self._seal_handle is not None:
            self._seal_handle.cancel()
        self._is_seal_soon = is_awaited
        if is_awaited:
            self._seal_handle = self._loop.call_soon(self._on_linger)
        else:
            linger_s = max(LINGER_S, self._options.linger_s)
            self._seal_handle = self._loop.call_later(linger_s, self._on_linger)

    def _on_linger(self) -> None:
        self._seal_handle = None
        self._is_seal_soon = False
        self.push()
        self._shipper.flush_socket()

    def _seal_all(self) -> None:
        for times in sorted(self._open):
            self._seal(times)

    def _seal(self, times: _Times) -> None:
        opened = self._open.pop(times)
        self._open_bytes -= opened.batch.size
        self._encode(opened.batch.take(), opened.waiters, times, opened.since_ns)

    def _encode(self, draft: Draft, settlement: Settlement, times: _Times, since_ns: int) -> None:
        due_ms, ttl_us = times
        buffer = encode_draft(draft, self._outbox, self._options.codec, due_ms * 1000, ttl_us)
        if isinstance(buffer, DanubiusError):
            self._shipper.report(settlement, buffer)
        else:
            self._shipper.add(buffer, 1, DueBatch(settlement, due_ms), since_ns)

    # ------------------------------------------------------------ the shipper calls these

    def on_progress(self) -> None:
        if self._outbox.has_waiting:
            self._shipper.pump()
        if self._room.waiting and self._has_room(self._options.batch_bytes):
            self._room.open()
        self._wake_flushes()

    def on_ended(self, error: DanubiusError) -> None:
        self._error = error
        if self._seal_handle is not None:
            self._seal_handle.cancel()
            self._seal_handle = None
        opened, self._open, self._open_bytes = self._open, {}, 0
        for one in opened.values():
            self._shipper.report(one.waiters, error)
        self._room.open()
        self._wake_flushes()

    def _wake_flushes(self) -> None:
        for waiter, marker in self._flushes.items():
            if self._outbox.is_settled_below(marker) and not waiter.done():
                waiter.set_result(None)


class ScheduledReceipts(Receipts):
    """Receipts of messages that have no offsets yet."""

    __slots__ = ("_count",)

    def __init__(self, topic: str, count: int) -> None:
        super().__init__(topic, ())
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Receipt]:
        return repeat(Receipt(self.topic, SCHEDULED), self._count)

    def __repr__(self) -> str:
        return f"Receipts({self.topic!r}, {len(self)} scheduled)"

    @property
    def first_offset(self) -> int:
        return SCHEDULED

    @property
    def last_offset(self) -> int:
        return SCHEDULED

    def _at(self, place: int) -> Receipt:
        del place
        return Receipt(self.topic, SCHEDULED)


def _by_due(due: Sequence[int]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for index, due_ms in enumerate(due):
        groups.setdefault(due_ms, []).append(index)
    return groups


def _pick(draft: Draft, indexes: list[int]) -> Draft:
    payloads, keys, attributes = draft
    return Draft(
        [payloads[i] for i in indexes],
        None if keys is None else [keys[i] for i in indexes],
        None if attributes is None else [attributes[i] for i in indexes],
    )
