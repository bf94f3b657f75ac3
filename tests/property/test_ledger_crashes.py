"""Ledgers against a list, on a disk that fills, fails, loses power and forgets what was not synced.

The journal is the model's: it keeps every committed batch behind the last good checkpoint. Whatever
happens, snapshot + files + replay must give back every message exactly once, in order.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from danubius.errors import StorageFailed, StorageFull
from danubius.ledger.config import LedgerConfig
from danubius.ledger.entry import Chunk, Entry
from danubius.ledger.leftovers import Added, State
from danubius.ledger.local import LocalLedgerStore
from danubius.ledger.pool import LedgerPool
from danubius.ledger.storage import LedgerStorage
from danubius.model.topic import Retention
from danubius.record.encode import encode
from danubius.record.header import stamp
from danubius.record.scan import iter_batches
from danubius.sim.disk import PowerLost, SimFiles
from danubius.sim.threads import SimThreads

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.errors import DanubiusError
    from danubius.ledger.entry import LedgerMeta
    from danubius.ledger.managed import ManagedLedger

DIRECTORY = Path("/data/ledgers")
SETTLE_BYTES = 4000
TOPICS = range(1, 12)
"""More than are synced one by one."""
CONFIG = LedgerConfig(
    cache_bytes=24_000,
    flush_bytes=8_000,
    dirty_bytes_max=16_000,
    block_bytes=4096,
    ledger_bytes_max=16_000,
    index_cache_bytes=2000,
    read_threads=2,
)


class Clock:
    """Goes on by hand."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000

    def wall_us(self) -> int:
        return self.now_ms * 1000


class LedgersOnABadDisk(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32), small_bytes=st.sampled_from([0, 1500, 65_536]))
    def begin(self, seed: int, small_bytes: int) -> None:
        self.files = SimFiles(seed=seed)
        self.small_bytes = small_bytes
        """None, some or all ledgers share files."""
        self.epoch = 0
        self.files.mkdir(DIRECTORY, sync=True)
        self.clock = Clock()
        self.batches: dict[int, list[tuple[int, list[bytes]]]] = {topic: [] for topic in TOPICS}
        """All committed batches by topic: first offset and payloads."""
        self.starts = dict.fromkeys(TOPICS, 0)
        self.saved: dict[int, list[LedgerMeta]] = {topic: [] for topic in TOPICS}
        self.saved_ends = dict.fromkeys(TOPICS, 0)
        self.has_read_fault = False
        self.boot()

    def boot(self) -> None:
        """Start a process: recover the files, open the topics, replay the journal."""
        self.posted: deque[Callable[[], None]] = deque()
        self.threads = SimThreads()
        self.epoch += 1
        pool = LedgerPool(self.files, DIRECTORY / "pool", file_bytes=12_000)
        self.extents = pool.extents
        store = LocalLedgerStore(
            self.files,
            DIRECTORY,
            open_files_max=4,
            small_bytes=self.small_bytes,
            settle_bytes=SETTLE_BYTES,
            pool=pool,
        )
        self.storage = LedgerStorage(CONFIG, store, self.posted.append, self.clock, self.threads)
        self.storage.recover_files(self.state())
        self.storage.start()
        self.topics: dict[int, ManagedLedger] = {}
        for topic in TOPICS:
            ledger = self.storage.open(topic, self.epoch, self.saved[topic], self.saved_ends[topic])
            self.topics[topic] = ledger
            for first, payloads in self.batches[topic]:
                if first >= ledger.end_offset:
                    ledger.append(self.entry(first, payloads))
            ledger.trim_to(self.starts[topic])
        self.storage.settle_in()

    def state(self) -> State:
        """What the snapshot knows, and the journal adds."""
        added: dict[int, Added] = {}
        for topic in TOPICS:
            first = self.saved_ends[topic]
            size = sum(
                len(self.entry(offset, payloads).buffer)
                for offset, payloads in self.batches[topic]
                if offset >= first
            )
            added[topic] = Added(first, size)
        return State(self.saved, added)

    def entry(self, first: int, payloads: list[bytes]) -> Entry:
        batch = encode(payloads, publish_time_us=first)
        stamp(batch, first, self.epoch)
        return Entry(first, first + len(payloads), memoryview(batch), first)

    def run(self) -> None:
        """Threads and loop, until nothing is left to do; a power loss ends the process."""
        try:
            self.threads.turn(self.clock.monotonic_ns())
            while self.posted:
                self.posted.popleft()()
                if not self.posted:
                    self.threads.turn(self.clock.monotonic_ns())
        except PowerLost:
            self.files.crash()
            self.boot()
            self.check_everything()

    # ------------------------------------------------------------ work

    @rule(
        topic=st.sampled_from(TOPICS),
        sizes=st.lists(st.sampled_from([0, 10, 100, 700, 5000]), min_size=1, max_size=4),
        times=st.integers(1, 8),
    )
    def append(self, topic: int, sizes: list[int], times: int) -> None:
        for _ in range(times):
            ledger = self.topics[topic]
            first = ledger.end_offset
            payloads = [bytes([first % 256]) * size for size in sizes]
            self.batches[topic].append((first, payloads))
            ledger.append(self.entry(first, payloads))

    @rule()
    def append_everywhere(self) -> None:
        for topic in TOPICS:
            self.append(topic, [10], 1)

    @rule(wait_ms=st.sampled_from([0, 50, 1000, 20_000]))
    def let_run(self, wait_ms: int) -> None:
        self.clock.now_ms += wait_ms
        self.run()

    @rule()
    def checkpoint(self) -> None:
        metas = {topic: ledger.snapshot() for topic, ledger in self.topics.items()}
        ends = {topic: ledger.end_offset for topic, ledger in self.topics.items()}

        def done(error: DanubiusError | None) -> None:
            if error is None:
                self.saved, self.saved_ends = metas, ends

        self.storage.flush(done)
        self.run()

    @rule(topic=st.sampled_from(TOPICS), part=st.floats(0, 1))
    def trim(self, topic: int, part: float) -> None:
        ledger = self.topics[topic]
        floor = int(ledger.end_offset * part)
        start = ledger.trim(floor, Retention(age_ms=0), self.clock.now_ms)
        assert start <= max(floor, self.starts[topic])
        self.starts[topic] = start

    # ------------------------------------------------------------ trouble

    @rule(
        operation=st.sampled_from(["write", "sync", "open", "mkdir", "truncate"]),
        after=st.integers(0, 6),
        times=st.integers(1, 5),
        error=st.sampled_from([StorageFull, StorageFailed]),
    )
    def plan_fault(self, operation: str, after: int, times: int, error: Any) -> None:
        self.files.fail(operation, after=after, times=times, error=error)

    @rule(room=st.integers(0, 20_000))
    def fill_disk(self, room: int) -> None:
        self.files.capacity_bytes = self.files.used_bytes() + room

    @rule()
    def heal(self) -> None:
        self.files.heal()
        self.files.capacity_bytes = None

    @rule(steps=st.integers(0, 30))
    def plan_power_loss(self, steps: int) -> None:
        self.files.lose_power_after(steps)

    @rule(is_power_loss=st.booleans())
    def crash(self, is_power_loss: bool) -> None:
        if is_power_loss:
            self.files.crash()
        else:
            self.files.kill()
        self.files.capacity_bytes = None
        self.boot()
        self.check_everything()

    @rule(topics=st.sets(st.sampled_from(TOPICS), min_size=1), after=st.integers(0, 4))
    def sync_fails_then_succeeds_then_power_is_lost(self, topics: set[int], after: int) -> None:
        """What the failed sync lost while reads still show it, the good one must bring back."""
        self.heal()
        for topic in topics:
            self.append(topic, [700, 10], 2)
        self.files.fail("sync", after=after, times=2)
        self.checkpoint()
        self.heal()
        self.checkpoint()
        assert self.saved_ends == {topic: self.topics[topic].end_offset for topic in TOPICS}
        self.crash(is_power_loss=True)

    # ------------------------------------------------------------ truth

    @invariant()
    def bookkeeping_holds(self) -> None:
        self.storage.check()
        self.extents.check()
        for ledger in self.topics.values():
            ledger.check()

    @rule()
    @precondition(lambda self: not self.files._faults and self.files._steps_left is None)
    def check_everything(self) -> None:
        for topic in TOPICS:
            self.check_topic(topic)

    def check_topic(self, topic: int) -> None:
        ledger = self.topics[topic]
        expected = [payload for _, payloads in self.batches[topic] for payload in payloads]
        assert ledger.end_offset == len(expected)
        first = ledger.start_offset
        assert first == self.starts[topic]
        while first < ledger.end_offset:
            got: list[Any] = []
            ledger.read(first, 9000, got.append)
            self.run()
            assert isinstance(got[0], Chunk), got[0]
            assert got[0].first <= first < got[0].end
            offset = got[0].first
            for buffer in got[0].buffers:
                for batch in iter_batches(buffer):
                    assert batch.base_offset == offset
                    assert batch.payloads() == expected[offset : batch.end_offset]
                    offset = batch.end_offset
            assert offset == got[0].end
            first = offset


TestLedgersOnABadDisk = LedgersOnABadDisk.TestCase
TestLedgersOnABadDisk.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
