"""The window of a subscription that deals in runs: Exclusive, Failover and Shared.

Every offset below `next_offset` is acknowledged, in flight, waiting to come again or condemned, and
exactly one of these; offsets from there on are acknowledged or were never delivered. What goes out next
is always the lowest offset that may go, so what comes again comes before what is new. Condemned
is what failed too often: somebody else decides about it, and until then it is never delivered.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from danubius.ack.core.failure import NO_RULE, Condemned
from danubius.ack.core.in_flight import Flight, InFlight
from danubius.ack.core.ranges import RangeMap, Segment, merge_ranges
from danubius.ack.core.redelivery import Delayed, Redelivery
from danubius.dispatch.core.effects import Deliver

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from danubius.ack.core.cursor import Cursor
    from danubius.ack.core.failure import FailureRule
    from danubius.ack.core.ranges import Range
    from danubius.dispatch.core.consumers import Consumer
    from danubius.dispatch.core.selectors import RunSelector


PIECES_MAX: Final = 200_000
"""Ranges in which messages may be open. Each costs memory, however small, and a consumer that leaves out every other
message makes one of each: at this many nothing new is delivered to the subscription until some are acknowledged."""


class Wanted(NamedTuple):
    """What the window would deliver next, if it were read."""

    first: int
    end: int
    messages: int
    """How many of them may go, at the most."""
    is_new: bool
    """Whether some of it has never been read."""


class Chunk(NamedTuple):
    """What was read: all records of [first, end), clipped to what the log is known to hold."""

    first: int
    end: int
    keys: Sequence[bytes] | None
    """The key of each record, empty where there is none; None if nobody asked."""


class Window(Protocol):
    """What a subscription core needs of the state between the cursor and the log's end."""

    @property
    def open_messages(self) -> int:
        """Messages that were taken from the log and are not acknowledged."""
        ...

    @property
    def in_flight(self) -> int:
        """Messages that consumers have and have not acknowledged."""
        ...

    def in_flight_of(self, consumer_id: int) -> int:
        """Messages that this consumer has and has not acknowledged; looks at all that are in flight."""
        ...

    @property
    def next_due_ns(self) -> int | None:
        """Nothing falls due before this."""
        ...

    def wanted(self, end: int, *, may_open: bool) -> Wanted | None:
        """What to read next; with `may_open` false, only what was taken before."""
        ...

    def take(self, chunk: Chunk, now_ns: int, *, open_max: int, flying_max: int) -> list[Deliver]:
        """Deliver what may go of a chunk while less is in flight than this; what is new, while less is open."""
        ...

    def forget(self, acked: Sequence[Range]) -> None:
        """These ranges were just acknowledged."""
        ...

    def give_back(self, consumer_id: int, *, is_clean: bool) -> None:
        """A consumer has left: all it has in flight comes again, at once and in order."""
        ...

    def nack(self, consumer_id: int, ranges: Sequence[Range], delay_ns: int, now_ns: int) -> None:
        """What this consumer has in flight of these ranges comes again, after this delay or the rule's."""
        ...

    def expire(self, now_ns: int) -> int:
        """What is overdue comes again, what has waited long enough may go. How many were overdue."""
        ...

    def set_rule(self, rule: FailureRule) -> None:
        """Another rule holds: by it, what waits may have failed too often, and what is condemned may not have."""
        ...

    def release(self) -> None:
        """All that is condemned comes again, as if it had never failed."""
        ...

    def restore(self, attempts: Iterable[Segment[int]], end: int, *, open_max: int) -> None:
        """So often have messages failed before a restart. Before anything is taken, and before `set_rule`."""
        ...

    def condemned(self) -> list[Segment[Condemned]]:
        """What failed too often, in the order of offsets."""
        ...

    counted: list[Segment[int]]
    """How often messages failed, since this was last emptied; nothing under a rule without a bound."""
    fresh: list[Range]
    """What was condemned since this was last emptied; may have been acknowledged meanwhile."""
    reason: str
    """Why messages are given back, from here on."""

    @property
    def condemned_count(self) -> int:
        """Messages that failed too often, and about which nothing is decided."""
        ...

    def rebalance(self) -> None:
        """The consumers have changed."""
        ...

    def check(self, end: int) -> None: ...


class RunWindow:
    """See the module. With `auto_ack` a delivery acknowledges itself and nothing is ever open."""

    __slots__ = (
        "_auto_ack",
        "_condemned",
        "_cursor",
        "_flights",
        "_next",
        "_redelivery",
        "_rule",
        "_selector",
        "counted",
        "fresh",
        "reason",
    )

    def __init__(self, cursor: Cursor, selector: RunSelector, *, auto_ack: bool) -> None:
        self._cursor = cursor
        self._selector = selector
        self._auto_ack = auto_ack
        self._flights = InFlight()
        self._redelivery = Redelivery()
        self._condemned: RangeMap[Condemned] = RangeMap()
        self._rule = NO_RULE
        self._next = cursor.floor
        self.counted: list[Segment[int]] = []
        self.fresh: list[Range] = []
        self.reason = ""

    @property
    def open_messages(self) -> int:
        waiting = self._redelivery
        return (
            self._flights.ranges.count
            + waiting.ready.count
            + waiting.delayed.count
            + self._condemned.count
        )

    @property
    def condemned_count(self) -> int:
        return self._condemned.count

    @property
    def in_flight(self) -> int:
        return self._flights.count

    def in_flight_of(self, consumer_id: int) -> int:
        return sum(
            one.end - one.first
            for one in self._flights.ranges
            if one.value.consumer_id == consumer_id
        )

    @property
    def next_due_ns(self) -> int | None:
        flight_ns, delay_ns = self._flights.next_due_ns, self._redelivery.next_due_ns
        if flight_ns is None or delay_ns is None:
            return delay_ns if flight_ns is None else flight_ns
        return min(flight_ns, delay_ns)

    def wanted(self, end: int, *, may_open: bool) -> Wanted | None:
        if self._condemned.count and self._rule.blocks:
            return None
        ready = self._redelivery.lowest_ready()
        if ready is not None:
            return Wanted(ready.first, ready.end, ready.length, is_new=False)
        if not may_open or self._is_ragged:
            return None
        self._next = self._cursor.next_unacked(self._next)
        if self._next >= end:
            return None
        return Wanted(self._next, end, end - self._next, is_new=True)

    def take(self, chunk: Chunk, now_ns: int, *, open_max: int, flying_max: int) -> list[Deliver]:
        deliveries: list[Deliver] = []
        if self._condemned.count and self._rule.blocks:
            return deliveries
        if self._redelivery.ready.count:
            room = flying_max - self._flights.count
            if not self._take_ready(chunk, now_ns, deliveries, room):
                return deliveries
        while not self._is_ragged:
            room = min(open_max - self.open_messages, flying_max - self._flights.count)
            run = self._next_run(chunk.end, room)
            if run is None or run[0] < chunk.first:
                return deliveries
            at, end = run
            for consumer, messages in self._selector.split(end - at):
                deliveries.append(self._deliver_new(consumer, at, at + messages, now_ns))
                at += messages
            if at < end:
                return deliveries
        return deliveries

    @property
    def _is_ragged(self) -> bool:
        """What is open is in so many pieces that nothing new goes out until some of them are acknowledged."""
        waiting = self._redelivery
        pieces = len(self._flights.ranges) + len(waiting.ready) + len(waiting.delayed)
        return pieces + len(self._condemned) >= PIECES_MAX

    def offer(self, first: int, end: int, now_ns: int, *, room: int) -> Deliver | None:
        """Deliver what was just appended, whole and to one consumer, if all before it is delivered and it fits `room`.

        None: nothing was changed.
        """
        is_next = (
            self._next == first and not self._redelivery.ready.count and not self._cursor.above
        )
        if not is_next or end - first > room or self._condemned.count or self._is_ragged:
            return None
        consumer = self._selector.sole_taker(end - first)
        # A deadline would have to be waited for, which is for `poll` to say.
        if consumer is None or consumer.ack_timeout_ns:
            return None
        return self._deliver_new(consumer, first, end, now_ns)

    def forget(self, acked: Sequence[Range]) -> None:
        # Few ranges cost least as they are; many are taken out in one pass, which wants them to rise.
        rising = acked if len(acked) == 1 else sorted(acked)
        self._flights.remove(rising)
        self._redelivery.remove(rising)
        if self._condemned.count:
            self._condemned.cut_all(rising)

    def give_back(self, consumer_id: int, *, is_clean: bool) -> None:
        flights = self._flights.remove_consumer(consumer_id)
        if is_clean and self._rule.is_bounded:
            same = [Segment(one.first, one.end, one.value.attempts) for one in flights]
            self._redelivery.add(same)
        else:
            self._redelivery.add(self._sift(_older(flights)))

    def nack(self, consumer_id: int, ranges: Sequence[Range], delay_ns: int, now_ns: int) -> None:
        returned = self._flights.remove_of(consumer_id, merge_ranges(ranges))
        self._put_off(self._sift(_older(returned)), delay_ns, now_ns)

    def expire(self, now_ns: int) -> int:
        overdue = self._flights.expire(now_ns)
        self._put_off(self._sift(_older(overdue)), 0, now_ns)
        self._redelivery.release(now_ns)
        return sum(one.end - one.first for one in overdue)

    # ------------------------------------------------------------ what failed too often

    def set_rule(self, rule: FailureRule) -> None:
        self._rule = rule
        before = list(self._condemned)
        self._condemned = RangeMap()
        self.fresh.clear()  # by the old rule, and not judged yet
        self._condemn([one for one in before if rule.is_exhausted(one.value.attempts)])
        self._redelivery.add(
            [
                Segment(one.first, one.end, one.value.attempts)
                for one in before
                if not rule.is_exhausted(one.value.attempts)
            ]
        )
        if rule.is_bounded:
            waiting = self._redelivery.take_exhausted(rule.is_exhausted)
            self._condemn(
                [Segment(one.first, one.end, Condemned(one.value, "")) for one in waiting]
            )

    def release(self) -> None:
        released = merge_ranges((one.first, one.end) for one in self._condemned)
        self._condemned = RangeMap()
        self.fresh.clear()
        segments = [Segment(first, end, 0) for first, end in released]
        self._redelivery.add(segments)
        self.counted += segments

    def restore(self, attempts: Iterable[Segment[int]], end: int, *, open_max: int) -> None:
        """All up to the last of them waits to come again: so it goes in order, each with its count."""
        waiting: list[Segment[int]] = []
        room = open_max
        for one in attempts:
            for below in self._cursor.unacked(self._next, min(one.first, end)):
                waiting.append(Segment(*below, 0))
                room -= below[1] - below[0]
            for part in self._cursor.unacked(one.first, min(one.end, end)):
                waiting.append(Segment(*part, one.value))
                room -= part[1] - part[0]
            if room < 0:
                break  # the window was smaller than this when they were counted
            self._redelivery.add(waiting)
            waiting = []
            self._next = max(self._next, min(one.end, end))

    def condemned(self) -> list[Segment[Condemned]]:
        return list(self._condemned)

    def rebalance(self) -> None:
        """Runs have no owner until they are delivered."""

    def check(self, end: int) -> None:
        self._flights.check()
        self._redelivery.check()
        known = sorted(
            [(one.first, one.end) for one in self._flights.ranges]
            + [(one.first, one.end) for one in self._redelivery.ready]
            + [(one.first, one.end) for one in self._redelivery.delayed]
            + [(one.first, one.end) for one in self._condemned]
        )
        for below, above in pairwise(known):
            assert below[1] <= above[0], "a message is in two places"
        messages = sum(last - first for first, last in known)
        assert messages == self._cursor.backlog(self._next), "a message is nowhere, or acknowledged"
        assert all(last <= self._next <= end for _, last in known), "open beyond what was taken"
        assert not (self._auto_ack and known), "auto-ack leaves nothing open"
        self._condemned.check()
        rule = self._rule
        assert all(rule.is_exhausted(one.value.attempts) for one in self._condemned)
        assert not any(rule.is_exhausted(one.value) for one in self._redelivery.ready)
        assert not any(rule.is_exhausted(one.value.attempts) for one in self._redelivery.delayed)

    def _take_ready(self, chunk: Chunk, now_ns: int, deliveries: list[Deliver], room: int) -> bool:
        """Deliver what comes again out of a chunk, as far as there is room; returns whether none of it is left."""
        flights: list[Segment[Flight]] = []
        ready = self._redelivery.ready
        is_blocked = False
        for first, end, attempts in ready:
            # A run below the chunk became ready during the read: it goes first, by a read of its own.
            if first < chunk.first or first >= chunk.end or is_blocked or room <= 0:
                break
            at, end = first, min(end, chunk.end)
            for consumer, messages in self._selector.split(min(end - first, room)):
                consumer.messages -= messages
                consumer_id, due_ns = consumer.consumer_id, consumer.due_ns(now_ns)
                flights.append(Segment(at, at + messages, Flight(consumer_id, attempts, due_ns)))
                deliveries.append(Deliver(consumer_id, at, at + messages, None, attempts))
                at += messages
            room -= at - first
            is_blocked = at < end
        if flights:
            self._redelivery.take_ready(flights[0].first, flights[-1].end)
            self._flights.add_all(flights)
        return not ready.count

    def _next_run(self, end_max: int, room: int) -> Range | None:
        """The lowest run that was never delivered, if it starts below `end_max` and there is room."""
        self._next = first = self._cursor.next_unacked(self._next)
        end = min(end_max, first + room)
        if self._cursor.above:
            acked_first = self._cursor.above.next_first(first)
            end = end if acked_first is None else min(end, acked_first)
        return (first, end) if first < end else None

    def _deliver_new(self, consumer: Consumer, first: int, end: int, now_ns: int) -> Deliver:
        consumer.messages -= end - first
        self._next = end
        if self._auto_ack:
            self._cursor.ack([(first, end)])
        else:
            self._flights.add(first, end, Flight(consumer.consumer_id, 0, consumer.due_ns(now_ns)))
        return Deliver(consumer.consumer_id, first, end, None, 0)

    def _sift(self, failed: list[Segment[int]]) -> list[Segment[int]]:
        """Count failures; returns the messages that may come again."""
        rule = self._rule
        if not rule.is_bounded:
            return failed
        self.counted += failed
        self._condemn(
            [
                Segment(first, end, Condemned(attempts, self.reason))
                for first, end, attempts in failed
                if rule.is_exhausted(attempts)
            ]
        )
        return [one for one in failed if not rule.is_exhausted(one.value)]

    def _put_off(self, failed: list[Segment[int]], delay_ns: int, now_ns: int) -> None:
        """Let messages come again after this delay, or the rule's if that is longer."""
        rule = self._rule
        if rule.backs_off:
            self._redelivery.add_due(
                [
                    Segment(
                        first,
                        end,
                        Delayed(now_ns + max(delay_ns, rule.delay_ns(attempts, first)), attempts),
                    )
                    for first, end, attempts in failed
                ]
            )
        elif delay_ns > 0:
            self._redelivery.add_delayed(failed, now_ns + delay_ns)
        else:
            self._redelivery.add(failed)

    def _condemn(self, segments: list[Segment[Condemned]]) -> None:
        self._condemned.put_all(segments)
        self.fresh += [(one.first, one.end) for one in segments]


def _older(segments: Sequence[Segment[Flight]]) -> list[Segment[int]]:
    """Flights that came to nothing, as ranges with their attempts."""
    return [Segment(one.first, one.end, one.value.attempts + 1) for one in segments]
