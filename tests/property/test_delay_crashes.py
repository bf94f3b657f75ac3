"""Delayed batches on a bad disk, with kills and power loss at any step: what was answered comes, once, never early.

Every batch says when it may come. Whatever happens, a topic holds it at most once; and once the disk is well and its
time is over, exactly once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter, deque
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from danubius.broker import delay_log
from danubius.broker.broker import Broker
from danubius.broker.capture import take_snapshot
from danubius.broker.config import BrokerConfig
from danubius.broker.delay_log import DelayLog
from danubius.broker.node import Node
from danubius.broker.recovery import Recovery
from danubius.broker.snapshot import encode_snapshot
from danubius.broker.topics import create_topic
from danubius.errors import DanubiusError, StorageFailed, StorageFull
from danubius.ledger.config import LedgerConfig
from danubius.ledger.entry import Chunk
from danubius.ledger.local import LocalLedgerStore
from danubius.ledger.storage import LedgerStorage
from danubius.model.ids import Epoch
from danubius.model.topic import TopicSpec
from danubius.publish.core.delay_index import ENDLESS
from danubius.publish.core.sequencer import Producer
from danubius.record.encode import encode
from danubius.record.scan import iter_batches
from danubius.sim.disk import PowerLost, SimFiles
from danubius.sim.threads import SimThreads
from danubius.wal.config import JournalConfig
from danubius.wal.journal import Journal
from danubius.wal.snapshot import SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "/default/later"
ROOT = Path("/data")
JOURNAL = JournalConfig(file_bytes=32 * 1024, files_max=64, group_bytes_max=4096, fill_bytes=0)
SEEDS = 300 if os.environ.get("DANUBIUS_PROVE") == "1" else 15
PAUSE_MS = 60
"""Longer than the journal leaves a failing disk alone."""


class StepClock:
    """Moves when told to."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000

    def wall_us(self) -> int:
        return self.now_ms * 1000


class World:
    """One disk, the brokers that live on it one after the other, and what they promised."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.files = SimFiles(seed=seed)
        self.clock = StepClock()
        self.loop = asyncio.new_event_loop()
        self.next_number = 0
        self.due: dict[int, int] = {}
        self.safe: set[int] = set()
        """Answered: it must come."""
        self.config = BrokerConfig(delay_entries_max=self.dice.choice([1, 5, 1000]))
        self.boot()

    def boot(self) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.threads = SimThreads()
        files, post = self.files, self.posted.append
        self.journal = Journal(
            JOURNAL, files, ROOT / "journal", spawn=self.threads, clock=self.clock
        )
        store = LocalLedgerStore(files, ROOT / "ledgers", open_files_max=8)
        ledgers = LedgerConfig(block_bytes=4096, ledger_bytes_max=16_000)
        self.ledgers = LedgerStorage(ledgers, store, post, self.clock, self.threads)
        self.broker = Broker(
            self.config, self.clock, self.loop, self.journal, self.ledgers, Epoch(1)
        )
        self.node = Node(self.broker)
        self.snapshots = SnapshotStore(files, ROOT / "snapshots")
        self.loop.run_until_complete(Recovery(self.broker, self.snapshots).run())
        self.journal.start(post, self.broker.on_committed, self.broker.on_failed)
        self.node.start()
        create_topic(self.broker, NAME, TopicSpec(), exist_ok=True, on_done=must_succeed)
        self.settle()
        self.topic = self.broker.topic(NAME)
        sources: list[object] = []
        self.node.delays.open_log(self.topic, sources.append)
        self.settle()
        assert isinstance(sources[0], DelayLog)
        self.source = sources[0]
        producers: list[object] = []
        self.broker.open_producer(self.source.topic, "p", 0, producers.append)
        self.settle()
        assert isinstance(producers[0], Producer)
        self.producer = producers[0]

    def settle(self) -> None:
        """Let the threads and the loop work until everything is answered."""
        self.loop_once()
        self.threads.turn(self.clock.monotonic_ns())
        while self.posted or self.journal.queued_bytes:
            self.deliver()
            self.loop_once()
            self.clock.now_ms += PAUSE_MS
            self.threads.turn(self.clock.monotonic_ns())

    def loop_once(self) -> None:
        self.loop.run_until_complete(asyncio.sleep(0))

    def deliver(self) -> None:
        for _ in range(len(self.posted)):
            self.posted.popleft()()

    # ---------------------------------------------------------------- steps

    def schedule(self) -> None:
        self.next_number = number = self.next_number + 1
        self.due[number] = due_ms = self.clock.now_ms + self.dice.randint(-2000, 4000)
        payload = b"%d/" % number + bytes(self.dice.choice([0, 10, 3000]))
        batch = encode(
            [payload],
            publish_time_us=1,
            producer_id=self.producer.id,
            producer_epoch=self.producer.epoch,
            base_sequence=self.producer.admitted_next,
        )

        def answered(result: object) -> None:
            if not isinstance(result, DanubiusError):
                self.safe.add(number)

        self.node.delays.schedule(self.source, memoryview(batch), due_ms, self.producer, answered)

    def turn(self) -> None:
        self.clock.now_ms += self.dice.choice([0, 1, PAUSE_MS, 700])
        self.node.delays.look()
        self.threads.turn(self.clock.monotonic_ns())
        if self.dice.random() < 0.8:
            self.deliver()
        self.loop_once()

    def tend(self) -> None:
        self.broker.ticks.advance(10_000)

    def fault(self) -> None:
        self.files.fail(
            self.dice.choice(["write", "sync"]),
            after=self.dice.randint(0, 3),
            times=self.dice.choice([1, 1, 3]),
            error=self.dice.choice([StorageFull, StorageFailed]),
        )

    def heal(self) -> None:
        self.files.heal()

    def checkpoint(self) -> None:
        position, snapshot = self.broker.committed_position, take_snapshot(self.broker)
        answers: list[DanubiusError | None] = []
        self.ledgers.flush(answers.append)
        self.settle()
        if answers == [None]:
            with contextlib.suppress(DanubiusError):
                self.journal.trim(self.snapshots.save(position, encode_snapshot(snapshot)))

    def kill(self) -> None:
        self.files.heal()
        self.files.kill()
        self.boot()

    def power_off(self) -> None:
        self.files.heal()
        self.files.crash(self.dice.randrange(2**32))
        self.boot()

    def power_off_inside(self) -> None:
        for _ in range(self.dice.randint(1, 6)):
            self.schedule()
        self.files.lose_power_after(self.dice.randint(0, 4))
        with contextlib.suppress(PowerLost):
            self.turn()
        self.power_off()

    # ---------------------------------------------------------------- what came

    def came(self) -> Counter[int]:
        found: Counter[int] = Counter()
        log = self.topic.log
        at = log.start_offset
        while at < log.end_offset:
            answers: list[Chunk | DanubiusError] = []
            log.read(at, 1 << 20, answers.append)
            while not answers:
                self.threads.turn(self.clock.monotonic_ns())
                self.deliver()
            chunk = answers[0]
            assert isinstance(chunk, Chunk), chunk
            for buffer in chunk.buffers:
                for batch in iter_batches(buffer):
                    found.update(int(p.split(b"/")[0]) for p in batch.payloads())
            at = chunk.end
        return found

    def check(self) -> None:
        self.source.index.check()
        if self.source.scan_from == ENDLESS and not self.source.is_busy:
            assert self.node.delays.pending(self.topic) == self.source.index.pending
        self.topic.pipeline.sequencer.check()
        self.source.topic.pipeline.sequencer.check()

    def check_came(self) -> None:
        for number, count in self.came().items():
            assert count == 1, f"{number} came {count} times"
            assert self.due[number] <= self.clock.now_ms, f"{number} came early"


STEPS = {
    "schedule": 16,
    "turn": 14,
    "tend": 1,
    "fault": 1,
    "heal": 2,
    "checkpoint": 1,
    "kill": 1,
    "power_off": 1,
    "power_off_inside": 1,
}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_comes_once_and_none_before_its_time(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small steps, so that much happens while a log is looked through.
    monkeypatch.setattr(delay_log, "SCAN_BYTES", 1)
    world = World(seed)
    try:
        for step in world.dice.choices(list(STEPS), weights=list(STEPS.values()), k=150):
            getattr(world, step)()
            world.check()
            if step in {"kill", "power_off", "power_off_inside"}:
                world.check_came()
        world.kill()
        for _ in range(400):
            world.clock.now_ms += 500
            world.node.delays.look()
            world.settle()
            if world.source.is_empty:
                break
        world.check_came()
        assert world.safe <= world.came().keys(), "what was answered comes"
    finally:
        world.loop.close()


def must_succeed(answer: object) -> None:
    assert not isinstance(answer, DanubiusError), answer
