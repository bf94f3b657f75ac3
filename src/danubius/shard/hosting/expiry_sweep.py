"""Messages that say when they expire, in subscriptions that deliver nothing: acknowledged, where nobody asks for them.

The sweep looks at the oldest message of a subscription now and then: it goes when it has expired, and those behind it
that have, up to the first one that has not. When that will be is remembered, so a message is not read again before.
Topics without such messages are not looked at; what expires by its topic alone is `retention`'s.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.dispatch.expiry import expiries
from danubius.errors import DanubiusError
from danubius.ledger.managed import ManagedLedger
from danubius.model.admin_replies import EventKind
from danubius.model.limits import KIB
from danubius.shard.state.facts import RangesAcked

if TYPE_CHECKING:
    from danubius.dispatch.chunk import Chunk
    from danubius.shard.hosting.subscription import Subscription
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard
    from danubius.shard.state.atomic import Atomic

SWEEP_MS: Final = 1000
READ_BYTES: Final = 256 * KIB
"""What the sweep looks at in one step of one subscription."""

log = logging.getLogger(__name__)


class _Known(NamedTuple):
    """The oldest message of a subscription, and when it expires."""

    floor: int
    expires_us: int


class ExpirySweep:
    """Looks after subscriptions that deliver nothing, of topics with messages that say when they expire."""

    def __init__(self, shard: Shard, atomic: Atomic) -> None:
        self._shard = shard
        self._atomic = atomic
        self._known: dict[tuple[int, int], _Known] = {}
        """By topic and subscription: there is no need to read it again before that."""
        self._busy: set[tuple[int, int]] = set()

    def start(self) -> None:
        self._shard.ticks.add(SWEEP_MS, self.sweep)

    def sweep(self) -> None:
        now_us = self._shard.ages.now_us()
        seen: dict[tuple[int, int], _Known] = {}
        for topic in self._shard.topics_by_id.values():
            if not topic.has_expiring or topic.is_deleting or topic.parent:
                continue
            for subscription in topic.subscriptions.values():
                key = topic.id, subscription.id
                known = self._known.get(key)
                if known is not None:
                    seen[key] = known
                if subscription.consumers or subscription.is_moving or key in self._busy:
                    continue
                floor = subscription.cursor.floor
                if known is None or known.floor != floor or known.expires_us <= now_us:
                    self._look(topic, subscription, floor)
        self._known = seen | {key: one for key, one in self._known.items() if key in self._busy}

    def _look(self, topic: Topic, subscription: Subscription, floor: int) -> None:
        if floor >= topic.log.end_offset or not isinstance(topic.log, ManagedLedger):
            return
        self._busy.add((topic.id, subscription.id))
        on_read = functools.partial(self._on_read, topic, subscription, floor)
        topic.log.read(floor, READ_BYTES, on_read)

    def _on_read(
        self, topic: Topic, subscription: Subscription, floor: int, chunk: Chunk | DanubiusError
    ) -> None:
        key = topic.id, subscription.id
        self._busy.discard(key)
        is_gone = topic.is_deleting or not topic.hosts(subscription)
        if isinstance(chunk, DanubiusError) or is_gone or subscription.is_moving:
            return  # a later round finds out what there is to do
        end, now_us = floor, self._shard.ages.now_us()
        for first, behind, expires_us in expiries(chunk, topic.ttl_us):
            if expires_us > now_us:
                self._known[key] = _Known(max(floor, first), expires_us)
                break
            end = behind
        if end <= floor:
            return
        count = subscription.cursor.unacked_count(floor, end)
        self._busy.add(key)
        fact = RangesAcked(topic.id, subscription.id, [(floor, end)])
        self._atomic.commit(
            [], [fact], functools.partial(self._on_acked, topic, subscription, count)
        )

    def _on_acked(
        self, topic: Topic, subscription: Subscription, count: int, result: object
    ) -> None:
        self._busy.discard((topic.id, subscription.id))
        if isinstance(result, DanubiusError):
            log.warning(
                "expired messages stay for now", extra={"topic": topic.name, "error": str(result)}
            )
            return
        subscription.expired += count
        self._shard.history.tell(topic, subscription, EventKind.EXPIRED, messages=count)
        is_idle = not subscription.consumers and not subscription.is_moving
        if is_idle and topic.hosts(subscription) and not topic.is_deleting:
            # What is behind them has most likely expired too; others have their turn between two steps.
            self._shard.loop.call_soon(self._again, topic, subscription)

    def _again(self, topic: Topic, subscription: Subscription) -> None:
        key = topic.id, subscription.id
        known = self._known.get(key)
        floor = subscription.cursor.floor
        if key in self._busy or subscription.consumers or subscription.is_moving:
            return
        if topic.hosts(subscription) and (known is None or known.floor != floor):
            self._look(topic, subscription, floor)
