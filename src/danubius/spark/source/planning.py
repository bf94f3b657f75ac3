"""Plans of triggers: which offsets one takes, and into which ranges they are cut for Spark's tasks. Pure arithmetic.

Invariants: the ranges of a plan cover exactly the offsets they were made from, in order, without overlap, and so do the
segments of a range; the same input gives the same plan; a limit above 0 always lets at least one offset through if
there is one.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec

from danubius.model.limits import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from danubius.spark.source.offsets import Offsets, Slot

TASK_BYTES: Final = 128 * MIB
"""What a task reads by default, as with Spark's own files: a task costs tens of milliseconds before its first row."""
TASK_BYTES_MIN: Final = 16 * MIB
"""What is worth a task, where another would run beside it."""
RANGES_MAX: Final = 10_000
"""More tasks than this help nobody; a smaller wish is a slip of the pen."""


class ColdObject(msgspec.Struct, frozen=True):
    """A ledger in the object store, as the broker describes it: the offsets [base, end)."""

    name: str
    base: int
    end: int
    data_bytes: int
    object_bytes: int


class Segment(msgspec.Struct, frozen=True):
    """Offsets [begin, end) that lie in one object, or, without one, are the broker's to give."""

    begin: int
    end: int
    object: ColdObject | None = None


class Range(msgspec.Struct, frozen=True):
    """Offsets [begin, end) of one partition of a topic."""

    topic: str
    partition: int
    name: str
    """The partition as the broker calls it."""
    begin: int
    end: int
    record_bytes: float = 0.0
    """Stored bytes of a record, on average; 0: not known."""
    incarnation: int = 0
    """Of which topic of that name these offsets are; 0: not known."""
    segments: tuple[Segment, ...] = ()
    """Where its offsets lie, in order and all of them; empty: the broker gives them all."""
    tier_url: str = ""
    """Where the objects of the segments are."""

    def __len__(self) -> int:
        return max(0, self.end - self.begin)


class Cutting(msgspec.Struct, frozen=True):
    """How finely to cut."""

    partitions_min: int = 0
    records_max: int = 0
    """Of one range; 0: no bound."""
    bytes_max: float = TASK_BYTES
    """Of one range, about."""
    slots: int = 0
    """How many tasks run at once; 0: not known."""


def plan(ranges: Sequence[Range], cutting: Cutting) -> list[Range]:
    """Cut ranges into those that tasks read."""
    ranges = [range_ for range_ in ranges if len(range_)]
    cutting = _fitted(ranges, cutting)
    counts = [_pieces_of(range_, cutting) for range_ in ranges]
    missing = min(cutting.partitions_min, RANGES_MAX) - sum(counts)
    if missing > 0:
        room = [len(range_) - count for range_, count in zip(ranges, counts, strict=True)]
        # Long ranges get more of the cuts; none is cut finer than single records.
        extra = share(
            missing, [len(range_) if free else 0 for range_, free in zip(ranges, room, strict=True)]
        )
        counts = [
            count + min(free, more) for count, free, more in zip(counts, room, extra, strict=True)
        ]
    return [
        piece for range_, count in zip(ranges, counts, strict=True) for piece in _cut(range_, count)
    ]


def _fitted(ranges: Sequence[Range], cutting: Cutting) -> Cutting:
    """Ranges of such a size that tasks end together: as many as slots, or a multiple of that."""
    total = sum(len(range_) * range_.record_bytes for range_ in ranges)
    if not cutting.slots or not total:
        return cutting
    rounds = round(total / cutting.bytes_max / cutting.slots)
    pieces = rounds * cutting.slots or min(cutting.slots, int(total / TASK_BYTES_MIN))
    if pieces <= 1:
        return cutting
    least = max(cutting.partitions_min, pieces)
    return msgspec.structs.replace(cutting, partitions_min=least, bytes_max=total / pieces)


def _pieces_of(range_: Range, cutting: Cutting) -> int:
    size = len(range_)
    pieces = 1
    if cutting.records_max:
        pieces = -(-size // cutting.records_max)
    if range_.record_bytes and cutting.bytes_max:
        pieces = max(pieces, int(size * range_.record_bytes / cutting.bytes_max + 0.5))
    return max(1, min(pieces, size, RANGES_MAX))


def _cut(range_: Range, count: int) -> list[Range]:
    size = len(range_)
    cuts = [range_.begin + size * number // count for number in range(count + 1)]
    return [msgspec.structs.replace(range_, begin=begin, end=end) for begin, end in pairwise(cuts)]


def seams(begin: int, end: int, ledgers: Sequence[ColdObject]) -> tuple[Segment, ...]:
    """Cut [begin, end) where ledgers end: an object each, and what is in none in one piece.

    Ledgers are in order and do not overlap.
    """
    segments: list[Segment] = []
    at = begin
    for ledger in ledgers[bisect_right(ledgers, begin, key=_end_of) :]:
        first, stop = max(at, ledger.base), min(end, ledger.end)
        if first >= end:
            break
        if first > at:
            segments.append(Segment(at, first))
        segments.append(Segment(first, stop, ledger))
        at = stop
    if at < end:
        segments.append(Segment(at, end))
    return tuple(segments)


def _end_of(ledger: ColdObject) -> int:
    return ledger.end


def share(total: int, weights: Sequence[float]) -> list[int]:
    """Whole numbers that add up to `total`, in proportion to the weights; all 0 if there is no weight."""
    sum_ = sum(weights)
    if total <= 0 or sum_ <= 0:
        return [0] * len(weights)
    exact = [total * weight / sum_ for weight in weights]
    whole = [int(number) for number in exact]
    rest = total - sum(whole)
    order = sorted(range(len(weights)), key=lambda at: (whole[at] - exact[at], at))
    for at in order[:rest]:
        whole[at] += 1
    return whole


def limit_offsets(begin: Offsets, end: Offsets, records_max: int) -> Offsets:
    """The offsets to stop at so that at most `records_max` are read, shared in proportion to what waits."""
    slots = sorted(end)
    waiting = [max(0, end[slot] - begin[slot]) for slot in slots]
    if sum(waiting) <= records_max:
        return dict(end)
    granted = share(records_max, waiting)
    return {
        slot: begin[slot] + min(size, more) if size else end[slot]
        for slot, size, more in zip(slots, waiting, granted, strict=True)
    }


def limit_bytes(
    begin: Offsets, end: Offsets, bytes_max: int, record_bytes: Mapping[Slot, float]
) -> Offsets:
    """The same for stored bytes, by the average size of each partition's records."""
    slots = sorted(end)
    waiting = [max(0, end[slot] - begin[slot]) * record_bytes.get(slot, 0.0) for slot in slots]
    total = sum(waiting)
    if total <= bytes_max:
        return dict(end)
    part = bytes_max / total
    limited: Offsets = {}
    for slot in slots:
        size = end[slot] - begin[slot]
        limited[slot] = begin[slot] + max(1, int(size * part)) if size > 0 else end[slot]
    return limited
