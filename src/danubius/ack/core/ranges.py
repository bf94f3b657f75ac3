"""Offsets as half-open ranges: the set `RangeSet` and the map `RangeMap`.

Invariants of both: ranges are [first, end) with first < end, sorted, and never overlap. In a set,
ranges never touch either; in a map, ranges that touch have different values. So the number of
ranges, not of messages, is what costs.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import compress
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

V = TypeVar("V")

Range = tuple[int, int]
"""Offsets [first, end)."""

FEW: Final = 32
"""So many changes are made one by one. Each moves all that lies above it, so more are made in one pass."""


def merge_ranges(ranges: Iterable[Range]) -> list[Range]:
    """The same offsets as rising ranges that neither overlap nor touch."""
    merged: list[Range] = []
    first = end = 0
    for one_first, one_end in sorted(ranges):
        if one_first > end:
            if first < end:
                merged.append((first, end))
            first, end = one_first, one_end
        elif one_end > end:
            end = one_end
    if first < end:
        merged.append((first, end))
    return merged


class RangeSet:
    """A set of offsets, kept as sorted ranges that neither overlap nor touch."""

    __slots__ = ("_ends", "_firsts", "count")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        self.count = 0
        """How many offsets are in the set; to be read, never changed."""
        for first, end in ranges:
            self.add(first, end)

    def __len__(self) -> int:
        """How many ranges the set is made of."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[Range]:
        return zip(self._firsts, self._ends, strict=True)

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._firsts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def __repr__(self) -> str:
        return f"RangeSet({list(self)})"

    def add(self, first: int, end: int) -> None:
        if first >= end:
            return
        low = bisect_left(self._ends, first)  # the first range that touches or follows
        high = bisect_right(self._firsts, end)  # behind the last range that touches or precedes
        merged_first, merged_end = first, end
        if low < high:
            merged_first = min(first, self._firsts[low])
            merged_end = max(end, self._ends[high - 1])
            self.count -= sum(self._ends[low:high]) - sum(self._firsts[low:high])
        self._firsts[low:high] = [merged_first]
        self._ends[low:high] = [merged_end]
        self.count += merged_end - merged_first

    def add_all(self, ranges: Sequence[Range]) -> None:
        """Add any number of ranges; many of them in one pass."""
        if len(ranges) <= FEW:
            for first, end in ranges:
                self.add(first, end)
            return
        # Only what they touch or lie between is looked at: a set may have very many ranges.
        low = bisect_left(self._ends, min(first for first, _ in ranges))
        high = bisect_right(self._firsts, max(end for _, end in ranges))
        firsts, ends = self._firsts[low:high], self._ends[low:high]
        merged = merge_ranges([*zip(firsts, ends, strict=True), *ranges])
        self._firsts[low:high] = [first for first, _ in merged]
        self._ends[low:high] = [end for _, end in merged]
        self.count += sum(end - first for first, end in merged) - sum(ends) + sum(firsts)

    def remove(self, first: int, end: int) -> None:
        if first >= end:
            return
        low = bisect_right(self._ends, first)
        high = bisect_left(self._firsts, end)
        if low >= high:
            return
        left_first, right_end = self._firsts[low], self._ends[high - 1]
        self.count -= sum(self._ends[low:high]) - sum(self._firsts[low:high])
        rest: list[Range] = []
        if left_first < first:
            rest.append((left_first, first))
        if end < right_end:
            rest.append((end, right_end))
        self._firsts[low:high] = [one for one, _ in rest]
        self._ends[low:high] = [one for _, one in rest]
        self.count += sum(one_end - one_first for one_first, one_end in rest)

    def intersect(self, first: int, end: int) -> list[Range]:
        """The parts of [first, end) that are in the set."""
        low = bisect_right(self._ends, first)
        high = bisect_left(self._firsts, end)
        return [(max(first, self._firsts[at]), min(end, self._ends[at])) for at in range(low, high)]

    def touching(self, first: int, end: int) -> int:
        """How many ranges have a part in [first, end)."""
        return max(0, bisect_left(self._firsts, end) - bisect_right(self._ends, first))

    def gaps(self, first: int, end: int) -> list[Range]:
        """The parts of [first, end) that are not in the set."""
        found: list[Range] = []
        at = first
        for one_first, one_end in self.intersect(first, end):
            if at < one_first:
                found.append((at, one_first))
            at = one_end
        if at < end:
            found.append((at, end))
        return found

    def first_gap(self, offset: int) -> int:
        """The lowest offset at or above `offset` that is not in the set."""
        at = bisect_right(self._firsts, offset) - 1
        return self._ends[at] if at >= 0 and offset < self._ends[at] else offset

    def next_first(self, offset: int) -> int | None:
        """Where the first range at or above `offset` starts, None if there is none."""
        at = bisect_left(self._firsts, offset)
        return self._firsts[at] if at < len(self._firsts) else None

    def check(self) -> None:
        assert len(self._firsts) == len(self._ends)
        assert all(first < end for first, end in self)
        assert all(end < first for end, first in zip(self._ends, self._firsts[1:], strict=False)), (
            "ranges overlap or touch"
        )
        assert self.count == sum(end - first for first, end in self)


class Segment(NamedTuple, Generic[V]):
    """One range of a map with its value."""

    first: int
    end: int
    value: V

    @property
    def length(self) -> int:
        return self.end - self.first


_first_of: Final = itemgetter(0)


class RangeMap(Generic[V]):
    """A map from offsets to values, kept as sorted ranges of equal value."""

    __slots__ = ("_ends", "_firsts", "_values", "count")

    def __init__(self) -> None:
        # Numbers, not objects: there may be very many.
        self._firsts = array("q")
        self._ends = array("q")
        self._values: list[V] = []
        self.count = 0
        """How many offsets have a value; to be read, never changed."""

    def __len__(self) -> int:
        """How many ranges the map is made of."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[Segment[V]]:
        return map(Segment, self._firsts, self._ends, self._values)

    def put(self, first: int, end: int, value: V) -> None:
        """Give a value to offsets that have none."""
        assert first < end, "an empty range has no value"
        at = bisect_right(self._firsts, first)
        size = len(self._firsts)
        assert at == 0 or self._ends[at - 1] <= first, "the range below overlaps"
        assert at == size or end <= self._firsts[at], "the range above overlaps"
        self.count += end - first
        joins_below = at > 0 and self._ends[at - 1] == first and self._values[at - 1] == value
        joins_above = at < size and self._firsts[at] == end and self._values[at] == value
        if joins_below and joins_above:
            self._ends[at - 1] = self._ends[at]
            self._delete(at, at + 1)
        elif joins_below:
            self._ends[at - 1] = end
        elif joins_above:
            self._firsts[at] = first
        else:
            self._firsts.insert(at, first)
            self._ends.insert(at, end)
            self._values.insert(at, value)

    def cut(self, first: int, end: int) -> list[Segment[V]]:
        """Take the values of [first, end) out, and return what was there."""
        low = bisect_right(self._ends, first)
        high = bisect_left(self._firsts, end)
        if low >= high:
            return []
        taken = self.overlap(first, end)
        left_first, left_value = self._firsts[low], self._values[low]
        right_end, right_value = self._ends[high - 1], self._values[high - 1]
        self._delete(low, high)
        if end < right_end:
            self._insert(low, end, right_end, right_value)
        if left_first < first:
            self._insert(low, left_first, first, left_value)
        self.count -= sum(one.end - one.first for one in taken)
        return taken

    def put_all(self, segments: Sequence[Segment[V]]) -> None:
        """Give values to offsets that have none; the segments rise. Many of them in one pass."""
        if len(segments) <= FEW:
            for first, end, value in segments:
                self.put(first, end, value)
            return
        low = max(0, bisect_right(self._firsts, segments[0].first) - 1)
        high = bisect_left(self._firsts, segments[-1].end) + 1
        # Two rising runs: sorting them is merging them.
        merged = sorted([*self._slice(low, high), *segments], key=_first_of)
        joined: list[Segment[V]] = []
        for one in merged:
            before = joined[-1] if joined else None
            if before is not None and before.end >= one.first:
                assert before.end == one.first, "ranges overlap"
                if before.value == one.value:
                    joined[-1] = Segment(before.first, one.end, one.value)
                    continue
            joined.append(one)
        self._replace(low, high, joined)
        self.count += sum(one.end - one.first for one in segments)

    def cut_all(self, ranges: Sequence[Range]) -> list[Segment[V]]:
        """Take the values of rising, disjoint ranges out, and return what was there; many in one pass."""
        if len(ranges) <= FEW:
            return [one for first, end in ranges for one in self.cut(first, end)]
        low = bisect_right(self._ends, ranges[0][0])
        high = bisect_left(self._firsts, ranges[-1][1])
        kept: list[Segment[V]] = []
        taken: list[Segment[V]] = []
        place = 0
        for first, end, value in self._slice(low, high):
            at = first
            while place < len(ranges) and ranges[place][0] < end:
                cut_first, cut_end = ranges[place]
                if cut_end > at:
                    if at < cut_first:
                        kept.append(Segment(at, cut_first, value))
                    taken.append(Segment(max(at, cut_first), min(end, cut_end), value))
                    at = min(end, cut_end)
                if cut_end > end:
                    break  # it reaches into the next segment
                place += 1
            if at < end:
                kept.append(Segment(at, end, value))
        self._replace(low, high, kept)
        self.count -= sum(one.end - one.first for one in taken)
        return taken

    def take(self, picks: Sequence[bool]) -> list[Segment[V]]:
        """Take the ranges at these places out, one pick a range, and return them."""
        taken = list(compress(self, picks))
        if taken:
            rest = [not pick for pick in picks]
            self._firsts = array("q", compress(self._firsts, rest))
            self._ends = array("q", compress(self._ends, rest))
            self._values = list(compress(self._values, rest))
            self.count -= sum(one.end - one.first for one in taken)
        return taken

    def values(self) -> Sequence[V]:
        """The values of all ranges, in the order of offsets; to be read, never changed."""
        return self._values

    def overlap(self, first: int, end: int) -> list[Segment[V]]:
        """What [first, end) holds, clipped to it."""
        low = bisect_right(self._ends, first)
        high = bisect_left(self._firsts, end)
        return [
            Segment(max(first, self._firsts[at]), min(end, self._ends[at]), self._values[at])
            for at in range(low, high)
        ]

    def lowest(self) -> Segment[V] | None:
        if not self._firsts:
            return None
        return Segment(self._firsts[0], self._ends[0], self._values[0])

    def check(self) -> None:
        assert len(self._firsts) == len(self._ends) == len(self._values)
        before: Segment[V] | None = None
        for one in self:
            assert one.first < one.end
            if before is not None:
                assert before.end <= one.first, "ranges overlap"
                touches = before.end == one.first
                assert not touches or before.value != one.value, "equal neighbours are one range"
            before = one
        assert self.count == sum(one.length for one in self)

    def _slice(self, low: int, high: int) -> Iterator[Segment[V]]:
        return map(Segment, self._firsts[low:high], self._ends[low:high], self._values[low:high])

    def _replace(self, low: int, high: int, segments: list[Segment[V]]) -> None:
        self._firsts[low:high] = array("q", [one.first for one in segments])
        self._ends[low:high] = array("q", [one.end for one in segments])
        self._values[low:high] = [one.value for one in segments]

    def _insert(self, at: int, first: int, end: int, value: V) -> None:
        self._firsts.insert(at, first)
        self._ends.insert(at, end)
        self._values.insert(at, value)

    def _delete(self, low: int, high: int) -> None:
        del self._firsts[low:high]
        del self._ends[low:high]
        del self._values[low:high]
