"""One simulated disk, and the brokers that live on it one after the other: killed, cut off from power, refused by it.

A property test makes its own steps out of these lives and keeps its own books of what was tried and answered. Nothing
here runs by itself: threads, loop and clock move when a step says so, so a seed is a history.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from captured import snapshot_of
from danubius.broker.appliers import APPLIERS
from danubius.broker.config import BrokerConfig
from danubius.broker.node import Node
from danubius.errors import DanubiusError, StorageFailed, StorageFull
from danubius.ledger.config import LedgerConfig
from danubius.ledger.entry import Chunk
from danubius.ledger.local import LocalLedgerStore
from danubius.ledger.storage import LedgerStorage
from danubius.model.ids import Epoch
from danubius.model.topic import TopicSpec
from danubius.record.scan import iter_batches
from danubius.shard.hosting.topics import create_topic
from danubius.shard.recovery.replay import Recovery
from danubius.shard.shard import Shard
from danubius.shard.state.capture import Capture
from danubius.shard.state.snapshot import TopicState, encode_snapshot
from danubius.sim.disk import PowerLost, SimFiles
from danubius.sim.threads import SimThreads
from danubius.wal.config import JournalConfig
from danubius.wal.journal import Journal
from danubius.wal.snapshot import SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from danubius.shard.features.offload.offloading import Tier
    from danubius.shard.hosting.topic import Topic
    from danubius.tier.tiered_store import TieredLedgerStore

ROOT: Final = Path("/data")
JOURNAL: Final = JournalConfig(
    file_bytes=32 * 1024, files_max=64, group_bytes_max=4096, fill_bytes=0
)
SMALL_LEDGERS: Final = LedgerConfig(block_bytes=4096, ledger_bytes_max=16_000)
REPLAYED: Final = 0.5
"""Of all checkpoints, as many as are made of a broker at rest, which another one must be able to follow."""
_OWN: Final = {"start_offset", "ledgers", "producers", "subscriptions", "position"}
PAUSE_MS: Final = 60
"""Longer than the journal leaves a failing disk alone."""


class StepClock:
    """Moves when told to."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000

    def wall_us(self) -> int:
        return self.now_ms * 1000


class BrokerLives:
    """A test's world is made of this: `boot` begins a life, and is extended by what the test needs in each."""

    def __init__(
        self, seed: int, config: BrokerConfig | None = None, ledgers: LedgerConfig | None = None
    ) -> None:
        self.dice = random.Random(seed)
        self.files = SimFiles(seed=seed)
        self.clock = StepClock()
        self.loop = asyncio.new_event_loop()
        self._config = config or BrokerConfig()
        self._ledger_config = ledgers or LedgerConfig()
        self.epoch: int = 1
        self.trimmed_position = 0

    def boot(self) -> None:
        """Begin a life on what the disk holds."""
        self.posted: deque[Callable[[], None]] = deque()
        self.threads = SimThreads()
        files, post = self.files, self.posted.append
        self.journal = Journal(
            JOURNAL, files, ROOT / "journal", spawn=self.threads, clock=self.clock
        )
        store = LocalLedgerStore(files, ROOT / "ledgers", open_files_max=8, settle_bytes=8000)
        tier = self.tier(store)
        cold = None if tier is None else tier.store
        self.ledgers = LedgerStorage(
            self._ledger_config, cold or store, post, self.clock, self.threads, cold=cold
        )
        self.shard = self._make_broker(self.journal, self.ledgers)
        self.node = Node(self.shard, tier)
        self.snapshots = SnapshotStore(files, ROOT / "snapshots")
        self.loop.run_until_complete(Recovery(self.shard, self.snapshots).run())
        self.journal.start(post, self.shard.on_committed, self.shard.on_failed)
        self.node.start()
        self.ledgers.settle_in()
        self.settle()

    def _make_broker(self, journal: Journal, ledgers: LedgerStorage) -> Shard:
        return Shard(
            self._config, self.clock, self.loop, journal, ledgers, Epoch(self.epoch), APPLIERS
        )

    def tier(self, local: LocalLedgerStore) -> Tier | None:
        """The cold storage of a life; none, unless a test says otherwise."""
        del local
        return None

    def host(self, name: str, spec: TopicSpec | None = None) -> Topic:
        """A topic that is there from now on."""
        spec = spec or TopicSpec()
        create_topic(self.shard, name, spec, exist_ok=True, on_done=must_succeed)
        self.settle()
        return self.shard.topic(name)

    # ---------------------------------------------------------------- time

    def settle(self) -> None:
        """Let the threads and the loop work until everything is answered."""
        self.loop_once()
        self.threads.turn(self.clock.monotonic_ns())
        while self.posted or self.journal.queued_bytes:
            self.deliver()
            self.loop_once()
            self.clock.now_ms += PAUSE_MS
            self.threads.turn(self.clock.monotonic_ns())

    def deliver(self) -> None:
        """Let the loop hear of what the threads have done."""
        for _ in range(len(self.posted)):
            self.posted.popleft()()

    def loop_once(self) -> None:
        self.loop.run_until_complete(asyncio.sleep(0))

    def turn(self) -> None:
        """Time for some of what is to be done."""
        self.clock.now_ms += self.dice.choice([0, 1, PAUSE_MS])
        self.threads.turn(self.clock.monotonic_ns())
        if self.dice.random() < 0.8:
            self.deliver()
        self.loop_once()

    # ---------------------------------------------------------------- what a topic holds

    def messages(self, topic: Topic) -> Iterator[tuple[int, bytes]]:
        """Offset and payload of every message, none of which is missing."""
        at = topic.log.start_offset
        while at < topic.log.end_offset:
            answers: list[Chunk | DanubiusError] = []
            topic.log.read(at, 1 << 20, answers.append)
            while not answers:
                self.threads.turn(self.clock.monotonic_ns())
                self.deliver()
            chunk = answers[0]
            assert isinstance(chunk, Chunk), chunk
            for buffer in chunk.buffers:
                for batch in iter_batches(buffer):
                    assert batch.base_offset == at, "offsets follow each other"
                    yield from enumerate(batch.payloads(), at)
                    at = batch.end_offset
            assert at == chunk.end

    # ---------------------------------------------------------------- steps that every test can take

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
        """As the checkpointer does it; a disk that fails leaves the one before."""
        if self.dice.random() < REPLAYED:
            self.check_replay()
        capture = Capture(self.shard)
        for topic in self.dice.sample(capture.topics, len(capture.topics)):
            self.meanwhile()
            capture.look_at(topic)
        answers: list[DanubiusError | None] = []
        self.ledgers.flush(answers.append)
        self.settle()
        self.journal.sync(answers.append)
        self.settle()
        if answers == [None, None]:
            with contextlib.suppress(DanubiusError):
                data = encode_snapshot(capture.snapshot())
                self.trimmed_position = self.snapshots.save(capture.position, data)
                self.journal.trim(self.trimmed_position)

    # ---------------------------------------------------------------- another broker that replays

    def check_replay(self) -> None:
        """Whoever replays what this broker has journaled comes to the same state, all of it."""
        self.files.heal()
        self.shard.acks.write()
        self.settle()
        if self.shard.journal_failure is not None:
            return  # it leaves the disk that failed alone for now: what was gathered is not written yet
        files, posted, threads = SimFiles(), deque[Callable[[], None]](), SimThreads()
        files.lay_out(self.files.contents())
        journal = Journal(JOURNAL, files, ROOT / "journal", spawn=threads, clock=self.clock)
        local = LocalLedgerStore(files, ROOT / "ledgers", open_files_max=8, settle_bytes=8000)
        cold = self.cold_of_replica(local, threads)
        ledgers = LedgerStorage(
            self._ledger_config, cold or local, posted.append, self.clock, threads, cold=cold
        )
        other = self._make_broker(journal, ledgers)
        snapshots = SnapshotStore(files, ROOT / "snapshots")
        self.loop.run_until_complete(Recovery(other, snapshots).run())
        # Numbers that were drawn for what was never stored are free for whoever did not draw them.
        assert other.numbers.next <= self.shard.numbers.next
        there, here = state_of(other), state_of(self.shard)
        for part in here:
            assert there[part] == here[part], part

    def cold_of_replica(
        self, local: LocalLedgerStore, threads: SimThreads
    ) -> TieredLedgerStore | None:
        """The cold storage of this life as another broker sees it."""
        del local, threads
        return None

    def meanwhile(self) -> None:
        """Between two topics of a checkpoint the broker serves others; a test may say whom."""
        self.turn()

    def kill(self) -> None:
        self.files.heal()
        self.files.kill()
        self.boot()

    def power_off(self) -> None:
        self.files.heal()
        self.files.crash(self.dice.randrange(2**32))
        self.boot()

    def power_off_inside(self, *work: Callable[[], None]) -> None:
        """Some of `work`, and the power goes while the disk is at it."""
        for _ in range(self.dice.randint(1, 6)):
            self.dice.choice(work)()
        self.files.lose_power_after(self.dice.randint(0, 4))
        with contextlib.suppress(PowerLost):
            self.turn()
        self.power_off()


def state_of(shard: Shard) -> Any:
    """All that its journal says. Where ledgers end each broker decides by itself, and so what trimming frees."""
    snapshot = snapshot_of(shard)
    topics = {
        topic.topic_id: (
            *(getattr(topic, name) for name in TopicState.__struct_fields__ if name not in _OWN),
            sorted(topic.producers, key=lambda producer: producer.name),
            sorted(topic.subscriptions, key=lambda subscription: subscription.name),
            sorted(meta.object_name for meta in topic.ledgers if meta.object_name),
        )
        for topic in snapshot.topics
    }
    return {
        "topics": topics,
        "namespaces": {one.name: one for one in snapshot.namespaces},
        "partitioned": {one.name: one for one in snapshot.partitioned},
        "committed": snapshot.committed,
        "jobs": {one.name: one for one in snapshot.jobs},
    }


def must_succeed(answer: object) -> None:
    assert not isinstance(answer, DanubiusError), answer
