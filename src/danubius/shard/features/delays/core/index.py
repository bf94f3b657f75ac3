"""The index of delayed batches: a calendar of what a delay log holds, and what of it is due.

An entry is one number, its *key*: the due time in milliseconds, shifted, and the offset in the delay log. Keys are
taken in rising order, so whoever takes them needs to remember only the last one. Invariants:
- everything below the *horizon* that was added and not taken is held; what is at or behind it is only counted, and is
  found again by reading the log once the horizon comes near (`wants_scan`, `begin_scan`, `add` of each, `end_scan`);
- the index is derived from the log and never stored;
- a bucket for each second is a plain list until its time comes, so adding costs the same however much is held.
"""

from __future__ import annotations

import heapq
from typing import Final

OFFSET_BITS: Final = 40
"""A trillion batches in one delay log; the due time is above them."""
ENDLESS: Final = 2**127
"""Behind every key."""
_OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1
_SECOND: Final = 1000 << OFFSET_BITS


def key_of(due_ms: int, offset: int) -> int:
    return due_ms << OFFSET_BITS | offset


def due_of(key: int) -> int:
    return key >> OFFSET_BITS


def offset_of(key: int) -> int:
    return key & _OFFSET_MASK


class DelayIndex:
    """What waits in one delay log."""

    __slots__ = ("_buckets", "_held", "_ready", "_ready_below", "_seconds", "beyond", "horizon")

    def __init__(self) -> None:
        self._buckets: dict[int, list[int]] = {}
        """Second -> keys, in no order."""
        self._seconds: list[int] = []
        """A heap of the seconds that have a bucket."""
        self._ready: list[int] = []
        """A heap of the keys whose seconds have come."""
        self._ready_below = 0
        """Seconds below this have come."""
        self._held = 0
        self.horizon = ENDLESS
        """The first key that may be missing."""
        self.beyond = 0
        """How many are known to be at the horizon or behind it."""

    def __len__(self) -> int:
        """How many are held in memory."""
        return self._held

    @property
    def pending(self) -> int:
        """How many wait, held or only counted."""
        return self._held + self.beyond

    def add(self, key: int) -> None:
        if key >= self.horizon:
            self.beyond += 1
            return
        self._held += 1
        second = key // _SECOND
        if second < self._ready_below:
            heapq.heappush(self._ready, key)
            return
        bucket = self._buckets.get(second)
        if bucket is None:
            self._buckets[second] = [key]
            heapq.heappush(self._seconds, second)
        else:
            bucket.append(key)

    def take_due(self, now_ms: int, below: int, count_max: int) -> list[int]:
        """The keys due at `now_ms` and less than `below`, in order; they are not held from here on."""
        self._ripen(now_ms // 1000 + 1)
        limit = min(key_of(now_ms + 1, 0), below)
        ready = self._ready
        taken: list[int] = []
        while ready and ready[0] < limit and len(taken) < count_max:
            taken.append(heapq.heappop(ready))
        self._held -= len(taken)
        return taken

    def put_back(self, keys: list[int]) -> None:
        """These were taken, and nothing came of it."""
        for key in keys:
            self.add(key)

    def replace(self, moved: dict[int, int]) -> None:
        """Entries have other keys now, each with the same due time and a higher offset."""
        for old, new in moved.items():
            if old >= self.horizon:
                continue  # only counted, and so is the new one
            second = old // _SECOND
            (self._ready if second < self._ready_below else self._buckets[second]).remove(old)
            self._held -= 1
            if second < self._ready_below:
                heapq.heapify(self._ready)
            self.add(new)

    def next_due_ms(self, margin_ms: int = 0) -> int | None:
        """When to look again: at a due time, as a second begins, or the margin before the horizon; None: never."""
        times = [due_of(self._ready[0])] if self._ready else []
        if self._seconds:
            times.append(self._seconds[0] * 1000)
        if self.beyond:
            times.append(due_of(self.horizon) - margin_ms)
        return min(times, default=None)

    def shed(self, count_max: int) -> None:
        """Hold no more than so many: forget the farthest, and know where that begins."""
        assert count_max > 0
        for second in sorted(self._buckets, reverse=True):
            excess = self._held - count_max
            if excess <= 0:
                break
            bucket = self._buckets[second]
            if len(bucket) <= excess:
                del self._buckets[second]
                gone = bucket
            else:
                bucket.sort()
                gone = bucket[-excess:]
                del bucket[-excess:]
            self._forget(gone)
        self._seconds = sorted(self._buckets)
        excess = self._held - count_max
        if excess > 0:
            self._ready.sort()
            gone = self._ready[-excess:]
            del self._ready[-excess:]
            self._forget(gone)

    def shed_from(self, key: int) -> None:
        """Hold nothing at or behind a key: what is known of it is not to be relied on."""
        gone = [held for held in self._ready if held >= key]
        self._ready = sorted(held for held in self._ready if held < key)
        for second, bucket in list(self._buckets.items()):
            gone += [held for held in bucket if held >= key]
            kept = [held for held in bucket if held < key]
            if kept:
                self._buckets[second] = kept
            else:
                del self._buckets[second]
        self._seconds = sorted(self._buckets)
        self._forget(gone)
        self.horizon = min(self.horizon, key)

    def _forget(self, gone: list[int]) -> None:
        self.horizon = min(self.horizon, min(gone, default=ENDLESS))
        self._held -= len(gone)
        self.beyond += len(gone)

    # ------------------------------------------------------------ looking behind the horizon

    def wants_scan(self, now_ms: int, margin_ms: int) -> bool:
        """Whether what is behind the horizon will be needed soon."""
        if not self.beyond:
            return False
        return not self._held or due_of(self.horizon) <= now_ms + margin_ms

    def begin_scan(self) -> int:
        """From here on there is no horizon; the caller adds all stored keys from the one returned on, and ends it.

        Until then nothing at or behind that key may be taken: it is the `below` of `take_due`.
        """
        horizon, self.horizon, self.beyond = self.horizon, ENDLESS, 0
        return horizon

    def _ripen(self, seconds_below: int) -> None:
        """Move the buckets whose second has come to the ready heap."""
        if seconds_below <= self._ready_below:
            return
        self._ready_below = seconds_below
        seconds = self._seconds
        while seconds and seconds[0] < seconds_below:
            bucket = self._buckets.pop(heapq.heappop(seconds))
            if self._ready:
                for key in bucket:
                    heapq.heappush(self._ready, key)
            else:
                heapq.heapify(bucket)
                self._ready = bucket

    def check(self) -> None:
        """Assert the invariants."""
        held = [*self._ready, *(key for bucket in self._buckets.values() for key in bucket)]
        assert len(held) == self._held
        assert all(key < self.horizon for key in held)
        assert sorted(self._seconds) == sorted(self._buckets)
        assert self.beyond == 0 or self.horizon < ENDLESS
