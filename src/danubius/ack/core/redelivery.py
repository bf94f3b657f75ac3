"""What is to be delivered again: ranges that are ready, and ranges whose delay is not over.

Invariant: an offset is ready, or delayed, or neither; never both.
"""

from __future__ import annotations

from typing import NamedTuple

from danubius.ack.core.deadlines import Deadlines
from danubius.ack.core.ranges import RangeMap, Segment


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

    def add(self, first: int, end: int, attempts: int) -> None:
        """Let a range come again at once."""
        self.ready.put(first, end, attempts)

    def add_delayed(self, first: int, end: int, attempts: int, due_ns: int) -> None:
        """Let a range come again at a time to come."""
        self.delayed.put(first, end, Delayed(due_ns, attempts))
        self._deadlines.push(due_ns, first, end)
        if self._deadlines.is_bloated(len(self.delayed)):
            self._deadlines.compact((one.value.due_ns, one.first, one.end) for one in self.delayed)

    def release(self, now_ns: int) -> None:
        """Make ready what has waited long enough."""
        for first, end in self._deadlines.pop_due(now_ns):
            for one in self.delayed.overlap(first, end):
                if one.value.due_ns <= now_ns:
                    self.delayed.cut(one.first, one.end)
                    self.ready.put(one.first, one.end, one.value.attempts)

    def remove(self, first: int, end: int) -> int:
        """Forget a range, ready or not, and return how many messages of it were waiting."""
        before = self.count
        self.ready.cut(first, end)
        self.delayed.cut(first, end)
        return before - self.count

    def lowest_ready(self) -> Segment[int] | None:
        return self.ready.lowest()

    def check(self) -> None:
        self.ready.check()
        self.delayed.check()
        for one in self.ready:
            assert not self.delayed.overlap(one.first, one.end), "ready and delayed at once"
