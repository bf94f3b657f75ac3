"""Requests of producers whose messages are delivered later: open, schedule."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from danubius.errors import (
    DanubiusError,
    HandleNotFound,
    InvalidArgument,
    Throttled,
    TopicExists,
)
from danubius.model.ids import TopicName, parse_name
from danubius.session import producing as session_producing
from danubius.shard.hosting.producer import ProducerHandle
from danubius.shard.hosting.producer_lives import open_producer
from danubius.shard.hosting.publish_door import admit
from danubius.shard.hosting.topics import create_missing
from danubius.wire.commands import OpenProducer, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.publish.core.sequencer import Producer
    from danubius.publish.pipeline import Answer
    from danubius.record.header import Header
    from danubius.session.state import Handler, PayloadHandler, SessionState
    from danubius.shard.features.delays.log import DelayLog
    from danubius.shard.hosting.topic import Topic


class SchedulerHandle(ProducerHandle):
    """One open producer of a delay log, on one connection."""

    __slots__ = ("_batches", "_session", "_source")

    def __init__(
        self, session: SessionState, source: DelayLog, producer: Producer, handle: int
    ) -> None:
        super().__init__(
            session.shard, session.peer, source.topic, producer, handle, session.forget_producer
        )
        self._session = session
        self._source = source
        self._batches = 0

    @property
    def unanswered_bytes(self) -> int:
        """By the average of its batches, which its sequence counts."""
        pending = max(0, self.producer.admitted_next - max(0, self.producer.committed_next))
        return pending * self.published_bytes // max(1, self._batches)

    def produce(self, batch: memoryview, correlation_id: int) -> None:
        del batch, correlation_id
        raise InvalidArgument(
            "the producer was opened with is_delayed: it sends Schedule, not Produce"
        )

    def schedule(self, batch: memoryview, due_ms: int, correlation_id: int) -> None:
        """Keep a batch until it is due; the answer goes out when that is durable."""
        shard, parent = self._session.shard, self._source.parent
        try:
            admitted = admit(shard, parent, batch, None, self.producer)
        except Throttled:
            self.throttled_batches += 1
            raise
        if admitted is None:
            answer = functools.partial(self._answer, correlation_id)
            header = self._keep(batch, due_ms, answer)
        else:
            # What its topic's limits let in now is published when it is due, whatever they say then.
            answer = self._answer_to(admitted, correlation_id)
            try:
                header = self._keep(batch, due_ms, answer)
            except DanubiusError:
                admitted.give_back()
                raise
        self._batches += 1
        self.published_messages += header.count
        self.published_bytes += header.length
        shard.messages_in += header.count
        shard.bytes_in += header.length

    def _keep(self, batch: memoryview, due_ms: int, answer: Answer) -> Header:
        delays = self._session.node.delays
        return delays.schedule(self._source, batch, due_ms, self.producer, answer)


def _open_producer(session: SessionState, command: OpenProducer, correlation_id: int) -> None:
    if not command.is_delayed:
        session_producing.HANDLERS[OpenProducer](session, command, correlation_id)
        return
    handle = session.reserve_handle()

    def opened(source: DelayLog, producer: Producer | DanubiusError) -> None:
        if isinstance(producer, DanubiusError):
            raise producer
        source.parent.check_open()  # it may have been deleted while the disk was busy
        if not session.is_closed:
            attached = SchedulerHandle(session, source, producer, handle)
            session.producers[handle] = attached
            session.peer.send(attached.attach(), correlation_id)

    def with_log(source: DelayLog | DanubiusError) -> None:
        if isinstance(source, DanubiusError):
            raise source
        session.promise_again(handle)
        with session.promising(handle):
            open_producer(
                session.shard,
                source.topic,
                command.name,
                command.resume_epoch,
                session.later(correlation_id, functools.partial(opened, source), handle),
            )

    def with_topic(topic: Topic | DanubiusError) -> None:
        if isinstance(topic, TopicExists):
            # Someone else was creating it with other settings, which do not matter here.
            topic = session.shard.topics.get(TopicName(command.topic), topic)
        if isinstance(topic, DanubiusError):
            raise topic
        session.promise_again(handle)
        with session.promising(handle):
            session.node.delays.open_log(topic, session.later(correlation_id, with_log, handle))

    with session.promising(handle):
        parse_name("producer", command.name)
        _find_topic(session, command, session.later(correlation_id, with_topic, handle))


def _find_topic(
    session: SessionState, command: OpenProducer, on_done: Callable[[Topic | DanubiusError], None]
) -> None:
    existing = session.shard.topic_or_none(command.topic)
    if existing is not None:
        on_done(existing)
    else:
        create_missing(session.shard, command.topic, command.spec, on_done)


def _schedule(
    session: SessionState, command: Schedule, correlation_id: int, payload: memoryview
) -> None:
    producer = session.producers.get(command.handle)
    if producer is None:
        raise HandleNotFound(f"no producer is open under handle {command.handle}; open it again")
    if not isinstance(producer, SchedulerHandle):
        raise InvalidArgument(
            f"the producer under handle {command.handle} sends Produce; open one with is_delayed to send Schedule"
        )
    producer.schedule(payload, command.due_ms, correlation_id)
    if session.shard.pressure.must_wait(session, len(payload)):
        session.pause_publishing()


HANDLERS: Final[dict[type, Handler]] = {
    OpenProducer: _open_producer,
}
"""To be registered behind those of `session_producing`, whose OpenProducer it passes others on to."""
PAYLOAD_HANDLERS: Final[dict[type, PayloadHandler]] = {
    Schedule: _schedule,
}
