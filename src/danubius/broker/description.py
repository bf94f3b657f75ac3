"""What the broker tells about its topics."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Final

from danubius.broker.statistics import measure_broker, measure_target
from danubius.broker.targets import Target, find_target, is_partition
from danubius.ledger.managed import ManagedLedger
from danubius.model import admin, admin_replies
from danubius.model.ids import namespace_of
from danubius.model.policy import Policies, effective
from danubius.wire.commands import SubscriptionSummary, TopicDescribed, TopicSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from danubius.broker.broker import Broker
    from danubius.broker.node import Node
    from danubius.broker.subscription import Subscription
    from danubius.broker.topic import Topic
    from danubius.model.ids import TopicName

NAMES_MAX: Final = 1000
"""Names of producers, subscriptions or consumers in one description."""


def summarise_topic(topic: Topic) -> TopicSummary:
    """The line of a listing."""
    return TopicSummary(
        topic.name,
        topic.spec,
        topic.log.start_offset,
        topic.log.end_offset,
        topic.stored_bytes,
        len(topic.attached),
        len(topic.subscriptions),
    )


def describe_topic(topic: Topic) -> TopicDescribed:
    """The whole story."""
    ledgers = len(topic.log.ledgers) if isinstance(topic.log, ManagedLedger) else 0
    return TopicDescribed(
        summarise_topic(topic),
        ledgers,
        [_summarise_subscription(topic, s) for s in topic.subscriptions.values()],
        sorted(topic.attached),
    )


def _summarise_subscription(topic: Topic, subscription: Subscription) -> SubscriptionSummary:
    pump = subscription.pump
    return SubscriptionSummary(
        subscription.name,
        subscription.type,
        sorted(consumer.name for consumer in subscription.consumers.values()),
        subscription.cursor.floor,
        subscription.cursor.backlog(topic.log.end_offset),
        pump.unacked if pump is not None else 0,
        subscription.dropped,
    )


# ---------------------------------------------------------------- what operators ask for


def describe_target(target: Target) -> admin_replies.TopicDescribed:
    """A topic, or a partitioned one as a whole."""
    if target.partitioned is not None:
        spec, created_ms = target.partitioned.spec, target.partitioned.created_ms
    else:
        spec, created_ms = target.topics[0].spec, target.topics[0].created_ms
    first = target.topics[0] if target.topics else None
    own = first.own_policies if first is not None else None
    return admin_replies.TopicDescribed(
        target.name,
        spec.dispatch,
        spec.durability,
        own if own is not None else spec.layer(),
        first.policies if first is not None else effective(spec.layer()),
        measure_target(target),
        partitions=target.partitions,
        created_ms=created_ms,
        producers=sorted({name for topic in target.topics for name in topic.attached})[:NAMES_MAX],
        subscriptions=sorted({name for topic in target.topics for name in topic.subscriptions})[
            :NAMES_MAX
        ],
    )


def _describe_topic(
    node: Node, request: admin.DescribeTopic, on_reply: Callable[..., None]
) -> None:
    on_reply(describe_target(find_target(node.broker, request.topic)))


def _measure_topic(node: Node, request: admin.MeasureTopic, on_reply: Callable[..., None]) -> None:
    statistics = measure_target(find_target(node.broker, request.topic))
    on_reply(admin_replies.TopicMeasured(statistics))


def _list_topics(node: Node, request: admin.ListTopics, on_reply: Callable[..., None]) -> None:
    broker = node.broker
    names = heapq.nsmallest(request.limit + 1, _listed(broker, request.namespace, request.after))
    lines = (_summarise(find_target(broker, name)) for name in names)
    page, more = admin_replies.take_page(lines, request.limit, lambda line: line.topic)
    on_reply(admin_replies.TopicsListed(page, next=more))


def _listed(broker: Broker, namespace: str | None, after: str) -> Iterator[TopicName]:
    for names in (broker.topics, broker.partitioned):
        for name in names:
            if (
                name > after
                and (namespace is None or namespace_of(name) == namespace)
                and not is_partition(broker, name)
                and not _is_going(broker, name)
            ):
                yield name


def _is_going(broker: Broker, name: TopicName) -> bool:
    topic = broker.topics.get(name)
    return topic is not None and topic.is_deleting


def _summarise(target: Target) -> admin_replies.TopicSummary:
    figures = measure_target(target)
    spec = target.partitioned.spec if target.partitioned is not None else target.topics[0].spec
    return admin_replies.TopicSummary(
        target.name,
        target.partitions,
        spec.dispatch,
        spec.durability,
        figures.stored_messages,
        figures.stored_bytes,
        figures.producers,
        figures.subscriptions,
        figures.consumers,
    )


def _describe_broker(
    node: Node, _request: admin.DescribeBroker, on_reply: Callable[..., None]
) -> None:
    broker, about = node.broker, node.about
    config = broker.config
    on_reply(
        admin_replies.BrokerDescribed(
            about.broker_id,
            about.version,
            broker.epoch,
            config.policies,
            effective(Policies(message_bytes_max=config.message_bytes_max), config.policies),
            measure_broker(node),
            url=about.url,
            started_ms=about.started_ms,
        )
    )


ADMIN: Final[dict[type, Callable[[Node, Any, Callable[..., None]], None]]] = {
    admin.ListTopics: _list_topics,
    admin.DescribeTopic: _describe_topic,
    admin.MeasureTopic: _measure_topic,
    admin.DescribeBroker: _describe_broker,
}
