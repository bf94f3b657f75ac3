"""Subscriptions as they are put up again: from a snapshot, and by the facts behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from danubius.ack.core.cursor import Cursor
from danubius.ack.core.ranges import RangeMap, Segment
from danubius.model.ids import TopicId
from danubius.shard.hosting.ack_journal import count_attempts, forget_attempts
from danubius.shard.hosting.failures import apply_rule
from danubius.shard.state.facts import (
    AttemptsCounted,
    RangesAcked,
    SubscriptionChanged,
    SubscriptionCreated,
    SubscriptionMoved,
    SubscriptionRemoved,
    SubscriptionRetyped,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.shard.hosting.subscription import Subscription
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard
    from danubius.shard.state.snapshot import SubscriptionState


def restore_subscription(shard: Shard, topic: Topic, state: SubscriptionState) -> Subscription:
    cursor = Cursor.decode(state.cursor)
    fact = SubscriptionCreated(
        topic.id,
        state.subscription_id,
        state.name,
        state.type,
        cursor.floor,
        state.failure,
        state.created_ms,
    )
    subscription = shard.host_subscription(topic, fact, cursor)
    if state.attempts:
        subscription.attempts = RangeMap[int]()
        subscription.attempts.put_all([Segment(*one) for one in state.attempts])
    return subscription


def _find(shard: Shard, topic_id: int, subscription_id: int) -> Subscription | None:
    topic = shard.topics_by_id.get(TopicId(topic_id))
    for subscription in topic.subscriptions.values() if topic else ():
        if subscription.id == subscription_id:
            return subscription
    return None


def _created(shard: Shard, fact: SubscriptionCreated) -> None:
    shard.numbers.seen(fact.subscription_id)
    topic = shard.topics_by_id.get(TopicId(fact.topic_id))
    # Two first consumers may have asked at once: the later fact changes nothing.
    if topic is not None and fact.name not in topic.subscriptions:
        shard.host_subscription(topic, fact)


def _retyped(shard: Shard, fact: SubscriptionRetyped) -> None:
    subscription = _find(shard, fact.topic_id, fact.subscription_id)
    if subscription is not None:
        subscription.type = fact.type
        if subscription.pump is not None:
            subscription.pump.close()
            subscription.pump = None


def _removed(shard: Shard, fact: SubscriptionRemoved) -> None:
    subscription = _find(shard, fact.topic_id, fact.subscription_id)
    if subscription is not None:
        subscription.stop()
        del shard.topics_by_id[TopicId(fact.topic_id)].subscriptions[subscription.name]


def _changed(shard: Shard, fact: SubscriptionChanged) -> None:
    subscription = _find(shard, fact.topic_id, fact.subscription_id)
    if subscription is not None:
        subscription.failure = fact.failure
        apply_rule(shard.topics_by_id[TopicId(fact.topic_id)], subscription)


def _moved(shard: Shard, fact: SubscriptionMoved) -> None:
    subscription = _find(shard, fact.topic_id, fact.subscription_id)
    if subscription is not None:
        # A pump holds the cursor it began with.
        assert subscription.pump is None, "a subscription moves while nobody delivers"
        subscription.cursor = Cursor(fact.floor)
        subscription.attempts = None


def _acked(shard: Shard, fact: RangesAcked) -> None:
    subscription = _find(shard, fact.topic_id, fact.subscription_id)
    if subscription is None:
        return
    if subscription.pump is not None:
        # It delivers, so the cursor is its core's to change.
        subscription.pump.acked(fact.ranges, is_durable=True)
        return
    news = subscription.cursor.ack(fact.ranges)
    if subscription.attempts is not None:
        forget_attempts(subscription, news)


def _attempts_counted(shard: Shard, fact: AttemptsCounted) -> None:
    subscription = _find(shard, fact.topic_id, fact.subscription_id)
    if subscription is None:
        return
    # A cursor in a snapshot may be ahead of the journal.
    unacked = subscription.cursor.unacked
    count_attempts(
        subscription,
        [
            Segment(*part, count)
            for first, end, count in fact.segments
            for part in unacked(first, end)
        ],
    )


APPLIERS: Final[dict[type, Callable[[Shard, Any], None]]] = {
    SubscriptionCreated: _created,
    SubscriptionRetyped: _retyped,
    SubscriptionRemoved: _removed,
    SubscriptionChanged: _changed,
    SubscriptionMoved: _moved,
    RangesAcked: _acked,
    AttemptsCounted: _attempts_counted,
}
