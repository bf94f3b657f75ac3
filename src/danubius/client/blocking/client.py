"""The client for programs without an event loop: the same words, without `async` and `await`.

    with danubius.blocking.connect("danube://127.0.0.1:6651") as client:
        with client.producer("/default/orders") as producer:
            producer.send(b"hello")

Each client runs its own event loop on a thread of its own. A client and its producers may be used from many threads; a
consumer or a reader from one at a time. They belong to the process that opened them: connect anew in a forked child.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self, Unpack

from danubius.client.blocking.administration import BlockingAdministration
from danubius.client.blocking.loop_thread import LoopThread, Mailbox
from danubius.client.blocking.staging import BlockingStage
from danubius.client.blocking.transaction import BlockingTransaction
from danubius.client.client import RETENTION_AGE
from danubius.client.connecting import DEFAULT_URL
from danubius.client.connecting import connect as connect_async
from danubius.client.messages import Handout, Message, Receipt, Receipts, ReceivedBatch
from danubius.client.options import check_reason, to_milliseconds, ttl_us_of
from danubius.client.producing.delayed import due_ms_of, now_ms
from danubius.errors import Overloaded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime, timedelta
    from types import TracebackType

    from danubius.client import client as aio
    from danubius.client.blocking.settings import ConsumerSettings, ProducerSettings, ReaderSettings
    from danubius.client.consuming.consumer import Consumer as AsyncConsumer
    from danubius.client.consuming.reader import Reader as AsyncReader
    from danubius.client.options import (
        DeliverAfter,
        DeliverAfterMany,
        DeliverAtMany,
        DispatchName,
        DurabilityName,
        Start,
        TimeToLive,
    )
    from danubius.client.producing.producer import Producer as AsyncProducer
    from danubius.client.producing.staging import StageReceipt
    from danubius.wire.commands import TopicDescribed, TopicSummary

__all__ = ["Client", "Consumer", "Producer", "Reader", "connect"]


def connect(
    url: str = DEFAULT_URL,
    *,
    connect_timeout: float = 10.0,
    request_timeout: float = 30.0,
    reconnect_timeout: float = 600.0,
    tracing: bool = False,
    busy_poll: bool = True,
) -> Client:
    """Connect to a broker and return the open client. See `danubius.connect`."""
    opening = connect_async(
        url,
        connect_timeout=connect_timeout,
        request_timeout=request_timeout,
        reconnect_timeout=reconnect_timeout,
        tracing=tracing,
        busy_poll=busy_poll,
    )
    loop = LoopThread()
    try:
        return Client(loop, loop.run(opening.__aenter__()))
    except BaseException:
        loop.stop()
        raise


class Client:
    """A connection to a broker. Made by `danubius.blocking.connect(...)`."""

    def __init__(self, loop: LoopThread, client: aio.Client) -> None:
        self._loop = loop
        self._client = client

    @property
    def url(self) -> str:
        return self._client.url

    @property
    def admin(self) -> BlockingAdministration:
        """What operators do: namespaces, policies, positions, figures."""
        return BlockingAdministration(self._loop, self._client.admin)

    def producer(self, topic: str, **settings: Unpack[ProducerSettings]) -> Producer:
        """Open a producer. See `danubius.Client.producer`."""
        opening = self._client.producer(topic, **settings)
        return Producer(self._loop, self._loop.run(opening.__aenter__()))

    def consumer(
        self, topic: str, *, subscription: str, **settings: Unpack[ConsumerSettings]
    ) -> Consumer:
        """Open a consumer. See `danubius.Client.consumer`."""
        opening = self._client.consumer(topic, subscription=subscription, **settings)
        return Consumer(self._loop, self._loop.run(opening.__aenter__()))

    def reader(self, topic: str, **settings: Unpack[ReaderSettings]) -> Reader:
        """Open a reader. See `danubius.Client.reader`."""
        opening = self._client.reader(topic, **settings)
        return Reader(self._loop, self._loop.run(opening.__aenter__()))

    def transaction(self, *, timeout: float | timedelta = 60.0) -> BlockingTransaction:
        """Begin a transaction. See `danubius.Client.transaction`."""
        opening = self._client.transaction(timeout=timeout)
        return BlockingTransaction(self._loop, self._loop.run(opening.__aenter__()))

    def stage(self, job: str, batch: int, *, task: str | None = None) -> BlockingStage:
        """Begin to stage for a batch of a job. See `danubius.Client.stage`."""
        return BlockingStage(self._loop, self._loop.run(self._client.stage(job, batch, task=task)))

    def commit_stages(
        self, job: str, batch: int, receipts: Sequence[StageReceipt], *, patience: float = 600.0
    ) -> None:
        """Publish what these stages hold, once. See `danubius.Client.commit_stages`."""
        self._loop.run(self._client.commit_stages(job, batch, receipts, patience=patience))

    def abort_stages(self, job: str, batch: int, receipts: Sequence[StageReceipt] = ()) -> None:
        """Drop these stages of a batch; without any, all of them."""
        self._loop.run(self._client.abort_stages(job, batch, receipts))

    def create_topic(  # noqa: PLR0913  # one keyword per setting
        self,
        topic: str,
        *,
        dispatch: DispatchName = "reliable",
        durability: DurabilityName = "synced",
        retention_age: float | timedelta | None = RETENTION_AGE,
        retention_bytes: int | None = None,
        exist_ok: bool = False,
        partitions: int = 0,
    ) -> None:
        """Create a topic. See `danubius.Client.create_topic`."""
        self._loop.run(
            self._client.create_topic(
                topic,
                dispatch=dispatch,
                durability=durability,
                retention_age=retention_age,
                retention_bytes=retention_bytes,
                exist_ok=exist_ok,
                partitions=partitions,
            )
        )

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages and subscriptions."""
        self._loop.run(self._client.delete_topic(topic))

    def list_topics(self, namespace: str | None = None) -> list[TopicSummary]:
        """All topics, or those of one namespace, in the order of their names."""
        return self._loop.run(self._client.list_topics(namespace))

    def describe_topic(self, topic: str) -> TopicDescribed:
        """Everything the broker knows about a topic."""
        return self._loop.run(self._client.describe_topic(topic))

    def resolve_offset(self, topic: str, start: Start) -> int:
        """The offset that "earliest", "latest", an offset or a datetime means now."""
        return self._loop.run(self._client.resolve_offset(topic, start))

    def close(self) -> None:
        """Close what is still open on this client, then the connection and its thread."""
        try:
            self._loop.run_closing(self._client.close())
        finally:
            self._loop.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Producer:
    """Sends messages to one topic. See `danubius.Producer`."""

    def __init__(self, loop: LoopThread, producer: AsyncProducer) -> None:
        self._loop = loop
        self._producer = producer
        self._mailbox = Mailbox(loop)
        self._lock = threading.Lock()  # guards _posted_bytes, which two threads change
        self._posted_bytes = 0

    @property
    def topic(self) -> str:
        return self._producer.topic

    @property
    def name(self) -> str:
        return self._producer.name

    @property
    def next_sequence(self) -> int:
        """The number of the next message; see `danubius.Producer.next_sequence`."""
        return self._producer.next_sequence

    @property
    def buffered_bytes(self) -> int:
        """Bytes accepted and not yet acknowledged."""
        return self._producer.buffered_bytes + self._posted_bytes

    def send(
        self,
        payload: bytes,
        *,
        key: bytes | None = None,
        attributes: Mapping[str, str] | None = None,
        deliver_after: DeliverAfter | None = None,
        deliver_at: datetime | None = None,
        ttl: TimeToLive | None = None,
    ) -> Receipt:
        """Send one message and return once it is as durable as its topic asks."""
        return self._loop.run(
            self._producer.send(
                payload,
                key=key,
                attributes=attributes,
                deliver_after=deliver_after,
                deliver_at=deliver_at,
                ttl=ttl,
            )
        )

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
        """Put one message into the open batch and return at once; `flush()` waits for all of them.

        Raises Overloaded when `buffer_bytes` are not acknowledged yet.
        """
        self._loop.check_process()
        payload, size = self._producer.check(payload, key, attributes)
        due_ms: int | None = None
        if deliver_after is not None or deliver_at is not None:
            due_ms = due_ms_of(deliver_after, deliver_at, now_ms())
        ttl_us = 0 if ttl is None else ttl_us_of(ttl)
        with self._lock:
            buffered = self._producer.buffered_bytes + self._posted_bytes
            if buffered and buffered + size > self._producer.buffer_bytes:
                raise Overloaded(
                    f"{buffered} bytes wait for their acknowledgement, at most"
                    f" {self._producer.buffer_bytes} may: call producer.flush(), or use send()"
                )
            self._posted_bytes += size

        def put() -> None:
            with self._lock:
                self._posted_bytes -= size
            self._producer.put_nowait(payload, key, attributes, size, due_ms, ttl_us)

        self._mailbox.put(put)

    def send_many(
        self,
        payloads: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        attributes: Sequence[Mapping[str, str] | None] | None = None,
        deliver_after: DeliverAfterMany | None = None,
        deliver_at: DeliverAtMany | None = None,
        ttl: TimeToLive | None = None,
    ) -> Receipts:
        """Send many messages in as few batches as possible and wait until all are stored."""
        return self._loop.run(
            self._producer.send_many(
                payloads,
                keys=keys,
                attributes=attributes,
                deliver_after=deliver_after,
                deliver_at=deliver_at,
                ttl=ttl,
            )
        )

    def flush(self) -> None:
        """Wait until everything sent so far is acknowledged."""
        self._loop.run(self._producer.flush())

    def close(self) -> None:
        """Flush, then let go of the topic."""
        self._loop.run_closing(self._producer.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.run_closing(self._producer.__aexit__(kind, error, trace))


class Consumer:
    """Receives the messages of one subscription. See `danubius.Consumer`."""

    def __init__(self, loop: LoopThread, consumer: AsyncConsumer) -> None:
        self._loop = loop
        self._consumer = consumer
        self._mailbox = Mailbox(loop)
        self._handout = Handout()
        self._held_topic = ""
        self._generation = consumer.generation_of("")

    @property
    def topic(self) -> str:
        return self._consumer.topic

    @property
    def subscription(self) -> str:
        return self._consumer.subscription

    @property
    def name(self) -> str:
        return self._consumer.name

    @property
    def is_active(self) -> bool:
        return self._consumer.is_active

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        return self.receive()

    def receive(self, timeout: float | None = None) -> Message:
        """Wait for one message; ReceiveTimeout (a TimeoutError) if none comes in time."""
        self._drop_stale()
        message = self._handout.next_or_none()
        while message is None:
            self._handout.hold(self._take(timeout, None))
            message = self._handout.next_or_none()
        return message

    def receive_batch(
        self, timeout: float | None = None, max_messages: int | None = None
    ) -> ReceivedBatch:
        """Wait for messages and return them as columns."""
        self._drop_stale()
        batch = self._handout.take_rest()
        if batch is None:
            return self._take(timeout, max_messages)
        if max_messages is not None and 0 < max_messages < len(batch):
            self._handout.hold(batch.part(max_messages, len(batch)))
            return batch.part(0, max_messages)
        return batch

    def _take(self, timeout: float | None, max_messages: int | None) -> ReceivedBatch:
        async def take() -> tuple[ReceivedBatch, int]:
            # Together, on the loop's thread: the batch belongs to this generation and to no earlier one.
            batch = await self._consumer.receive_batch(timeout, max_messages)
            return batch, self._consumer.generation_of(batch.topic)

        batch, self._generation = self._loop.run(take())
        self._held_topic = batch.topic
        return batch

    def _drop_stale(self) -> None:
        """After a lost connection the broker delivers again what was not handed out; in a child it is the parent's."""
        self._loop.check_process()
        generation = self._consumer.generation_of(self._held_topic)
        if self._generation != generation:
            self._generation = generation
            self._handout.clear()

    def ack(self, message: Message | ReceivedBatch) -> None:
        """Acknowledge a message or a batch: it will not be delivered again."""
        self._consumer.check_own(message)
        self._mailbox.put(lambda: self._consumer.ack_nowait(message))

    def ack_cumulative(self, message: Message | ReceivedBatch) -> None:
        """Acknowledge this message and all before it in its topic, or in its partition."""
        self._consumer.check_own(message)
        self._mailbox.put(lambda: self._consumer.ack_cumulative_nowait(message))

    def nack(
        self, message: Message | ReceivedBatch, *, delay: float = 0.0, reason: str = ""
    ) -> None:
        """Ask for a message or a batch to be delivered again, after `delay` seconds or the failure policy's delay."""
        self._consumer.check_own(message)
        to_milliseconds("delay", delay)  # refused here, where the caller hears it
        check_reason(reason)
        self._mailbox.put(lambda: self._consumer.nack_nowait(message, delay=delay, reason=reason))

    def close(self) -> None:
        """Send the last acks, wait until the broker has them, and leave the subscription."""
        self._loop.run_closing(self._consumer.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Reader:
    """Reads a topic from a position on. See `danubius.Reader`."""

    def __init__(self, loop: LoopThread, reader: AsyncReader) -> None:
        self._loop = loop
        self._reader = reader
        self._handout = Handout()

    @property
    def topic(self) -> str:
        return self._reader.topic

    @property
    def position(self) -> int:
        """The offset of the next message that will be handed out; InvalidArgument if the topic is partitioned."""
        position = self._reader.position
        rest = self._handout.rest
        return position if rest is None else rest.first_offset

    @property
    def positions(self) -> dict[str, int]:
        """The position in each partition by its name; of a plain topic, the one there is."""
        positions = self._reader.positions
        rest = self._handout.rest
        if rest is not None:
            positions[rest.topic] = rest.first_offset
        return positions

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        self._loop.check_process()
        message = self._handout.next_or_none()
        while message is None:
            batch = self._loop.run(self._reader.read_batch())
            if batch is None:
                raise StopIteration
            self._handout.hold(batch)
            message = self._handout.next_or_none()
        return message

    def read_batch(self, timeout: float | None = None) -> ReceivedBatch | None:
        """Wait for messages and return them as columns; None once a reader with `stop_at_end` is there."""
        self._loop.check_process()
        rest = self._handout.take_rest()
        return rest if rest is not None else self._loop.run(self._reader.read_batch(timeout))

    def close(self) -> None:
        """Stop reading."""
        self._loop.run_closing(self._reader.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
