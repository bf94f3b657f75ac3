"""What was delivered and is not yet acknowledged: ranges with consumer, attempts and deadline.

Invariant: an offset is in flight at one consumer at the most.
"""

from __future__ import annotations

from typing import NamedTuple

from danubius.ack.core.deadlines import Deadlines
from danubius.ack.core.ranges import RangeMap, Segment


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
            if self._deadlines.is_bloated(len(self.ranges)):
                self._deadlines.compact(
                    (one.value.due_ns, one.first, one.end)
                    for one in self.ranges
                    if one.value.due_ns
                )

    def remove(self, first: int, end: int) -> list[Segment[Flight]]:
        return self.ranges.cut(first, end)

    def remove_of(self, consumer_id: int, first: int, end: int) -> list[Segment[Flight]]:
        """Take out the parts of [first, end) that are this consumer's."""
        return self._cut(
            [one for one in self.ranges.overlap(first, end) if one.value.consumer_id == consumer_id]
        )

    def remove_consumer(self, consumer_id: int) -> list[Segment[Flight]]:
        """Take out everything of this consumer, in the order of offsets."""
        return self._cut([one for one in self.ranges if one.value.consumer_id == consumer_id])

    def expire(self, now_ns: int) -> list[Segment[Flight]]:
        """Take out everything whose deadline has come."""
        expired: list[Segment[Flight]] = []
        for first, end in self._deadlines.pop_due(now_ns):
            expired += self._cut(
                [one for one in self.ranges.overlap(first, end) if 0 < one.value.due_ns <= now_ns]
            )
        return expired

    def check(self) -> None:
        self.ranges.check()

    def _cut(self, segments: list[Segment[Flight]]) -> list[Segment[Flight]]:
        for one in segments:
            self.ranges.cut(one.first, one.end)
        return segments
