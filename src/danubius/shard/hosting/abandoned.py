"""Subscriptions that nobody uses any more, and what is kept because of them.

Retention deletes nothing that a subscription has not acknowledged. So one that was made for a look, and left, fills the
disk without a word. Here it gets a word: in the log when it has been without a consumer for an hour and keeps what
would be gone otherwise, in `/health` and in its figures. It is never deleted: only its owner knows better.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from danubius.ledger.core.retention import plan_drop
from danubius.ledger.managed import ManagedLedger
from danubius.model.topic import retention_of

if TYPE_CHECKING:
    from danubius.shard.hosting.subscription import Subscription
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard

IDLE_MS: Final = 3_600_000
"""Without a consumer for so long, a subscription that holds something back counts as abandoned."""

log = logging.getLogger(__name__)


def held_back_bytes(topic: Topic, subscription: Subscription, now_ms: int) -> int:
    """Bytes of whole ledgers that retention would have deleted, had this subscription acknowledged them."""
    ledger = topic.log
    if not isinstance(ledger, ManagedLedger) or topic.policies.delete_after_ack:
        return 0
    floor = subscription.cursor.floor
    if floor >= ledger.end_offset or ledger.is_young(now_ms):
        return 0
    ledgers = ledger.ledgers
    due = plan_drop(ledgers, ledger.end_offset, retention_of(topic.policies), now_ms)
    return sum(meta.data_bytes for meta in ledgers[:due] if meta.end_offset > floor)


def idle_ms(subscription: Subscription, now_ns: int) -> int:
    """How long it has been without a consumer, as far as this broker has seen; 0 with one."""
    if subscription.consumers:
        return 0
    return max(0, now_ns - subscription.seen_ns) // 1_000_000


class Abandoned:
    """Those that were found, and said, in the rounds of retention."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._found: dict[Subscription, Topic] = {}

    @property
    def count(self) -> int:
        return len(self._found)

    def look(self, topic: Topic, now_ms: int) -> None:
        """Find those of a topic; what is new is said."""
        now_ns = self._shard.clock.monotonic_ns()
        for subscription in topic.subscriptions.values():
            idle = idle_ms(subscription, now_ns)
            held = held_back_bytes(topic, subscription, now_ms) if idle >= IDLE_MS else 0
            if not held:
                self._found.pop(subscription, None)
            elif subscription not in self._found:
                self._found[subscription] = topic
                log.warning(
                    "a subscription without a consumer keeps what retention would delete: delete it if nobody needs it",
                    extra={
                        "topic": topic.name,
                        "subscription": subscription.name,
                        "idle_s": idle // 1000,
                        "held_back_bytes": held,
                    },
                )

    def forget_gone(self) -> None:
        """Once a round: topics and subscriptions that were deleted are nobody's concern."""
        topics = self._shard.topics_by_id
        for subscription, topic in list(self._found.items()):
            if topics.get(topic.id) is not topic or not topic.hosts(subscription):
                del self._found[subscription]
