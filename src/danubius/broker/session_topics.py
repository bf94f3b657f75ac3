"""Requests about topics: look up, create, delete, list, describe, find a position."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from danubius.broker.description import describe_topic, summarise_topic
from danubius.broker.topics import create_topic, delete_topic, list_topics
from danubius.errors import DanubiusError, InvalidArgument
from danubius.wire.commands import (
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    ListTopics,
    Located,
    Lookup,
    OffsetResolved,
    ResolveOffset,
    TopicsListed,
)

if TYPE_CHECKING:
    from danubius.broker.session_state import Handler, SessionState
    from danubius.broker.topic import Topic

LIST_PAGE_MAX: Final = 1_500
"""Topics in one answer: stays far below the bound of a frame's command part."""


def _lookup(session: SessionState, command: Lookup, correlation_id: int) -> None:
    topic = session.broker.topic(command.topic)
    session.peer.send(Located(topic.name, session.advertised_url), correlation_id)


def _create_topic(session: SessionState, command: CreateTopic, correlation_id: int) -> None:
    def created(result: Topic | DanubiusError) -> None:
        session.finish(correlation_id, result if isinstance(result, DanubiusError) else None)

    create_topic(
        session.broker,
        command.topic,
        command.spec,
        exist_ok=command.exist_ok,
        on_done=session.later(correlation_id, created),
    )


def _delete_topic(session: SessionState, command: DeleteTopic, correlation_id: int) -> None:
    deleted = functools.partial(session.finish, correlation_id)
    delete_topic(session.broker, command.topic, session.later(correlation_id, deleted))


def _list_topics(session: SessionState, command: ListTopics, correlation_id: int) -> None:
    if not 1 <= command.limit <= LIST_PAGE_MAX:
        raise InvalidArgument(f"limit is {command.limit}; it must be 1 to {LIST_PAGE_MAX}")
    topics, more = list_topics(session.broker, command.namespace, command.after, command.limit)
    session.peer.send(TopicsListed([summarise_topic(t) for t in topics], more), correlation_id)


def _describe_topic(session: SessionState, command: DescribeTopic, correlation_id: int) -> None:
    session.peer.send(describe_topic(session.broker.topic(command.topic)), correlation_id)


def _resolve_offset(session: SessionState, command: ResolveOffset, correlation_id: int) -> None:
    topic = session.broker.topic(command.topic)

    def resolved(offset: int | DanubiusError) -> None:
        if isinstance(offset, DanubiusError):
            session.fail(correlation_id, offset)
        else:
            log = topic.log
            session.peer.send(
                OffsetResolved(offset, log.start_offset, log.end_offset), correlation_id
            )

    topic.resolve(command.position, session.later(correlation_id, resolved))


HANDLERS: Final[dict[type, Handler]] = {
    Lookup: _lookup,
    CreateTopic: _create_topic,
    DeleteTopic: _delete_topic,
    ListTopics: _list_topics,
    DescribeTopic: _describe_topic,
    ResolveOffset: _resolve_offset,
}
