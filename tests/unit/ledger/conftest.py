"""A broker's ledgers without threads: a test says when the storage and read threads run."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import pytest

from danubius.ledger.config import LedgerConfig
from danubius.ledger.entry import Chunk, Entry, LedgerMeta
from danubius.ledger.memory import MemoryLedgerStore
from danubius.ledger.storage import LedgerStorage
from danubius.record.encode import encode
from danubius.record.header import stamp
from danubius.record.scan import iter_batches
from danubius.sim.threads import SimThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.errors import DanubiusError
    from danubius.ledger.managed import ManagedLedger
    from danubius.ledger.store import LedgerStore
    from danubius.record.batch import RecordBatch


class StepClock:
    """Stands still until told otherwise."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000

    def wall_us(self) -> int:
        return self.now_ms * 1000


class Bench:
    """One LedgerStorage and everything a test needs to drive it."""

    def __init__(self, store: LedgerStore | None = None, **config: int) -> None:
        self.store = store or MemoryLedgerStore()
        self.clock = StepClock()
        self.posted: deque[Callable[[], None]] = deque()
        self.threads = SimThreads()
        self.storage = LedgerStorage(
            LedgerConfig(**config), self.store, self.posted.append, self.clock, self.threads
        )
        self.storage.start()

    def open(
        self, topic_id: int = 1, metas: Sequence[LedgerMeta] = (), *, start_offset: int = 0
    ) -> ManagedLedger:
        end = metas[-1].end_offset if metas else 0
        return self.storage.open(topic_id, 7, list(metas), end, start_offset)

    def settle(self) -> None:
        """Run the threads and the loop until nothing is left to do."""
        self.threads.turn(self.clock.monotonic_ns())
        while self.posted:
            self.posted.popleft()()
            if not self.posted:
                self.threads.turn(self.clock.monotonic_ns())

    def flush(self) -> DanubiusError | None:
        results: list[DanubiusError | None] = []
        self.storage.flush(results.append)
        self.settle()
        assert len(results) == 1
        return results[0]

    def read(self, ledger: ManagedLedger, first: int, bytes_max: int = 1 << 20) -> Any:
        results: list[Chunk | DanubiusError] = []
        ledger.read(first, bytes_max, results.append)
        self.settle()
        assert len(results) == 1
        return results[0]

    def read_all(self, ledger: ManagedLedger, first: int, bytes_max: int = 4096) -> list[bytes]:
        """Every payload from `first` to the end, checked for contiguity on the way."""
        payloads: list[bytes] = []
        while first < ledger.end_offset:
            chunk = self.read(ledger, first, bytes_max)
            assert isinstance(chunk, Chunk), chunk
            batches = batches_of(chunk)
            assert batches[0].base_offset == chunk.first <= first < chunk.end
            assert batches[-1].end_offset == chunk.end
            assert sum(len(batch.buffer) for batch in batches) == chunk.size
            for batch in batches:
                for offset, payload in zip(batch.offsets(), batch.payloads(), strict=True):
                    if offset >= first:
                        payloads.append(payload)
            first = chunk.end
        return payloads

    def find_time(self, ledger: ManagedLedger, time_us: int) -> Any:
        results: list[int | DanubiusError] = []
        ledger.find_time(time_us, results.append)
        self.settle()
        assert len(results) == 1
        return results[0]

    def evict(self) -> None:
        """Push every written segment out of memory."""
        cache = self.storage._cache
        kept, cache._config = (
            cache._config,
            LedgerConfig(cache_bytes=1, flush_bytes=1, dirty_bytes_max=1),
        )
        cache._evict()
        cache._config = kept


def batches_of(chunk: Chunk) -> list[RecordBatch]:
    return [batch for buffer in chunk.buffers for batch in iter_batches(buffer)]


def make_entry(
    first: int, payloads: Sequence[bytes], time_us: int | Sequence[int] | None = None
) -> Entry:
    times = first * 1000 if time_us is None else time_us
    batch = encode(payloads, publish_time_us=times)
    stamp(batch, first, 7)
    last = times if isinstance(times, int) else max(times)
    return Entry(first, first + len(payloads), memoryview(batch), last)


def fill(ledger: ManagedLedger, batches: int, *, records: int = 3, size: int = 100) -> list[bytes]:
    """Append batches; returns the payloads."""
    payloads: list[bytes] = []
    for _ in range(batches):
        first = ledger.end_offset
        batch = [f"{first + i}:".encode().ljust(size, b"x") for i in range(records)]
        ledger.append(make_entry(first, batch))
        payloads += batch
    return payloads


@pytest.fixture(name="make_bench")
def _make_bench() -> type[Bench]:
    return Bench


@pytest.fixture(name="bench")
def _bench() -> Bench:
    return Bench()


@pytest.fixture(name="fill")
def _fill() -> Callable[..., list[bytes]]:
    return fill


@pytest.fixture(name="make_entry")
def _make_entry() -> Callable[..., Entry]:
    return make_entry
