"""Retention, as the policies of topics say: by age and size, as soon as it is acknowledged, or when it is too old.

- Retention: ledgers that every subscription has passed go when they are too old, or too many.
- A work queue (`delete_after_ack`) starts at the first message that some subscription has not acknowledged; without a
  subscription it keeps everything for the first one.
- Messages older than `ttl_ms` count as acknowledged: a prefix, by the producers' publish times. So a producer whose
  clock is ahead keeps those behind its messages alive for longer; none expires before its time.

Ages are judged by a clock that does not believe a jump ahead at once (`ages`): what went does not come back.

Retention looks at one slice of the topics at a time, so that 10,000 of them never hold up the loop. Work queues and
topics with a TTL are few, and looked at in every slice.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Final

from danubius.errors import DanubiusError
from danubius.ledger.managed import ManagedLedger
from danubius.model.admin_replies import EventKind
from danubius.model.limits import MIB
from danubius.model.topic import BYTES_MAX, retention_of
from danubius.shard.hosting.abandoned import Abandoned
from danubius.shard.state.facts import LogTrimmed, RangesAcked

if TYPE_CHECKING:
    from danubius.model.ids import TopicId
    from danubius.shard.hosting.subscription import Subscription
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard
    from danubius.shard.state.atomic import Atomic

RETENTION_SLICES: Final = 10
"""A round over all topics takes this many slices."""
QUEUE_KEPT_BYTES: Final = 64 * MIB
"""The ledgers of a work queue are as small as if it were to keep no more than this."""
QUEUE_SEAL_BYTES: Final = 1 * MIB
QUEUE_SEAL_AGE_MS: Final = 10_000
"""An open ledger that is acknowledged to its end is sealed, to go, from this size or age on."""

log = logging.getLogger(__name__)


class TopicRetention:
    """Where the round over the topics has come to."""

    def __init__(self, shard: Shard, atomic: Atomic) -> None:
        self._shard = shard
        self._atomic = atomic
        self._due: list[TopicId] = []
        """Topics still to be looked at in this round."""
        self._count = 0
        """Topics in a slice of this round."""
        self.abandoned = Abandoned(shard)
        self._busy: set[TopicId] = set()
        """Topics of which old messages are being looked for."""

    def start(self) -> None:
        interval_ms = self._shard.config.retention_interval_ms // RETENTION_SLICES
        self._shard.ticks.add(interval_ms, self.trim_some)

    def trim_some(self) -> None:
        """Look over one slice of the topics for what nobody needs any more, and over those that hurry."""
        topics = self._shard.topics_by_id
        if not self._due:
            self.abandoned.forget_gone()
            self._due = list(topics)
            self._count = len(self._due) // RETENTION_SLICES + 1
        now_ms = self._shard.ages.retention_ms()
        expiry_ms = self._shard.ages.now_us() // 1000
        some = self._due[-self._count :]
        del self._due[-self._count :]
        hasty = [t for t in topics.values() if t.ttl_us or t.policies.delete_after_ack]
        for topic in dict.fromkeys((*hasty, *(topics[one] for one in some if one in topics))):
            # What is in a delay log stays until it is due, and has no subscriptions to say so.
            if topic.is_deleting or topic.parent or not isinstance(topic.log, ManagedLedger):
                continue
            if topic.ttl_us:
                self._expire(topic, topic.log, expiry_ms)
            self._trim(topic, topic.log, now_ms)
            self.abandoned.look(topic, now_ms)

    # ------------------------------------------------------------ what was acknowledged

    def _trim(self, topic: Topic, ledger: ManagedLedger, now_ms: int) -> None:
        start = _plan(topic, ledger, now_ms)
        if not ledger.would_free(start):
            return

        def done(error: DanubiusError | None) -> None:
            if error is not None:
                _failed(error)
            elif topic.id in self._shard.topics_by_id:
                log.info("ledgers deleted", extra={"topic": topic.name, "start_offset": start})

        self._shard.commit(LogTrimmed(topic.id, start), done)

    # ------------------------------------------------------------ what is too old

    def _expire(self, topic: Topic, ledger: ManagedLedger, now_ms: int) -> None:
        """Find the first message that is young enough; those before it count as acknowledged."""
        if topic.id in self._busy or not topic.subscriptions or topic.floor() >= ledger.end_offset:
            return
        self._busy.add(topic.id)
        ledger.find_time(now_ms * 1000 - topic.ttl_us, functools.partial(self._found_young, topic))

    def _found_young(self, topic: Topic, offset: int | DanubiusError) -> None:
        self._busy.discard(topic.id)
        if isinstance(offset, DanubiusError):
            log.warning(
                "old messages stay for now", extra={"topic": topic.name, "error": offset.message}
            )
            return
        if topic.is_deleting or topic.id not in self._shard.topics_by_id:
            return
        facts: list[RangesAcked] = []
        counts: list[tuple[Subscription, int]] = []
        for subscription in topic.subscriptions.values():
            floor = subscription.cursor.floor
            if floor < offset and not subscription.is_moving:
                counts.append((subscription, subscription.cursor.unacked_count(floor, offset)))
                facts.append(RangesAcked(topic.id, subscription.id, [(floor, offset)]))
        if facts:
            self._busy.add(topic.id)
            self._atomic.commit([], facts, functools.partial(self._expired, topic, counts))

    def _expired(
        self, topic: Topic, counts: list[tuple[Subscription, int]], result: object
    ) -> None:
        self._busy.discard(topic.id)
        if isinstance(result, DanubiusError):
            _failed(result)
            return
        for subscription, count in counts:
            subscription.expired += count
            if count:
                self._shard.history.tell(topic, subscription, EventKind.EXPIRED, messages=count)


def _plan(topic: Topic, ledger: ManagedLedger, now_ms: int) -> int:
    """Where the topic would start without what its policies let go of."""
    policies = topic.policies
    if not policies.delete_after_ack:
        bounds = (
            policies.retention_bytes,
            policies.quota_bytes,
            policies.offload_bytes,
            policies.local_bytes,
        )
        ledger.limit_ledgers(min((bound for bound in bounds if bound > 0), default=BYTES_MAX))
        if ledger.is_young(now_ms):
            return ledger.start_offset  # as most of ten thousand topics are
        return ledger.plan_trim(topic.floor(), retention_of(policies), now_ms)
    ledger.limit_ledgers(QUEUE_KEPT_BYTES)
    if not topic.subscriptions:
        return ledger.start_offset
    floor = topic.floor()
    if floor == ledger.end_offset:
        ledger.seal_open(QUEUE_SEAL_BYTES, now_ms - QUEUE_SEAL_AGE_MS)
    return floor


def _failed(error: DanubiusError) -> None:
    log.warning("ledgers kept for now", extra={"error": str(error)})
