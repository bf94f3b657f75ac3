"""Changes of what a broker hosts that take several facts: all of them become true at once, or none."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from danubius.errors import DanubiusError
from danubius.shard.state.atomic import Atomic
from danubius.shard.state.facts import PartitionsRemoved, TopicRemoved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from danubius.model.ids import Offset, TopicName
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard
    from danubius.shard.state.facts import Event
    from danubius.shard.state.tokens import OnDone


log = logging.getLogger(__name__)


def commit_facts(shard: Shard, facts: Sequence[Event], on_done: OnDone) -> None:
    """One record. `on_done` hears when all facts hold, and must append nothing if it hears of an error."""

    def done(result: list[Offset] | DanubiusError) -> None:
        on_done(result if isinstance(result, DanubiusError) else None)

    Atomic(shard).commit([], facts, done)


def remove_topics(
    shard: Shard,
    topics: Iterable[Topic],
    bases: Iterable[TopicName],
    others: Iterable[Event],
    on_done: OnDone,
) -> None:
    """Delete topics with what hangs on them, and the partitioned topics `bases`; `others` become true with it.

    They take nothing more from here on, and are gone once that is durable.
    """
    bases = list(bases)
    going = {topic.id: topic for topic in topics if not topic.is_deleting}
    # Delay logs go with the topics they belong to.
    going |= {t.id: t for t in shard.topics_by_id.values() if t.parent in going}
    facts: list[Event] = [PartitionsRemoved(base) for base in bases]
    facts += [TopicRemoved(topic_id) for topic_id in going]
    facts += others
    for topic in going.values():
        topic.is_deleting = True

    def reopen() -> None:
        for topic in going.values():
            topic.is_deleting = False

    def done(error: DanubiusError | None) -> None:
        if error is not None:
            reopen()
        else:
            for topic in going.values():
                log.info("topic deleted", extra={"topic": topic.name})
            for base in bases:
                shard.catalog.watchers.forget(base)
        on_done(error)

    try:
        commit_facts(shard, facts, done)
    except DanubiusError:
        reopen()
        raise


def attempt(action: Callable[[], None], on_error: Callable[[DanubiusError], None]) -> None:
    """Do what could not be done at once; what it raises is its answer."""
    try:
        action()
    except DanubiusError as error:
        on_error(error)
