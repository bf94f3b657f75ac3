"""Messages with a time to live are passed over by the pumps of their topic, and cost others nothing.

A pump looks at expiries only where there are any: its topic has a time to live, or got a message that has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.dispatch.expiry import expired_ranges
from danubius.model.admin_replies import EventKind

if TYPE_CHECKING:
    from danubius.ack.core.ranges import Range
    from danubius.dispatch.chunk import Chunk
    from danubius.shard.hosting.ages import Ages
    from danubius.shard.hosting.history import EventHistory
    from danubius.shard.hosting.subscription import Subscription
    from danubius.shard.hosting.topic import Topic


class SubscriptionExpiry:
    """What the pump of one subscription asks before it delivers."""

    __slots__ = ("_ages", "_history", "_subscription", "_topic")

    def __init__(
        self, topic: Topic, subscription: Subscription, ages: Ages, history: EventHistory
    ) -> None:
        self._history = history
        self._topic = topic
        self._subscription = subscription
        self._ages = ages

    def expired(self, chunk: Chunk) -> list[Range]:
        return expired_ranges(chunk, self._ages.now_us(), self._topic.ttl_us)

    def count(self, messages: int) -> None:
        self._subscription.expired += messages
        self._history.tell(self._topic, self._subscription, EventKind.EXPIRED, messages=messages)


def apply_expiry(
    topic: Topic, subscription: Subscription, ages: Ages, history: EventHistory
) -> None:
    """Have the pump look at expiries if messages of this topic can expire, and not if they cannot."""
    pump = subscription.pump
    if pump is None:
        return
    if not topic.ttl_us and not topic.has_expiring:
        pump.expiry = None
    elif pump.expiry is None:
        pump.expiry = SubscriptionExpiry(topic, subscription, ages, history)


def note_expiring(topic: Topic, ages: Ages, history: EventHistory) -> None:
    """A message came that says when it expires."""
    if not topic.has_expiring:
        topic.has_expiring = True
        for subscription in topic.subscriptions.values():
            apply_expiry(topic, subscription, ages, history)
