"""Requests of consumers and readers: subscribe, credit, acknowledge, leave, fetch."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from danubius.ack.core.failure import REASON_CHARS_MAX
from danubius.errors import DanubiusError, HandleNotFound, InvalidArgument
from danubius.session.fetching import FetchRequest
from danubius.shard.hosting.consumer import ConsumerHandle, check_subscribe, find_subscription
from danubius.wire.commands import (
    Ack,
    CloseConsumer,
    Fetch,
    Fetched,
    Flow,
    Nack,
    Subscribe,
    Subscribed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.model.buffers import Buffer
    from danubius.session.state import Handler, SessionState
    from danubius.shard.hosting.subscription import Subscription


def _subscribe(session: SessionState, command: Subscribe, correlation_id: int) -> None:
    check_subscribe(command)
    topic = session.shard.topic(command.topic)
    handle = session.reserve_handle()

    def find() -> None:
        find_subscription(
            session.shard, topic, command, session.later(correlation_id, found, handle)
        )

    def found(subscription: Subscription | DanubiusError) -> None:
        if session.is_closed:
            return
        if isinstance(subscription, DanubiusError):
            session.fail(correlation_id, subscription)
            return
        if not topic.hosts(subscription):
            # Its last consumer went while another peer was asked, and the topic has forgotten it.
            session.promise_again(handle)
            find()
            return
        consumer = ConsumerHandle(session.shard, session.peer, command, topic, subscription)
        session.consumers[handle] = consumer
        consumer.attach(handle, session.forget_consumer)
        if not session.is_writable:
            consumer.set_writable(is_writable=False)
        session.peer.send(Subscribed(handle, consumer.is_active), correlation_id)

    with session.promising(handle):
        find()


def _flow(session: SessionState, command: Flow, _correlation_id: int) -> None:
    if command.messages < 0 or command.bytes < 0:
        raise InvalidArgument(
            "credit is granted, never taken back: messages and bytes are 0 or more"
        )
    consumer = session.consumers.get(command.handle)
    if consumer is not None:
        consumer.grant(command.messages, command.bytes)


def _ack(session: SessionState, command: Ack, correlation_id: int) -> None:
    _settle(
        session, command.handle, correlation_id, lambda c: c.ack(command.ranges), command.ranges
    )


def _nack(session: SessionState, command: Nack, correlation_id: int) -> None:
    if command.delay_ms < 0:
        raise InvalidArgument(f"nack delay is {command.delay_ms} ms; it must be 0 or more")
    _settle(
        session,
        command.handle,
        correlation_id,
        lambda c: c.nack(command.ranges, command.delay_ms, command.reason[:REASON_CHARS_MAX]),
        command.ranges,
    )


def _settle(
    session: SessionState,
    handle: int,
    correlation_id: int,
    action: Callable[[ConsumerHandle], None],
    ranges: list[tuple[int, int]],
) -> None:
    """Apply an acknowledgement; one that crossed the consumer's end on its way fails only if awaited."""
    for first, end in ranges:
        if not 0 <= first < end:
            raise InvalidArgument(f"the offset range [{first}, {end}) is empty or negative")
    consumer = session.consumers.get(handle)
    if consumer is not None:
        action(consumer)
    elif correlation_id:
        raise HandleNotFound(f"no consumer is open under handle {handle}")
    if consumer is not None and correlation_id:
        finish = functools.partial(session.finish, correlation_id)
        session.shard.acks.confirm(
            consumer.topic, consumer.subscription, session.later(correlation_id, finish)
        )


def _close_consumer(session: SessionState, command: CloseConsumer, correlation_id: int) -> None:
    consumer = session.consumers.pop(command.handle, None)
    if consumer is not None:
        consumer.detach(is_clean=True)
    session.finish(correlation_id, None)


def _fetch(session: SessionState, command: Fetch, correlation_id: int) -> None:
    def fetched(result: Fetched | DanubiusError, payload: Sequence[Buffer] = ()) -> None:
        if isinstance(result, DanubiusError):
            session.fail(correlation_id, result)
        else:
            session.peer.send(result, correlation_id, payload)

    topic = session.shard.topic(command.topic)
    answer = session.later(correlation_id, fetched)
    FetchRequest(session.shard, topic, command, session.fetch_gate, answer).start()


HANDLERS: Final[dict[type, Handler]] = {
    Subscribe: _subscribe,
    Flow: _flow,
    Ack: _ack,
    Nack: _nack,
    CloseConsumer: _close_consumer,
    Fetch: _fetch,
}
