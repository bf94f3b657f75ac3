"""A producer on a connection: batches in, offsets out."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from danubius.broker.topics import create_missing
from danubius.errors import (
    DanubiusError,
    InvalidArgument,
    MessageTooLarge,
    ProducerFenced,
    TopicExists,
)
from danubius.model.ids import TopicName, parse_name
from danubius.record.batch import HEADER_BYTES, read_header
from danubius.wire.commands import Error, OpenProducer, Produced, ProducerClosed, ProducerOpened

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.broker.broker import Broker
    from danubius.broker.peer import Peer
    from danubius.broker.topic import Topic
    from danubius.model.ids import Offset
    from danubius.publish.core.sequencer import Producer


EPOCH_MAX: Final = 2**32 - 2
"""The epoch is a u32 in the batch's header, and the next life must fit too."""
ONE_RECORD_BYTES_MAX: Final = 128
"""What the columns of a single record add to its payload, key and attributes, rounded up."""


class ProducerHandle:
    """One open producer of one connection."""

    __slots__ = (
        "_broker",
        "_handle",
        "_on_ended",
        "_peer",
        "producer",
        "published_bytes",
        "published_messages",
        "since_ms",
        "topic",
    )

    def __init__(
        self,
        broker: Broker,
        peer: Peer,
        topic: Topic,
        producer: Producer,
        handle: int,
        on_ended: Callable[[int], None],
    ) -> None:
        self._broker = broker
        self._peer = peer
        self._handle = handle
        self._on_ended = on_ended
        self.topic = topic
        self.producer = producer
        self.since_ms = broker.clock.wall_us() // 1000
        self.published_messages = 0
        self.published_bytes = 0

    @property
    def address(self) -> str:
        return self._peer.address

    def attach(self) -> ProducerOpened:
        """Become the one producer of this name; an older one is ended."""
        attached = self.topic.attached
        older = attached.get(self.producer.name)
        if older is not None:
            older.end(ProducerFenced(f"a newer producer named {self.producer.name!r} took over"))
        attached[self.producer.name] = self
        self.producer.is_attached = True
        return ProducerOpened(
            self._handle, self.producer.id, self.producer.epoch, max(0, self.producer.admitted_next)
        )

    def detach(self) -> None:
        attached = self.topic.attached
        if attached.get(self.producer.name) is self:
            del attached[self.producer.name]
            self.producer.is_attached = False

    def end(self, error: DanubiusError) -> None:
        self.detach()
        self._on_ended(self._handle)
        self._peer.send(ProducerClosed(self._handle, error.code, error.message))

    def produce(self, batch: memoryview, correlation_id: int) -> None:
        """Publish one batch; the answer goes out when it is as durable as the topic asks."""
        topic, broker = self.topic, self._broker
        if topic.is_deleting:
            topic.check_open()
        if topic.is_reliable:
            broker.pressure.check()
        if len(batch) > broker.config.message_bytes_max:
            self._check_size(batch)
        header = topic.pipeline.publish(
            batch, self.producer, functools.partial(self._answer, correlation_id)
        )
        self.published_messages += header.count
        self.published_bytes += header.length
        broker.messages_in += header.count
        broker.bytes_in += header.length

    def _check_size(self, batch: memoryview) -> None:
        # The limit is for one message; a batch of several has the frame's own limit.
        limit = self._broker.config.message_bytes_max
        size = len(batch) - HEADER_BYTES - ONE_RECORD_BYTES_MAX
        if size > limit and read_header(batch).count == 1:
            raise MessageTooLarge(f"the message has {size:,} bytes, at most {limit:,} are accepted")

    def _answer(self, correlation_id: int, result: Offset | DanubiusError) -> None:
        if isinstance(result, int):
            self._peer.send(Produced(result), correlation_id)
            if self._broker.is_lone_commit and not self.topic.subscriptions:
                self._peer.flush()  # nobody else's messages would leave with it
        else:
            self._peer.send(Error(result.code, result.message, result.retry), correlation_id)


def open_producer(
    broker: Broker,
    command: OpenProducer,
    on_done: Callable[[Topic, Producer], None],
    on_failed: Callable[[DanubiusError], None],
) -> None:
    """Find or create the topic, then begin or resume the producer's life on it."""
    name = _check_open(command)

    def with_topic(topic: Topic | DanubiusError) -> None:
        if isinstance(topic, DanubiusError):
            on_failed(topic)
            return
        try:
            _check_topic(topic, command)
            broker.open_producer(
                topic, name, command.resume_epoch, functools.partial(opened, topic)
            )
        except DanubiusError as error:
            on_failed(error)

    def opened(topic: Topic, producer: Producer | DanubiusError) -> None:
        if isinstance(producer, DanubiusError):
            on_failed(producer)
            return
        try:
            topic.check_open()  # it may have been deleted while the disk was busy
        except DanubiusError as error:
            on_failed(error)
            return
        on_done(topic, producer)

    def created(topic: Topic | DanubiusError) -> None:
        # Someone else was creating it with other settings: only the dispatch matters to a producer.
        if isinstance(topic, TopicExists):
            topic = broker.topics.get(TopicName(command.topic), topic)
        with_topic(topic)

    existing = broker.topic_or_none(command.topic)
    if existing is not None:
        with_topic(existing)
    else:
        create_missing(broker, command.topic, command.spec, created)


def _check_topic(topic: Topic, command: OpenProducer) -> None:
    if topic.gate is not None:
        topic.gate.check_open(topic, len(topic.attached))
    if topic.spec.dispatch is not command.spec.dispatch:
        raise TopicExists(
            f"topic {topic.name} is {topic.spec.dispatch.value}, the producer asked for "
            f"{command.spec.dispatch.value}; open it with dispatch={topic.spec.dispatch.value!r}"
        )


def _check_open(command: OpenProducer) -> str:
    if command.resume_epoch > EPOCH_MAX:
        raise InvalidArgument(
            f"resume_epoch is {command.resume_epoch}, at most {EPOCH_MAX} fits a batch"
        )
    return parse_name("producer", command.name)
