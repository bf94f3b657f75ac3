"""The history of subscriptions, for those who ask afterwards: the last events of each, and a line in the log.

A history begins with its first event and holds at most EVENTS_MAX; what repeats within a second is one event, with a
count and the sum of its messages. The log has a line when it begins, and one with the sums afterwards.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from danubius.model.admin_replies import EventKind, SubscriptionEvent

if TYPE_CHECKING:
    from danubius.runtime.clock import Clock
    from danubius.shard.hosting.subscription import Subscription
    from danubius.shard.hosting.topic import Topic

EVENTS_MAX: Final = 128
REPEAT_MS: Final = 1000
_EVERYDAY: Final = frozenset(
    {
        EventKind.JOINED,
        EventKind.LEFT,
        EventKind.LOST,
        EventKind.PROMOTED,
        EventKind.TIMED_OUT,
        EventKind.THROTTLED,
        EventKind.FILTERED,
        EventKind.EXPIRED,
        EventKind.DROPPED,
    }
)
"""Logged only when the log is set to show everything."""

log = logging.getLogger(__name__)


class EventHistory:
    """Keeps the histories of all subscriptions of a shard; each is kept with its subscription."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_number = 1

    def tell(  # what happened, to whom
        self,
        topic: Topic,
        subscription: Subscription,
        kind: EventKind,
        *,
        who: str = "",
        detail: str = "",
        messages: int = 0,
    ) -> None:
        """It has happened."""
        now_ms = self._clock.wall_us() // 1000
        number = self._next_number
        self._next_number += 1
        history = subscription.history
        if history is None:
            history = subscription.history = deque(maxlen=EVENTS_MAX)
        last = history[-1] if history else None
        event = SubscriptionEvent(
            number, now_ms, kind.value, topic.name, who, detail, messages=messages
        )
        if (
            last is not None
            and (last.kind, last.who) == (kind, who)
            and now_ms - last.time_ms < REPEAT_MS
        ):
            event = msgspec.structs.replace(
                event,
                time_ms=last.time_ms,
                count=last.count + 1,
                messages=last.messages + messages,
            )
            history[-1] = event
            return
        if last is not None and last.count > 1:
            _log(subscription, last)
        history.append(event)
        _log(subscription, event)

    @staticmethod
    def of(subscription: Subscription, after: int = 0) -> list[SubscriptionEvent]:
        """The events behind a number, the oldest first."""
        return [event for event in subscription.history or () if event.number > after]


def _log(subscription: Subscription, event: SubscriptionEvent) -> None:
    level = logging.DEBUG if event.kind in _EVERYDAY else logging.INFO
    if not log.isEnabledFor(level):
        return
    facts: dict[str, object] = {
        "topic": event.topic,
        "subscription": subscription.name,
        "event": event.kind,
        "who": event.who,
        "detail": event.detail,
        "count": event.count if event.count > 1 else 0,
        "messages": event.messages,
    }
    log.log(level, "subscription event", extra={key: fact for key, fact in facts.items() if fact})


def merge_histories(
    histories: list[list[SubscriptionEvent]], limit: int
) -> list[SubscriptionEvent]:
    """Of all partitions, the oldest first."""
    events = sorted(
        (event for history in histories for event in history), key=lambda one: one.number
    )
    return events[:limit]
