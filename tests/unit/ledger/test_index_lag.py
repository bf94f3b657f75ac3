"""An index lags behind its ledger by less than a block: many small topics cost a checkpoint no index writes."""

from __future__ import annotations

from typing import Any

from danubius.ledger.config import LedgerConfig
from danubius.ledger.entry import LedgerRef
from danubius.ledger.writer import INDEX_ROWS
from danubius.record.ledger_file import INDEX_ROW_BYTES


def rows_stored(bench: Any, ledger_id: int = 0) -> int:
    return len(bench.store.read_index(LedgerRef(1, ledger_id), 0, 999)) // INDEX_ROW_BYTES


def test_an_index_lags_by_less_than_a_block(make_bench: Any, fill: Any) -> None:
    bench = make_bench(block_bytes=4096)
    ledger = bench.open()
    payloads: list[bytes] = []
    stored, stored_bytes = 0, 64
    for _ in range(32):
        payloads += fill(ledger, 2)
        (meta,) = ledger.snapshot()
        assert bench.flush() is None
        rows = rows_stored(bench)
        if rows != stored:
            assert rows == meta.index_entries
            stored, stored_bytes = rows, meta.data_bytes
        else:
            assert meta.data_bytes - stored_bytes < 4096
        # Whatever the index lacks is found in the ledger by the next process.
        again = make_bench(bench.store, block_bytes=4096)
        assert again.read_all(again.open(1, [meta]), 0) == payloads
    assert 3 <= stored < ledger.snapshot()[0].index_entries


def test_a_small_ledger_has_no_index_and_a_sealed_one_all_of_its(
    make_bench: Any, fill: Any
) -> None:
    bench = make_bench(block_bytes=4096, ledger_bytes_max=9000)
    ledger = bench.open()
    payloads = fill(ledger, 2)
    bench.flush()
    assert rows_stored(bench) == 0
    while len(ledger.ledgers) == 1:
        payloads += fill(ledger, 1)
        bench.flush()
    metas = ledger.snapshot()
    assert metas[0].is_sealed
    assert rows_stored(bench, 0) == metas[0].index_entries
    assert rows_stored(bench, 1) == 0
    again = make_bench(bench.store, block_bytes=4096)
    assert again.read_all(again.open(1, metas), 0) == payloads


def test_a_sealed_ledger_of_less_than_a_block_is_read_without_an_index(
    make_bench: Any, fill: Any
) -> None:
    bench = make_bench(index_cache_bytes=1)
    ledger = bench.open()
    payloads = fill(ledger, 3)
    bench.clock.now_ms += LedgerConfig().ledger_age_max_ms
    bench.storage.tick()
    payloads += fill(ledger, 1)
    bench.flush()
    bench.evict()
    assert [rows_stored(bench, number) for number in (0, 1)] == [0, 0]
    assert bench.read_all(ledger, 0) == payloads


def test_rows_of_a_quiet_topic_do_not_gather_for_ever(make_bench: Any, fill: Any) -> None:
    bench = make_bench()
    ledger = bench.open()
    for _ in range(2 * INDEX_ROWS):
        fill(ledger, 1, records=1, size=1)
        bench.flush()
    assert rows_stored(bench) == 2 * INDEX_ROWS


def test_a_deleted_topic_leaves_no_rows_behind(make_bench: Any, fill: Any) -> None:
    bench = make_bench()
    ledger = bench.open()
    fill(ledger, 1)
    bench.flush()
    assert len(bench.storage._writer._lags) == 1
    ledger.delete()
    bench.settle()
    assert not bench.storage._writer._lags


def test_everything_that_is_due_is_handed_over_at_once(make_bench: Any, fill: Any) -> None:
    bench = make_bench()
    ledgers = [bench.open(topic) for topic in range(50)]
    for ledger in ledgers:
        fill(ledger, 1)
    put: list[Any] = []
    bench.storage._thread.put = put.append
    bench.storage._cache.hand_over_all()
    assert [len(jobs.jobs) for jobs in put] == [50]


def test_a_lag_is_no_damage_and_a_lost_row_is(make_bench: Any, fill: Any, caplog: Any) -> None:
    bench = make_bench(block_bytes=4096)
    ledger = bench.open()
    payloads = fill(ledger, 12)
    bench.flush()
    payloads += fill(ledger, 2)
    [meta] = ledger.snapshot()
    bench.flush()
    assert 0 < rows_stored(bench) < meta.index_entries
    again = make_bench(bench.store, block_bytes=4096)
    assert again.read_all(again.open(1, [meta]), 0) == payloads
    assert not caplog.records
    bench.store.truncate(LedgerRef(1, 0), meta.data_bytes, 0)
    again = make_bench(bench.store, block_bytes=4096)
    assert again.read_all(again.open(1, [meta]), 0) == payloads
    assert [record.message for record in caplog.records] == [
        "ledger index is damaged and will be rebuilt"
    ]
