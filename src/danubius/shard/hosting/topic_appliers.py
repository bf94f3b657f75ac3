"""Topics, namespaces and partitioned topics as the facts say, and topics as a snapshot has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from danubius.ledger.managed import ManagedLedger
from danubius.model.ids import TopicId
from danubius.shard.state.facts import (
    LogTrimmed,
    NamespaceChanged,
    NamespaceCreated,
    NamespaceRemoved,
    PartitionsRemoved,
    PartitionsSet,
    RecordsGivenUp,
    TopicChanged,
    TopicCreated,
    TopicRemoved,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard
    from danubius.shard.state.snapshot import TopicState


def restore_topic(shard: Shard, state: TopicState) -> Topic:
    """A topic without its producers and subscriptions."""
    created = TopicCreated(
        state.topic_id, state.name, state.spec, state.created_ms, state.policies, state.parent
    )
    topic = shard.host(created, state.ledgers, state.next_offset, state.start_offset)
    topic.watermark = state.watermark
    topic.has_expiring = state.has_expiring
    return topic


def _topic_created(shard: Shard, fact: TopicCreated) -> None:
    shard.numbers.seen(fact.topic_id)
    shard.host(fact, [], 0)


def _topic_removed(shard: Shard, fact: TopicRemoved) -> None:
    topic = shard.topics_by_id.get(TopicId(fact.topic_id))
    if topic is not None:
        shard.unhost(topic)


def _topic_changed(shard: Shard, fact: TopicChanged) -> None:
    topic = shard.topics_by_id.get(TopicId(fact.topic_id))
    if topic is not None:
        topic.own_policies = fact.policies
        shard.apply_policies(topic)


def _log_trimmed(shard: Shard, fact: LogTrimmed) -> None:
    topic = shard.topics_by_id.get(TopicId(fact.topic_id))
    if topic is not None and isinstance(topic.log, ManagedLedger):
        topic.log.trim_to(fact.start_offset)


def _records_given_up(shard: Shard, fact: RecordsGivenUp) -> None:
    """A topic goes on behind what it has lost: no offset is given twice, and reads say what is missing."""
    for topic_id, _, end in fact.holes:
        topic = shard.topics_by_id.get(TopicId(topic_id))
        if (
            topic is not None
            and isinstance(topic.log, ManagedLedger)
            and topic.log.end_offset < end
        ):
            topic.log.skip_to(end)
            topic.pipeline.sequencer.skip_to(end)


def _namespace_created(shard: Shard, fact: NamespaceCreated) -> None:
    shard.catalog.namespace_created(fact.name, fact.policies, fact.created_ms)


def _namespace_changed(shard: Shard, fact: NamespaceChanged) -> None:
    shard.catalog.namespace_changed(fact.name, fact.policies)


def _namespace_removed(shard: Shard, fact: NamespaceRemoved) -> None:
    shard.catalog.namespace_removed(fact.name)


def _partitions_set(shard: Shard, fact: PartitionsSet) -> None:
    shard.catalog.partitions_set(fact.name, fact.partitions, fact.spec, fact.created_ms)


def _partitions_removed(shard: Shard, fact: PartitionsRemoved) -> None:
    shard.catalog.partitions_removed(fact.name)


APPLIERS: Final[dict[type, Callable[[Shard, Any], None]]] = {
    TopicCreated: _topic_created,
    TopicRemoved: _topic_removed,
    TopicChanged: _topic_changed,
    LogTrimmed: _log_trimmed,
    RecordsGivenUp: _records_given_up,
    NamespaceCreated: _namespace_created,
    NamespaceChanged: _namespace_changed,
    NamespaceRemoved: _namespace_removed,
    PartitionsSet: _partitions_set,
    PartitionsRemoved: _partitions_removed,
}
