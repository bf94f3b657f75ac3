"""What the broker tells about its topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.ledger.managed import ManagedLedger
from danubius.wire.commands import SubscriptionSummary, TopicDescribed, TopicSummary

if TYPE_CHECKING:
    from danubius.broker.subscription import Subscription
    from danubius.broker.topic import Topic


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
