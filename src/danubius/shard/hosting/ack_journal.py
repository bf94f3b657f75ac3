"""Acknowledgements on their way into the journal: gathered for a moment, then written as ranges.

Nobody waits for them unless asked to: a crash delivers again what was acknowledged just before it, and skips nothing.
What the journal fails to take goes back to what is gathered: no acknowledgement is answered that was not written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from danubius.ack.core.ranges import RangeMap, RangeSet
from danubius.errors import TopicDeleted
from danubius.shard.state.facts import EVENT_RECORD, AttemptsCounted, RangesAcked, encode_event

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from danubius.ack.core.ranges import Range, Segment
    from danubius.errors import DanubiusError
    from danubius.shard.hosting.subscription import Subscription
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.state.tokens import OnDone
    from danubius.wal.ports import JournalPort

RETRY_S: Final = 1.0
"""Acknowledgements that the journal failed to take are appended again after this long."""
ATTEMPTS_MAX: Final = 10_000
"""Ranges of counted failures a subscription; the lowest offsets win, for those above a count starts anew."""


class _Written:
    """Of what is true already, as acknowledgements are when their subscription has taken them: only written down."""

    __slots__ = ("_on_failed", "_on_written")

    def __init__(
        self, on_written: Callable[[], None], on_failed: Callable[[DanubiusError], None]
    ) -> None:
        self._on_written = on_written
        self._on_failed = on_failed

    def committed(self) -> None:
        self._on_written()

    def failed(self, error: DanubiusError) -> None:
        self._on_failed(error)


class AckJournal:
    """What all subscriptions of the broker have acknowledged and not yet written down."""

    def __init__(
        self, journal: JournalPort, loop: asyncio.AbstractEventLoop, interval_s: float
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
        if subscription.attempts is not None:
            forget_attempts(subscription, ranges)
        if topic.is_reliable:
            self._gather(topic, subscription, ranges, self._interval_s)

    def settled(self, subscription: Subscription, ranges: Sequence[Range]) -> None:
        """These were not acknowledged before, and the journal knows."""
        for first, end in ranges:
            subscription.acked += end - first
        if subscription.attempts is not None:
            forget_attempts(subscription, ranges)

    def count(
        self,
        topic: Topic,
        subscription: Subscription,
        segments: Sequence[Segment[int]],
        delay_s: float | None = None,
    ) -> None:
        """So often have messages failed by now; 0 is to be forgotten."""
        count_attempts(subscription, segments)
        if subscription.uncounted is None:
            subscription.uncounted = RangeMap[int]()
        for first, end, attempts in segments:
            subscription.uncounted.cut(first, end)
            subscription.uncounted.put(first, end, attempts)
        delay_s = self._interval_s if delay_s is None else delay_s
        self._gather(topic, subscription, [], delay_s)

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
        if subscription.uncounted is not None:
            self._append_counts(topic, subscription, list(subscription.uncounted))
            subscription.uncounted = None

        def failed(error: DanubiusError) -> None:
            self._put_back(topic, subscription, ranges)
            _answer(waiting, error)

        # Without ranges this is a barrier behind what is already on its way.
        event = RangesAcked(topic.id, subscription.id, ranges)
        token = _Written(lambda: _answer(waiting, None), failed)
        self._journal.append(EVENT_RECORD, topic.id, encode_event(event), token, sync=False)

    def _append_counts(
        self, topic: Topic, subscription: Subscription, segments: list[Segment[int]]
    ) -> None:
        def failed(_error: DanubiusError) -> None:
            known = subscription.attempts
            if known is not None:  # as they are by now
                current = [part for one in segments for part in known.overlap(one.first, one.end)]
                self.count(topic, subscription, current, RETRY_S)

        for start in range(0, len(segments), ATTEMPTS_MAX):
            some = segments[start : start + ATTEMPTS_MAX]
            part = [(one.first, one.end, one.value) for one in some]
            event = AttemptsCounted(topic.id, subscription.id, part)
            token = _Written(_nothing, failed)
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


def count_attempts(subscription: Subscription, segments: Sequence[Segment[int]]) -> None:
    """So often have messages failed; 0 is forgotten."""
    attempts = subscription.attempts
    if attempts is None:
        attempts = subscription.attempts = RangeMap[int]()
    for first, end, count in segments:
        attempts.cut(first, end)
        if count:
            attempts.put(first, end, count)
    if len(attempts) > ATTEMPTS_MAX:
        attempts.take([place >= ATTEMPTS_MAX for place in range(len(attempts))])


def forget_attempts(subscription: Subscription, acked: Sequence[Range]) -> None:
    """Messages that are acknowledged fail no more."""
    rising = sorted(acked)
    for counts in (subscription.attempts, subscription.uncounted):
        if counts is not None:
            counts.cut_all(rising)


def _nothing() -> None:
    """Nobody waits for it."""
