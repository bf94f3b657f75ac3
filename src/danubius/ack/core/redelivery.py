"""Redeliveries: ranges that are ready, and ranges whose delay is not over.

Invariant: an offset is ready, or delayed, or neither; never both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from danubius.ack.core.deadlines import Deadlines
from danubius.ack.core.ranges import RangeMap, Segment, merge_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.ack.core.ranges import Range


class Delayed(NamedTuple):
    """Why a range has to wait, and how often it was delivered already."""

    due_ns: int
    attempts: int


class Redelivery:
    """Ranges that come again, with the number of times they were delivered already."""

    __slots__ = ("_deadlines", "delayed", "ready")

    def __init__(self) -> None:
        self.ready: RangeMap[int] = RangeMap()
        """Ranges that may go at once, with their attempts; to be read, never changed."""
        self.delayed: RangeMap[Delayed] = RangeMap()
        """Ranges that may not go yet; to be read, never changed."""
        self._deadlines = Deadlines()

    @property
    def count(self) -> int:
        """Messages that wait, ready or not."""
        return self.ready.count + self.delayed.count

    @property
    def next_due_ns(self) -> int | None:
        """No delay ends before this."""
        return self._deadlines.next_ns

    def add(self, segments: Sequence[Segment[int]]) -> None:
        """Let rising ranges, with their attempts, come again at once."""
        self.ready.put_all(segments)

    def add_delayed(self, segments: Sequence[Segment[int]], due_ns: int) -> None:
        """Let rising ranges, with their attempts, come again at a time to come."""
        self.add_due([Segment(one.first, one.end, Delayed(due_ns, one.value)) for one in segments])

    def add_due(self, segments: Sequence[Segment[Delayed]]) -> None:
        """Let rising ranges come again, each at its own time."""
        self.delayed.put_all(segments)
        for one in segments:
            self._deadlines.push(one.value.due_ns, one.first, one.end)
        if self._deadlines.is_bloated(len(self.delayed)):
            self._deadlines.compact((one.value.due_ns, one.first, one.end) for one in self.delayed)

    def release(self, now_ns: int) -> None:
        """Make ready what has waited long enough."""
        due = [
            one
            for first, end in merge_ranges(self._deadlines.pop_due(now_ns))
            for one in self.delayed.overlap(first, end)
            if one.value.due_ns <= now_ns
        ]
        self.delayed.cut_all([(one.first, one.end) for one in due])
        self.ready.put_all([Segment(one.first, one.end, one.value.attempts) for one in due])

    def take_exhausted(self, is_exhausted: Callable[[int], bool]) -> list[Segment[int]]:
        """Take out what was delivered too often, ready or not, in the order of offsets."""
        ready = self.ready.take([is_exhausted(attempts) for attempts in self.ready.values()])
        delayed = self.delayed.take([is_exhausted(one.attempts) for one in self.delayed.values()])
        return sorted(
            [*ready, *(Segment(one.first, one.end, one.value.attempts) for one in delayed)]
        )

    def take_ready(self, first: int, end: int) -> None:
        """What is ready of a range was delivered."""
        self.ready.cut(first, end)

    def remove(self, ranges: Sequence[Range]) -> int:
        """Forget rising, disjoint ranges, ready or not; returns how many of their messages waited."""
        before = self.count
        if before:
            self.ready.cut_all(ranges)
            self.delayed.cut_all(ranges)
        return before - self.count

    def lowest_ready(self) -> Segment[int] | None:
        return self.ready.lowest()

    def check(self) -> None:
        self.ready.check()
        self.delayed.check()
        for one in self.ready:
            assert not self.delayed.overlap(one.first, one.end), "ready and delayed at once"
