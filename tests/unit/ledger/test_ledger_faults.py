"""What a full, failing or forgetful disk and damaged files do to the ledgers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from danubius.errors import DanubiusError, LedgerDamaged, StorageFailed, StorageFull
from danubius.ledger.core.damage import DamagedRange
from danubius.ledger.entry import Chunk, LedgerRef
from danubius.ledger.leftovers import State
from danubius.ledger.local import LocalLedgerStore
from danubius.ledger.memory import MemoryLedgerStore
from danubius.record.ledger_file import INDEX_ROW_BYTES
from danubius.sim.disk import SimFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from danubius.model.buffers import Buffer

SMALL: dict[str, int] = {"block_bytes": 4096, "ledger_bytes_max": 100_000}
REF = LedgerRef(1, 0)


class FaultyStore(MemoryLedgerStore):
    """Fails when told to; a failed append leaves half of its bytes, a failed sync loses them."""

    def __init__(self) -> None:
        super().__init__()
        self.error: DanubiusError | None = None
        self.sync_error: DanubiusError | None = None
        self.loses_on_failed_sync = False
        self.appends = 0
        self.rewritten: list[tuple[LedgerRef, int]] = []

    def append(self, ref: LedgerRef, at: int, buffers: Sequence[Buffer]) -> None:
        self.appends += 1
        if self.error is not None:
            half = b"".join(buffers)
            super().append(ref, at, [half[: len(half) // 2]])
            raise self.error
        if at < len(self._data[ref]):
            self.rewritten.append((ref, at))
        super().append(ref, at, buffers)

    def create(self, ref: LedgerRef, header: Any, buffers: Sequence[Buffer] = ()) -> None:
        if self.error is not None:
            raise self.error
        super().create(ref, header, buffers)

    def sync(self, refs: Collection[LedgerRef]) -> None:
        if self.sync_error is not None:
            if self.loses_on_failed_sync:
                for ref in refs:
                    self._data[ref][64:] = bytes(len(self._data[ref]) - 64)
            raise self.sync_error
        super().sync(refs)


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore()


FULL = StorageFull("the disk is full")


def advance(bench: Any, now_ms: int) -> None:
    bench.clock.now_ms += now_ms
    bench.settle()


def test_a_full_disk_keeps_entries_readable_and_is_retried(
    make_bench: Any, fill: Any, store: FaultyStore
) -> None:
    bench = make_bench(store, **SMALL)
    ledger = bench.open()
    payloads = fill(ledger, 10)
    bench.flush()
    payloads += fill(ledger, 10)
    store.error = FULL
    dirty = bench.storage.dirty_bytes
    assert bench.flush() is FULL
    assert bench.storage.failure is FULL
    assert bench.storage.dirty_bytes == dirty
    assert bench.read_all(ledger, 0) == payloads
    payloads += fill(ledger, 10)
    ledger.close()
    advance(bench, 100)
    assert bench.storage.failure is FULL
    store.error = None
    advance(bench, 200)
    assert bench.storage.failure is None
    assert bench.storage.dirty_bytes == 0
    assert bench.flush() is None
    bench.evict()
    assert bench.read_all(ledger, 0) == payloads


def test_a_failing_disk_is_not_asked_for_every_topic_nor_all_the_time(
    make_bench: Any, fill: Any, store: FaultyStore
) -> None:
    bench = make_bench(store, **SMALL)
    ledgers = [bench.open(topic) for topic in range(20)]
    for ledger in ledgers:
        fill(ledger, 1)
    bench.flush()
    store.appends = 0
    store.error = FULL
    for ledger in ledgers:
        fill(ledger, 1)
        ledger.close()
    bench.settle()
    assert store.appends == 1
    for _ in range(100):
        advance(bench, 10)
    assert store.appends <= 5


def test_relief_is_told_when_writing_goes_on(
    make_bench: Any, fill: Any, store: FaultyStore
) -> None:
    bench = make_bench(store, cache_bytes=30_000, dirty_bytes_max=20_000, flush_bytes=10_000)
    told: list[bool] = []
    bench.storage.on_relieved = lambda: told.append(bench.storage.is_congested)
    ledger = bench.open()
    store.error = FULL
    payloads = fill(ledger, 100)
    bench.settle()
    assert bench.storage.is_congested
    assert told == []
    store.error = None
    advance(bench, 100)
    assert told == [False]
    assert bench.storage.cached_bytes <= 30_000
    assert bench.read_all(ledger, 0) == payloads


def test_a_failed_create_is_repeated(make_bench: Any, fill: Any, store: FaultyStore) -> None:
    bench = make_bench(store, **SMALL)
    ledger = bench.open()
    payloads = fill(ledger, 3)
    store.error = FULL
    assert bench.flush() is FULL
    store.error = None
    assert bench.flush() is None
    bench.evict()
    assert bench.read_all(ledger, 0) == payloads


def test_after_a_failed_sync_everything_unsynced_is_written_again(
    make_bench: Any, fill: Any, store: FaultyStore
) -> None:
    bench = make_bench(store, **SMALL)
    ledger = bench.open()
    payloads = fill(ledger, 20)
    bench.flush()
    synced = len(store.read(REF, 0, 1 << 20))
    payloads += fill(ledger, 30)
    store.sync_error = StorageFailed("fdatasync: Input/output error")
    assert bench.flush() is store.sync_error
    assert store.rewritten == []
    payloads += fill(ledger, 1)
    store.sync_error = None
    assert bench.flush() is None
    assert min(at for _, at in store.rewritten) == synced
    bench.evict()
    assert bench.read_all(ledger, 0) == payloads
    store.rewritten.clear()
    fill(ledger, 1)
    assert bench.flush() is None
    assert store.rewritten == []


def test_what_a_failed_sync_lost_is_never_taken_for_stored(
    make_bench: Any, fill: Any, store: FaultyStore
) -> None:
    bench = make_bench(store, **SMALL)
    ledger = bench.open()
    fill(ledger, 20)
    store.sync_error = StorageFailed("fdatasync: Input/output error")
    store.loses_on_failed_sync = True
    assert bench.flush() is store.sync_error
    store.sync_error = None
    for _ in range(2):
        error = bench.flush()
        assert isinstance(error, StorageFailed)
        assert "the journal still has them" in error.message


def test_index_rows_of_a_failed_sync_are_stored_with_the_next(
    make_bench: Any, fill: Any, store: FaultyStore
) -> None:
    bench = make_bench(store, **SMALL)
    ledger = bench.open()
    payloads = fill(ledger, 5)
    assert bench.flush() is None
    payloads += fill(ledger, 10)
    store.sync_error = StorageFailed("fdatasync: Input/output error")
    assert bench.flush() is store.sync_error
    store._index.clear()
    store.sync_error = None
    metas = ledger.snapshot()
    assert bench.flush() is None
    assert len(store.read_index(REF, 0, 99)) == metas[0].index_entries * INDEX_ROW_BYTES
    again = make_bench(store, **SMALL)
    assert again.read_all(again.open(1, metas), 0) == payloads


def test_deleting_a_topic_ends_its_failed_writes(
    make_bench: Any, fill: Any, store: FaultyStore
) -> None:
    bench = make_bench(store, **SMALL)
    ledger = bench.open()
    store.error = FULL
    fill(ledger, 10)
    bench.flush()
    ledger.delete()
    bench.settle()
    assert bench.storage.dirty_bytes == bench.storage.cached_bytes == 0


# ------------------------------------------------------------ damage


def corrupt(store: MemoryLedgerStore, at: int, ref: LedgerRef = REF) -> None:
    store._data[ref][at] ^= 0x10


@pytest.fixture
def stored(make_bench: Any, fill: Any) -> Callable[[], Any]:
    """Twenty batches of three in five blocks, on disk only."""

    def make(**config: int) -> Any:
        bench = make_bench(**{**SMALL, "block_bytes": 1700, **config})
        ledger = bench.open()
        payloads = fill(ledger, 20)
        bench.flush()
        bench.evict()
        return bench, ledger, payloads

    return make


def batch_bytes(bench: Any) -> int:
    return int.from_bytes(bench.store.read(REF, 68, 4), "little")


def test_a_damaged_batch_is_reported_with_its_range_and_can_be_skipped(stored: Any) -> None:
    bench, ledger, payloads = stored()
    size = batch_bytes(bench)
    corrupt(bench.store, 64 + 5 * size + 150)
    chunk = bench.read(ledger, 0)
    assert (chunk.first, chunk.end) == (0, 12)
    chunk = bench.read(ledger, 12)
    assert (chunk.first, chunk.end) == (12, 15)
    for offset in (15, 16, 17):
        damage = bench.read(ledger, offset)
        assert isinstance(damage, DamagedRange)
        assert isinstance(damage, LedgerDamaged)
        assert (damage.first, damage.end) == (15, 18)
        assert "messages 15 to 17" in damage.message
    assert bench.read(ledger, 18).first == 18
    assert bench.read_all(ledger, 18) == payloads[18:]


@pytest.mark.parametrize("field", range(0, 88, 4))
def test_damage_anywhere_in_a_batch_header_costs_that_batch_alone(stored: Any, field: int) -> None:
    bench, ledger, payloads = stored()
    corrupt(bench.store, 64 + 6 * batch_bytes(bench) + field)
    assert bench.read_all(ledger, 21) == payloads[21:]
    damage = bench.read(ledger, 18)
    if field == 16:
        # The epoch is the broker's own field: no checksum of the batch covers it, and nothing is lost.
        assert isinstance(damage, Chunk)
    else:
        assert (damage.first, damage.end) == (18, 21)


def test_damage_of_neighbours_is_one_range(stored: Any) -> None:
    bench, ledger, _ = stored()
    size = batch_bytes(bench)
    corrupt(bench.store, 64 + 5 * size + 150)
    corrupt(bench.store, 64 + 6 * size + 1)
    damage = bench.read(ledger, 16)
    assert (damage.first, damage.end) == (15, 21)


def test_a_file_cut_short_is_damage_up_to_its_end(stored: Any) -> None:
    bench, ledger, _ = stored()
    size = batch_bytes(bench)
    bench.store.truncate(REF, 64 + 18 * size + 10, 99)
    chunk = bench.read(ledger, 48)
    assert chunk.end == 54
    damage = bench.read(ledger, 54)
    assert (damage.first, damage.end) == (54, 60)
    assert "cut short" in damage.message


def test_a_lost_file_is_damage_of_what_it_held(stored: Any, fill: Any) -> None:
    bench, ledger, _ = stored()
    bench.store.delete(REF)
    damage = bench.read(ledger, 3)
    assert isinstance(damage, DamagedRange)
    assert damage.first == 0


def test_a_damaged_index_is_rebuilt_from_the_ledger(stored: Any, make_bench: Any) -> None:
    bench, ledger, payloads = stored()
    metas = ledger.snapshot()
    for at in (70, 10):
        again = make_bench(bench.store, **SMALL)
        bench.store._index[REF][at] ^= 1
        assert again.read_all(again.open(1, metas), 0) == payloads
    bench.store._index.clear()
    again = make_bench(bench.store, **SMALL)
    assert again.read_all(again.open(1, metas), 0) == payloads


def test_a_rebuilt_index_shows_damage_as_gaps(stored: Any, make_bench: Any) -> None:
    bench, ledger, _payloads = stored()
    metas = ledger.snapshot()
    bench.store._index.clear()
    size = batch_bytes(bench)
    corrupt(bench.store, 64 + 5 * size + 150)
    corrupt(bench.store, 64 + 19 * size + 150)
    again = make_bench(bench.store, **SMALL)
    ledger = again.open(1, metas)
    assert again.read(ledger, 0).end == 15
    damage = again.read(ledger, 16)
    assert (damage.first, damage.end) == (15, 18)
    assert again.read(ledger, 18).end == 57
    damage = again.read(ledger, 58)
    assert (damage.first, damage.end) == (57, 60)


def test_a_batch_inside_a_message_is_not_taken_for_one(make_bench: Any, make_entry: Any) -> None:
    bench = make_bench(**SMALL)
    ledger = bench.open()
    ledger.append(make_entry(0, [b"x"]))
    inner = bytes(make_entry(1, [b"fake"]).buffer)
    ledger.append(make_entry(1, [inner]))
    ledger.append(make_entry(2, [b"y"]))
    bench.flush()
    bench.evict()
    first = int.from_bytes(bench.store.read(REF, 68, 4), "little")
    corrupt(bench.store, 64 + first + 40)
    damage = bench.read(ledger, 1)
    assert (damage.first, damage.end) == (1, 2)
    assert bench.read_all(ledger, 2) == [b"y"]


def test_damage_is_seen_by_the_search_for_a_time(stored: Any) -> None:
    bench, ledger, _ = stored()
    corrupt(bench.store, 64 + 150)
    assert isinstance(bench.find_time(ledger, 0), DamagedRange)
    assert bench.find_time(ledger, 30_000) == 30


def test_a_large_ledger_is_rebuilt_window_by_window(make_bench: Any, make_entry: Any) -> None:
    bench = make_bench()
    ledger = bench.open()
    sizes = [5_000_000 + 8 * number for number in range(12)]
    for first, size in enumerate(sizes):
        ledger.append(make_entry(first, [bytes(size)]))
    metas = ledger.snapshot()
    bench.flush()
    bench.store._index.clear()
    corrupt(bench.store, 64 + 4 * 5_000_200)
    again = make_bench(bench.store)
    ledger = again.open(1, metas)
    damage = again.read(ledger, 4)
    assert (damage.first, damage.end) == (4, 5)
    assert [again.read(ledger, first, 1).size for first in range(5, 12)] == [
        again.read(ledger, 5, 1).size + 8 * number for number in range(7)
    ]
    assert again.read(ledger, 3, 1).end == 4


def test_a_sync_ahead_that_failed_is_made_good_by_the_next_checkpoint(
    make_bench: Any, fill: Any
) -> None:
    files = SimFiles()
    directory = Path("/ledgers")
    bench = make_bench(LocalLedgerStore(files, directory, settle_bytes=50_000))
    ledger = bench.open()
    payloads = fill(ledger, 10, size=20_000)
    files.fail("sync")
    bench.storage._cache.hand_over_all()
    bench.settle()
    assert bench.flush() is None
    metas = ledger.snapshot()
    files.crash(1)
    again = make_bench(LocalLedgerStore(files, directory))
    again.storage.recover_files(State({1: metas}, {}))
    again.storage.settle_in()
    assert again.read_all(again.open(metas=metas), 0) == payloads


@pytest.mark.parametrize("size", [100, 100_000])
def test_a_topic_deleted_while_it_waits_to_be_written_harms_no_other(
    make_bench: Any, fill: Any, size: int
) -> None:
    files = SimFiles()
    bench = make_bench(LocalLedgerStore(files, Path("/ledgers")))
    gone, kept = bench.open(1), bench.open(2)
    fill(gone, 3, size=size)
    payloads = fill(kept, 3, size=size)
    bench.storage._cache.hand_over_all()
    gone.delete()
    bench.settle()
    assert bench.flush() is None
    bench.evict()
    assert bench.read_all(kept, 0) == payloads
    assert bench.storage.dirty_bytes == 0
