"""Acknowledgements on their way into the journal: gathered for a moment, then written as ranges.

Nobody waits for them unless asked to: a crash delivers again what was acknowledged just before it, and skips nothing.
What the journal fails to take goes back to what is gathered: no acknowledgement is answered that was not written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from danubius.ack.core.ranges import RangeSet
from danubius.broker.events import EVENT_RECORD, RangesAcked, encode_event
from danubius.broker.tokens import EventToken
from danubius.errors import TopicDeleted

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from danubius.ack.core.ranges import Range
    from danubius.broker.subscription import Subscription
    from danubius.broker.topic import Topic
    from danubius.errors import DanubiusError
    from danubius.wal.journal import Journal

RETRY_S: Final = 1.0
"""Acknowledgements that the journal failed to take are appended again after this long."""


OnDone: TypeAlias = "Callable[[DanubiusError | None], None]"


class AckJournal:
    """What all subscriptions of the broker have acknowledged and not yet written down."""

    def __init__(
        self, journal: Journal, loop: asyncio.AbstractEventLoop, interval_s: float
    ) -> None:
        self._journal = journal
        self._loop = loop
        self._interval_s = interval_s
        self._dirty: dict[Subscription, Topic] = {}
        self._waiting: dict[Subscription, list[OnDone]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, topic: Topic, subscription: Subscription, ranges: list[Range]) -> None:
        """These were not acknowledged before."""
        for first, end in ranges:
            subscription.acked += end - first
        if topic.is_reliable:
            self._gather(topic, subscription, ranges, self._interval_s)

    def _on_timer(self) -> None:
        self._timer = None
        self.write()

    def write(self) -> None:
        """Append all that was gathered, and answer those who wait for it once it is written."""
        dirty, self._dirty = self._dirty, {}
        for subscription, topic in dirty.items():
            waiting = self._waiting.pop(subscription, [])
            if topic.is_deleting:
                _answer(waiting, TopicDeleted(f"topic {topic.name} was deleted"))
            else:
                self._append(topic, subscription, waiting)

    def confirm(self, topic: Topic, subscription: Subscription, on_done: OnDone) -> None:
        """Answer when every acknowledgement so far is written, with those of others who ask meanwhile.

        Written is enough: an acknowledgement that power loss takes back only brings its message again.
        """
        if not topic.is_reliable:
            on_done(None)
            return
        self._waiting.setdefault(subscription, []).append(on_done)
        self._gather(topic, subscription, [], self._interval_s)

    def _append(self, topic: Topic, subscription: Subscription, waiting: list[OnDone]) -> None:
        ranges, subscription.unjournaled = list(subscription.unjournaled), RangeSet()

        def failed(error: DanubiusError) -> None:
            self._put_back(topic, subscription, ranges)
            _answer(waiting, error)

        # Without ranges this is a barrier behind what is already on its way.
        event = RangesAcked(topic.id, subscription.id, ranges)
        token = EventToken(lambda: _answer(waiting, None), failed)
        self._journal.append(EVENT_RECORD, topic.id, encode_event(event), token, sync=False)

    def _put_back(self, topic: Topic, subscription: Subscription, ranges: list[Range]) -> None:
        """These were not written: they are, with all that came since, as soon as the disk takes them."""
        if ranges:
            self._gather(topic, subscription, ranges, RETRY_S)

    def _gather(
        self, topic: Topic, subscription: Subscription, ranges: list[Range], delay_s: float
    ) -> None:
        self._dirty[subscription] = topic
        subscription.unjournaled.add_all(ranges)
        if self._timer is None:
            self._timer = self._loop.call_later(delay_s, self._on_timer)


def _answer(waiting: list[OnDone], error: DanubiusError | None) -> None:
    for on_done in waiting:
        on_done(error)
