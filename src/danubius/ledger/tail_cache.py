"""The memory budget of all tails: what is unwritten, what may go, and when to write.

Invariants:
- `cached_bytes` is the cost of all segments in memory, `dirty_bytes` that of those not written.
- Only written segments leave, those written first before others. As every topic's segments are
  written in order, a topic's tail loses its oldest segment first and stays contiguous.
- Everything here runs on the loop.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from danubius.ledger.core.segment import State
from danubius.ledger.writer import WriteJobs
from danubius.model.limits import KIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from danubius.ledger.config import LedgerConfig
    from danubius.ledger.core.segment import Segment, Tail
    from danubius.ledger.writer import Written


MANY_TAILS: Final = 1000
MANY_TAIL_BYTES: Final = 16 * KIB
"""With many topics so much of each is gathered before everything is written, but never more than the cache has."""


TAIL_SHARE: Final = 4
"""One tail is written when it has this part of what starts a write: disks take many small loads better than a large
one, and the journal's syncs need not wait behind it."""

OLDEST_SHARE: Final = 8
"""Of many small tails this part is written at a time."""


class TailCache:
    """One per broker."""

    def __init__(self, config: LedgerConfig, put: Callable[[WriteJobs], None]) -> None:
        self._config = config
        self._put = put
        self._unhanded: dict[Tail, None] = {}
        """Those with something to hand over, the longest waiting first."""
        self._unhanded_bytes = 0
        self._large_bytes = 0
        """That part of them which lies in tails with a block or more."""
        self._unsynced: dict[Tail, None] = {}
        self._written: deque[Segment] = deque()
        self._dropped_count = 0
        """How many in `_written` were dropped since; at more than half of them it is rebuilt."""
        self._tails = 0
        self._block_bytes = config.block_bytes
        self._flush_bytes = config.flush_bytes
        self._dirty_bytes_max = config.dirty_bytes_max
        self.now_ms = 0
        self.cached_bytes = 0
        self.dirty_bytes = 0

    @property
    def is_congested(self) -> bool:
        return self.dirty_bytes > self._dirty_bytes_max

    def count_tail(self, change: int) -> None:
        """There is one more, or less. Many share more memory, or each of their writes would be of next to nothing."""
        self._tails += change
        config = self._config
        shared = 0
        if self._tails >= MANY_TAILS:
            shared = min(self._tails * MANY_TAIL_BYTES, config.cache_bytes)
        self._flush_bytes = max(config.flush_bytes, shared)
        self._dirty_bytes_max = max(config.dirty_bytes_max, 2 * shared)

    def appended(self, tail: Tail, cost: int) -> None:
        if not tail.unhanded_cost:
            tail.unhanded_since_ms = self.now_ms
            self._unhanded[tail] = None
            self._unsynced[tail] = None
        tail.unhanded_cost = unhanded = tail.unhanded_cost + cost
        if unhanded >= self._block_bytes:
            # All of it, if this has made the tail a large one.
            self._large_bytes += cost if unhanded - cost >= self._block_bytes else unhanded
        self._unhanded_bytes += cost
        self.cached_bytes += cost
        self.dirty_bytes += cost
        if unhanded > self._config.flush_bytes // TAIL_SHARE:
            self._hand_over([tail])
        elif self._unhanded_bytes > self._flush_bytes:
            self._hand_over_most()
        if self.cached_bytes > self._config.cache_bytes:
            self._evict()

    def handed_over(self, tail: Tail) -> None:
        """The tail has given its unwritten segments to the storage thread."""
        if tail.unhanded_cost:
            del self._unhanded[tail]
            self._unhanded_bytes -= tail.unhanded_cost
            if tail.unhanded_cost >= self._block_bytes:
                self._large_bytes -= tail.unhanded_cost
            tail.unhanded_cost = 0

    def hand_over_all(self) -> None:
        self._hand_over(list(self._unhanded))

    def _hand_over_most(self) -> None:
        """Write what makes it so much: tails with a block or more, if they hold most of it; else the oldest part.

        The little that quiet topics have is not worth a write each time a busy one is due. Where all have little, those
        that are not the oldest go on gathering: what is written of each is twice as much as if all were written at
        once, for the same memory, and nobody waits behind ten thousand of them.
        """
        is_mostly_large = 2 * self._large_bytes >= self._unhanded_bytes
        self._hand_over(self._large() if is_mostly_large else self._oldest())

    def _large(self) -> list[Tail]:
        return [tail for tail in self._unhanded if tail.unhanded_cost >= self._block_bytes]

    def _oldest(self) -> list[Tail]:
        """Those that have waited longest, with a part of all that waits."""
        part = self._unhanded_bytes // OLDEST_SHARE
        tails: list[Tail] = []
        for tail in self._unhanded:
            if part < 0:
                break
            tails.append(tail)
            part -= tail.unhanded_cost
        return tails

    def hand_over_due(self) -> None:
        """Write what is worth a write, or has waited long enough."""
        oldest_ms = self.now_ms - self._config.flush_age_ms
        due = [
            tail
            for tail in self._unhanded
            if tail.unhanded_cost >= self._block_bytes or tail.unhanded_since_ms <= oldest_ms
        ]
        self._hand_over(due)

    def _hand_over(self, tails: Iterable[Tail]) -> None:
        jobs = [job for tail in tails if (job := tail.take_unwritten()) is not None]
        if jobs:
            self._put(WriteJobs(jobs))

    def hand_over_for_sync(self) -> None:
        """Everything is handed over, and no block goes on behind the coming sync."""
        self.hand_over_all()
        for tail in self._unsynced:
            tail.close_block()
        self._unsynced.clear()

    def settle(self, written: list[Written]) -> None:
        """The storage thread is done with these segments."""
        for segment, data, block_crc in written:
            self.dirty_bytes -= segment.cost
            if data is not None:
                segment.ledger.wrote(segment, block_crc)
            if segment.is_dropped:
                continue
            assert data is not None, "segments of deleted ledgers are dropped first"
            segment.become_written(data)
            self._written.append(segment)
        if self.cached_bytes > self._config.cache_bytes:
            self._evict()

    def drop(self, segment: Segment) -> None:
        """The segment's ledger is deleted: free the memory whatever its state."""
        assert not segment.is_dropped
        segment.drop()
        self.cached_bytes -= segment.cost
        if segment.state is State.WRITTEN:
            self._dropped_count += 1
            if 2 * self._dropped_count > len(self._written):
                self._written = deque(kept for kept in self._written if not kept.is_dropped)
                self._dropped_count = 0

    def forget(self, tail: Tail, unhanded_cost: int) -> None:
        """The tail is gone with segments that will never be handed over."""
        self.count_tail(-1)
        self.handed_over(tail)
        self._unsynced.pop(tail, None)
        self.dirty_bytes -= unhanded_cost

    def _evict(self) -> None:
        written = self._written
        while written and self.cached_bytes > self._config.cache_bytes:
            segment = written.popleft()
            if segment.is_dropped:
                self._dropped_count -= 1
                continue
            assert segment.state is State.WRITTEN
            tail = segment.ledger.tail
            assert tail is not None
            tail.forget_oldest(segment)
            self.cached_bytes -= segment.cost

    def check(self) -> None:
        assert self._unhanded_bytes == sum(tail.unhanded_cost for tail in self._unhanded)
        assert 0 <= self._unhanded_bytes <= self.dirty_bytes
        assert self._large_bytes == sum(tail.unhanded_cost for tail in self._large())
        assert self.cached_bytes >= 0
        assert self._dropped_count == sum(segment.is_dropped for segment in self._written)
