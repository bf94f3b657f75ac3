"""A journal that ends before what it had been synced up to is refused, and whoever looks at it changes nothing."""

from __future__ import annotations

import pytest

from danubius.errors import DataDirectoryDamaged, StorageFailed
from danubius.sim.disk import SimFiles
from danubius.sim.threads import SimThreads
from danubius.wal.core.format import FILE_HEADER_BYTES
from danubius.wal.journal import Journal
from danubius.wal.segments import MARK_NAME
from unit.wal.journal_owner import CONFIG, DIRECTORY, Owner, last_file, reopen

MARK = DIRECTORY / MARK_NAME


def inspect(files: SimFiles, position: int, reach: int | None = None) -> list[bytes]:
    journal = Journal(CONFIG, files, DIRECTORY, spawn=SimThreads())
    return [bytes(record.body) for record in journal.inspect(position, reach=reach)]


def contents(files: SimFiles) -> dict[str, bytes]:
    return {name: files.read_bytes(DIRECTORY / name) for name in files.listdir(DIRECTORY)}


def without_mark(owner: Owner) -> SimFiles:
    owner.files.remove(MARK)
    return owner.files


@pytest.mark.parametrize("size", [100, 3000, 9000])
def test_a_snapshot_at_the_end_is_reached(size: int) -> None:
    owner = Owner(SimFiles())
    for number in range(3):
        owner.commit(f"r{number}", size=size)
        end = owner.journal.end_position
        assert inspect(owner.files, end, end) == []


@pytest.mark.parametrize("damage", ["missing", "garbage", "cut"])
def test_a_newest_file_that_does_not_come_up_to_the_snapshot_is_refused(damage: str) -> None:
    owner = Owner(SimFiles())
    owner.commit("a", size=9000)
    owner.commit("b", size=9000)
    end = owner.journal.end_position
    files, path = without_mark(owner), last_file(owner.files)
    if damage == "missing":
        files.remove(path)
    elif damage == "cut":
        files.open(path).truncate(FILE_HEADER_BYTES + 100)
    else:
        files.open(path).pwritev([b"garbage!" * 1000], FILE_HEADER_BYTES)
    before = contents(files)
    with pytest.raises(DataDirectoryDamaged, match=f"position {end}"):
        inspect(files, end, end)
    assert contents(files) == before


def test_damage_that_the_snapshot_covers_harms_nobody() -> None:
    owner = Owner(SimFiles())
    owner.commit("a", "b", size=5000)
    end = owner.journal.end_position
    owner.files.rot(last_file(owner.files), FILE_HEADER_BYTES + 100, 4000)
    assert inspect(owner.files, end, end) == []


def test_a_position_inside_a_record_is_of_another_journal() -> None:
    owner = Owner(SimFiles())
    owner.commit("a", "b", size=1000)
    end = owner.journal.end_position
    with pytest.raises(DataDirectoryDamaged):
        inspect(owner.files, end - 8, end - 8)


def test_topics_of_a_snapshot_may_be_ahead_of_it_and_must_be_reached_too() -> None:
    owner = Owner(SimFiles())
    owner.commit("a")
    position = owner.journal.end_position
    owner.commit("b")
    end = owner.journal.end_position
    assert len(inspect(owner.files, position, end)) == 1
    with pytest.raises(DataDirectoryDamaged):
        inspect(owner.files, position, end + 8)


def test_the_file_that_comes_up_to_the_newest_snapshot_outlives_a_trim() -> None:
    owner = Owner(SimFiles())
    owner.commit("a")
    end = owner.journal.end_position
    again = reopen(owner.files, end)
    again.journal.trim(end)
    again.turn()
    assert inspect(owner.files, end, end) == []


def test_what_had_been_synced_is_marked_and_missed_when_it_is_gone() -> None:
    """Behind the snapshot nobody else knows how long the journal was."""
    owner = Owner(SimFiles())
    owner.commit("a", size=9000)
    owner.commit("b", size=9000)
    owner.turn(now_ns=10**9)
    files, end = owner.files, owner.journal.end_position
    files.kill()
    files.remove(last_file(files))
    before = contents(files)
    with pytest.raises(DataDirectoryDamaged, match=f"synced up to {end}"):
        inspect(files, 0)
    assert contents(files) == before
    files.remove(MARK)
    assert len(inspect(files, 0)) == 1, "by the operator's word it is a copy"


def test_a_damaged_mark_says_nothing() -> None:
    owner = Owner(SimFiles())
    owner.commit("a")
    owner.files.rot(MARK, 9)
    assert len(inspect(owner.files, 0)) == 1


def test_a_disk_that_does_not_take_the_mark_takes_records() -> None:
    owner = Owner(SimFiles())
    owner.files.remove(MARK)
    owner.commit("a")
    owner.files.fail("write", after=1)
    owner.append("b")
    owner.turn(now_ns=10**9)
    owner.files.heal()
    assert owner.committed == ["a", "b"]
    assert reopen(owner.files).bodies == ["a", "b"]


def test_a_sync_covers_what_was_only_written_and_tells_of_a_failure() -> None:
    owner = Owner(SimFiles())
    owner.commit("a", sync=False)
    answers: list[object] = []
    owner.files.fail("sync", times=2)
    owner.journal.sync(answers.append)
    owner.turn()
    assert isinstance(answers[0], StorageFailed)
    owner.files.heal()
    owner.journal.sync(answers.append)
    owner.turn()
    assert answers[1:] == [None]
    owner.files.crash(1)
    assert reopen(owner.files).bodies == ["a"]
