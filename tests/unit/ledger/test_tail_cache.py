"""The memory that tails share grows with their number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.ledger.config import LedgerConfig
from danubius.ledger.core.segment import Ledger, WriteJob
from danubius.ledger.entry import LedgerRef
from danubius.ledger.tail_cache import (
    MANY_TAIL_BYTES,
    MANY_TAILS,
    OLDEST_SHARE,
    TAIL_SHARE,
    TailCache,
)
from danubius.model.limits import KIB, MIB

if TYPE_CHECKING:
    from danubius.ledger.core.segment import Segment
    from danubius.ledger.writer import WriteJobs

CONFIG = LedgerConfig(cache_bytes=64 * MIB, flush_bytes=MIB, dirty_bytes_max=2 * MIB)


class Tail:
    """One with something to be written."""

    def __init__(self, cache: TailCache) -> None:
        self._cache = cache
        self.unhanded_cost = self.unhanded_since_ms = 0
        self.taken = 0

    def take_unwritten(self) -> WriteJob:
        self.taken += 1
        self._cache.handed_over(self)
        return WriteJob(Ledger(LedgerRef(1, 0), 1, 0, 0), [], seal=False)

    def close_block(self) -> None: ...
    def forget_oldest(self, segment: Segment) -> None: ...


def flushed_at(tails: int) -> int:
    """After how many bytes, of tails that have little each, some of it is written."""
    jobs: list[WriteJobs] = []
    cache = TailCache(CONFIG, jobs.append)
    for _ in range(tails):
        cache.count_tail(1)
    size = 0
    while not jobs:
        cache.appended(Tail(cache), MIB // 4)
        size += MIB // 4
    assert not cache.is_congested
    return size


def test_few_tails_are_written_at_the_configured_size() -> None:
    assert flushed_at(1) == flushed_at(MANY_TAILS - 1) == CONFIG.flush_bytes + MIB // 4


def test_many_tails_gather_more_each_but_not_more_than_the_cache_has() -> None:
    assert flushed_at(2 * MANY_TAILS) > 2 * MANY_TAILS * MANY_TAIL_BYTES - MIB
    assert flushed_at(100 * MANY_TAILS) == CONFIG.cache_bytes + MIB // 4


def test_when_most_tails_are_gone_the_configured_size_counts_again() -> None:
    cache = TailCache(CONFIG, lambda _: None)
    for change in (1, -1):
        for _ in range(2 * MANY_TAILS):
            cache.count_tail(change)
    cache.appended(Tail(cache), 2 * MIB + 1)
    assert cache.is_congested


def test_a_busy_tail_is_written_by_itself_when_it_has_its_share() -> None:
    cache = TailCache(CONFIG, lambda _: None)
    quiet, busy = Tail(cache), Tail(cache)
    cache.appended(quiet, 100)
    cache.appended(busy, CONFIG.flush_bytes // TAIL_SHARE)
    assert (quiet.taken, busy.taken) == (0, 0)
    cache.appended(busy, 1)
    assert (quiet.taken, busy.taken) == (0, 1)
    cache.check()


def test_large_tails_are_written_without_the_little_that_quiet_ones_have() -> None:
    config = LedgerConfig(
        cache_bytes=64 * MIB, flush_bytes=MIB, dirty_bytes_max=2 * MIB, block_bytes=4 * KIB
    )
    cache = TailCache(config, lambda _: None)
    quiet, *large = [Tail(cache) for _ in range(12)]
    cache.appended(quiet, 100)
    for tail in large:
        cache.appended(tail, 100 * KIB)
    assert quiet.taken == 0
    assert [tail.taken for tail in large] == [1] * len(large)
    cache.now_ms += CONFIG.flush_age_ms
    cache.hand_over_due()
    assert quiet.taken == 1
    cache.check()


def test_of_many_small_tails_those_that_waited_longest_are_written_and_the_others_go_on() -> None:
    written: list[int] = []
    cache = TailCache(CONFIG, lambda jobs: written.append(len(jobs.jobs)))
    tails = [Tail(cache) for _ in range(100)]
    size = CONFIG.flush_bytes // len(tails) + 1
    for tail in tails:
        cache.appended(tail, size)
    part = len(tails) // OLDEST_SHARE + 1
    assert written == [part]
    assert [tail.taken for tail in tails] == [1] * part + [0] * (len(tails) - part)
    for tail in tails[part:]:
        cache.appended(tail, size)
    assert len(written) > 1
    assert all(count <= part for count in written), "one part at a time"
    first_of_next = tails[part]
    assert first_of_next.taken == 1
    cache.check()


def test_turn_by_turn_a_write_has_what_came_in_nearly_two_rounds() -> None:
    """In the memory in which writing everything at once would find what came in one."""
    cache = TailCache(CONFIG, lambda _: None)
    tails = [Tail(cache) for _ in range(100)]
    for _ in range(20):
        for tail in tails:
            cache.appended(tail, CONFIG.flush_bytes // len(tails))
    assert all(8 <= tail.taken <= 14 for tail in tails)
    cache.check()
