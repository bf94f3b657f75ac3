"""Atomic records, plain publishes and a bad disk: whole or not at all, whatever happens, and no offset is missing.

Every message says what it is part of, so what a broker recovers can be compared with what was tried and what was
answered: nothing that was answered is missing, nothing is there twice, and no atomic record is there in part.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from danubius.broker.atomic import Append, Atomic
from danubius.broker.broker import Broker
from danubius.broker.capture import take_snapshot
from danubius.broker.config import BrokerConfig
from danubius.broker.events import RangesAcked, TransactionCommitted
from danubius.broker.recovery import Recovery
from danubius.broker.snapshot import encode_snapshot
from danubius.broker.topics import create_topic
from danubius.errors import DanubiusError, StorageFailed, StorageFull
from danubius.ledger.config import LedgerConfig
from danubius.ledger.entry import Chunk
from danubius.ledger.local import LocalLedgerStore
from danubius.ledger.storage import LedgerStorage
from danubius.model.ids import Epoch
from danubius.model.subscription import AtEarliest, SubscriptionType
from danubius.model.topic import Durability, TopicSpec
from danubius.record.batch import RecordBatch, read_header
from danubius.record.encode import encode
from danubius.sim.disk import PowerLost, SimFiles
from danubius.sim.threads import SimThreads
from danubius.wal.config import JournalConfig
from danubius.wal.journal import Journal
from danubius.wal.snapshot import SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from danubius.broker.subscription import Subscription
    from danubius.broker.topic import Topic
    from danubius.model.ids import Offset
    from danubius.publish.core.sequencer import Producer

SPECS = {
    "/default/a": TopicSpec(),
    "/default/b": TopicSpec(),
    "/default/c": TopicSpec(durability=Durability.WRITTEN),
}
ROOT = Path("/data")
JOURNAL = JournalConfig(file_bytes=32 * 1024, files_max=64, group_bytes_max=4096, fill_bytes=0)
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
        self.next_number = 1
        self.parts: dict[int, list[tuple[str, bytes]]] = {}
        """Of everything that was tried: topic and payload of each message."""
        self.atomic: set[int] = set()
        self.sequenced: dict[int, tuple[tuple[str, int], int]] = {}
        """Of plain publishes: topic and epoch of the producer, and the sequence behind the batch."""
        self.open: set[int] = set()
        """Not answered yet."""
        self.safe: dict[int, list[tuple[str, int]]] = {}
        """Answered: topic and offset of each batch."""
        self.fragile: set[int] = set()
        """Answered, but power loss may take it: written, not synced."""
        self.boot()

    # ---------------------------------------------------------------- lives

    def boot(self) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.threads = SimThreads()
        files, post = self.files, self.posted.append
        self.journal = Journal(
            JOURNAL, files, ROOT / "journal", spawn=self.threads, clock=self.clock
        )
        store = LocalLedgerStore(files, ROOT / "ledgers", open_files_max=8)
        self.ledgers = LedgerStorage(LedgerConfig(), store, post, self.clock, self.threads)
        self.broker = Broker(
            BrokerConfig(), self.clock, self.loop, self.journal, self.ledgers, Epoch(1)
        )
        self.atomics = Atomic(self.broker)
        self.snapshots = SnapshotStore(files, ROOT / "snapshots")
        self.loop.run_until_complete(Recovery(self.broker, self.snapshots).run())
        self.journal.start(post, self.broker.on_committed, self.broker.on_failed)
        for name, spec in SPECS.items():
            if name not in self.broker.topics:
                create_topic(self.broker, name, spec, exist_ok=True, on_done=_must_succeed)
        self.settle()
        self.topics: dict[str, Topic] = {str(n): t for n, t in self.broker.topics.items()}
        self.compare()
        self.producers: dict[str, Producer] = {}
        self.subscriptions: dict[str, Subscription] = {}
        for name, topic in self.topics.items():
            self.broker.open_producer(
                topic, "plain", 0, functools.partial(_keep, self.producers, name)
            )
            self.broker.create_subscription(
                topic,
                "s",
                SubscriptionType.SHARED,
                AtEarliest(),
                functools.partial(_keep, self.subscriptions, name),
            )
        self.settle()
        assert len(self.producers) == len(self.subscriptions) == len(SPECS)

    def settle(self) -> None:
        """Let the threads work until everything is answered."""
        self.threads.turn(self.clock.monotonic_ns())
        while self.posted or self.journal.queued_bytes:
            self.deliver()
            self.clock.now_ms += PAUSE_MS
            self.threads.turn(self.clock.monotonic_ns())

    def deliver(self) -> None:
        for _ in range(len(self.posted)):
            self.posted.popleft()()

    # ---------------------------------------------------------------- what recovery found

    def messages(self, topic: Topic) -> Iterator[tuple[int, bytes]]:
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
                view = memoryview(buffer)
                while view:
                    header = read_header(view)
                    assert header.base_offset == at, "offsets follow each other"
                    batch = RecordBatch.parse(view[: header.length])
                    for place, payload in enumerate(batch.payloads()):
                        yield at + place, payload
                    at = header.end_offset
                    view = view[header.length :]
            assert at == chunk.end

    def compare(self) -> None:
        """What was answered is there, what is there was tried, and it is there whole and once."""
        found: dict[int, list[tuple[str, int, bytes]]] = {}
        for name, topic in self.topics.items():
            topic.pipeline.sequencer.check()
            assert topic.pipeline.sequencer.next_offset == topic.log.end_offset
            for offset, payload in self.messages(topic):
                number = int(payload.split(b"/")[0])
                found.setdefault(number, []).append((name, offset, payload))
        for number, there in found.items():
            expected = sorted(self.parts[number])
            assert sorted((name, payload) for name, _, payload in there) == expected, "in part"
            assert (number in self.broker.committed_transactions) == (number in self.atomic)
        for number, places in self.safe.items():
            assert number in found, "what was answered is there"
            assert {(name, offset) for name, offset, _ in found[number]} >= set(places)
        assert self.broker.committed_transactions.count == len(self.atomic & found.keys())
        self.check_acks(found)
        self.check_sequences(found)
        # From here on only what was found counts.
        self.parts = {number: self.parts[number] for number in found}
        self.atomic &= found.keys()
        self.safe = {
            number: [(name, offset) for name, offset, _ in there] for number, there in found.items()
        }
        self.open.clear()
        self.fragile.clear()

    def check_acks(self, found: dict[int, list[tuple[str, int, bytes]]]) -> None:
        """Each atomic record acknowledged the message that has its number as offset."""
        for name, topic in self.topics.items():
            subscription = topic.subscriptions.get("s")
            if subscription is not None:
                for number in self.atomic:
                    assert (number in subscription.cursor) == (number in found), name

    def check_sequences(self, found: dict[int, list[tuple[str, int, bytes]]]) -> None:
        """A producer goes on behind what it sent itself, whatever the headers of other batches say."""
        for name, topic in self.topics.items():
            producer = topic.pipeline.sequencer.producer_or_none("plain")
            if producer is not None:
                life = (name, producer.epoch)
                ends = [end for n, (by, end) in self.sequenced.items() if n in found and by == life]
                assert producer.committed_next == max(ends, default=0)

    # ---------------------------------------------------------------- steps

    def batch(self, number: int, name: str, count: int, **header: Any) -> memoryview:
        payloads: list[bytes] = []
        for _ in range(count):
            part = len(self.parts.setdefault(number, []))
            payload = b"%d/%d/" % (number, part) + bytes(self.dice.choice([0, 10, 700]))
            self.parts[number].append((name, payload))
            payloads.append(payload)
        return memoryview(encode(payloads, publish_time_us=1, **header))

    def number(self) -> int:
        self.next_number += 1
        return self.next_number

    def publish(self) -> None:
        number, name = self.number(), self.dice.choice(list(SPECS))
        producer, count = self.producers[name], self.dice.randint(1, 3)
        self.sequenced[number] = (name, producer.epoch), producer.admitted_next + count
        batch = self.batch(
            number,
            name,
            count,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=producer.admitted_next,
        )
        self.open.add(number)
        answer = functools.partial(self.answered_one, number, name)
        self.topics[name].pipeline.publish(batch, producer, answer)

    def publish_unsequenced(self) -> None:
        number, name = self.number(), self.dice.choice(list(SPECS))
        self.open.add(number)
        batch = self.batch(number, name, self.dice.randint(1, 3))
        answer = functools.partial(self.answered_one, number, name)
        self.topics[name].pipeline.publish_unsequenced(batch, answer)

    def commit(self) -> None:
        number = self.number()
        self.atomic.add(number)
        self.open.add(number)
        names = self.dice.choices(list(SPECS), k=self.dice.randint(1, 5))
        appends: list[Append] = []
        for name in names:
            producer = self.producers[name]
            # As a delayed batch or one of a transaction: its header speaks of a producer, and must not count.
            batch = self.batch(
                number,
                name,
                self.dice.randint(1, 3),
                producer_id=self.dice.choice([0, producer.id]),
                producer_epoch=producer.epoch,
                base_sequence=self.dice.choice([0, producer.admitted_next, 77]),
            )
            appends.append(Append(self.topics[name], batch, read_header(batch)))
        facts = [
            TransactionCommitted(number),
            *(
                RangesAcked(self.topics[name].id, s.id, [(number, number + 1)])
                for name, s in self.subscriptions.items()
            ),
        ]
        self.atomics.commit(appends, facts, functools.partial(self.answered_all, number, names))

    def answered_one(self, number: int, name: str, answer: Offset | DanubiusError) -> None:
        self.open.remove(number)
        if not isinstance(answer, DanubiusError):
            self.safe[number] = [(name, answer)]
            if SPECS[name].durability is Durability.WRITTEN:
                self.fragile.add(number)

    def answered_all(
        self, number: int, names: list[str], answer: list[Offset] | DanubiusError
    ) -> None:
        self.open.remove(number)
        is_done = not isinstance(answer, DanubiusError)
        assert (number in self.broker.committed_transactions) == is_done
        for subscription in self.subscriptions.values():
            assert (number in subscription.cursor) == is_done
        if isinstance(answer, DanubiusError):
            return
        self.safe[number] = list(zip(names, answer, strict=True))
        for name, offset in self.safe[number]:
            assert self.topics[name].log.end_offset > offset, "visible before it is answered"
        # Its sync covers all that was written before.
        self.fragile.clear()

    def turn(self) -> None:
        self.clock.now_ms += self.dice.choice([0, 1, PAUSE_MS])
        self.threads.turn(self.clock.monotonic_ns())
        if self.dice.random() < 0.8:
            self.deliver()

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
        for number in self.fragile:
            self.safe.pop(number, None)
        self.boot()

    def power_off_inside(self) -> None:
        for _ in range(self.dice.randint(1, 6)):
            self.dice.choice([self.publish, self.commit])()
        self.files.lose_power_after(self.dice.randint(0, 4))
        with contextlib.suppress(PowerLost):
            self.turn()
        self.power_off()

    def check(self) -> None:
        for topic in self.topics.values():
            topic.pipeline.sequencer.check()
            assert topic.pipeline.sequencer.committed_offset == topic.log.end_offset


STEPS = {
    "publish": 10,
    "publish_unsequenced": 3,
    "commit": 10,
    "turn": 10,
    "fault": 2,
    "heal": 2,
    "checkpoint": 1,
    "kill": 1,
    "power_off": 1,
    "power_off_inside": 1,
}


@pytest.mark.parametrize("seed", range(80))
def test_an_atomic_record_is_there_whole_or_not_at_all(seed: int) -> None:
    world = World(seed)
    try:
        for step in world.dice.choices(list(STEPS), weights=list(STEPS.values()), k=120):
            getattr(world, step)()
            world.check()
        # The disk is well again: everything that is tried is stored.
        world.kill()
        world.publish()
        world.commit()
        number = world.next_number
        world.settle()
        assert {number - 1, number} <= world.safe.keys()
        world.kill()
        assert {number - 1, number} <= world.safe.keys()
    finally:
        world.loop.close()


def _keep(kept: dict[str, Any], name: str, answer: object) -> None:
    assert not isinstance(answer, DanubiusError), answer
    kept[name] = answer


def _must_succeed(answer: object) -> None:
    assert not isinstance(answer, DanubiusError), answer
