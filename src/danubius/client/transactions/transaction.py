"""Transactions as their users see them: messages to several topics and acknowledgements, all or nothing.

Messages wait here until a batch is full, then in the broker's memory until the commit; nobody sees them before. A
transaction lives on one connection, that of its first topic: when that is lost, or a topic moves, it is aborted, and
only its commit may be asked for again on the next one. Acknowledged messages of a transaction that is not committed
are delivered again.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from danubius.client.connection.gate import Gate
from danubius.client.connection.session import expect, ignore
from danubius.client.consuming.consumer_lane import RANGES_MAX, ConsumerLane
from danubius.client.consuming.partitioned_consumer import PartitionedConsumer
from danubius.client.core.acks import RangeGatherer
from danubius.client.core.batching import Accumulator, Draft, cut, split
from danubius.client.core.checks import measure, to_draft
from danubius.client.core.chunks import BEFORE
from danubius.client.core.repeat import fresh
from danubius.client.options import ttl_us_of
from danubius.client.producing.chunk_sending import slice_message
from danubius.client.producing.partitioned_producer import Part, PartitionedProducer
from danubius.client.producing.producer_lane import ProducerLane
from danubius.client.transactions.membership import Membership, lost
from danubius.errors import (
    BrokerUnavailable,
    DanubiusError,
    DeadlineExceeded,
    InvalidArgument,
    TopicMoved,
    TransactionAborted,
    TransactionNotFound,
    UnsupportedVersion,
)
from danubius.record.encode import encode
from danubius.runtime import ambient
from danubius.wire.commands import (
    AbortTransaction,
    AnyCommand,
    CommitTransaction,
    Done,
    Nack,
    Stage,
    StageAck,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from danubius.client.connection.attachment import Attachment
    from danubius.client.connection.connections import Connections
    from danubius.client.consuming.consumer import Consumer
    from danubius.client.core.chunks import Slicer
    from danubius.client.messages import Message, ReceivedBatch
    from danubius.client.options import TimeToLive
    from danubius.client.producing.producer import Producer
    from danubius.wire.commands import ProducerOpened, Subscribed

TRANSACTIONS_VERSION: Final = 2
"""Of the protocol: older brokers know none."""
WINDOW_BYTES: Final = 8 * 1024 * 1024
"""What may be on its way to the broker and not yet taken note of; `send` waits at it."""
_ABORT_TIMEOUT_S: Final = 5.0


async def begin(connections: Connections, timeout_ms: int) -> Transaction:
    """Begin a transaction on the connection there is, or the next one."""
    link = connections.home
    if link.protocol_version < TRANSACTIONS_VERSION:
        raise UnsupportedVersion(
            f"the broker at {link.address.url} is too old for transactions: upgrade it"
        )
    return Transaction(await Membership.begin(connections, timeout_ms))


class Transaction:
    """Messages and acknowledgements that take effect together, or not at all. Made by `client.transaction()`.

    Example:
        async with client.transaction() as transaction:
            batch = await consumer.receive_batch()
            await transaction.send_many(producer, [work(payload) for payload in batch.payloads])
            await transaction.ack(consumer, batch)
    """

    def __init__(self, place: Membership) -> None:
        self._place = place
        self._drafts: dict[ProducerLane, Accumulator] = {}
        self._ttl_us: dict[ProducerLane, int] = {}
        """Of the messages in each open batch; 0: they do not expire."""
        self._acks: dict[int, RangeGatherer] = {}
        """By the handle of the consumer that received the messages."""
        self._turn = asyncio.Lock()  # batches leave in the order in which they were filled
        self._unanswered = 0
        self._unanswered_bytes = 0
        self._answers = Gate()
        self._error: DanubiusError | None = None
        self._is_over = False

    @property
    def id(self) -> int:
        """The number of the transaction, never given twice by one broker.

        The first topic decides which broker that is, so the number may be another after the first message.
        """
        return self._place.number

    # ------------------------------------------------------------ adding

    async def send(
        self,
        producer: Producer,
        payload: bytes,
        *,
        key: bytes | None = None,
        attributes: Mapping[str, str] | None = None,
        ttl: TimeToLive | None = None,
    ) -> None:
        """Send one message when the transaction commits. It has no offset before.

        With `ttl` (seconds or a timedelta) it is not delivered to consumers later than that after its publish time,
        which is when it leaves for the broker: before the commit.

        Raises:
            TransactionAborted: it is over: its time, its connection, or the broker was lost.
            TransactionTooLarge: it holds more than the broker keeps for one. It is aborted.
            MessageTooLarge: payload, key and attributes together are over the broker's limit.
        """
        self._check()
        ttl_us = 0 if ttl is None else ttl_us_of(ttl)
        if producer.is_traced:
            attributes = producer.carry(attributes)
        lane = _lane_for(producer, key)
        if lane.options.chunk_bytes is not None:
            pieces = slice_message(lane, payload, key, attributes)
            if pieces is not None:
                await self._ship_pieces(lane, pieces, key, ttl_us)
                return
        payload, size = producer.check(payload, key, attributes)
        if lane not in self._drafts:
            await self._join(lane.attachment, f"the producer of {lane.topic}")
        batch = self._draft_of(lane)
        while not batch.has_room(size) or batch.is_full or self._is_of_other_ttl(lane, ttl_us):
            await self._seal(lane, batch)
        self._ttl_us[lane] = ttl_us
        batch.add(payload, key, attributes, size)
        if batch.is_full:
            await self._seal(lane, batch)

    async def send_many(
        self,
        producer: Producer,
        payloads: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        attributes: Sequence[Mapping[str, str] | None] | None = None,
        ttl: TimeToLive | None = None,
    ) -> None:
        """Send many messages when the transaction commits, with one `ttl` for all. Raises what `send` raises."""
        self._check()
        ttl_us = 0 if ttl is None else ttl_us_of(ttl)
        if producer.is_traced:
            attributes = [*map(producer.carry, attributes or [None] * len(payloads))]
        draft = to_draft(payloads, keys, attributes)
        sizes = measure(draft, self._place.connections.home.message_bytes_max)
        async with self._turn:
            for lane, part, part_sizes in _parts(producer, draft, sizes):
                batch = self._draft_of(lane)
                await self._ship_open(lane, batch)
                start = 0
                for stop in split(part_sizes, batch.bytes_max, batch.records_max):
                    await self._ship(lane, cut(part, start, stop), ttl_us)
                    start = stop

    async def ack(self, consumer: Consumer, message: Message | ReceivedBatch) -> None:
        """Acknowledge a message or a batch when the transaction commits.

        If it is not committed they are delivered again. If another has acknowledged one of them when the transaction
        is committed, the commit raises TransactionConflict and nothing of it happens.
        """
        self._check()
        consumer.check_own(message)
        attachment = _lane_behind(consumer, message).attachment
        await self._join(attachment, f"the consumer of {message.topic}")
        held = attachment.held
        if held is None:
            self._fail(
                TransactionAborted(
                    f"the consumer of {message.topic} was cut off, and what it received comes again: begin another "
                    "transaction"
                )
            )
            raise self._ending()
        acks = self._acks.setdefault(held.reply.handle, RangeGatherer())
        for first, end in message.ranges:
            acks.add_range(first, end)
        if acks.closed_count >= RANGES_MAX:
            self._stage_acks()
            await self._wait_answers(WINDOW_BYTES)

    # ------------------------------------------------------------ ending

    async def commit(self) -> None:
        """Make everything durable and visible at once. It is when this returns; then nothing can be added.

        Raises:
            TransactionConflict: a message acknowledged inside was acknowledged elsewhere. Nothing happened.
            TransactionAborted: it was over before: its time, its connection, or the broker was lost.
            TransactionTooLarge, StorageFull, StorageFailed, TopicDeleted: the broker refused it. Nothing happened.
            DeadlineExceeded, BrokerUnavailable: no answer came, so it may be committed or not. The messages that it
                acknowledges come again if it is not.
        """
        self._check()
        is_asked = False
        try:
            async with self._turn:
                for lane, batch in list(self._drafts.items()):
                    await self._ship_open(lane, batch)
                self._stage_acks()
                await self._wait_answers(0)
            self._is_over = is_asked = True
            try:
                await self._place.link.request(CommitTransaction(self._place.number), Done)
            except (TransactionNotFound, TopicMoved) as error:
                raise TransactionAborted(error.message) from None
        except BaseException as error:
            if isinstance(error, DanubiusError):
                self._fail(error)
            if not is_asked:
                self._drop()
            raise

    async def abort(self) -> None:
        """Forget everything; the messages acknowledged inside are delivered again. Does nothing at the second time."""
        if self._is_over:
            return
        answered = self._drop()
        if answered is not None:
            await asyncio.wait((answered,), timeout=_ABORT_TIMEOUT_S)

    def _drop(self) -> asyncio.Future[None] | None:
        """Tell the broker, if it is still there to be told. The future is done when it has answered."""
        self._is_over = True
        self._drafts.clear()
        if not self._is_connected:
            return None
        for handle, gatherer in self._acks.items():
            # The broker does not know that they were acknowledged inside, so it cannot give them back.
            for ranges in _frames(gatherer):
                self._place.session.tell(Nack(handle, ranges, 0))
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_reply(reply: AnyCommand | DanubiusError, payload: memoryview) -> None:
            ignore(reply, payload)  # it may have been aborted before: that is as good
            if not answered.done():
                answered.set_result(None)

        self._place.session.call(AbortTransaction(self._place.number), on_reply)
        return answered

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            await self.abort()
        elif not self._is_over:
            await self.commit()

    # ------------------------------------------------------------ inside

    @property
    def _is_connected(self) -> bool:
        return self._place.is_connected

    def _check(self) -> None:
        """Raise why nothing can be added any more, if so."""
        if self._error is not None:
            raise self._ending()
        if self._is_over:
            raise InvalidArgument(f"transaction {self._place.number} is over: begin another")
        if not self._is_connected:
            self._place.link.check_open()
            self._fail(lost(self._place.number))
            raise self._ending()

    async def _join(
        self, member: Attachment[ProducerOpened] | Attachment[Subscribed], what: str
    ) -> None:
        """Let a producer or consumer take part, and end if its topic moved away."""
        try:
            await self._place.join(member, what)
        except TransactionAborted as error:
            self._fail(error)
            raise

    def _ending(self) -> DanubiusError:
        assert self._error is not None
        return fresh(self._error)

    def _fail(self, error: DanubiusError) -> None:
        if self._error is None:
            self._error = error

    def _draft_of(self, lane: ProducerLane) -> Accumulator:
        batch = self._drafts.get(lane)
        if batch is None:
            options = lane.options
            batch = self._drafts[lane] = Accumulator(options.batch_bytes, options.batch_records)
        return batch

    async def _seal(self, lane: ProducerLane, batch: Accumulator) -> None:
        async with self._turn:
            await self._ship_open(lane, batch)

    def _is_of_other_ttl(self, lane: ProducerLane, ttl_us: int) -> bool:
        """Whether the open batch has messages that live longer or shorter: a batch has one time for all."""
        return self._drafts[lane].count > 0 and self._ttl_us[lane] != ttl_us

    async def _ship_open(self, lane: ProducerLane, batch: Accumulator) -> None:
        if batch.count:
            await self._ship(lane, batch.take(), self._ttl_us[lane])

    async def _ship_pieces(
        self, lane: ProducerLane, pieces: Slicer, key: bytes | None, ttl_us: int
    ) -> None:
        """Hand over a message in pieces. They are stored together or not at all, and one directly behind the other."""
        until_ms = ambient.wall_ns() // 1_000_000
        keys = None if key is None else [key]
        async with self._turn:
            await self._ship_open(lane, self._draft_of(lane))
            for index in range(len(pieces) - 1):
                payload, told = pieces.piece(index, until_ms)
                await self._ship(lane, Draft([payload], keys, [told]), ttl_us, is_chunk=True)
            payload, told = pieces.last(until_ms, BEFORE)
            await self._ship(lane, Draft([payload], keys, [told]), ttl_us, is_chunk=True)

    async def _ship(
        self, lane: ProducerLane, draft: Draft, ttl_us: int, *, is_chunk: bool = False
    ) -> None:
        """Hand a batch to the broker, which takes note of it."""
        opened = await self._wait_attached(lane)
        now_us = ambient.wall_ns() // 1000
        data = encode(
            draft.payloads,
            publish_time_us=now_us,
            keys=draft.keys,
            attributes=draft.attributes,
            producer_id=opened.producer_id,
            producer_epoch=opened.producer_epoch,
            codec=lane.options.codec,
            expires_us=now_us + ttl_us if ttl_us else None,
            is_chunk=is_chunk,
        )
        self._unanswered_bytes += len(data)
        self._unanswered += 1
        on_reply = partial(self._on_staged, len(data))
        self._place.session.call(Stage(self._place.number, opened.handle), on_reply, (data,))
        await self._wait_answers(WINDOW_BYTES)

    async def _wait_attached(self, lane: ProducerLane) -> ProducerOpened:
        """What the lane is on this connection; it may be on its way back to its topic."""
        timeout_s = self._place.link.options.request_timeout_s
        attachment = lane.attachment
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    self._check()
                    lane.check_open()
                    held = attachment.held
                    if held is not None:
                        await self._join(attachment, f"the producer of {lane.topic}")
                        if attachment.held is held:
                            return held.reply
                        continue
                    await attachment.changes.wait()
        except TimeoutError:
            raise DeadlineExceeded(
                f"the producer of {lane.topic} did not get to its topic within {timeout_s:g} s"
            ) from None

    def _stage_acks(self) -> None:
        for handle, gatherer in self._acks.items():
            for ranges in _frames(gatherer):
                self._unanswered += 1
                on_reply = partial(self._on_ack_staged, handle, ranges)
                self._place.session.call(StageAck(self._place.number, handle, ranges), on_reply)

    async def _wait_answers(self, bytes_max: int) -> None:
        """Until at most so many bytes have no answer; with 0, until nothing has none."""
        while self._unanswered if not bytes_max else self._unanswered_bytes > bytes_max:
            if self._error is not None:
                break
            await self._answers.wait()
        if self._error is not None:
            raise self._ending()

    def _on_staged(
        self, size: int, reply: AnyCommand | DanubiusError, _payload: memoryview
    ) -> None:
        self._unanswered_bytes -= size
        self._unanswered -= 1
        if type(reply) is not Done:
            self._on_refused(reply, "STAGE")
        self._answers.open()

    def _on_ack_staged(
        self,
        handle: int,
        ranges: list[tuple[int, int]],
        reply: AnyCommand | DanubiusError,
        _payload: memoryview,
    ) -> None:
        self._unanswered -= 1
        if type(reply) is not Done:
            self._on_refused(reply, "STAGE_ACK")
            if self._is_connected:
                self._place.session.tell(Nack(handle, ranges, 0))
        self._answers.open()

    def _on_refused(self, reply: AnyCommand | DanubiusError, name: str) -> None:
        if isinstance(reply, BrokerUnavailable):
            self._fail(lost(self._place.number))
        elif isinstance(reply, TransactionNotFound | TopicMoved):
            self._fail(TransactionAborted(reply.message))
        else:
            self._fail(reply if isinstance(reply, DanubiusError) else expect(reply, name))


def _frames(gatherer: RangeGatherer) -> list[list[tuple[int, int]]]:
    ranges = gatherer.take()
    return [ranges[start : start + RANGES_MAX] for start in range(0, len(ranges), RANGES_MAX)]


def _lane_for(producer: Producer, key: bytes | None) -> ProducerLane:
    if isinstance(producer, PartitionedProducer):
        return producer.lane_of(key)
    return _as_lane(producer)


def _parts(producer: Producer, draft: Draft, sizes: list[int]) -> list[Part]:
    """What each partition, or the one topic, gets of these messages."""
    if not sizes:
        return []
    if isinstance(producer, PartitionedProducer):
        return producer.spread(draft, sizes).parts
    return [Part(_as_lane(producer), draft, sizes)]


def _as_lane(producer: object) -> ProducerLane:
    if not isinstance(producer, ProducerLane):
        raise InvalidArgument(f"{producer!r} is no producer of an open client")
    return producer


def _lane_behind(consumer: Consumer, message: Message | ReceivedBatch) -> ConsumerLane:
    lane = consumer.lane_of(message) if isinstance(consumer, PartitionedConsumer) else consumer
    if not isinstance(lane, ConsumerLane):
        raise InvalidArgument(f"{consumer!r} is no consumer of an open client")
    return lane
