"""The managed ledger: one stream over tail and files."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest

from danubius.errors import OffsetOutOfRange, TopicDeleted
from danubius.ledger.config import LedgerConfig
from danubius.ledger.entry import Chunk, Entry, LedgerRef
from danubius.ledger.leftovers import State
from danubius.ledger.memory import MemoryLedgerStore
from danubius.model.topic import Retention
from danubius.record.batch import HEADER_BYTES, Codec, Flag, check_batch, stamp
from danubius.record.checksum import crc32c
from danubius.record.header import CHECKED_FROM
from danubius.record.seal import seal

if TYPE_CHECKING:
    from danubius.ledger.core.segment import Segment

SMALL: dict[str, int] = {"block_bytes": 4096, "ledger_bytes_max": 20_000}


def test_an_appended_batch_is_read_at_once_and_without_a_copy(bench: Any, make_entry: Any) -> None:
    ledger = bench.open()
    entry = make_entry(0, [b"a", b"b"])
    ledger.append(entry)
    got: list[Any] = []
    ledger.read(0, 1000, got.append)
    assert got[0] == Chunk(0, 2, [entry.buffer], entry.buffer.nbytes)
    assert got[0].buffers[0] is entry.buffer


def test_a_read_at_the_end_is_an_empty_chunk(bench: Any, fill: Any) -> None:
    ledger = bench.open()
    assert bench.read(ledger, 0) == Chunk(0, 0, [], 0)
    fill(ledger, 2)
    assert bench.read(ledger, 6) == Chunk(6, 6, [], 0)


def test_a_read_outside_the_log_is_refused_with_its_bounds(bench: Any, fill: Any) -> None:
    ledger = bench.open()
    fill(ledger, 2)
    for offset in (7, -1):
        error = bench.read(ledger, offset)
        assert isinstance(error, OffsetOutOfRange)
        assert "0 to 6" in error.message


def test_a_read_inside_a_batch_starts_with_that_batch(bench: Any, fill: Any) -> None:
    ledger = bench.open()
    fill(ledger, 4)
    assert bench.read(ledger, 4).first == 3


def test_a_chunk_stays_within_bytes_max_but_has_a_batch(bench: Any, fill: Any) -> None:
    ledger = bench.open()
    fill(ledger, 4)
    one = bench.read(ledger, 0, 1).size
    assert bench.read(ledger, 0, 1).end == 3
    assert bench.read(ledger, 0, 2 * one).end == 6
    assert bench.read(ledger, 0, 3 * one - 1).end == 6


def test_memory_and_disk_give_the_same_stream(make_bench: Any, fill: Any) -> None:
    bench = make_bench(**SMALL)
    ledger = bench.open()
    payloads = fill(ledger, 200)
    assert bench.read_all(ledger, 0) == payloads
    assert bench.flush() is None
    assert bench.read_all(ledger, 0) == payloads
    bench.evict()
    assert bench.storage.cached_bytes == 0
    assert bench.read_all(ledger, 0) == payloads
    assert bench.read_all(ledger, 301, 1) == payloads[301:]
    payloads += fill(ledger, 20)
    assert bench.read_all(ledger, 77, 100_000) == payloads[77:]
    ledger.check()


def test_a_disk_chunk_stays_within_bytes_max(make_bench: Any, fill: Any) -> None:
    bench = make_bench(**SMALL)
    ledger = bench.open()
    fill(ledger, 40)
    bench.flush()
    bench.evict()
    assert 8192 < bench.read(ledger, 0, 13_000).size <= 13_000
    assert bench.read(ledger, 0, 1).size <= 4096


def test_a_batch_larger_than_a_block_is_a_block_of_its_own(
    make_bench: Any, make_entry: Any
) -> None:
    bench = make_bench(**SMALL)
    ledger = bench.open()
    for first, size in enumerate([10, 9000, 10]):
        ledger.append(make_entry(first, [bytes(size)]))
    assert ledger.snapshot()[0].index_entries == 3
    bench.flush()
    bench.evict()
    assert bench.read_all(ledger, 0, 1) == [bytes(10), bytes(9000), bytes(10)]


def test_ledgers_roll_by_size_and_the_seam_is_not_seen(make_bench: Any, fill: Any) -> None:
    bench = make_bench(**SMALL)
    ledger = bench.open()
    payloads = fill(ledger, 200)
    metas = ledger.ledgers
    assert len(metas) > 3
    assert all(meta.data_bytes <= 20_000 for meta in metas)
    assert [meta.is_sealed for meta in metas] == [True] * (len(metas) - 1) + [False]
    assert [meta.base_offset for meta in metas[1:]] == [meta.end_offset for meta in metas[:-1]]
    bench.flush()
    bench.evict()
    assert bench.read_all(ledger, 0) == payloads


def test_ledgers_roll_by_age(bench: Any, fill: Any) -> None:
    ledger = bench.open()
    fill(ledger, 1)
    bench.clock.now_ms += LedgerConfig().ledger_age_max_ms
    bench.storage.tick()
    fill(ledger, 1)
    assert [meta.is_sealed for meta in ledger.ledgers] == [True, False]


def test_ledgers_roll_by_the_number_of_blocks(make_bench: Any, fill: Any) -> None:
    bench = make_bench(ledger_blocks_max=3)
    ledger = bench.open()
    for _ in range(7):
        fill(ledger, 1)
        ledger.snapshot()
    assert [meta.index_entries for meta in ledger.ledgers] == [3, 3, 1]


def test_no_file_exists_before_the_first_write(bench: Any, fill: Any) -> None:
    ledger = bench.open()
    fill(ledger, 1)
    bench.settle()
    assert bench.store.list() == []
    bench.flush()
    assert bench.store.list() == [LedgerRef(1, 0)]


def test_files_hold_the_batches_exactly_as_stamped(bench: Any, make_entry: Any) -> None:
    ledger = bench.open()
    entries = [make_entry(0, [b"a"]), make_entry(1, [b"b", b"c"])]
    expected = b"".join(bytes(entry.buffer) for entry in entries)
    for entry in entries:
        ledger.append(entry)
    bench.flush()
    assert bench.store.read(LedgerRef(1, 0), 64, 1 << 20) == expected


def test_a_snapshot_states_the_sizes_that_files_will_have(make_bench: Any, fill: Any) -> None:
    bench = make_bench(**SMALL)
    ledger = bench.open()
    fill(ledger, 50)
    metas = ledger.snapshot()
    fill(ledger, 3)
    bench.flush()
    last = metas[-1]
    ref = LedgerRef(1, last.ledger_id)
    assert len(bench.store.read(ref, 0, 1 << 20)) > last.data_bytes
    bench.store.truncate(ref, last.data_bytes, last.index_entries)
    again = make_bench(bench.store, **SMALL)
    assert len(again.read_all(again.open(1, metas), 0)) == 150


def test_small_writes_share_a_block(make_bench: Any, fill: Any) -> None:
    bench = make_bench(flush_bytes=1)
    ledger = bench.open()
    payloads = fill(ledger, 10)
    bench.settle()
    bench.evict()
    assert bench.storage.dirty_bytes == 0
    assert ledger.snapshot()[0].index_entries == 1
    assert bench.read_all(ledger, 0, 1) == payloads


def test_a_topic_is_reopened_from_its_snapshot(make_bench: Any, fill: Any) -> None:
    bench = make_bench(**SMALL)
    ledger = bench.open()
    payloads = fill(ledger, 60)
    metas = ledger.snapshot()
    bench.flush()
    again = make_bench(bench.store, **SMALL)
    again.storage.recover_files(State({1: metas}, {}))
    again.storage.settle_in()
    ledger = again.open(1, metas)
    assert all(meta.is_sealed for meta in ledger.ledgers)
    payloads += fill(ledger, 2)
    assert again.read_all(ledger, 0) == payloads
    assert ledger.ledgers[-1].ledger_id == metas[-1].ledger_id + 1


def test_deleted_topics_leave_nothing_in_a_cache_below_its_bound(
    make_bench: Any, fill: Any
) -> None:
    bench = make_bench()
    kept = bench.open(1)
    payloads = fill(kept, 4)
    segments: list[Segment] = []
    for topic_id in range(2, 200):
        ledger = bench.open(topic_id)
        fill(ledger, 2)
        assert bench.flush() is None
        segments += ledger._tail
        ledger.delete()
        bench.settle()
    assert all(not segment.buffers and not segment._firsts for segment in segments)
    assert len(bench.storage._cache._written) <= 2 * len(kept._tail)
    bench.storage.check()
    assert bench.read_all(kept, 0) == payloads
    bench.evict()
    assert bench.storage.cached_bytes == 0
    assert bench.read_all(kept, 0) == payloads


def test_only_written_segments_leave_the_cache(make_bench: Any, fill: Any) -> None:
    bench = make_bench(
        cache_bytes=40_000, flush_bytes=30_000, dirty_bytes_max=40_000, block_bytes=4096
    )
    ledger = bench.open()
    payloads = fill(ledger, 100)
    assert bench.storage.cached_bytes > 40_000
    assert bench.storage.is_congested
    assert bench.read_all(ledger, 0) == payloads
    bench.flush()
    assert bench.storage.cached_bytes <= 40_000
    assert bench.storage.dirty_bytes == 0
    assert not bench.storage.is_congested
    assert bench.read_all(ledger, 0) == payloads
    bench.storage.check()


def test_the_cache_bound_holds_over_all_topics(make_bench: Any, fill: Any) -> None:
    bench = make_bench(
        cache_bytes=50_000, flush_bytes=10_000, dirty_bytes_max=50_000, block_bytes=4096
    )
    ledgers = [bench.open(topic) for topic in range(10)]
    expected: list[list[bytes]] = [[] for _ in ledgers]
    for _ in range(20):
        for ledger, payloads in zip(ledgers, expected, strict=True):
            payloads += fill(ledger, 1)
        bench.settle()
        assert bench.storage.cached_bytes <= 50_000
    for ledger, payloads in zip(ledgers, expected, strict=True):
        ledger.check()
        assert bench.read_all(ledger, 0) == payloads


def test_unwritten_bytes_start_a_write_by_themselves(make_bench: Any, fill: Any) -> None:
    bench = make_bench(flush_bytes=10_000)
    fill(bench.open(), 10, size=1000)
    bench.settle()
    assert bench.storage.dirty_bytes < 10_000


def test_a_tick_that_was_under_way_at_the_end_hands_over_nothing(bench: Any, fill: Any) -> None:
    fill(bench.open(), 1)
    bench.storage.close()
    bench.clock.now_ms += LedgerConfig().flush_age_ms
    bench.storage.tick()
    assert not bench.store.list()


def test_full_blocks_are_written_at_a_tick_and_the_rest_when_old(bench: Any, fill: Any) -> None:
    large, small = bench.open(1), bench.open(2)
    fill(large, 4, size=100_000)
    fill(small, 1)
    bench.storage.tick()
    bench.settle()
    assert bench.store.list() == [LedgerRef(1, 0)]
    bench.clock.now_ms += LedgerConfig().flush_age_ms
    bench.storage.tick()
    bench.settle()
    assert bench.store.list() == [LedgerRef(1, 0), LedgerRef(2, 0)]
    assert bench.storage.dirty_bytes == 0


def test_an_index_that_left_the_memory_is_loaded_again(make_bench: Any, fill: Any) -> None:
    bench = make_bench(index_cache_bytes=1, **SMALL)
    ledger = bench.open()
    payloads = fill(ledger, 200)
    bench.flush()
    bench.evict()
    assert bench.read_all(ledger, 0) == payloads
    assert len(bench.storage._backing.indexes._indexes) == 1


def test_trim_deletes_whole_ledgers_below_the_floor(make_bench: Any, fill: Any) -> None:
    bench = make_bench(**SMALL)
    ledger = bench.open()
    payloads = fill(ledger, 200)
    bench.flush()
    second = ledger.ledgers[1]
    start = ledger.trim(second.end_offset + 1, Retention(age_ms=0), bench.clock.now_ms)
    bench.settle()
    assert start == ledger.start_offset == second.end_offset
    assert bench.store.list()[0] == LedgerRef(1, 2)
    assert isinstance(bench.read(ledger, start - 1), OffsetOutOfRange)
    assert bench.read_all(ledger, start) == payloads[start:]
    ledger.check()
    bench.storage.check()


def test_trim_of_unwritten_ledgers_leaves_nothing_behind(make_bench: Any, fill: Any) -> None:
    bench = make_bench(**SMALL)
    ledger = bench.open()
    fill(ledger, 200)
    kept = ledger.ledgers[-1]
    ledger.trim(ledger.end_offset, Retention(age_ms=0), bench.clock.now_ms)
    bench.flush()
    assert bench.store.list() == [LedgerRef(1, kept.ledger_id)]
    bench.evict()
    assert bench.storage.cached_bytes == bench.storage.dirty_bytes == 0


def test_an_aged_open_ledger_is_sealed_and_dropped(bench: Any, fill: Any) -> None:
    ledger = bench.open()
    fill(ledger, 2)
    bench.flush()
    retention = Retention(age_ms=3_600_000)
    assert ledger.trim(6, retention, bench.clock.now_ms + 3_599_999) == 0
    assert ledger.trim(5, retention, bench.clock.now_ms + 3_600_000) == 0
    assert ledger.trim(6, retention, bench.clock.now_ms + 3_600_000) == 6
    bench.settle()
    assert bench.store.list() == []
    assert bench.read(ledger, 6) == Chunk(6, 6, [], 0)
    assert bench.read_all(ledger, 6) == []
    payloads = fill(ledger, 1)
    assert bench.read_all(ledger, 6) == payloads
    assert ledger.ledgers[0].ledger_id == 1


def test_a_start_inside_a_ledger_hides_what_lies_before(make_bench: Any, fill: Any) -> None:
    bench = make_bench(**SMALL)
    ledger = bench.open()
    payloads = fill(ledger, 200)
    metas = ledger.snapshot()
    bench.flush()
    start = metas[2].base_offset + 4
    again = make_bench(bench.store, **SMALL)
    ledger = again.open(1, metas, start_offset=start)
    again.settle()
    assert ledger.start_offset == start
    assert isinstance(again.read(ledger, start - 1), OffsetOutOfRange)
    assert again.read_all(ledger, start) == payloads[start:]
    assert again.store.list()[0].ledger_id == 2
    assert again.find_time(ledger, 0) == start


def test_a_deleted_topic_leaves_neither_files_nor_memory(make_bench: Any, fill: Any) -> None:
    bench = make_bench(**SMALL)
    ledger, other = bench.open(1), bench.open(2)
    fill(ledger, 100)
    bench.flush()
    fill(ledger, 100)
    payloads = fill(other, 10)
    got: list[Any] = []
    ledger.delete()
    ledger.read(0, 100, got.append)
    ledger.read(ledger.end_offset, 100, got.append)
    ledger.find_time(0, got.append)
    assert [type(error) for error in got] == [TopicDeleted] * 3
    bench.settle()
    bench.storage.check()
    assert bench.flush() is None
    assert [ref.topic_id for ref in bench.store.list()] == [2]
    assert bench.read_all(other, 0) == payloads
    bench.evict()
    assert bench.storage.cached_bytes == bench.storage.dirty_bytes == 0


def test_a_read_under_way_while_the_topic_is_deleted_hears_of_it(
    make_bench: Any, fill: Any
) -> None:
    bench = make_bench(**SMALL)
    ledger = bench.open()
    fill(ledger, 100)
    bench.flush()
    bench.evict()
    got: list[Any] = []
    ledger.read(0, 100, got.append)
    ledger.delete()
    bench.settle()
    assert isinstance(got[0], TopicDeleted)


def test_find_time_gives_the_first_message_at_or_after_it(make_bench: Any, make_entry: Any) -> None:
    for is_written in (False, True):
        bench = make_bench(**SMALL)
        ledger = bench.open()
        for first in range(0, 600, 3):
            times = [first * 10, first * 10 + 10, first * 10 + 20]
            ledger.append(make_entry(first, [b"x" * 100] * 3, times))
            if is_written and first == 300:
                bench.flush()
                bench.evict()
        for time_us in (-5, 0, 1, 10, 2999, 3000, 3001, 3005, 5985, 5990):
            assert bench.find_time(ledger, time_us) == max(0, -(-time_us // 10))
        assert bench.find_time(ledger, 5991) == 600


def test_find_time_copes_with_clocks_that_go_back(make_bench: Any, make_entry: Any) -> None:
    bench = make_bench(**SMALL)
    ledger = bench.open()
    times = [50, 10, 90, 20, 20, 95, 5]
    for first, time_us in enumerate(times):
        ledger.append(make_entry(first, [b"x" * 3000], time_us))
    bench.flush()
    bench.evict()
    for time_us in range(100):
        expected = next((i for i, t in enumerate(times) if t >= time_us), len(times))
        assert bench.find_time(ledger, time_us) == expected


@pytest.mark.parametrize("is_written", [False, True])
def test_find_time_passes_by_a_batch_that_cannot_be_decoded(
    make_bench: Any, make_entry: Any, is_written: bool
) -> None:
    bench = make_bench(**SMALL)
    ledger = bench.open()
    ledger.append(make_entry(0, [b"x" * 100], 10))
    # A sound header and checksum, a time far ahead, and a body that is no lz4.
    fields = (int(Flag.TIMES), 1, 0, 0, 0, 0, 20, 2**62, 0)
    hostile = seal([bytes(64)], 64, Codec.LZ4, fields)
    hostile[HEADER_BYTES:] = b"\xff" * (len(hostile) - HEADER_BYTES)
    struct.pack_into("<I", hostile, CHECKED_FROM - 4, crc32c(bytes(hostile[CHECKED_FROM:])))
    check_batch(hostile)
    stamp(hostile, 1, 7)
    ledger.append(Entry(1, 2, memoryview(hostile), 2**62))
    ledger.append(make_entry(2, [b"y" * 100], 30))
    if is_written:
        bench.flush()
        bench.evict()
    assert [bench.find_time(ledger, time_us) for time_us in (5, 11, 30, 31)] == [0, 2, 2, 3]


def test_ten_thousand_small_topics_cost_little(make_bench: Any, make_entry: Any) -> None:
    import tracemalloc

    bench = make_bench()
    entries = [make_entry(0, [b"x" * 100]) for _ in range(2000)]
    tracemalloc.start()
    ledgers = [bench.open(topic) for topic in range(2000)]
    for ledger, entry in zip(ledgers, entries, strict=True):
        ledger.append(entry)
    bytes_a_topic = tracemalloc.get_traced_memory()[0] / 2000
    tracemalloc.stop()
    assert bytes_a_topic < 2500, bytes_a_topic


def test_the_stored_size_counts_everything_appended(make_bench: Any, fill: Any) -> None:
    bench = make_bench(store=MemoryLedgerStore(), **SMALL)
    ledger = bench.open()
    fill(ledger, 100)
    before = ledger.stored_bytes
    bench.flush()
    files = sum(len(bench.store.read(ref, 0, 1 << 20)) for ref in bench.store.list())
    assert before == ledger.stored_bytes == files
