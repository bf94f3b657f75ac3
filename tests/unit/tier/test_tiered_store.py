"""Ledgers on two tiers behind one port, with real threads: nobody sees them move, and nobody waits for a slow store."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any

import pytest

from danubius.errors import DanubiusError, StorageFailed
from danubius.ledger.config import LedgerConfig
from danubius.ledger.entry import Chunk, Entry, LedgerMeta, LedgerRef
from danubius.ledger.memory import MemoryLedgerStore
from danubius.ledger.storage import LedgerStorage
from danubius.record.encode import encode
from danubius.record.header import stamp
from danubius.tier.config import TierConfig
from danubius.tier.memory_objects import MemoryObjects
from danubius.tier.offload import Owner, Place, TierWork
from danubius.tier.tiered_store import TieredLedgerStore
from faulty_objects import FaultyObjects
from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from danubius.ledger.managed import ManagedLedger

CONFIG = TierConfig(segment_bytes=64 * 1024, cache_bytes=1 << 20)
LEDGERS = LedgerConfig(
    block_bytes=4096,
    ledger_bytes_max=100_000,
    cache_bytes=64 * 1024,
    flush_bytes=1024,
    dirty_bytes_max=32 * 1024,
)
COUNT = 400


class Broker:
    """A storage with threads, whose loop is this thread."""

    def __init__(self) -> None:
        self.posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.objects = FaultyObjects(MemoryObjects())
        self.local = MemoryLedgerStore()
        self.store = TieredLedgerStore(CONFIG, self.local, self.objects)
        self.storage = LedgerStorage(LEDGERS, self.store, self.posted.put, cold=self.store)
        self.storage.start()
        self.log = self.storage.open(1, 1, [], 0)
        place = Place("s" * 32, Owner(1, "life"))
        self.work = TierWork(CONFIG, self.local, self.objects, place, LEDGERS.block_bytes)

    def wait(self, begin: Callable[[Callable[[Any], None]], None]) -> Any:
        answers: list[Any] = []
        begin(answers.append)
        while not answers:
            self.posted.get(timeout=HANG_S)()
        return answers[0]

    def fill(self, log: ManagedLedger, count: int = COUNT) -> None:
        for _ in range(count):
            first = log.end_offset
            batch = encode([b"%d" % first + bytes(1000)], publish_time_us=first)
            stamp(batch, first, 1)
            log.append(Entry(first, first + 1, memoryview(batch), first))
            self.storage.tick()
        log.seal_open(0)
        assert self.wait(self.storage.flush) is None

    def offload(self, *, reclaim: bool = True) -> None:
        for meta in self.log.ledgers:
            stored = self.work.upload(LedgerRef(1, meta.ledger_id), meta)
            self.log.offloaded(meta.ledger_id, meta.epoch, stored)
        if reclaim:
            self.log.reclaim([meta.ledger_id for meta in self.log.ledgers])

    def read_all(self, log: ManagedLedger) -> int:
        at = log.start_offset
        while at < log.end_offset:
            chunk = self.wait(lambda done, at=at: log.read(at, 1 << 16, done))
            assert isinstance(chunk, Chunk), chunk
            assert chunk.first <= at < chunk.end
            at = chunk.end
        return at


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    yield made
    made.storage.close()


def test_what_left_the_disk_is_read_from_objects_within_the_bound_of_the_cache(
    broker: Broker,
) -> None:
    broker.fill(broker.log)
    broker.offload()
    assert broker.wait(broker.storage.flush) is None
    assert broker.local.list() == []
    assert broker.read_all(broker.log) == COUNT
    assert broker.store.counts.bytes_read > 0
    assert 0 < broker.store.cached_bytes <= CONFIG.cache_bytes
    before = broker.store.cache_misses
    assert broker.read_all(broker.log) == COUNT
    assert broker.store.cache_misses == before, "all of it is in memory"


def test_a_read_that_finds_its_ledger_moved_goes_to_the_object(broker: Broker) -> None:
    broker.fill(broker.log)
    broker.read_all(broker.log)
    broker.offload(reclaim=False)
    # The files go between the decision to read them and the read.
    broker.local.delete_topic(1)
    assert broker.read_all(broker.log) == COUNT


def test_a_slow_store_keeps_no_reader_of_the_disk_waiting(broker: Broker) -> None:
    broker.fill(broker.log)
    broker.offload()
    other = broker.storage.open(2, 1, [], 0)
    broker.fill(other)
    may_answer, asked = threading.Event(), threading.Event()

    def hold(_name: str) -> None:
        asked.set()
        assert may_answer.wait(HANG_S)

    broker.objects.before["get"] = hold
    late: list[object] = []
    # More of them than there are threads for the disk.
    for at in range(0, COUNT, 10):
        broker.log.read(at, 1 << 16, late.append)
    assert asked.wait(HANG_S)
    assert broker.read_all(other) == COUNT
    assert late == []
    may_answer.set()
    while len(late) < COUNT // 10:
        broker.posted.get(timeout=HANG_S)()
    assert all(isinstance(answer, Chunk) for answer in late)


def test_a_missing_object_is_a_failure_that_may_pass_and_no_damage(broker: Broker) -> None:
    broker.fill(broker.log)
    broker.offload()
    name = broker.log.ledgers[0].object_name
    content = broker.objects.inner.get(name, 0, 1 << 30)
    broker.objects.inner.delete(name)
    failed = broker.wait(lambda done: broker.log.read(0, 1 << 16, done))
    assert isinstance(failed, StorageFailed)
    assert name in failed.message
    broker.objects.inner.put(name, [content])
    assert broker.read_all(broker.log) == COUNT


def test_what_is_dropped_is_released_by_its_objects_name(broker: Broker) -> None:
    released: list[str] = []
    broker.store.on_released = released.append
    broker.fill(broker.log)
    broker.offload()
    names = [meta.object_name for meta in broker.log.ledgers]
    broker.log.trim_to(broker.log.ledgers[1].end_offset)
    assert released == names[:2]
    broker.log.delete()
    assert released == names


def test_without_cold_storage_the_error_says_what_is_missing() -> None:
    posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    storage = LedgerStorage(LEDGERS, MemoryLedgerStore(), posted.put)
    storage.start()
    meta = LedgerMeta(0, 1, 0, 10, 500, 1, 0, 0, 0, True, "s/t/l", 700, 1, False)
    answers: list[Chunk | DanubiusError] = []
    storage.open(1, 2, [meta], 10).read(0, 1000, answers.append)
    [answer] = answers
    assert isinstance(answer, StorageFailed)
    assert "--tier-url" in answer.message
    storage.close()
