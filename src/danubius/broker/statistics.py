"""The figures of topics and of the broker, taken when somebody asks: reading them changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from danubius.ledger.managed import ManagedLedger
from danubius.model.ids import namespace_of
from danubius.model.statistics import (
    BrokerStatistics,
    TopicStatistics,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.broker.node import Node
    from danubius.broker.targets import Target
    from danubius.broker.topic import Topic
    from danubius.model.statistics import Figures

    FiguresT = TypeVar("FiguresT", bound=Figures)


def measure_topic(topic: Topic) -> TopicStatistics:
    """One topic or partition."""
    log = topic.log
    pipeline = topic.pipeline
    subscriptions = topic.subscriptions.values()
    return TopicStatistics(
        topic.name,
        start_offset=log.start_offset,
        end_offset=log.end_offset,
        stored_messages=log.end_offset - log.start_offset if topic.is_reliable else 0,
        stored_bytes=topic.stored_bytes,
        ledgers=len(log.ledgers) if isinstance(log, ManagedLedger) else 0,
        producers=len(topic.attached),
        subscriptions=len(subscriptions),
        consumers=sum(len(one.consumers) for one in subscriptions),
        published_messages=pipeline.messages_in,
        published_bytes=pipeline.bytes_in,
        delivered_messages=sum(one.delivered for one in subscriptions),
    )


def measure_target(target: Target) -> TopicStatistics:
    """A topic, or the sums over all partitions."""
    figures = [measure_topic(topic) for topic in target.topics]
    if target.partitioned is None:
        return figures[0]
    whole = add_up(figures, TopicStatistics(target.name))
    subscriptions = {name for topic in target.topics for name in topic.subscriptions}
    return msgspec.structs.replace(
        whole,
        partitions=target.partitions,
        start_offset=0,
        end_offset=0,
        subscriptions=len(subscriptions),
    )


def add_up(parts: Sequence[FiguresT], whole: FiguresT) -> FiguresT:
    """`whole` with the sums of all numbers of its parts."""
    sums: dict[str, float] = {}
    for name in whole.__struct_fields__:
        value = getattr(whole, name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            sums[name] = sum((getattr(part, name) for part in parts), value)
    return msgspec.structs.replace(whole, **sums)


def measure_broker(node: Node) -> BrokerStatistics:
    """Everything together."""
    broker = node.broker
    topics = broker.topics_by_id.values()
    now_ms = broker.clock.wall_us() // 1000
    return BrokerStatistics(
        uptime_s=max(0, now_ms - node.about.started_ms) / 1000,
        connections=node.about.connections(),
        namespaces=len({*broker.namespaces, *map(namespace_of, broker.topics)}),
        topics=len(broker.topics),
        partitioned_topics=len(broker.partitioned),
        producers=sum(len(topic.attached) for topic in topics),
        subscriptions=sum(len(topic.subscriptions) for topic in topics),
        consumers=sum(len(s.consumers) for topic in topics for s in topic.subscriptions.values()),
        stored_bytes=sum(topic.stored_bytes for topic in topics),
        publish_queue_bytes=broker.journal.queued_bytes,
        published_messages=broker.messages_in,
        published_bytes=broker.bytes_in,
        delivered_messages=broker.messages_out,
        delivered_bytes=broker.bytes_out,
    )
