"""The journal on a disk that fails, fills up and gets well again."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from danubius.errors import StorageFailed, StorageFull
from danubius.sim.disk import PowerLost, SimFiles
from danubius.wal.committer import FAILURE_PAUSE_NS, Turn
from danubius.wal.config import JournalConfig
from danubius.wal.core.format import FILE_HEADER_BYTES, record_bytes
from danubius.wal.writer import Entry, JournalWriter
from unit.wal.journal_owner import CONFIG, Owner, journal_files, reopen

if TYPE_CHECKING:
    from danubius.errors import DanubiusError


@pytest.mark.parametrize("operation", ["write", "sync"])
@pytest.mark.parametrize("error", [StorageFull, StorageFailed])
def test_a_failure_fails_all_that_waits_once_and_the_next_append_takes_the_place(
    operation: str, error: type[DanubiusError]
) -> None:
    owner = Owner(SimFiles())
    owner.commit("a")
    position = owner.journal.end_position
    owner.files.fail(operation, error=error)
    owner.append("b")
    owner.threads.turn()
    owner.append("c")
    owner.threads.turn()
    owner.append("d")
    owner.turn()
    assert [tokens for tokens, _ in owner.failed] == [["b", "c", "d"]]
    assert isinstance(owner.failed[0][1], error)
    assert owner.journal.queued_bytes == 0
    owner.commit("e")
    assert owner.journal.end_position == position + record_bytes(100)
    for seed in range(10):
        owner.files.crash(seed)
        assert reopen(owner.files).bodies == ["a", "e"]


def run_at_once(owner: Owner, turn: list[Entry]) -> None:
    """Handle a turn as the loop does itself when the thread is idle."""
    committer = owner.journal._committer
    assert committer is not None
    size = sum(each.size for each in turn)
    committer.handle([Turn(turn, size, len(turn), is_quick=True)], 0)


def entry(owner: Owner, body: bytes) -> Entry:
    size = record_bytes(len(body))
    return Entry(1, 7, (body,), len(body), size, True, owner.journal._generation)


def test_of_a_turn_that_a_failure_fell_into_only_what_came_behind_is_committed() -> None:
    owner = Owner(SimFiles())
    owner.commit("a")
    before = entry(owner, b"before")
    owner.files.fail("sync")
    owner.append("failed")
    owner.turn()
    owner.commit("b")
    behind = entry(owner, b"behind")
    owner.journal._pending.append("behind")
    owner.journal._queued_bytes += behind.size
    run_at_once(owner, [before, behind])
    owner.journal._deliver()
    assert owner.committed == ["a", "b", "behind"]
    assert owner.journal.queued_bytes == 0
    assert reopen(owner.files).bodies == ["a", "b", "behind"]


def test_after_a_bug_on_the_loop_the_threads_reports_are_announced_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner = Owner(SimFiles())
    owner.commit("a")

    def write(writer: JournalWriter, entries: list[Entry], size: int) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(JournalWriter, "write_synced", write)
        with pytest.raises(ZeroDivisionError):
            run_at_once(owner, [entry(owner, b"x")])
    owner.append("b")
    owner.threads.turn()
    assert len(owner.posts) == 1


def test_what_was_written_survives_a_failed_sync_and_then_power_loss() -> None:
    for seed in range(20):
        owner = Owner(SimFiles(seed=seed))
        owner.commit("a")
        owner.commit("w", sync=False)
        owner.files.fail("sync")
        owner.append("failed")
        owner.turn()
        owner.commit("b")
        owner.files.crash(seed)
        assert reopen(owner.files).bodies == ["a", "w", "b"]


def test_a_failed_record_does_not_come_back_once_another_was_reported_written() -> None:
    for seed in range(40):
        owner = Owner(SimFiles(seed=seed))
        owner.commit("a")
        owner.files.fail("sync")
        owner.append("failed")
        owner.turn()
        owner.commit("w", sync=False)
        owner.files.crash(seed)
        assert "failed" not in reopen(owner.files).bodies


def test_a_full_disk_fails_appends_and_space_heals_it() -> None:
    owner = Owner(SimFiles())
    owner.commit("a")
    owner.files.capacity_bytes = owner.files.used_bytes()
    for token in ("b", "c", "d"):
        owner.append(token, size=3000)
        owner.turn()
    assert all(isinstance(error, StorageFull) for _, error in owner.failed)
    assert len(owner.failed) == 3
    assert len(journal_files(owner.files)) <= CONFIG.files_max
    owner.files.capacity_bytes = None
    owner.commit("e")
    owner.files.crash(5)
    assert reopen(owner.files).bodies == ["a", "e"]


def test_a_disk_that_fails_for_long_uses_up_no_files() -> None:
    owner = Owner(SimFiles())
    owner.commit("a")
    owner.files.fail("sync", times=50)
    for number in range(50):
        owner.append(f"x{number}")
        owner.turn()
    assert len(owner.failed) == 50
    owner.commit("b")
    assert len(journal_files(owner.files)) <= CONFIG.files_max
    assert reopen(owner.files).bodies == ["a", "b"]


@pytest.mark.parametrize("operation", ["write", "sync", "open"])
def test_a_failing_disk_is_asked_again_once_a_pause(operation: str) -> None:
    owner = Owner(SimFiles())
    owner.commit("a")
    owner.step_ns = 1_000_000
    if operation == "open":
        owner.files.fail("sync")
    owner.files.fail(operation, times=1_000_000)
    before = owner.files.counts.total()
    number = last_number(owner.files)
    tokens = [f"x{number}" for number in range(1000)]
    for token in tokens:
        owner.append(token)
        owner.turn()
    tries = 1000 * owner.step_ns // FAILURE_PAUSE_NS
    assert tries - 2 <= len(owner.failed) <= tries + 2
    # A try opens, writes and syncs at the most a few times.
    assert owner.files.counts.total() - before <= 8 * (tries + 2)
    assert last_number(owner.files) - number <= 2 * (tries + 2)
    failed = [token for group, _ in owner.failed for token in group]
    assert failed == tokens[: len(failed)]
    # What waits when the disk is well again is not failed.
    owner.files.heal()
    owner.clock.now_ns += FAILURE_PAUSE_NS
    owner.commit("b")
    assert owner.committed == ["a", *tokens[len(failed) :], "b"]
    assert reopen(owner.files).bodies == owner.committed


def last_number(files: SimFiles) -> int:
    return int(journal_files(files)[-1][:10])


def fail_twice(owner: Owner) -> None:
    owner.step_ns = 0
    owner.files.fail("sync", times=2)
    for _ in range(2):
        owner.append("failed")
        owner.turn()
    assert len(owner.failed) == 2


def test_a_lone_failure_is_followed_by_no_pause() -> None:
    owner = Owner(SimFiles())
    owner.commit("a")
    owner.step_ns = 0
    for token in "bcd":
        owner.files.fail("sync")
        owner.append("failed")
        owner.turn()
        owner.commit(token)
    assert len(owner.failed) == 3


def test_the_thread_wakes_at_the_end_of_the_pause_for_those_who_wait() -> None:
    owner = Owner(SimFiles())
    owner.commit("a")
    fail_twice(owner)
    owner.append("b")
    owner.turn()
    owner.append("c")
    owner.turn()
    assert owner.committed == ["a"]
    assert owner.journal.queued_bytes == 2 * record_bytes(100)
    assert owner.threads.workers[0].wake_ns == owner.clock.now_ns + FAILURE_PAUSE_NS
    owner.clock.now_ns += FAILURE_PAUSE_NS
    owner.turn()
    assert owner.committed == ["a", "b", "c"]
    assert owner.journal.queued_bytes == 0
    told = owner.threads.workers[0].wake_ns
    assert told is not None, "how far it is synced is left to be told"
    owner.turn(now_ns=told)
    assert owner.threads.workers[0].wake_ns is None


def test_who_waits_for_the_end_of_a_pause_hears_of_a_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner = Owner(SimFiles())
    fail_twice(owner)
    owner.append("waits")
    owner.turn()

    def trim(writer: JournalWriter, position: int) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(JournalWriter, "trim", trim)
    owner.journal.trim(0)
    with pytest.raises(ZeroDivisionError):
        owner.turn()
    owner.posts.pop()()
    assert owner.failed[-1][0] == ["waits"]


def test_room_by_a_trim_ends_the_pause() -> None:
    owner = Owner(SimFiles())
    owner.step_ns = 0
    while len(owner.failed) < 2:
        owner.append("x", size=7000)
        owner.turn()
    owner.append("waits", size=7000)
    owner.turn()
    assert owner.journal.queued_bytes
    owner.journal.trim(owner.journal.end_position)
    owner.turn()
    assert owner.committed[-1] == "waits"


def test_those_who_wait_have_a_last_try_when_the_journal_is_closed() -> None:
    owner = Owner(SimFiles())
    fail_twice(owner)
    owner.append("waits")
    owner.turn()
    owner.append("last")
    owner.journal.close()
    assert owner.committed == ["waits", "last"]


def test_filling_ahead_may_fail_without_failing_the_record() -> None:
    config = JournalConfig(file_bytes=16384, files_max=4, fill_bytes=8192)
    owner = Owner(SimFiles(), config=config)
    owner.files.capacity_bytes = FILE_HEADER_BYTES + 1000
    owner.commit("a")


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_disk_that_fails_now_and_then_uses_up_no_files(operation: str) -> None:
    """Every failure leaves a file: what it held is carried over, and it is used again."""
    for seed in range(5):
        owner = Owner(SimFiles(seed=seed))
        expected: list[str] = []
        for number in range(10 * CONFIG.files_max):
            owner.files.fail(operation)
            owner.append("failed", size=20)
            owner.turn()
            owner.commit(f"m{number}", size=20)
            expected.append(f"m{number}")
            assert len(journal_files(owner.files)) <= CONFIG.files_max
            if len(expected) > 8:  # what a checkpoint does
                expected = expected[-1:]
                owner.journal.trim(owner.journal.end_position - record_bytes(20))
        position = owner.journal.end_position - len(expected) * record_bytes(20)
        owner.files.crash(seed)
        assert reopen(owner.files, position).bodies == expected


def test_written_records_of_a_file_that_is_carried_over_are_durable() -> None:
    for seed in range(20):
        owner = Owner(SimFiles(seed=seed))
        owner.commit("a")
        for number in range(3):
            owner.commit(f"w{number}", sync=False)
            owner.files.fail("sync")
            owner.append("failed")
            owner.turn()
            owner.commit(f"s{number}")
        owner.files.crash(seed)
        assert reopen(owner.files).bodies == ["a", "w0", "s0", "w1", "s1", "w2", "s2"]


@pytest.mark.parametrize("steps", range(14))
def test_power_loss_while_a_file_is_carried_over_loses_nothing_synced(steps: int) -> None:
    for seed in range(20):
        owner = Owner(SimFiles(seed=seed))
        owner.commit("a", "b")
        owner.files.fail("sync")
        owner.append("failed")
        owner.turn()
        owner.files.lose_power_after(steps)
        owner.append("c")
        with contextlib.suppress(PowerLost):
            owner.turn()
        owner.files.crash(seed)
        bodies = reopen(owner.files).bodies
        assert bodies[:2] == ["a", "b"]
        assert "c" in bodies or not owner.committed[2:]
