"""Messages in flight, delivered and not yet acknowledged: ranges with consumer, attempts and deadline.

Invariant: an offset is in flight at one consumer at the most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from danubius.ack.core.deadlines import Deadlines
from danubius.ack.core.ranges import RangeMap, Segment, merge_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from danubius.ack.core.ranges import Range


class Flight(NamedTuple):
    """One delivery that waits for its acknowledgement."""

    consumer_id: int
    attempts: int
    """Earlier deliveries of the same records."""
    due_ns: int
    """When it counts as lost; 0 for never."""


class InFlight:
    """The ranges in flight. Every removal returns what it took out, so that nothing gets lost."""

    __slots__ = ("_deadlines", "ranges")

    def __init__(self) -> None:
        self.ranges: RangeMap[Flight] = RangeMap()
        """To be read, never changed."""
        self._deadlines = Deadlines()

    @property
    def count(self) -> int:
        """Messages in flight."""
        return self.ranges.count

    @property
    def next_due_ns(self) -> int | None:
        return self._deadlines.next_ns

    def add(self, first: int, end: int, flight: Flight) -> None:
        self.ranges.put(first, end, flight)
        if flight.due_ns:
            self._deadlines.push(flight.due_ns, first, end)
            self._compact()

    def add_all(self, segments: Sequence[Segment[Flight]]) -> None:
        """Add rising segments."""
        self.ranges.put_all(segments)
        for first, end, flight in segments:
            if flight.due_ns:
                self._deadlines.push(flight.due_ns, first, end)
        self._compact()

    def remove(self, ranges: Sequence[Range]) -> list[Segment[Flight]]:
        """Take out rising, disjoint ranges."""
        return self.ranges.cut_all(ranges)

    def remove_of(self, consumer_id: int, ranges: Iterable[Range]) -> list[Segment[Flight]]:
        """Take out the parts of these rising, disjoint ranges that are this consumer's."""
        return self._cut(
            [
                one
                for first, end in ranges
                for one in self.ranges.overlap(first, end)
                if one.value.consumer_id == consumer_id
            ]
        )

    def remove_consumer(self, consumer_id: int) -> list[Segment[Flight]]:
        """Take out everything of this consumer, in the order of offsets."""
        return self.ranges.take([one.consumer_id == consumer_id for one in self.ranges.values()])

    def expire(self, now_ns: int) -> list[Segment[Flight]]:
        """Take out everything whose deadline has come, in the order of offsets."""
        return self._cut(
            [
                one
                for first, end in merge_ranges(self._deadlines.pop_due(now_ns))
                for one in self.ranges.overlap(first, end)
                if 0 < one.value.due_ns <= now_ns
            ]
        )

    def check(self) -> None:
        self.ranges.check()

    def _cut(self, segments: list[Segment[Flight]]) -> list[Segment[Flight]]:
        self.ranges.cut_all([(one.first, one.end) for one in segments])
        return segments

    def _compact(self) -> None:
        if self._deadlines.is_bloated(len(self.ranges)):
            self._deadlines.compact(
                (one.value.due_ns, one.first, one.end) for one in self.ranges if one.value.due_ns
            )
