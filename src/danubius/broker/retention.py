"""Retention: ledgers that every subscription has passed go when the topic's policies let go of them.

It looks at one slice of the topics at a time, so that 10,000 of them never hold up the loop.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from danubius.broker.events import LogTrimmed
from danubius.ledger.managed import ManagedLedger
from danubius.model.topic import retention_of

if TYPE_CHECKING:
    from danubius.broker.broker import Broker
    from danubius.broker.topic import Topic
    from danubius.errors import DanubiusError
    from danubius.model.ids import TopicId

RETENTION_SLICES: Final = 10
"""A round over all topics takes this many slices."""

log = logging.getLogger(__name__)


class TopicRetention:
    """Where the round over the topics has come to."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._due: list[TopicId] = []
        """Topics still to be looked at in this round."""
        self._count = 0
        """Topics in a slice of this round."""

    def start(self) -> None:
        interval_ms = self._broker.config.retention_interval_ms // RETENTION_SLICES
        self._broker.ticks.add(interval_ms, self.trim_some)

    def trim_some(self) -> None:
        """Look over one slice of the topics for ledgers that nobody needs any more."""
        broker = self._broker
        if not self._due:
            self._due = list(broker.topics_by_id)
            self._count = len(self._due) // RETENTION_SLICES + 1
        now_ms = broker.clock.wall_us() // 1000
        some = self._due[-self._count :]
        del self._due[-self._count :]
        for topic_id in some:
            topic = broker.topics_by_id.get(topic_id)
            # What is in a delay log stays until it is due, and has no subscriptions to say so.
            if topic is None or topic.is_deleting or topic.parent:
                continue
            if isinstance(topic.log, ManagedLedger):
                self._trim(topic, topic.log, now_ms)

    def _trim(self, topic: Topic, ledger: ManagedLedger, now_ms: int) -> None:
        start = ledger.plan_trim(topic.floor(), retention_of(topic.policies), now_ms)
        if start <= ledger.start_offset:
            return

        def committed() -> None:
            if topic.id in self._broker.topics_by_id:
                ledger.trim_to(start)
                log.info("ledgers deleted", extra={"topic": topic.name, "start_offset": start})

        event = LogTrimmed(topic.id, start)
        self._broker.journal_event(topic.id, event, committed, _failed)


def _failed(error: DanubiusError) -> None:
    log.warning("ledgers kept for now", extra={"error": str(error)})
