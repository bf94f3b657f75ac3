"""Snapshots are whole or absent, and one bad file is not the end."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import pytest

from danubius.errors import DataDirectoryDamaged, DataDirectoryTooNew, StorageFailed, StorageFull
from danubius.record.checksum import crc32c
from danubius.sim.disk import PowerLost, SimFiles
from danubius.wal.snapshot import Snapshot, SnapshotStore

DIRECTORY = Path("/data/snapshots")


def path_of(position: int) -> Path:
    return DIRECTORY / f"{position:020d}.snapshot"


def test_an_empty_directory_has_no_snapshot() -> None:
    assert SnapshotStore(SimFiles(), DIRECTORY).load_latest() is None


def test_the_latest_is_loaded_two_are_kept_and_the_older_one_bounds_the_trim() -> None:
    files = SimFiles()
    store = SnapshotStore(files, DIRECTORY)
    assert [store.save(p, f"at {p}".encode()) for p in (10, 20, 30)] == [0, 10, 20]
    assert store.load_latest() == Snapshot(30, b"at 30")
    assert len(files.listdir(DIRECTORY)) == 2


def test_the_oldest_position_is_that_of_the_oldest_one_kept() -> None:
    store = SnapshotStore(SimFiles(), DIRECTORY)
    assert store.oldest_position() == 0
    for position, oldest in ((10, 10), (20, 10), (30, 20)):
        store.save(position, b"x")
        assert store.oldest_position() == oldest


def test_saving_at_the_same_position_replaces() -> None:
    store = SnapshotStore(SimFiles(), DIRECTORY)
    store.save(10, b"old")
    assert store.save(10, b"new") == 0
    assert store.load_latest() == Snapshot(10, b"new")


def test_the_older_one_is_given_up_if_the_newest_is_there_and_the_journal_needs_room() -> None:
    files = SimFiles()
    store = SnapshotStore(files, DIRECTORY)
    assert [store.save(p, b"x", is_sole=True) for p in (10, 20)] == [0, 10]
    files.capacity_bytes = files.used_bytes()  # the newest is whole: nothing needs to be written
    assert store.save(20, b"x", is_sole=True) == 20
    assert files.listdir(DIRECTORY) == [path_of(20).name]
    files.capacity_bytes = None
    assert store.save(30, b"y") == 20


def test_the_older_one_is_not_given_up_for_a_newest_that_is_damaged() -> None:
    files = SimFiles()
    store = SnapshotStore(files, DIRECTORY)
    store.save(10, b"x")
    store.save(20, b"x")
    files.rot(path_of(20), 32)
    files.fail("rename")
    with pytest.raises(StorageFailed):
        store.save(20, b"x", is_sole=True)
    assert store.load_latest() == Snapshot(10, b"x")


@pytest.mark.parametrize("at", [0, 5, 9, 17, 25, 32, 40])
def test_a_damaged_snapshot_gives_way_to_the_one_before(at: int) -> None:
    files = SimFiles()
    store = SnapshotStore(files, DIRECTORY)
    store.save(10, b"old state")
    store.save(20, b"new state")
    files.rot(path_of(20), at)
    before = files.listdir(DIRECTORY)
    assert store.load_latest() == Snapshot(10, b"old state")
    assert files.listdir(DIRECTORY) == before, "whoever looks changes nothing"
    store.set_aside()
    assert store.save(30, b"newer") == 10
    assert f"{20:020d}.snapshot.damaged" in files.listdir(DIRECTORY)


def test_a_cut_snapshot_is_damaged() -> None:
    files = SimFiles()
    store = SnapshotStore(files, DIRECTORY)
    store.save(10, b"old")
    store.save(20, b"new")
    files.open(path_of(20)).truncate(20)
    assert store.load_latest() == Snapshot(10, b"old")


def test_only_damaged_snapshots_are_refused() -> None:
    files = SimFiles()
    store = SnapshotStore(files, DIRECTORY)
    store.save(10, b"state")
    files.rot(path_of(10), 33)
    with pytest.raises(DataDirectoryDamaged, match="no snapshot"):
        store.load_latest()


def test_a_newer_format_is_refused() -> None:
    files = SimFiles()
    files.mkdir(DIRECTORY, sync=True)
    rest = struct.pack("<IIQQ", 2, 0, 10, 0)
    files.write_atomic(path_of(10), b"DNSS" + struct.pack("<I", crc32c(rest)) + rest)
    with pytest.raises(DataDirectoryTooNew, match="format version 2"):
        SnapshotStore(files, DIRECTORY).load_latest()


def test_power_loss_at_any_step_leaves_the_old_or_the_new() -> None:
    outcomes: set[int] = set()
    for steps in range(12):
        for seed in range(6):
            files = SimFiles(seed=seed)
            store = SnapshotStore(files, DIRECTORY)
            store.save(10, b"x" * 3000)
            store.save(20, b"y" * 3000)
            files.lose_power_after(steps)
            with contextlib.suppress(PowerLost):
                store.save(30, b"z" * 3000)
            files.crash(seed)
            latest = store.load_latest()
            assert latest is not None
            assert latest in (Snapshot(20, b"y" * 3000), Snapshot(30, b"z" * 3000))
            outcomes.add(latest.position)
    assert outcomes == {20, 30}


def test_a_full_disk_keeps_the_old_snapshot() -> None:
    files = SimFiles()
    store = SnapshotStore(files, DIRECTORY)
    store.save(10, b"old")
    files.capacity_bytes = files.used_bytes() + 10
    with pytest.raises(StorageFull):
        store.save(20, b"n" * 1000)
    assert store.load_latest() == Snapshot(10, b"old")
    assert len(files.listdir(DIRECTORY)) == 1
