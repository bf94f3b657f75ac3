"""Storage quotas: what is stored is counted, and the oldest goes where the policy says so.

Publishes are checked against counts that `admission` keeps; here they are made exact once a second. Where the oldest
may be dropped, whole ledgers go, acknowledged or not, in one record with the acknowledgements that this amounts to: a
subscription that had not come that far goes on at the new start, and counts what it never saw as dropped.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Final

from danubius.errors import DanubiusError
from danubius.ledger.managed import ManagedLedger
from danubius.model.admin_replies import EventKind
from danubius.model.ids import namespace_of
from danubius.model.policy import QuotaAction
from danubius.model.topic import Retention
from danubius.shard.hosting.admission import Limits
from danubius.shard.state.facts import LogTrimmed, RangesAcked

if TYPE_CHECKING:
    from danubius.model.ids import TopicId
    from danubius.shard.hosting.admission import Share
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard
    from danubius.shard.state.atomic import Atomic
    from danubius.shard.state.facts import Event

INTERVAL_MS: Final = 1_000
LEDGERS_A_QUOTA: Final = 8
"""The open ledger is sealed at this part of a quota, so that dropping one takes no more than that."""

log = logging.getLogger(__name__)


class Quotas:
    """Keeps topics and namespaces within their quotas."""

    def __init__(self, shard: Shard, atomic: Atomic) -> None:
        self._shard = shard
        self._atomic = atomic
        self._busy: set[TopicId] = set()
        """Topics whose oldest ledgers are on their way out."""
        self._is_due = False

    def start(self) -> None:
        self._shard.admission.on_overfull = self._soon
        self._shard.ticks.add(INTERVAL_MS, self.look)

    def look(self) -> None:
        """Count anew, and drop what is too much."""
        self._is_due = False
        admission = self._shard.admission
        for topic in list(admission.quotas.values()):
            gate = topic.gate
            if isinstance(gate, Limits):
                gate.measure()
                if gate.may_drop and gate.stored_bytes > gate.quota_bytes:
                    self._drop(topic, gate.quota_bytes)
        shares = {name: share for name, share in admission.shares.items() if share.quota_bytes}
        if shares:
            self._look_at_shares(shares)

    def _soon(self, _topic: Topic) -> None:
        """Somebody publishes into what is full: do not wait for the next round."""
        if not self._is_due:
            self._is_due = True
            self._shard.loop.call_soon(self.look)

    def _look_at_shares(self, shares: dict[str, Share]) -> None:
        largest: dict[str, tuple[int, Topic]] = {}
        for share in shares.values():
            share.stored_bytes = 0
        for topic in self._shard.topics_by_id.values():
            name = namespace_of(topic.name)
            share = shares.get(name)
            if share is None:
                continue
            stored = topic.stored_bytes
            share.stored_bytes += stored
            if name not in largest or stored > largest[name][0]:
                largest[name] = (stored, topic)
        for name, (stored, topic) in largest.items():
            excess = shares[name].stored_bytes - shares[name].quota_bytes
            if excess > 0 and shares[name].quota_action is QuotaAction.DROP_OLDEST:
                self._drop(topic, max(0, stored - excess))

    def _drop(self, topic: Topic, kept_bytes: int) -> None:
        """Let the oldest ledgers of a topic go until no more than this is left."""
        ledger = topic.log
        if (
            topic.id in self._busy
            or topic.is_deleting
            or topic.parent
            or not isinstance(ledger, ManagedLedger)
        ):
            return
        ledger.seal_open(kept_bytes // LEDGERS_A_QUOTA)
        now_ms = self._shard.clock.wall_us() // 1000
        retention = Retention(age_ms=None, size_bytes=kept_bytes)
        start = ledger.plan_trim(ledger.end_offset, retention, now_ms)
        if start <= ledger.start_offset:
            return
        facts: list[Event] = []
        lost: list[tuple[str, int]] = []
        for subscription in topic.subscriptions.values():
            floor = subscription.cursor.floor
            if floor < start and not subscription.is_moving:
                lost.append((subscription.name, subscription.cursor.unacked_count(floor, start)))
                facts.append(RangesAcked(topic.id, subscription.id, [(floor, start)]))
        facts.append(LogTrimmed(topic.id, start))
        self._busy.add(topic.id)
        self._atomic.commit([], facts, functools.partial(self._dropped, topic, start, lost))

    def _dropped(
        self, topic: Topic, start: int, lost: list[tuple[str, int]], result: object
    ) -> None:
        self._busy.discard(topic.id)
        if isinstance(result, DanubiusError):
            log.warning(
                "quota exceeded for now", extra={"topic": topic.name, "error": result.message}
            )
            return
        total = 0
        for name, count in lost:
            subscription = topic.subscriptions.get(name)
            if subscription is not None:
                subscription.quota_dropped += count
                total += count
                if count:
                    detail = f"below offset {start}, to stay within the quota"
                    self._shard.history.tell(
                        topic, subscription, EventKind.DROPPED, detail=detail, messages=count
                    )
        if isinstance(topic.gate, Limits):
            topic.gate.measure()
        log.info(
            "oldest messages dropped",
            extra={"topic": topic.name, "start_offset": start, "unacknowledged": total},
        )
