"""The data directory: taken by one, a higher epoch with every start, whatever the disk does."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from danubius.broker.data_directory import FORMAT_VERSION, TIERED_VERSION, DataDirectory
from danubius.errors import (
    DataDirectoryDamaged,
    DataDirectoryInUse,
    DataDirectoryTooNew,
    StorageFailed,
    StorageFull,
)
from danubius.sim.disk import PowerLost, SimFiles

PATH = Path("/data")
FILE = PATH / "danubius.json"


def taken(files: SimFiles, highest_epoch: int = 0) -> DataDirectory:
    directory = DataDirectory.open(PATH, files, "broker-1")
    try:
        directory.take_up(highest_epoch)
    except BaseException:
        directory.release()
        raise
    return directory


def start(files: SimFiles) -> int:
    """Take the directory, let it go, and return the epoch."""
    directory = taken(files)
    directory.release()
    assert directory.broker_id == "broker-1"
    return directory.epoch


def test_every_start_has_a_higher_epoch_and_the_same_broker_id() -> None:
    files = SimFiles()
    assert [start(files) for _ in range(12)] == list(range(1, 13))
    assert stored(files) == {"format": FORMAT_VERSION, "broker_id": "broker-1", "epoch": 12}


def stored(files: SimFiles) -> dict[str, object]:
    """What the file says, beside its checksum."""
    fields = json.loads(files.read_bytes(FILE))
    assert len(fields.pop("checksum")) == 8
    assert fields.pop("holds", "") in {"", "nothing"}
    return fields


def test_an_epoch_is_above_the_highest_that_was_seen_anywhere() -> None:
    files = SimFiles()
    start(files)
    older = files.read_bytes(FILE)
    assert [start(files) for _ in range(3)] == [2, 3, 4]
    files.write_atomic(FILE, older)
    directory = taken(files, highest_epoch=4)
    assert directory.epoch == 5
    directory.release()
    assert start(files) == 6


def test_whoever_looks_at_a_directory_changes_nothing() -> None:
    files = SimFiles()
    start(files)
    before = files.read_bytes(FILE)
    DataDirectory.open(PATH, files, "broker-1").release()
    assert files.read_bytes(FILE) == before
    directory = taken(files)
    assert files.read_bytes(FILE) != before
    directory.put_back()
    directory.release()
    assert files.read_bytes(FILE) == before


def test_a_changed_epoch_fails_the_checksum() -> None:
    files = SimFiles()
    start(files)
    files.write_atomic(FILE, files.read_bytes(FILE).replace(b'"epoch":1', b'"epoch":0'))
    before = files.read_bytes(FILE)
    with pytest.raises(DataDirectoryDamaged, match="checksum"):
        start(files)
    assert files.read_bytes(FILE) == before


def test_a_file_without_a_checksum_is_of_an_earlier_version_and_is_read() -> None:
    files = SimFiles()
    write_identity(files, FORMAT_VERSION)
    assert start(files) == 8
    assert stored(files)["epoch"] == 8


def write_identity(files: SimFiles, version: int) -> None:
    files.mkdir(PATH, sync=True)
    identity = {"format": version, "broker_id": "broker-1", "epoch": 7}
    files.write_atomic(FILE, json.dumps(identity).encode())


@pytest.mark.parametrize("version", [1, 2])
def test_a_directory_of_an_older_format_is_taken_up_and_marked_as_of_this_one(version: int) -> None:
    files = SimFiles()
    write_identity(files, version)
    assert start(files) == 8
    assert json.loads(files.read_bytes(FILE))["format"] == FORMAT_VERSION


def test_a_directory_of_a_newer_format_is_left_as_it_is() -> None:
    files = SimFiles()
    write_identity(files, TIERED_VERSION + 1)
    before = files.read_bytes(FILE)
    with pytest.raises(DataDirectoryTooNew, match=f"format {TIERED_VERSION + 1}"):
        start(files)
    assert files.read_bytes(FILE) == before


def test_a_directory_is_taken_by_one() -> None:
    files = SimFiles()
    DataDirectory.open(PATH, files, "broker-1")
    with pytest.raises(DataDirectoryInUse):
        DataDirectory.open(PATH, files, "broker-2")


def test_a_full_disk_does_not_keep_a_broker_from_starting() -> None:
    files = SimFiles()
    assert [start(files) for _ in range(9)][-1] == 9
    files.capacity_bytes = files.used_bytes()
    assert [start(files) for _ in range(3)] == [10, 11, 12]
    files.crash(1)
    assert start(files) == 13
    files.capacity_bytes = None
    assert start(files) == 14
    assert files.listdir(PATH).count("danubius.json.tmp") == 0


def test_a_new_directory_on_a_full_disk_is_refused() -> None:
    files = SimFiles(capacity_bytes=0)
    with pytest.raises(StorageFull):
        start(files)


def test_a_failing_disk_is_told_and_the_lock_is_free_again() -> None:
    files = SimFiles()
    start(files)
    files.fail("sync")
    with pytest.raises(StorageFailed):
        start(files)
    assert start(files) >= 2


@pytest.mark.parametrize("is_full", [False, True])
def test_no_epoch_comes_twice_over_power_losses(is_full: bool) -> None:
    for steps in range(12):
        for seed in range(5):
            files = SimFiles(seed=seed)
            last = start(files)
            if is_full:
                files.capacity_bytes = files.used_bytes()
            files.lose_power_after(steps)
            with contextlib.suppress(PowerLost):
                last = start(files)
            files.crash(seed)
            assert start(files) > last


def test_a_damaged_file_is_told() -> None:
    files = SimFiles()
    start(files)
    files.rot(FILE, 0)
    with pytest.raises(DataDirectoryDamaged, match=r"danubius\.json"):
        start(files)


def test_use_with_an_object_store_keeps_one_store_id_and_raises_the_format() -> None:
    files = SimFiles()
    start(files)
    directory = taken(files)
    assert directory.use_tier("first") == "first"
    assert directory.use_tier("second") == "first"
    directory.release()
    files.crash(1)
    assert start(files) == 3
    directory = taken(files)
    assert directory.use_tier("third") == "first"
    directory.release()
    assert stored(files) == {
        "format": TIERED_VERSION,
        "broker_id": "broker-1",
        "epoch": 4,
        "store_id": "first",
    }
