"""A consumer whose subscription was moved: only what it handed out since can be acknowledged.

A message that was handed out before a seek may be acknowledged behind it, by whoever still works on it. At the new
position that would skip a message which is to be delivered again.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

RANGES_MAX: Final = 10_000
"""Deliveries with gaps between them that are remembered. Nobody holds a message for as long as that many take."""


class MoveGuard:
    """What was handed out since the last move, as rising, disjoint ranges of offsets."""

    __slots__ = ("_ends", "_firsts", "count", "is_on")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        self.count = 0
        """How often the subscription was moved under this consumer."""
        self.is_on = False
        """Whether anybody may still hold what came before a move."""

    def moved(self) -> None:
        self.count += 1
        self.is_on = True
        self._firsts.clear()
        self._ends.clear()

    def note(self, first: int, end: int) -> None:
        """[first, end) is handed out."""
        at = bisect_right(self._firsts, first)
        if at and first <= self._ends[at - 1]:
            at -= 1
            first, end = self._firsts[at], max(end, self._ends[at])
        stop = at
        while stop < len(self._firsts) and self._firsts[stop] <= end:
            end = max(end, self._ends[stop])
            stop += 1
        self._firsts[at:stop] = [first]
        self._ends[at:stop] = [end]
        if len(self._firsts) > RANGES_MAX:
            self.is_on = False

    def knows(self, offset: int) -> bool:
        """Whether this was handed out since the last move."""
        if not self.is_on:
            return True
        at = bisect_right(self._firsts, offset)
        return bool(at) and offset < self._ends[at - 1]
