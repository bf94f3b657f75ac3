"""What a start finds beside what its snapshot knows: nothing of it goes before the start has come through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from danubius.ledger.entry import LedgerRef
from danubius.ledger.leftovers import Added, State

if TYPE_CHECKING:
    from danubius.ledger.memory import MemoryLedgerStore

SMALL: dict[str, int] = {"block_bytes": 4096, "ledger_bytes_max": 20_000}


def written(store: MemoryLedgerStore) -> dict[LedgerRef, bytes]:
    return {ref: store.read(ref, 0, 1 << 20) for ref in store.list()}


def test_recovery_cuts_what_came_after_the_snapshot_once_it_has_come_through(
    make_bench: Any, fill: Any
) -> None:
    bench = make_bench(**SMALL)
    ledger = bench.open()
    payloads = fill(ledger, 7)
    metas = ledger.snapshot()
    bench.flush()
    fill(ledger, 100)
    bench.flush()
    before = written(bench.store)
    assert len(before) > 1
    again = make_bench(bench.store, **SMALL)
    again.storage.recover_files(State({1: metas}, {1: Added(metas[-1].end_offset, 1 << 20)}))
    ledger = again.open(1, metas)
    payloads += fill(ledger, 5, size=20)
    again.flush()
    assert before.items() <= written(bench.store).items(), "what comes back goes elsewhere"
    again.storage.settle_in()
    again.settle()
    assert bench.store.list() == [LedgerRef(1, meta.ledger_id) for meta in ledger.ledgers]
    assert len(bench.store.read(LedgerRef(1, 0), 0, 1 << 20)) == metas[0].data_bytes
    again.flush()
    again.evict()
    assert again.read_all(ledger, 0) == payloads


def test_recovery_keeps_what_no_state_explains_and_names_it(make_bench: Any, fill: Any) -> None:
    """Topic 1 is known not to be any more; 7 was never heard of; of 2 there is more than the journal gives back."""
    bench = make_bench()
    for topic in (1, 2, 7):
        fill(bench.open(topic), 1)
    bench.flush()
    bench.storage.recover_files(State({2: []}, {2: Added(0, 10)}, topics_end=3))
    bench.storage.settle_in()
    bench.settle()
    assert bench.store.list() == [LedgerRef(2, 0), LedgerRef(7, 0)]
    assert len(bench.storage.unexplained) == 2


def test_topics_deleted_in_the_journal_go_when_the_start_has_come_through(
    make_bench: Any, fill: Any
) -> None:
    bench = make_bench()
    fill(bench.open(1), 1)
    bench.flush()
    metas = bench.open(1).snapshot()
    again = make_bench(bench.store)
    again.storage.recover_files(State({1: metas}, {1: Added(1, 0)}))
    again.open(1, metas).delete()
    again.settle()
    assert bench.store.list() == [LedgerRef(1, 0)]
    again.storage.settle_in()
    again.settle()
    assert bench.store.list() == []
