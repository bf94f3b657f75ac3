"""The lane: messages of one topic in, batches out, receipts back.

A message joins the open batch; the batch is sealed when it is full, or in the next turn of the loop (or after the
linger time) if the window has room, so that whatever is sent meanwhile shares it. One reply settles a batch and all
who wait for it. There is no task and no timer per message.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from danubius.client.connection.gate import Gate
from danubius.client.core.batching import Accumulator, Draft, cut, split
from danubius.client.core.checks import checked_size, measure, to_bytes, to_draft
from danubius.client.core.repeat import fresh
from danubius.client.messages import SCHEDULED, Receipt, Receipts
from danubius.client.options import ttl_us_of
from danubius.client.producing.chunk_sending import send_pieces
from danubius.client.producing.delayed import (
    DelayedLane,
    ScheduledReceipts,
    due_ms_of,
    dues_of,
    now_ms,
)
from danubius.client.producing.encoding import encode_draft
from danubius.client.producing.producer import Producer
from danubius.client.producing.settlement import UNHEARD, Bundle, Settlement, Sole, Waiters
from danubius.client.producing.shipper import Shipper
from danubius.errors import ClientClosed, DanubiusError, MessageTooLarge, Overloaded
from danubius.record.encode import encode_one
from danubius.runtime import ambient

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from danubius.client.connection.attachment import Attachment
    from danubius.client.connection.route import Route
    from danubius.client.options import (
        DeliverAfter,
        DeliverAfterMany,
        DeliverAtMany,
        ProducerOptions,
        TimeToLive,
    )
    from danubius.wire.commands import ProducerOpened

_DETACH_TIMEOUT_S: Final = 5.0


class ProducerLane(Producer):
    """The producer of a plain topic, or of one partition."""

    def __init__(self, route: Route, options: ProducerOptions) -> None:
        self._options = self.options = options
        self._topic: str = options.topic
        self._loop = asyncio.get_running_loop()
        self._route = route
        self._shipper = Shipper(route, self, options)
        self._delayed: DelayedLane | None = None
        self._outbox = self._shipper.outbox
        self._batch = Accumulator(options.batch_bytes, options.batch_records)
        self._waiters = Waiters()
        self._batch_since_ns = 0
        self._sealed_count = 0
        self._buffer_bytes = options.buffer_bytes
        self._message_bytes_max = route.message_bytes_max
        self._ttl_us = 0
        """Of the messages in the open batch; 0: they have none."""
        self._seal_handle: asyncio.Handle | None = None
        self._is_prompt = not options.linger_s and not options.codec
        """Whether a message may leave as it is: nothing to wait for, nothing to compress."""
        self._room = Gate()
        self._flushes: dict[asyncio.Future[None], int] = {}
        self._error: DanubiusError | None = None
        self._is_closing = False
        self._is_closed = False
        self._ends = Gate()

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def name(self) -> str:
        return self._options.name

    @property
    def buffer_bytes(self) -> int:
        return self._buffer_bytes

    @buffer_bytes.setter
    def buffer_bytes(self, count: int) -> None:
        self._buffer_bytes = count

    @property
    def buffered_bytes(self) -> int:
        delayed = self._delayed.buffered_bytes if self._delayed is not None else 0
        return self._outbox.bytes + self._batch.size + delayed

    @property
    def next_sequence(self) -> int:
        return self._outbox.next_sequence + self._batch.count

    # ------------------------------------------------------------ sending

    async def send(
        self,
        payload: bytes,
        *,
        key: bytes | None = None,
        attributes: Mapping[str, str] | None = None,
        deliver_after: DeliverAfter | None = None,
        deliver_at: datetime | None = None,
        ttl: TimeToLive | None = None,
    ) -> Receipt:
        ttl_us = 0 if ttl is None else ttl_us_of(ttl)
        is_later = deliver_after is not None or deliver_at is not None
        if self._options.chunk_bytes is not None:
            offset = await send_pieces(self, payload, key, attributes, ttl_us, is_later=is_later)
            if offset is not None:
                return Receipt(self._topic, offset)
        payload, size = self.check(payload, key, attributes)
        if is_later:
            due_ms = due_ms_of(deliver_after, deliver_at, now_ms())
            await self._later().send(payload, key, attributes, size, due_ms, ttl_us)
            return Receipt(self._topic, SCHEDULED)
        if not ttl_us and not attributes and self._is_calm:
            # One caller sends and waits, again and again: nobody else will join its batch.
            future: asyncio.Future[int] = self._loop.create_future()
            self._send_alone(payload, key, Sole(future))
            return Receipt(self._topic, await future)
        if self._outbox.bytes + self._batch.size + size > self._buffer_bytes:
            await self._wait_room(size)
        future = self._loop.create_future()
        self._put(payload, key, attributes, size, future, ttl_us)
        return Receipt(self._topic, await future)

    def send_nowait(
        self,
        payload: bytes,
        *,
        key: bytes | None = None,
        attributes: Mapping[str, str] | None = None,
        deliver_after: DeliverAfter | None = None,
        deliver_at: datetime | None = None,
        ttl: TimeToLive | None = None,
    ) -> None:
        payload, size = self.check(payload, key, attributes)
        ttl_us = 0 if ttl is None else ttl_us_of(ttl)
        if deliver_after is not None or deliver_at is not None:
            due_ms = due_ms_of(deliver_after, deliver_at, now_ms())
            self._later().send_nowait(payload, key, attributes, size, due_ms, ttl_us)
            return
        if not self._has_room(size):
            raise Overloaded(
                f"{self.buffered_bytes} bytes wait for their acknowledgement, at most"
                f" {self._buffer_bytes} may: await producer.flush(), or use send()"
            )
        if not ttl_us and not attributes and self._is_calm:
            # They come one by one. If this one begins a burst, it is the only one that goes by itself.
            self._send_alone(payload, key, UNHEARD)
        else:
            self._put(payload, key, attributes, size, None, ttl_us)

    async def send_many(
        self,
        payloads: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        attributes: Sequence[Mapping[str, str] | None] | None = None,
        deliver_after: DeliverAfterMany | None = None,
        deliver_at: DeliverAtMany | None = None,
        ttl: TimeToLive | None = None,
    ) -> Receipts:
        draft = to_draft(payloads, keys, attributes)
        sizes = measure(draft, self._message_bytes_max)
        is_later = deliver_after is not None or deliver_at is not None
        due = dues_of(deliver_after, deliver_at, len(sizes)) if is_later else None
        bundle = await self.ship(draft, sizes, due, 0 if ttl is None else ttl_us_of(ttl))
        if bundle.error is not None:
            error = fresh(bundle.error)
            error.add_note(f"{bundle.stored_count} of the {len(payloads)} messages were stored")
            raise error
        if due is not None:
            return ScheduledReceipts(self._topic, len(sizes))
        return Receipts(self._topic, bundle.spans)

    async def ship(
        self, draft: Draft, sizes: list[int], due: list[int] | None = None, ttl_us: int = 0
    ) -> Bundle:
        """Send measured messages in batches of their own; return once each batch is stored or has failed.

        With `due` times they are delivered then.
        """
        self.check_open()
        if due is not None:
            return await self._later().ship(draft, sizes, due, ttl_us)
        cuts = split(sizes, self._options.batch_bytes, self._options.batch_records)
        self._seal()
        bundle = Bundle()
        try:
            await self._ship_bundle(draft, cuts, bundle, ttl_us)
        except BaseException:
            bundle.is_abandoned = True  # what fails from here on is flush()'s to tell
            raise
        return bundle

    async def _ship_bundle(
        self, draft: Draft, cuts: list[int], bundle: Bundle, ttl_us: int
    ) -> None:
        start, count = 0, len(draft.payloads)
        for stop in cuts:
            if not self._has_room(self._options.batch_bytes):
                await self._wait_room(self._options.batch_bytes)
            whole = stop - start == count
            part = draft if whole else cut(draft, start, stop)
            self._encode(part, bundle.part(stop - start), ambient.monotonic_ns(), ttl_us)
            start = stop
            if not whole:
                await asyncio.sleep(0)  # the socket and the answers have their turn
        await bundle.wait()

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
        late_error: DanubiusError | None = None
        if self._delayed is not None:
            try:
                await self._delayed.flush()
            except DanubiusError as error:
                late_error = error
        unheard, self._shipper.unheard = self._shipper.unheard or late_error, None
        if unheard is not None:
            raise unheard

    def push(self) -> None:
        """Let the open batches go, without waiting for anything."""
        self._seal()
        self._shipper.pump()
        if self._delayed is not None:
            self._delayed.push()

    async def close(self) -> None:
        if self._is_closing:
            if not self._is_closed:
                await self._ends.wait()
            return
        self._is_closing = True
        try:
            await self.flush()
        finally:
            try:
                if self._delayed is not None:
                    await self._delayed.close(self._ending(), _DETACH_TIMEOUT_S)
                await self._shipper.close(self._ending(), _DETACH_TIMEOUT_S)
            finally:
                self._is_closed = True
                self._ends.open()

    async def open(self) -> None:
        await self._shipper.open()

    # ------------------------------------------------------------ accepting

    def check(
        self, payload: bytes, key: bytes | None, attributes: Mapping[str, str] | None
    ) -> tuple[bytes, int]:
        if self._error is not None or self._is_closing:
            raise self._ending()
        if type(payload) is not bytes:
            payload = to_bytes(payload)
        size = (
            len(payload)
            if key is None and attributes is None
            else checked_size(payload, key, attributes)
        )
        if size > self._message_bytes_max:
            raise MessageTooLarge(
                f"the message has {size} bytes with its key and attributes, the broker accepts"
                f" {self._message_bytes_max}: use send() of a producer that was opened with chunk_bytes, or send a"
                " reference to larger data"
            )
        return payload, size

    def put_nowait(
        self,
        payload: bytes,
        key: bytes | None,
        attributes: Mapping[str, str] | None,
        size: int,
        due_ms: int | None = None,
        ttl_us: int = 0,
    ) -> None:
        if self._error is not None or self._is_closing:
            self._shipper.unheard = self._shipper.unheard or self._ending()
        elif due_ms is not None:
            try:
                self._later().put_nowait(payload, key, attributes, size, due_ms, ttl_us)
            except DanubiusError as error:
                self._shipper.unheard = self._shipper.unheard or error
        else:
            self._put(payload, key, attributes, size, None, ttl_us)

    async def put_piece(
        self, payload: bytes, key: bytes | None, attributes: Mapping[str, str], ttl_us: int
    ) -> asyncio.Future[int]:
        """Send a piece of a larger message, behind all that was sent before it."""
        self.check_open()
        if not self._has_room(len(payload)):
            await self._wait_room(len(payload))
        self._seal()
        future: asyncio.Future[int] = self._loop.create_future()
        keys = None if key is None else [key]
        draft = Draft([payload], keys, [attributes])
        self._encode(draft, Sole(future), ambient.monotonic_ns(), ttl_us, is_chunk=True)
        return future

    @property
    def attachment(self) -> Attachment[ProducerOpened]:
        return self._shipper.attachment

    def _later(self) -> DelayedLane:
        """The way of messages that are delivered later; made when the first comes."""
        delayed = self._delayed
        if delayed is None:
            delayed = self._delayed = DelayedLane(self._route, self._options)
        elif delayed.may_be_renewed:
            delayed = self._delayed = DelayedLane(self._route, self._options, delayed.unheard)
        return delayed

    def check_open(self) -> None:
        """Raise why nothing can be sent any more, if so."""
        if self._error is not None or self._is_closing:
            raise self._ending()

    @property
    def message_bytes_max(self) -> int:
        return self._message_bytes_max

    def _ending(self) -> DanubiusError:
        if self._error is not None:
            return fresh(self._error)
        return ClientClosed(f"the producer of {self._topic} is closed")

    def _has_room(self, size: int) -> bool:
        buffered = self._outbox.bytes + self._batch.size
        return not buffered or buffered + size <= self._buffer_bytes

    async def _wait_room(self, size: int) -> None:
        # Bounded: a batch that nobody acknowledges is given up after send_timeout, and that makes room.
        self.push()
        while not self._has_room(size):
            await self._room.wait()
            if self._error is not None or self._is_closing:
                raise self._ending()

    @property
    def _is_calm(self) -> bool:
        """Whether the last message was alone in its batch, and nothing is open, under way or in trouble."""
        return (
            self._sealed_count == 1
            and self._is_prompt
            and not self._batch.count
            and self._seal_handle is None
            and self._shipper.is_idle
        )

    def _send_alone(self, payload: bytes, key: bytes | None, settlement: Settlement) -> None:
        """Send one message as a batch of its own, while `_is_calm`: in short what `_put`, `_seal` and `pump` do.

        To one message at a time the way through an open batch costs as much as the socket. From here on it is a batch
        in the outbox like any other.
        """
        outbox = self._outbox
        buffer = encode_one(
            payload,
            key,
            publish_time_us=ambient.wall_ns() // 1000,
            producer_id=outbox.producer_id,
            producer_epoch=outbox.producer_epoch,
            base_sequence=outbox.next_sequence,
        )
        self._shipper.ship_at_once(buffer, 1, settlement, ambient.monotonic_ns())

    def _put(
        self,
        payload: bytes,
        key: bytes | None,
        attributes: Mapping[str, str] | None,
        size: int,
        future: asyncio.Future[int] | None,
        ttl_us: int = 0,
    ) -> None:
        batch = self._batch
        if not batch.has_room(size) or ttl_us != self._ttl_us:
            self._seal()
            self._shipper.pump()
            self._ttl_us = ttl_us
        index = batch.add(payload, key, attributes, size)
        if not index:
            self._batch_since_ns = ambient.monotonic_ns()
        if future is None:
            self._waiters.has_silent = True
        else:
            self._waiters.futures.append((index, future))
        if batch.is_full:
            self._seal()
            self._shipper.pump()
        elif self._seal_handle is None:
            self._schedule_seal(is_awaited=future is not None)

    def _schedule_seal(self, *, is_awaited: bool) -> None:
        if self._options.linger_s:
            self._seal_handle = self._loop.call_later(self._options.linger_s, self._on_linger)
        elif is_awaited and self._sealed_count == 1 and self._shipper.is_idle:
            self._on_linger()  # one caller sends and waits, again and again
        else:
            self._seal_handle = self._loop.call_soon(self._on_linger)

    # ------------------------------------------------------------ batches

    def _on_linger(self) -> None:
        self._seal_handle = None
        self._seal_if_window()
        self._shipper.pump()
        self._shipper.flush_socket()

    def _seal_if_window(self) -> None:
        """Seal the open batch, unless it would only wait in the outbox: then it had better grow on."""
        if self._batch.count and self._outbox.has_window:
            self._seal()

    def _seal(self) -> None:
        """Close the open batch and queue it."""
        if self._batch.count:
            waiters, self._waiters = self._waiters, Waiters()
            self._sealed_count = self._batch.count
            self._encode(self._batch.take(), waiters, self._batch_since_ns, self._ttl_us)

    def _encode(
        self,
        draft: Draft,
        settlement: Settlement,
        since_ns: int,
        ttl_us: int = 0,
        *,
        is_chunk: bool = False,
    ) -> None:
        buffer = encode_draft(
            draft,
            self._outbox,
            self._options.codec,
            ambient.wall_ns() // 1000,
            ttl_us,
            is_chunk=is_chunk,
        )
        if isinstance(buffer, DanubiusError):
            self._shipper.report(settlement, buffer)
        else:
            self._shipper.ship(buffer, len(draft.payloads), settlement, since_ns)

    # ------------------------------------------------------------ the shipper calls these

    def on_progress(self) -> None:
        if self._batch.count and self._seal_handle is None:
            self._seal_if_window()
        if self._outbox.bytes and self._outbox.has_waiting:
            self._shipper.pump()
        if self._room.waiting and self._has_room(self._options.batch_bytes):
            self._room.open()
        if self._flushes:
            self._wake_flushes()

    def on_ended(self, error: DanubiusError) -> None:
        self._error = error
        if self._seal_handle is not None:
            self._seal_handle.cancel()
            self._seal_handle = None
        if self._batch.count:
            self._batch.take()
            self._shipper.report(self._waiters, error)
            self._waiters = Waiters()
        self._room.open()
        self._wake_flushes()

    def _wake_flushes(self) -> None:
        for waiter, marker in self._flushes.items():
            if self._outbox.is_settled_below(marker) and not waiter.done():
                waiter.set_result(None)
