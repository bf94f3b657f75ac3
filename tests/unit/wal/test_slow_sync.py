"""A disk that hangs in a sync: the loop goes on, whatever it was that was synced."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from danubius.runtime.threads import Item, Worker
from danubius.sim.disk import SimFile, SimFiles
from danubius.wal.committer import LONG_SYNC_NS, Committer, Turn
from danubius.wal.core.format import record_bytes
from danubius.wal.journal import Journal
from danubius.wal.writer import Entry
from patience import HANG_S
from unit.wal.journal_owner import CONFIG, DIRECTORY, Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest

    from danubius.errors import DanubiusError
    from danubius.model.buffers import Buffer


class HangingDisk:
    """Syncs wait until they are let go, once told to; a disk that hangs may hang any thread but the loop's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.hangs = threading.Event()
        self.threads: set[str] = set()
        datasync, pwritev_synced = SimFile.datasync, SimFile.pwritev_synced

        def slow_datasync(file: SimFile) -> None:
            self._hang()
            datasync(file)

        def slow_pwritev_synced(file: SimFile, buffers: Sequence[Buffer], at: int) -> None:
            self._hang()
            pwritev_synced(file, buffers, at)

        monkeypatch.setattr(SimFile, "datasync", slow_datasync)
        monkeypatch.setattr(SimFile, "pwritev_synced", slow_pwritev_synced)

    def _hang(self) -> None:
        thread = threading.current_thread()
        self.threads.add(thread.name)
        assert thread is not threading.main_thread(), "the loop itself would hang"
        if not self.may_go_on.is_set():
            self.hangs.set()
        assert self.may_go_on.wait(HANG_S)


async def test_a_sync_that_hangs_does_not_hold_up_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = HangingDisk(monkeypatch)
    journal = Journal(CONFIG, SimFiles(), DIRECTORY)
    assert not list(journal.recover(0))
    loop = asyncio.get_running_loop()

    def on_committed(tokens: list[object], end: int) -> None:
        for token in tokens:
            assert isinstance(token, asyncio.Future)
            token.set_result(end)

    def on_failed(tokens: list[object], error: DanubiusError) -> None:
        raise error

    journal.start(loop.call_soon_threadsafe, on_committed, on_failed, defer=loop.call_soon)
    for _ in range(20):  # quick ones, each alone
        quick: asyncio.Future[int] = loop.create_future()
        journal.append(1, 7, b"body", quick, sync=True)
        await quick
    disk.may_go_on.clear()
    slow: asyncio.Future[int] = loop.create_future()
    journal.append(1, 7, b"body", slow, sync=True)
    for _ in range(100):  # the loop turns while the disk hangs
        await asyncio.sleep(0)
        journal.append(1, 7, b"body", None, sync=True)
    assert not slow.done()
    disk.may_go_on.set()
    await slow
    journal.close()
    assert disk.threads == {"journal"}


def test_a_report_that_comes_while_the_loop_finds_the_thread_busy_is_announced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = HangingDisk(monkeypatch)

    class JustDone(Worker[Item]):
        """Found busy, and done with it before whoever looked goes on."""

        def put_and_wait(
            self, item: Item, is_quick: Callable[[Item], bool], timeout_s: float
        ) -> bool:
            was_idle = super().put_and_wait(item, is_quick, timeout_s)
            if disk.hangs.is_set():
                assert not was_idle
                disk.may_go_on.set()
                with self._turn:  # the handler has ended, and its report is there
                    disk.hangs.clear()
            return was_idle

    journal = Journal(CONFIG, SimFiles(), DIRECTORY, spawn=JustDone)
    assert not list(journal.recover(0))
    posts: list[Callable[[], None]] = []
    committed: list[object] = []

    def on_committed(tokens: list[object], end: int) -> None:
        del end
        committed.extend(tokens)

    def on_failed(tokens: list[object], error: DanubiusError) -> None:
        raise error

    journal.start(posts.append, on_committed, on_failed, defer=lambda end_turn: end_turn())
    disk.may_go_on.clear()
    journal.append(1, 7, b"body", "first", sync=True)
    assert disk.hangs.wait(HANG_S)
    journal.append(1, 7, b"body", "second", sync=True)
    worker = journal._worker
    assert worker is not None
    assert worker.stop()
    for post in posts:
        post()
    assert committed == ["first", "second"]


def committer_of(owner: Owner) -> Committer:
    committer = owner.journal._committer
    assert committer is not None
    return committer


def test_the_loop_waits_for_lone_syncs_on_a_quick_disk_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner = Owner(SimFiles())
    owner.commit("a")
    committer = committer_of(owner)
    entry = committer_entry(owner)
    lone, many = Turn([entry], entry.size, 1, True), Turn([entry] * 3, 3 * entry.size, 3, True)
    assert committer.is_soon(lone)
    assert not committer.is_soon(many)
    assert not committer.is_quick(lone)
    pwritev_synced = SimFile.pwritev_synced

    def slow(file: SimFile, buffers: Sequence[Buffer], at: int) -> None:
        owner.clock.now_ns += 5_000_000_000
        pwritev_synced(file, buffers, at)

    with monkeypatch.context() as patch:
        patch.setattr(SimFile, "pwritev_synced", slow)
        owner.commit("b")
    assert not committer.is_soon(lone), "one slow sync is enough to keep the loop from waiting"
    for number in range(100):
        owner.commit(f"c{number}", size=10)
    assert committer.is_soon(lone)


def committer_entry(owner: Owner) -> Entry:
    size = record_bytes(4)
    return Entry(1, 7, (b"body",), 4, size, True, owner.journal._generation)


def test_nothing_is_written_on_the_loop_beside_a_sync_that_hangs() -> None:
    owner = Owner(SimFiles())
    owner.commit("a")
    committer = committer_of(owner)
    entry = committer_entry(owner)
    entry.is_sync = False
    written = Turn([entry], entry.size, 0, True)
    seen: list[bool] = []

    class Aside:
        def __enter__(self) -> None:
            seen.append(committer.is_quick(written))
            owner.clock.now_ns += LONG_SYNC_NS + 1
            seen.append(committer.is_quick(written))

        def __exit__(self, *_: object) -> None: ...

    owner.append("w", sync=False)
    owner.turn()
    committer.aside = Aside
    owner.turn(now_ns=10**12)
    assert seen == [True, False]
    assert committer.is_quick(written)
