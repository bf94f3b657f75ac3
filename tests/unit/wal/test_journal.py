"""The journal's promises, one by one, on a simulated disk and without threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from danubius.errors import DataDirectoryDamaged, InvalidArgument, StorageFull
from danubius.sim.disk import SimFiles
from danubius.wal.committer import Turn
from danubius.wal.config import JournalConfig
from danubius.wal.core.format import FILE_HEADER_BYTES, record_bytes
from danubius.wal.journal import Journal
from unit.wal.journal_owner import CONFIG, DIRECTORY, Owner, journal_files, last_file, reopen

if TYPE_CHECKING:
    from collections.abc import Callable


# -------------------------------------------------------------------- group commit


def test_everything_queued_shares_one_write_one_sync_and_one_report() -> None:
    owner = Owner(SimFiles())
    owner.commit("warm")
    before = owner.files.counts.copy()
    for number in range(50):
        owner.append(f"r{number}")
    owner.threads.turn()
    assert len(owner.posts) == 1
    owner.turn()
    done = owner.files.counts - before
    assert (done["write"], done["sync"]) == (1, 1)
    assert owner.committed[1:] == [f"r{number}" for number in range(50)]


def test_a_synced_record_is_not_reported_before_the_sync() -> None:
    owner = Owner(SimFiles())
    owner.files.fail("sync")
    owner.append("a")
    owner.turn()
    assert owner.committed == []
    assert owner.failed[0][0] == ["a"]


def test_written_records_are_reported_without_a_sync_and_synced_in_the_interval() -> None:
    owner = Owner(SimFiles())
    owner.append("a", sync=False)
    owner.turn(now_ns=1_000_000)
    assert owner.committed == ["a"]
    assert owner.files.counts["sync"] == 0
    assert owner.threads.workers[0].wake_ns == 11_000_000
    owner.turn(now_ns=11_000_000)
    assert owner.files.counts["sync"] == 1
    assert owner.threads.workers[0].wake_ns is None
    owner.files.crash(3)
    assert reopen(owner.files).bodies == ["a"]


def test_written_records_before_the_first_synced_one_do_not_wait_for_the_sync() -> None:
    owner = Owner(SimFiles())
    owner.commit("warm")
    owner.append("w1", sync=False)
    owner.append("s1", sync=True)
    owner.append("w2", sync=False)
    owner.files.fail("sync")
    owner.turn()
    assert owner.committed == ["warm", "w1"]
    assert owner.failed[0][0] == ["s1", "w2"]


def test_a_synced_record_makes_everything_before_it_durable() -> None:
    for seed in range(20):
        owner = Owner(SimFiles())
        owner.commit("w", sync=False)
        owner.commit("s", sync=True)
        owner.files.crash(seed)
        assert reopen(owner.files).bodies == ["w", "s"]


def test_records_come_back_as_they_were_appended() -> None:
    owner = Owner(SimFiles())
    owner.journal.append(3, 2**63, [b"two ", memoryview(b"parts")], None, sync=True)
    owner.journal.append(255, 0, b"", None, sync=True)
    owner.turn()
    first, second = reopen(owner.files).recovered
    assert (first.kind, first.topic_id, bytes(first.body)) == (3, 2**63, b"two parts")
    assert (second.kind, second.topic_id, bytes(second.body)) == (255, 0, b"")
    assert (first.position, first.end_position) == (0, record_bytes(9))
    assert second.end_position == owner.journal.end_position


def test_queued_bytes_count_what_is_not_yet_reported() -> None:
    owner = Owner(SimFiles(), config=JournalConfig(queue_bytes_max=64 * 1024))
    owner.append("a", size=70_000)
    assert owner.journal.queued_bytes == record_bytes(70_000)
    assert owner.journal.is_congested
    owner.turn()
    assert owner.journal.queued_bytes == 0
    assert not owner.journal.is_congested


def test_a_callback_that_raises_does_not_swallow_the_reports_behind_it() -> None:
    owner = Owner(SimFiles())
    owner.append("a", size=8000)
    owner.append("b", size=8000)
    owner.threads.turn()
    heard: list[object] = []

    def on_committed(tokens: list[object], end: int) -> None:
        heard.extend(tokens)
        if tokens == ["a"]:
            raise ValueError("a bug in the broker")

    owner.journal._on_committed = on_committed
    with pytest.raises(ValueError, match="a bug"):
        owner.posts.pop(0)()
    owner.posts.pop(0)()
    assert heard == ["a", "b"]


def test_close_writes_syncs_and_reports_what_was_appended() -> None:
    owner = Owner(SimFiles())
    owner.append("a", sync=False)
    owner.journal.close()
    assert owner.committed == ["a"]
    owner.files.crash(1)
    assert reopen(owner.files).bodies == ["a"]


def test_what_comes_after_close_is_neither_stored_nor_reported() -> None:
    owner = Owner(SimFiles())
    owner.append("a", sync=True)
    owner.journal.close()
    owner.append("b", sync=True)
    owner.journal.trim(0)
    assert owner.committed == ["a"]
    assert reopen(owner.files).bodies == ["a"]


# -------------------------------------------------------------------- files


def test_files_are_rolled_and_all_are_recovered_in_order() -> None:
    owner = Owner(SimFiles())
    tokens = [f"r{number}" for number in range(7)]
    for token in tokens:
        owner.commit(token, size=5000)
    assert owner.journal.size_bytes >= 7 * 5000
    assert reopen(owner.files).bodies == tokens


def test_a_record_larger_than_a_file_has_a_file_of_its_own() -> None:
    owner = Owner(SimFiles())
    owner.commit("small")
    owner.commit("large", size=50_000)
    owner.commit("after")
    assert reopen(owner.files).bodies == ["small", "large", "after"]


def test_recovery_starts_at_the_position_it_is_given() -> None:
    owner = Owner(SimFiles())
    owner.commit("a", "b")
    position = owner.journal.end_position
    owner.commit("c")
    assert reopen(owner.files, position).bodies == ["c"]


def test_trimmed_files_are_used_again_and_what_they_held_is_forgotten() -> None:
    owner = Owner(SimFiles())
    for number in range(60):
        owner.commit(f"r{number}", size=5000)
        owner.journal.trim(owner.journal.end_position)
    owner.turn()
    assert len(journal_files(owner.files)) <= CONFIG.files_max
    assert owner.files.counts["rename"] > 10
    position = owner.journal.end_position
    owner.commit("last")
    assert reopen(owner.files, position).bodies == ["last"]


def test_files_that_an_older_snapshot_needs_are_kept_over_a_restart() -> None:
    owner = Owner(SimFiles())
    positions: list[int] = []
    for token in "abc":
        positions.append(owner.journal.end_position)
        owner.commit(token, size=7000)
    owner.journal.close()
    later = Owner(owner.files, positions[2], keep_from=positions[1])
    assert later.bodies == ["c"]
    # As much as fits, and more: files that are needed are not used again.
    while not later.failed:
        later.append("x", size=7000)
        later.turn()
    later.files.kill()
    assert reopen(later.files, positions[1]).bodies[:2] == ["b", "c"]
    later = Owner(later.files, positions[2], keep_from=positions[1])
    later.journal.trim(later.journal.end_position)
    later.commit("y", size=7000)


def test_a_roll_to_a_prepared_file_costs_no_directory_sync() -> None:
    owner = Owner(SimFiles())
    owner.commit("a", size=7000)
    owner.commit("b", size=4000)
    before = owner.files.counts["sync_dir"]
    owner.append("c", size=7000)
    owner.threads.workers[0]._handle = keep_first(owner)
    owner.turn()
    assert owner.committed[-1] == "c"
    assert owner.files.counts["sync_dir"] == before


def keep_first(owner: Owner) -> Callable[[list[object], int], None]:
    """Commit, but do not prepare the next file."""
    committer = owner.journal._committer
    assert committer is not None

    def handle(items: list[object], now_ns: int) -> None:
        for item in items:
            assert isinstance(item, Turn)
            committer._commit_all(item.entries)

    return handle


def test_at_its_bound_the_journal_is_full_until_it_is_trimmed() -> None:
    owner = Owner(SimFiles())
    while not owner.failed:
        owner.append("x", size=7000)
        owner.turn()
    assert isinstance(owner.failed[0][1], StorageFull)
    assert "bound of 4 files" in owner.failed[0][1].message
    assert len(journal_files(owner.files)) == 4
    owner.journal.trim(owner.journal.end_position)
    owner.commit("again", size=7000)


def test_restarts_do_not_use_up_the_files() -> None:
    files = SimFiles()
    position = 0
    for number in range(20):
        owner = Owner(files, position)
        owner.commit(f"r{number}")
        owner.journal.trim(owner.journal.end_position)
        position = owner.journal.end_position
        owner.turn()
        files.kill()
    assert len(journal_files(files)) <= CONFIG.files_max


# -------------------------------------------------------------------- damage


def test_a_torn_tail_is_cut_and_written_over() -> None:
    owner = Owner(SimFiles())
    owner.commit("a")
    end = owner.journal.end_position
    owner.commit("b")
    owner.files.rot(last_file(owner.files), FILE_HEADER_BYTES + end + 60)
    again = reopen(owner.files)
    assert again.bodies == ["a"]
    again.commit("c")
    assert reopen(owner.files).bodies == ["a", "c"]


def test_valid_records_behind_a_torn_one_never_become_content() -> None:
    owner = Owner(SimFiles())
    owner.commit("a")
    end = owner.journal.end_position
    owner.commit("b", "stale", "stale2")
    owner.files.rot(last_file(owner.files), FILE_HEADER_BYTES + end + 60)
    again = reopen(owner.files)
    again.commit("B")
    assert reopen(owner.files).bodies == ["a", "B"]


def test_damage_below_something_synced_is_refused_with_its_place() -> None:
    owner = Owner(SimFiles())
    owner.commit("a")
    owner.commit("b")
    owner.commit("c")
    owner.files.rot(last_file(owner.files), FILE_HEADER_BYTES + 60)
    with pytest.raises(DataDirectoryDamaged, match=r"damaged at position 0 \(byte 4096"):
        reopen(owner.files)


def test_damage_in_an_earlier_file_is_refused() -> None:
    owner = Owner(SimFiles())
    for number in range(4):
        owner.commit(f"r{number}", size=7000)
    first = DIRECTORY / journal_files(owner.files)[0]
    owner.files.rot(first, FILE_HEADER_BYTES + 100)
    with pytest.raises(DataDirectoryDamaged, match=first.name):
        reopen(owner.files)


def test_damage_below_the_position_asked_for_harms_nobody() -> None:
    owner = Owner(SimFiles())
    owner.commit("a")
    position = owner.journal.end_position
    owner.commit("b")
    owner.files.rot(last_file(owner.files), FILE_HEADER_BYTES + 60)
    assert reopen(owner.files, position).bodies == ["b"]


def test_a_missing_first_file_is_refused() -> None:
    owner = Owner(SimFiles())
    for number in range(4):
        owner.commit(f"r{number}", size=7000)
    owner.files.remove(DIRECTORY / journal_files(owner.files)[0])
    with pytest.raises(DataDirectoryDamaged, match="a file is missing"):
        reopen(owner.files)


def test_a_missing_middle_file_is_refused() -> None:
    owner = Owner(SimFiles())
    for number in range(4):
        owner.commit(f"r{number}", size=11000)
    owner.files.remove(DIRECTORY / journal_files(owner.files)[1])
    with pytest.raises(DataDirectoryDamaged):
        reopen(owner.files)


def test_a_missing_journal_under_a_snapshot_is_refused() -> None:
    with pytest.raises(DataDirectoryDamaged, match="holds no journal"):
        reopen(SimFiles(), from_position=500)


def test_a_file_that_lost_its_head_is_refused() -> None:
    owner = Owner(SimFiles())
    owner.commit("a", size=11000)
    owner.commit("b", size=5000)
    owner.commit("c", size=100)
    owner.commit("d", size=100)
    owner.files.rot(last_file(owner.files), 0, FILE_HEADER_BYTES)
    with pytest.raises(DataDirectoryDamaged, match="lost its beginning"):
        reopen(owner.files)


def test_a_snapshot_ahead_of_what_survived_of_the_journal_is_followed() -> None:
    for seed in range(30):
        owner = Owner(SimFiles(seed=seed))
        owner.commit("a")
        owner.commit("w1", "w2", sync=False)
        position = owner.journal.end_position
        owner.files.crash(seed)
        again = reopen(owner.files, position)
        assert again.bodies == []
        assert again.journal.end_position == position
        again.commit("b")
        owner.files.crash(seed)
        assert reopen(owner.files, position).bodies == ["b"]


def test_foreign_files_in_the_directory_are_left_alone() -> None:
    files = SimFiles()
    files.mkdir(DIRECTORY, sync=True)
    files.write_atomic(DIRECTORY / "notes.txt", b"mine")
    owner = Owner(files)
    owner.commit("a")
    assert files.read_bytes(DIRECTORY / "notes.txt") == b"mine"


@pytest.mark.parametrize(
    "config",
    [
        JournalConfig(file_bytes=5000),
        JournalConfig(files_max=1),
        JournalConfig(sync_interval_ms=5000),
    ],
)
def test_settings_out_of_range_are_refused(config: JournalConfig) -> None:
    with pytest.raises(InvalidArgument, match="journal"):
        Journal(config, SimFiles(), DIRECTORY)
