"""A broker without sockets or threads: peers are lists of answers, and a test says when the disk works."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from danubius.broker.appliers import APPLIERS
from danubius.broker.config import BrokerConfig
from danubius.broker.node import Node
from danubius.ledger.config import LedgerConfig
from danubius.ledger.memory import MemoryLedgerStore
from danubius.ledger.storage import LedgerStorage
from danubius.model.ids import Epoch
from danubius.model.topic import TopicSpec
from danubius.record.encode import encode
from danubius.session.session import Session
from danubius.shard.shard import Shard
from danubius.sim.disk import SimFiles
from danubius.sim.threads import SimThreads
from danubius.wal.committer import FAILURE_PAUSE_NS
from danubius.wal.config import JournalConfig
from danubius.wal.journal import Journal
from danubius.wire.commands import Error, OpenProducer, Produce, ProducerOpened

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.model.buffers import Buffer
    from danubius.wal.journal import JournalRecord
    from danubius.wire.commands import AnyCommand


DIRECTORY = Path("/data/journal")
JOURNAL = JournalConfig(fill_bytes=0)


class StepClock:
    """Stands still until told otherwise."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.skew_ms = 0
        """How far the clock on the wall is ahead."""

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000

    def wall_us(self) -> int:
        return (self.now_ms + self.skew_ms) * 1000


class RecordingPeer:
    """The other end of a connection, as a list of what was sent to it."""

    def __init__(self, bench: BrokerBench) -> None:
        self._bench = bench
        self._next_correlation = 1
        self.address = "test"
        self.is_writable = True
        self.sent: list[tuple[AnyCommand, int]] = []
        self.probes: list[Callable[[bool], None]] = []
        self.session = Session(bench.node, self, "danube://test", "broker")

    def send(
        self, command: AnyCommand, correlation_id: int = 0, payload: Sequence[Buffer] = ()
    ) -> None:
        self.sent.append((command, correlation_id))

    def flush(self) -> None: ...

    def pause_reading(self, reason: str) -> None: ...

    def resume_reading(self, reason: str) -> None: ...

    def probe(self, on_result: Callable[[bool], None]) -> None:
        self.probes.append(on_result)

    def ask(self, command: AnyCommand, payload: bytes | bytearray = b"") -> int:
        """Send a request and return its number."""
        number = self._next_correlation
        self._next_correlation += 1
        self.session.handle(command, number, memoryview(payload))
        return number

    def answer_to(self, number: int) -> Any:
        """The answer to a request; None while there is none."""
        answers = [command for command, correlation_id in self.sent if correlation_id == number]
        assert len(answers) <= 1, "a request has one answer"
        return answers[0] if answers else None

    def call(self, command: AnyCommand, payload: bytes | bytearray = b"") -> Any:
        """Send a request, let the disk work, and return the answer."""
        number = self.ask(command, payload)
        self._bench.settle()
        return self.answer_to(number)

    def told(self, kind: type) -> list[Any]:
        """What the broker said of its own accord."""
        return [command for command, number in self.sent if not number and type(command) is kind]

    def publish(
        self, topic: str, payloads: list[bytes], *, keys: list[bytes | None] | None = None
    ) -> None:
        """Send one batch by a producer of its own."""
        opened = self.call(OpenProducer(topic, f"producer-{self._next_correlation}", TopicSpec()))
        assert isinstance(opened, ProducerOpened), opened
        batch = encode(
            payloads,
            publish_time_us=1,
            keys=keys,
            producer_id=opened.producer_id,
            producer_epoch=opened.producer_epoch,
        )
        answer = self.call(Produce(opened.handle), batch)
        assert not isinstance(answer, Error), answer


class BrokerBench:
    """One broker on a simulated disk."""

    def __init__(self) -> None:
        self.files = SimFiles()
        self.posted: deque[Callable[[], None]] = deque()
        self.threads = SimThreads()
        self.clock = StepClock()
        self.journal = Journal(JOURNAL, self.files, DIRECTORY, spawn=self.threads, clock=self.clock)
        self.ledgers = LedgerStorage(
            LedgerConfig(), MemoryLedgerStore(), self.posted.append, self.clock, self.threads
        )
        self.shard = Shard(
            BrokerConfig(),
            self.clock,
            asyncio.get_running_loop(),
            self.journal,
            self.ledgers,
            Epoch(1),
            APPLIERS,
        )
        self.node = Node(self.shard)
        assert not list(self.journal.recover(0))
        self.ledgers.start()
        self.journal.start(self.posted.append, self.shard.on_committed, self.shard.on_failed)
        self.node.start()
        self.settle()

    def connect(self) -> RecordingPeer:
        return RecordingPeer(self)

    def recover_journal(self) -> list[JournalRecord]:
        """What another broker would find in the journal by now."""
        return list(Journal(JOURNAL, self.files, DIRECTORY, spawn=SimThreads()).recover(0))

    def settle(self) -> None:
        """Let the threads work and the loop hear of it until nothing is left to do."""
        self.shard.acks.write()  # as its timer would
        self.threads.turn(self.clock.monotonic_ns())
        while self.posted or self.journal.queued_bytes:
            if self.posted:
                self.posted.popleft()()
            else:
                # What was appended waits for the end of a pause after failures.
                self.clock.now_ms += FAILURE_PAUSE_NS // 1_000_000
            if not self.posted:
                self.threads.turn(self.clock.monotonic_ns())


@pytest.fixture
async def bench() -> BrokerBench:
    return BrokerBench()


@pytest.fixture
async def new_bench() -> Callable[[], BrokerBench]:
    """For a test that compares brokers."""
    return BrokerBench
