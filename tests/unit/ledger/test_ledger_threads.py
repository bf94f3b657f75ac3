"""The ledgers with their real threads, on the real disk."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from danubius.errors import Overloaded, ShuttingDown, StorageFailed
from danubius.ledger.config import LedgerConfig
from danubius.ledger.entry import Chunk
from danubius.ledger.leftovers import State
from danubius.ledger.local import LocalLedgerStore
from danubius.ledger.memory import MemoryLedgerStore
from danubius.ledger.read_pool import ReadPool
from danubius.ledger.storage import LedgerStorage
from danubius.ledger.writer import DeleteJob
from danubius.record.scan import iter_batches
from danubius.runtime.files import LocalFiles
from danubius.sim.threads import SimThreads

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from danubius.errors import DanubiusError
    from danubius.ledger.managed import ManagedLedger

SMALL = LedgerConfig(
    cache_bytes=400_000,
    flush_bytes=100_000,
    dirty_bytes_max=300_000,
    block_bytes=16_384,
    ledger_bytes_max=300_000,
    flush_interval_ms=10,
    flush_age_ms=10,
)


def start(path: Path, config: LedgerConfig = SMALL) -> LedgerStorage:
    store = LocalLedgerStore(LocalFiles(), path)
    storage = LedgerStorage(config, store, asyncio.get_running_loop().call_soon_threadsafe)
    storage.start()
    return storage


async def read(ledger: ManagedLedger, first: int, bytes_max: int) -> Any:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    ledger.read(first, bytes_max, done.set_result)
    return await done


async def flush(storage: LedgerStorage) -> DanubiusError | None:
    done: asyncio.Future[DanubiusError | None] = asyncio.get_running_loop().create_future()
    storage.flush(done.set_result)
    return await done


async def consume(ledger: ManagedLedger, count: int) -> list[bytes]:
    payloads: list[bytes] = []
    while len(payloads) < count:
        chunk = await read(ledger, len(payloads), 50_000)
        assert isinstance(chunk, Chunk), chunk
        if chunk.size == 0:
            await asyncio.sleep(0)
        for buffer in chunk.buffers:
            for batch in iter_batches(buffer):
                assert batch.base_offset == len(payloads)
                payloads += batch.payloads()
    return payloads


async def test_readers_see_one_stream_while_it_is_written_and_evicted(
    tmp_path: Path, fill: Any
) -> None:
    storage = start(tmp_path)
    relieved = asyncio.Event()
    storage.on_relieved = relieved.set
    try:
        ledger = storage.open(1, 7, [], 0)
        sent: list[bytes] = []
        async with asyncio.TaskGroup() as tasks:
            readers = [tasks.create_task(consume(ledger, 9000)) for _ in range(2)]
            while len(sent) < 9000:
                sent += fill(ledger, 10, records=10, size=300)
                await asyncio.sleep(0)
                if storage.is_congested:
                    relieved.clear()
                    await relieved.wait()
                assert storage.cached_bytes < 1_000_000
        assert all(reader.result() == sent for reader in readers)
        assert await flush(storage) is None
        assert storage.cached_bytes <= SMALL.cache_bytes
        assert await consume(ledger, 9000) == sent
        metas = ledger.snapshot()
        assert len(metas) > 5
    finally:
        storage.close()
    again = start(tmp_path)
    try:
        again.recover_files(State({1: metas}, {}))
        again.settle_in()
        assert await consume(again.open(1, 8, metas, 9000), 9000) == sent
    finally:
        again.close()


async def test_entries_are_written_in_time_without_anybody_asking(
    tmp_path: Path, fill: Any
) -> None:
    loop, called = asyncio.get_running_loop(), asyncio.Event()

    def post(callback: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(callback)
        loop.call_soon_threadsafe(called.set)

    storage = LedgerStorage(SMALL, LocalLedgerStore(LocalFiles(), tmp_path), post)
    storage.start()
    try:
        fill(storage.open(1, 7, [], 0), 1)
        while storage.dirty_bytes:
            await called.wait()
            called.clear()
        assert len(LocalLedgerStore(LocalFiles(), tmp_path).list()) == 1
    finally:
        storage.close()


async def test_a_crashed_storage_thread_is_a_failure_that_everybody_hears_of(
    tmp_path: Path, fill: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = start(tmp_path)
    try:
        # A bug, of the kind that nobody foresees.
        monkeypatch.setattr(storage._writer, "_unsynced", None)
        fill(storage.open(1, 7, [], 0), 1)
        for _ in range(2):
            error = await flush(storage)
            assert isinstance(error, StorageFailed)
            assert "restart" in error.message
        assert isinstance(storage.failure, StorageFailed)
    finally:
        storage.close()


def test_a_read_is_answered_once_though_the_one_behind_it_crashes_the_thread() -> None:
    threads = SimThreads()
    posted: list[Any] = []
    pool = ReadPool(1, 9, posted.append, threads)
    pool.start()
    got: list[Any] = []
    pool.submit(lambda: 1, got.append)
    pool.submit(lambda: 1 // 0, got.append)
    pool.submit(lambda: 3, got.append)
    with pytest.raises(ZeroDivisionError):
        threads.turn()
    for callback in posted:
        callback()
    assert [type(result) for result in got] == [int, StorageFailed, StorageFailed]
    assert pool._busy == [0]


def test_a_flush_is_answered_once_though_the_job_behind_it_crashes_the_thread() -> None:
    threads = SimThreads()
    posted: list[Any] = []
    storage = LedgerStorage(SMALL, MemoryLedgerStore(), posted.append, spawn=threads)
    storage.start()
    answers: list[DanubiusError | None] = []
    storage.flush(answers.append)
    # A bug, of the kind that nobody foresees.
    storage._put(DeleteJob(None, None))  # pyright: ignore[reportArgumentType]
    storage.flush(answers.append)
    with pytest.raises(TypeError):
        threads.turn()
    for callback in posted:
        callback()
    assert [type(answer) for answer in answers] == [type(None), StorageFailed]


def test_reads_beyond_the_bound_are_refused() -> None:
    threads = SimThreads()
    posted: list[Any] = []
    pool = ReadPool(2, 3, posted.append, threads)
    pool.start()
    got: list[Any] = []
    for number in range(4):
        pool.submit(lambda number=number: number, got.append)
    assert [type(error) for error in got] == [Overloaded]
    threads.turn()
    for callback in posted:
        callback()
    assert sorted(got[1:]) == [0, 1, 2]
    pool.submit(lambda: 9, got.append)
    assert len(got) == 4, "there is room again"


def test_reads_after_the_end_are_refused() -> None:
    pool = ReadPool(1, 10, lambda callback: callback(), SimThreads())
    pool.start()
    pool.close()
    got: list[Any] = []
    pool.submit(lambda: 1, got.append)
    assert isinstance(got[0], ShuttingDown)


def test_a_failed_read_is_a_value() -> None:
    threads = SimThreads()
    pool = ReadPool(1, 10, lambda callback: callback(), threads)
    pool.start()
    error = StorageFailed("the disk failed")

    def work() -> int:
        raise error

    got: list[Any] = []
    pool.submit(work, got.append)
    threads.turn()
    assert got == [error]
