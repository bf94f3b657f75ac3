"""Topics, namespaces and partitioned topics as they are put up again: from a snapshot, and by the facts behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from danubius.catalog.core.names import BUILT_IN
from danubius.ledger.managed import ManagedLedger
from danubius.model.ids import TopicId, TopicName
from danubius.model.policy import Policies
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
from danubius.shard.state.snapshot import (
    BrokerSnapshot,
    NamespaceState,
    PartitionedState,
    TopicState,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard


def restore_spaces(shard: Shard, snapshot: BrokerSnapshot) -> None:
    """What is above topics."""
    shard.namespaces = {state.name: state for state in snapshot.namespaces}
    shard.partitioned = {TopicName(state.name): state for state in snapshot.partitioned}
    for first, end in snapshot.committed:
        shard.committed_transactions.add(first, end)


def adopt_namespaces(shard: Shard) -> None:
    """When all is recovered: topics of older versions are in namespaces that nobody ever wrote down."""
    for name in shard.spaces.namespaces:
        if name not in BUILT_IN:
            shard.namespaces.setdefault(name, NamespaceState(name, Policies(), 0))


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
    shard.next_id = max(shard.next_id, fact.topic_id + 1)
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
    # Two first topics may have been made in it at once, or one while an operator made it: the first fact stands.
    state = NamespaceState(fact.name, fact.policies, fact.created_ms)
    shard.namespaces.setdefault(fact.name, state)


def _namespace_changed(shard: Shard, fact: NamespaceChanged) -> None:
    # Those that exist from the first start on are written down when they are first changed.
    known = shard.namespaces.get(fact.name)
    created_ms = known.created_ms if known else 0
    shard.namespaces[fact.name] = NamespaceState(fact.name, fact.policies, created_ms)


def _namespace_removed(shard: Shard, fact: NamespaceRemoved) -> None:
    shard.namespaces.pop(fact.name, None)


def _partitions_set(shard: Shard, fact: PartitionsSet) -> None:
    shard.partitioned[TopicName(fact.name)] = PartitionedState(
        fact.name, fact.partitions, fact.spec, fact.created_ms
    )


def _partitions_removed(shard: Shard, fact: PartitionsRemoved) -> None:
    shard.partitioned.pop(TopicName(fact.name), None)


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
