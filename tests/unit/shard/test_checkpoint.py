"""Checkpoints on a simulated disk: when they are due, what they free, and how they end."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from danubius.broker.appliers import APPLIERS
from danubius.broker.config import BrokerConfig
from danubius.errors import StorageFull
from danubius.ledger.config import LedgerConfig
from danubius.ledger.memory import MemoryLedgerStore
from danubius.ledger.storage import LedgerStorage
from danubius.model.ids import Epoch
from danubius.runtime.clock import SystemClock
from danubius.shard.shard import Shard
from danubius.shard.state.checkpoint import FAILURES_MAX, RETRY_TICKS, STUCK_S, Checkpointer
from danubius.sim.disk import SimFiles
from danubius.sim.threads import SimThreads
from danubius.wal.config import JournalConfig
from danubius.wal.journal import Journal
from danubius.wal.snapshot import SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.errors import DanubiusError

SNAPSHOTS = Path("/data/snapshots")


class StepClock:
    """Stands still until told otherwise."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000

    def wall_us(self) -> int:
        return self.now_ms * 1000


class Token:
    """One append and how it ended."""

    def __init__(self) -> None:
        self.outcome: bool | DanubiusError | None = None

    def committed(self) -> None:
        self.outcome = True

    def failed(self, error: DanubiusError) -> None:
        self.outcome = error


class Bench:
    """A broker with a small journal, and its checkpoints."""

    def __init__(self) -> None:
        self.files = SimFiles()
        self.posted: deque[Callable[[], None]] = deque()
        self.threads = SimThreads()
        config = JournalConfig(file_bytes=16384, files_max=4, fill_bytes=0)
        self.journal = Journal(config, self.files, Path("/data/journal"), spawn=self.threads)
        post = self.posted.append
        self.ledgers = LedgerStorage(
            LedgerConfig(), MemoryLedgerStore(), post, SystemClock(), self.threads
        )
        loop = asyncio.get_running_loop()
        self.shard = Shard(
            BrokerConfig(), SystemClock(), loop, self.journal, self.ledgers, Epoch(1), APPLIERS
        )
        assert not list(self.journal.recover(0))
        self.ledgers.start()
        self.journal.start(post, self.shard.on_committed, self.shard.on_failed)
        self.checkpointer = Checkpointer(
            self.shard, SnapshotStore(self.files, SNAPSHOTS), self.threads
        )
        self.checkpointer.start(0)

    async def settle(self) -> None:
        for _ in range(4):
            self.threads.turn()
            while self.posted:
                self.posted.popleft()()
            await asyncio.sleep(0)

    async def append(self) -> bool | DanubiusError | None:
        token = Token()
        self.journal.append(1, 1, bytes(7000), token, sync=True)
        await self.settle()
        return token.outcome

    async def fill(self) -> None:
        while await self.append() is True:
            pass

    async def tick(self) -> None:
        """Let the time for one decision come."""
        self.checkpointer._tick()
        await self.settle()


async def test_a_journal_at_its_bound_is_freed_though_nothing_more_was_committed() -> None:
    bench = Bench()
    assert await bench.append() is True
    bench.checkpointer.run(lambda _: None)
    await bench.settle()
    # Snapshots cannot be saved until the journal is full.
    bench.files.fail("rename", times=1000)
    await bench.fill()
    await bench.tick()
    assert isinstance(await bench.append(), StorageFull)
    bench.files.heal()
    for _ in range(RETRY_TICKS + 2):
        await bench.tick()
    assert await bench.append() is True


async def test_a_journal_that_is_free_is_not_saved_again_and_again() -> None:
    bench = Bench()
    await bench.fill()
    for _ in range(4):
        await bench.tick()
    done = bench.checkpointer.checkpoints
    assert done
    for _ in range(4):
        await bench.tick()
    assert bench.checkpointer.checkpoints == done


async def test_a_save_that_ends_behind_the_stop_leaves_the_closed_journal_alone() -> None:
    bench = Bench()
    assert await bench.append() is True
    answers: list[DanubiusError | None] = []
    bench.checkpointer.run(answers.append)
    for _ in ("ledgers", "journal"):  # each is synced before the state is saved
        bench.threads.turn()
        while bench.posted:
            bench.posted.popleft()()
    bench.checkpointer.stop()
    bench.journal.close()
    await bench.settle()
    assert answers == [None]


async def test_a_flush_that_ends_behind_the_stop_saves_nothing() -> None:
    bench = Bench()
    assert await bench.append() is True
    answers: list[DanubiusError | None] = []
    bench.checkpointer.run(answers.append)
    bench.checkpointer.stop()
    bench.journal.close()
    await bench.settle()
    assert len(answers) == 1
    assert answers[0] is not None
    assert not bench.files.exists(SNAPSHOTS)


async def test_a_broker_whose_checkpoints_all_fail_says_so_until_one_succeeds() -> None:
    bench = Bench()
    assert await bench.append() is True
    bench.files.fail("rename", times=1000)
    for number in range(1, FAILURES_MAX + 3):
        bench.checkpointer.run(lambda _: None)
        await bench.settle()
        problem = bench.checkpointer.problem
        if number < FAILURES_MAX:
            assert problem is None
        else:
            assert problem is not None
            assert f"last {number} checkpoints" in problem
            assert "injected fault" in problem
    bench.files.heal()
    bench.checkpointer.run(lambda _: None)
    await bench.settle()
    assert bench.checkpointer.problem is None


async def test_a_checkpoint_that_hangs_is_a_problem_too() -> None:
    bench = Bench()
    clock = StepClock()
    bench.shard.clock = clock
    assert await bench.append() is True
    bench.checkpointer.run(lambda _: None)
    assert bench.checkpointer.problem is None
    clock.now_ms += STUCK_S * 1000
    problem = bench.checkpointer.problem
    assert problem is not None
    assert f"{STUCK_S} s" in problem
    await bench.settle()
    assert bench.checkpointer.problem is None
