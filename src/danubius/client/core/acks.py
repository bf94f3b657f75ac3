"""Acknowledgements gathered into offset ranges, so that one frame carries those of many messages.

Messages are mostly acknowledged in the order they came: the last range is kept open and only its end moves.
"""

from __future__ import annotations

Range = tuple[int, int]
"""Offsets [first, end)."""


class RangeGatherer:
    """Offsets and ranges in any order in, sorted disjoint ranges out."""

    __slots__ = ("_closed", "_end", "_first")

    def __init__(self) -> None:
        self._closed: list[Range] = []
        self._first = 0
        self._end = 0

    def __len__(self) -> int:
        """How many ranges are held; merging may still lower it."""
        return len(self._closed) + (self._end > self._first)

    @property
    def closed_count(self) -> int:
        """How many ranges are held besides the one that still grows."""
        return len(self._closed)

    def add(self, offset: int) -> None:
        if offset == self._end and self._end > self._first:
            self._end = offset + 1
        else:
            self.add_range(offset, offset + 1)

    def add_range(self, first: int, end: int) -> None:
        assert 0 <= first < end
        if self._first <= first <= self._end < end and self._end > self._first:
            self._end = end
            return
        if self._end > self._first:
            self._closed.append((self._first, self._end))
        self._first = first
        self._end = end

    def take(self) -> list[Range]:
        """Everything gathered, sorted and merged; nothing is held afterwards."""
        ranges = self._closed
        if self._end > self._first:
            ranges.append((self._first, self._end))
        self._closed = []
        self._first = self._end = 0
        return merge(ranges) if len(ranges) > 1 else ranges


def merge(ranges: list[Range]) -> list[Range]:
    """Sort, and join ranges that touch or overlap."""
    ranges.sort()
    merged: list[Range] = []
    first, end = ranges[0]
    for next_first, next_end in ranges:
        if next_first > end:
            merged.append((first, end))
            first = next_first
            end = next_end
        elif next_end > end:
            end = next_end
    merged.append((first, end))
    return merged
