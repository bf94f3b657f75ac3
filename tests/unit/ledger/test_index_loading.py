"""The index of a sealed ledger whose file has a bad row: the rows before it are kept, the rest is found again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from danubius.ledger.core.damage import DamagedRange
from danubius.ledger.core.index import BlockIndex, parse_index
from danubius.ledger.entry import LedgerMeta, LedgerRef
from danubius.ledger.memory import MemoryLedgerStore
from danubius.ledger.reader import load_index
from danubius.record.ledger_file import FILE_HEADER_BYTES, INDEX_ROW_BYTES

REF = LedgerRef(1, 0)
BLOCK_BYTES = 2_000
BATCHES = 40


class WatchedStore(MemoryLedgerStore):
    """Remembers from where the blocks of the ledger were read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[int] = []

    def read(self, ref: LedgerRef, at: int, count: int) -> bytes:
        if at:  # the header is read whatever there is of the index
            self.reads.append(at)
        return super().read(ref, at, count)


class Sealed:
    """One sealed ledger of many blocks, its intact index, and ways to hurt both."""

    def __init__(self, make_bench: Any, fill: Any) -> None:
        self.make_bench = make_bench
        self.store = WatchedStore()
        bench = make_bench(self.store, block_bytes=BLOCK_BYTES)
        ledger = bench.open()
        self.payloads: list[bytes] = fill(ledger, BATCHES)
        assert bench.flush() is None
        [self.meta] = ledger.snapshot()
        again = make_bench(self.store, block_bytes=BLOCK_BYTES)
        self.meta: LedgerMeta = again.open(1, [self.meta]).snapshot()[0]
        self.intact = parse_index(self.stored_rows(), self.meta)
        assert len(self.intact) >= 8
        self.store.reads.clear()

    def stored_rows(self) -> bytes:
        return self.store.read_index(REF, 0, self.meta.index_entries)

    def hurt_row(self, number: int) -> None:
        at = FILE_HEADER_BYTES + number * INDEX_ROW_BYTES
        self.store._index[REF][at] ^= 1

    def hurt_data(self, position: int) -> None:
        self.store._data[REF][position] ^= 1

    def load(self) -> BlockIndex:
        index = load_index(self.store, REF, self.meta, BLOCK_BYTES)
        index.check()
        return index

    def read_all(self) -> list[bytes]:
        bench = self.make_bench(self.store, block_bytes=BLOCK_BYTES)
        return bench.read_all(bench.open(1, [self.meta]), 0)


@pytest.fixture
def sealed(make_bench: Any, fill: Any) -> Sealed:
    return Sealed(make_bench, fill)


@pytest.mark.parametrize("bad", [0, 1, 4, -1])
def test_rows_before_a_bad_one_are_kept_and_only_the_rest_is_scanned(
    sealed: Sealed, bad: int
) -> None:
    bad %= len(sealed.intact)
    sealed.hurt_row(bad)
    index = sealed.load()
    kept = sealed.intact.rows_from(0)[:bad]
    assert index.rows_from(0)[:bad] == kept
    assert index.end_offset == sealed.meta.end_offset
    assert min(sealed.store.reads) == sealed.intact.row(bad).position
    assert sealed.read_all() == sealed.payloads


def test_the_ledger_of_another_broker_is_not_served_though_it_is_sound(sealed: Sealed) -> None:
    """Its numbers are the same, as every broker counts from one."""
    sealed.meta = msgspec.structs.replace(sealed.meta, created_ms=sealed.meta.created_ms + 1)
    with pytest.raises(DamagedRange, match="belongs to another broker") as caught:
        sealed.load()
    assert (caught.value.first, caught.value.end) == (0, sealed.meta.end_offset)


def test_a_header_that_is_not_legible_hides_no_message(sealed: Sealed) -> None:
    sealed.hurt_data(5)
    assert sealed.read_all() == sealed.payloads


def test_an_index_file_that_was_cut_short_is_completed(sealed: Sealed) -> None:
    del sealed.store._index[REF][FILE_HEADER_BYTES + 3 * INDEX_ROW_BYTES + 7 :]
    index = sealed.load()
    assert index.rows_from(0)[:3] == sealed.intact.rows_from(0)[:3]
    assert min(sealed.store.reads) == sealed.intact.row(3).position
    assert sealed.read_all() == sealed.payloads


def test_a_row_that_does_not_follow_its_predecessor_ends_what_is_kept(sealed: Sealed) -> None:
    rows = sealed.store._index[REF]
    at = FILE_HEADER_BYTES + 2 * INDEX_ROW_BYTES
    rows[at : at + INDEX_ROW_BYTES] = rows[at + INDEX_ROW_BYTES : at + 2 * INDEX_ROW_BYTES]
    index = sealed.load()
    assert index.rows_from(0)[:2] == sealed.intact.rows_from(0)[:2]
    assert min(sealed.store.reads) == sealed.intact.row(2).position
    assert sealed.read_all() == sealed.payloads


def test_kept_rows_vouch_for_what_lies_between_two_damaged_places(sealed: Sealed) -> None:
    """Without them nothing would say which offsets the batches in between have."""
    one, two, three = (sealed.intact.row(number) for number in (1, 3, 5))
    for row in (one, three):
        sealed.hurt_data(row.position + 1)  # its first batch is no longer legible
    sealed.hurt_row(len(sealed.intact) - 1)
    bench = sealed.make_bench(sealed.store, block_bytes=BLOCK_BYTES)
    ledger = bench.open(1, [sealed.meta])
    assert isinstance(bench.read(ledger, one.base_offset), DamagedRange)
    assert bench.read(ledger, two.base_offset).first == two.base_offset
