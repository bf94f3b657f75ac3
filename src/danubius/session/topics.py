"""Requests about topics: look up, create, delete, list, describe, find a position.

A partitioned topic answers as a whole: counts are sums over its partitions, offsets too, so that the difference of two
is a number of messages. Who looks one up may watch it: it is then told on the same connection when it has grown.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from danubius.admin.description import describe_topic, summarise_topic
from danubius.errors import DanubiusError, InvalidArgument
from danubius.model.ids import TopicName
from danubius.model.partitions import partitioned_error
from danubius.model.subscription import EARLIEST, AtOffset
from danubius.shard.hosting.partitions import create_partitioned, partitions_of
from danubius.shard.hosting.topics import create_topic, delete_topic, list_topics
from danubius.wire.commands import (
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    ListTopics,
    Located,
    Lookup,
    OffsetResolved,
    ResolveOffset,
    SubscriptionSummary,
    TopicChanged,
    TopicDescribed,
    TopicsListed,
    TopicSummary,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.catalog.core.states import PartitionedState
    from danubius.model.subscription import Position
    from danubius.session.state import Handler, SessionState
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard

LIST_PAGE_MAX: Final = 1_500
"""Topics in one answer: stays far below the bound of a frame's command part."""
PARTITIONS_VERSION: Final = 2
"""The version of the protocol that knows partitions."""


class Watch:
    """A connection that wants to hear of a topic's partitions, until either is gone."""

    __slots__ = ("_base", "_session")

    def __init__(self, session: SessionState, base: TopicName) -> None:
        self._session = session
        self._base = base

    def start(self) -> None:
        watchers = self._session.shard.catalog.watchers
        if not watchers.is_watched(self._base, self._session):
            watchers.watch(self._base, self._session, self)
            self._session.on_closed.add(self._stop)

    def tell(self, partitions: int) -> None:
        self._session.peer.send(TopicChanged(self._base, partitions))

    def end(self) -> None:
        self._session.on_closed.discard(self._stop)

    def _stop(self) -> None:
        self._session.shard.catalog.watchers.unwatch(self._base, self._session)


def _lookup(session: SessionState, command: Lookup, correlation_id: int) -> None:
    known = session.shard.catalog.partitioned.get(TopicName(command.topic))
    if known is None:
        topic = session.shard.topic(command.topic)
        session.peer.send(Located(topic.name, session.advertised_url), correlation_id)
        return
    if session.version < PARTITIONS_VERSION:
        raise partitioned_error(known.name, known.partitions)
    partitions_of(session.shard, known)
    if command.watch:
        Watch(session, TopicName(known.name)).start()
    session.peer.send(Located(known.name, session.advertised_url, known.partitions), correlation_id)


def _create_topic(session: SessionState, command: CreateTopic, correlation_id: int) -> None:
    def created(result: Topic | DanubiusError) -> None:
        session.finish(correlation_id, result if isinstance(result, DanubiusError) else None)

    if command.partitions:
        create_partitioned(
            session.shard,
            command.topic,
            command.spec,
            command.partitions,
            exist_ok=command.exist_ok,
            on_done=session.later(
                correlation_id, functools.partial(session.finish, correlation_id)
            ),
        )
        return
    create_topic(
        session.shard,
        command.topic,
        command.spec,
        exist_ok=command.exist_ok,
        on_done=session.later(correlation_id, created),
    )


def _delete_topic(session: SessionState, command: DeleteTopic, correlation_id: int) -> None:
    deleted = functools.partial(session.finish, correlation_id)
    delete_topic(session.shard, command.topic, session.later(correlation_id, deleted))


def _list_topics(session: SessionState, command: ListTopics, correlation_id: int) -> None:
    if not 1 <= command.limit <= LIST_PAGE_MAX:
        raise InvalidArgument(f"limit is {command.limit}; it must be 1 to {LIST_PAGE_MAX}")
    topics, more = list_topics(session.shard, command.namespace, command.after, command.limit)
    session.peer.send(TopicsListed([summarise_topic(t) for t in topics], more), correlation_id)


def _describe_topic(session: SessionState, command: DescribeTopic, correlation_id: int) -> None:
    shard = session.shard
    known = shard.catalog.partitioned.get(TopicName(command.topic))
    if known is None:
        session.peer.send(describe_topic(shard.topic(command.topic)), correlation_id)
    else:
        session.peer.send(_describe_whole(shard, known), correlation_id)


def _describe_whole(shard: Shard, known: PartitionedState) -> TopicDescribed:
    parts = [describe_topic(topic) for topic in partitions_of(shard, known)]
    subscriptions: dict[str, list[SubscriptionSummary]] = {}
    for part in parts:
        for subscription in part.subscriptions:
            subscriptions.setdefault(subscription.name, []).append(subscription)
    producers = sorted(name for part in parts for name in part.producers)
    summary = TopicSummary(
        known.name,
        known.spec,
        sum(part.summary.start_offset for part in parts),
        sum(part.summary.end_offset for part in parts),
        sum(part.summary.stored_bytes for part in parts),
        len(producers),
        len(subscriptions),
    )
    ledgers = sum(part.ledgers for part in parts)
    lines = [_add_up(lines) for lines in subscriptions.values()]
    return TopicDescribed(summary, ledgers, lines, producers)


def _add_up(parts: list[SubscriptionSummary]) -> SubscriptionSummary:
    return SubscriptionSummary(
        parts[0].name,
        parts[0].type,
        sorted(name for part in parts for name in part.consumers),
        sum(part.floor for part in parts),
        sum(part.backlog for part in parts),
        sum(part.unacked for part in parts),
        sum(part.dropped for part in parts),
    )


def _resolve_offset(session: SessionState, command: ResolveOffset, correlation_id: int) -> None:
    shard = session.shard
    known = shard.catalog.partitioned.get(TopicName(command.topic))
    topics = [shard.topic(command.topic)] if known is None else partitions_of(shard, known)
    position = command.position if known is None else _position_of_each(known, command.position)

    def resolved(offset: int | DanubiusError) -> None:
        if isinstance(offset, DanubiusError):
            session.fail(correlation_id, offset)
            return
        start = sum(topic.log.start_offset for topic in topics)
        end = sum(topic.log.end_offset for topic in topics)
        life = topics[0].incarnation if known is None else 0
        session.peer.send(OffsetResolved(offset, start, end, life), correlation_id)

    _resolve_all(topics, position, session.later(correlation_id, resolved))


def _position_of_each(known: PartitionedState, position: Position) -> Position:
    if not isinstance(position, AtOffset):
        return position
    if not position.offset:
        return EARLIEST
    raise InvalidArgument(
        f"offset {position.offset} names no message of {known.name}, which is partitioned into {known.partitions}: "
        f"ask for 'earliest', 'latest' or a time, or about one partition, as {known.name}-part-0"
    )


def _resolve_all(
    topics: list[Topic], position: Position, on_done: Callable[[int | DanubiusError], None]
) -> None:
    """The sum of the offsets, or the first error, once all have answered."""
    offsets: list[int] = []
    errors: list[DanubiusError] = []

    def resolved(offset: int | DanubiusError) -> None:
        if isinstance(offset, DanubiusError):
            errors.append(offset)
        else:
            offsets.append(offset)
        if len(offsets) + len(errors) == len(topics):
            on_done(errors[0] if errors else sum(offsets))

    for topic in topics:
        topic.resolve(position, resolved)


HANDLERS: Final[dict[type, Handler]] = {
    Lookup: _lookup,
    CreateTopic: _create_topic,
    DeleteTopic: _delete_topic,
    ListTopics: _list_topics,
    DescribeTopic: _describe_topic,
    ResolveOffset: _resolve_offset,
}
