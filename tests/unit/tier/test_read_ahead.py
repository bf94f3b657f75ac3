"""What is fetched ahead of whom; and the cache that many threads share."""

from __future__ import annotations

import threading

import pytest

from danubius.errors import StorageFailed
from danubius.ledger.entry import LedgerRef
from danubius.runtime.pacing import Pace
from danubius.runtime.shared_cache import SharedCache
from danubius.tier.core.read_ahead import ReadAhead
from patience import HANG_S

REF = LedgerRef(1, 1)


def test_whoever_reads_on_gets_more_and_more_ahead_each_segment_once() -> None:
    ahead = ReadAhead(4)
    asked = [list(ahead.note(REF, at, at)) for at in range(6)]
    assert asked == [[1], [2, 3], [4, 5, 6], [7], [8], [9]]
    ahead.check()


def test_a_read_that_follows_nothing_gets_nothing_ahead() -> None:
    ahead = ReadAhead(4)
    assert list(ahead.note(REF, 7, 7)) == []
    assert list(ahead.note(REF, 3, 3)) == []
    assert list(ahead.note(REF, 8, 8)) == [9], "it goes on from the first"


def test_readers_at_different_places_of_one_ledger_are_told_apart() -> None:
    ahead = ReadAhead(2)
    ahead.note(REF, 0, 0)
    ahead.note(REF, 10, 10)
    assert list(ahead.note(REF, 1, 1)) == [2, 3]
    assert list(ahead.note(REF, 11, 11)) == [12]


def test_reads_within_one_segment_do_not_ask_again() -> None:
    ahead = ReadAhead(2)
    asked = [n for _ in range(8) for n in ahead.note(REF, 0, 0)]
    assert asked == [1, 2]


def test_no_window_means_no_reading_ahead() -> None:
    ahead = ReadAhead(0)
    assert [n for at in range(5) for n in ahead.note(REF, at, at)] == []


def test_streams_are_bounded() -> None:
    ahead = ReadAhead(4, streams_max=3)
    for number in range(10):
        ahead.note(LedgerRef(1, number), 0, 0)
        ahead.check()


def test_the_cache_loads_once_and_keeps_the_last_used_within_its_bound() -> None:
    cache: SharedCache[str] = SharedCache(10)
    loads: list[str] = []

    def load(key: str) -> bytes:
        loads.append(key)
        return bytes(4)

    for key in ("a", "b", "a", "c", "a", "b"):
        cache.get(key, lambda key=key: load(key))
    assert loads == ["a", "b", "c", "b"]
    assert cache.bytes <= 10
    assert (cache.hits, cache.misses) == (2, 4)


def test_what_was_dropped_is_loaded_again_even_if_a_load_was_under_way() -> None:
    cache: SharedCache[str] = SharedCache(10)

    def doubtful() -> bytes:
        cache.drop("a")
        return b"old"

    assert cache.get("a", doubtful) == b"old"
    assert cache.get("a", lambda: b"new") == b"new"
    assert cache.bytes == 3


def test_threads_that_want_the_same_wait_for_one_load_and_share_its_failure() -> None:
    cache: SharedCache[str] = SharedCache(10)
    began, may_end = threading.Event(), threading.Event()
    failures: list[StorageFailed] = []

    def slow() -> bytes:
        began.set()
        assert may_end.wait(HANG_S)
        raise StorageFailed("the store is down")

    def ask() -> None:
        with pytest.raises(StorageFailed) as failed:
            cache.get("a", slow)
        failures.append(failed.value)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    threads[0].start()
    assert began.wait(HANG_S)
    for thread in threads[1:]:
        thread.start()
    while cache.misses < 3:
        pass
    may_end.set()
    for thread in threads:
        thread.join(HANG_S)
    assert len(failures) == 3
    assert len({id(failure) for failure in failures}) == 1
    assert cache.get("a", lambda: b"now") == b"now"


def test_a_pace_that_has_ended_holds_nobody() -> None:
    pace = Pace(1)
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(pace.wait(10**6)))
    thread.start()
    pace.end()
    thread.join(HANG_S)
    assert ended == [False]
    assert pace.has_ended


def test_no_bound_on_the_pace_waits_for_nothing() -> None:
    assert Pace(0).wait(10**12)


def test_a_pace_that_changes_counts_from_the_next_on() -> None:
    pace = Pace(1)
    pace.change(0)
    assert pace.wait(10**12)
    pace.change(1)
    pace.end()
    assert not pace.wait(10**12)
    assert pace.bytes_per_s == 1
