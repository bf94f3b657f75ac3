"""Topics come and go: created, deleted, listed.

A topic is hosted from the commit of its creation to the commit of its removal, and never in between.
"""

from __future__ import annotations

import bisect
import functools
import logging
from typing import TYPE_CHECKING

from danubius.broker.events import TopicCreated, TopicRemoved
from danubius.errors import DanubiusError, TopicExists
from danubius.model.ids import namespace_of, parse_topic_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.broker.broker import Broker
    from danubius.broker.topic import Topic
    from danubius.model.ids import TopicName
    from danubius.model.topic import TopicSpec

log = logging.getLogger(__name__)


def create_topic(
    broker: Broker,
    text: str,
    spec: TopicSpec,
    *,
    exist_ok: bool,
    on_done: Callable[[Topic | DanubiusError], None],
) -> None:
    """Create a topic; answered once it is durable. Those who ask for one under way share its answer."""
    name = parse_topic_name(text)
    spec.check()
    existing = broker.topics.get(name)
    if existing is not None:
        existing.check_open()
        on_done(_accept_existing(existing, spec, exist_ok=exist_ok))
        return
    if name in broker.creating:
        broker.creating[name].append(
            lambda result: on_done(
                result
                if isinstance(result, DanubiusError)
                else _accept_existing(result, spec, exist_ok=exist_ok)
            )
        )
        return
    broker.creating[name] = [on_done]
    created_ms = broker.clock.wall_us() // 1000
    event = TopicCreated(broker.draw_id(), name, spec, created_ms)
    broker.journal_event(
        event.topic_id,
        event,
        functools.partial(_created, broker, event),
        functools.partial(_finish_creating, broker, name),
    )


def _created(broker: Broker, event: TopicCreated) -> None:
    topic = broker.host(event, [], 0)
    log.info("topic created", extra={"topic": topic.name, "dispatch": topic.spec.dispatch.value})
    _finish_creating(broker, topic.name, topic)


def _finish_creating(broker: Broker, name: TopicName, result: Topic | DanubiusError) -> None:
    for on_done in broker.creating.pop(name):
        on_done(result)


def _accept_existing(topic: Topic, spec: TopicSpec, *, exist_ok: bool) -> Topic | DanubiusError:
    if not exist_ok:
        return TopicExists(f"topic {topic.name} exists already")
    if topic.spec != spec:
        return TopicExists(f"topic {topic.name} exists already with other settings: {topic.spec}")
    return topic


def delete_topic(
    broker: Broker, text: str, on_done: Callable[[DanubiusError | None], None]
) -> None:
    """Delete a topic; it takes nothing more from here on, and is gone once that is durable."""
    topic = broker.topic(text)
    topic.is_deleting = True

    def failed(error: DanubiusError) -> None:
        topic.is_deleting = False
        on_done(error)

    def committed() -> None:
        broker.unhost(topic)
        log.info("topic deleted", extra={"topic": topic.name})
        on_done(None)

    broker.journal_event(topic.id, TopicRemoved(topic.id), committed, failed)


def list_topics(broker: Broker, namespace: str, after: str, limit: int) -> tuple[list[Topic], bool]:
    """One page in order of name, and whether there is more."""
    names = sorted(n for n in broker.topics if not namespace or namespace_of(n) == namespace)
    start = bisect.bisect_right(names, after)
    page = names[start : start + limit]
    return [broker.topics[name] for name in page], start + limit < len(names)
