"""What every driver of the files port does, and what only the disks of this world and the other do."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from danubius.errors import DataDirectoryInUse, StorageFailed, StorageFull
from danubius.runtime.files import IOV_MAX, Files, LocalFiles, translate
from danubius.sim.disk import PowerLost, SimFiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.model.buffers import Buffer


@pytest.fixture(params=["local", "sim"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Files, Path]:
    if request.param == "local":
        return LocalFiles(), tmp_path
    files = SimFiles()
    files.mkdir(Path("/disk"), sync=True)
    return files, Path("/disk")


def test_buffers_are_written_back_to_back(disk: tuple[Files, Path]) -> None:
    files, root = disk
    file = files.open(root / "a", create=True)
    file.pwritev([b"one", bytearray(b"two"), memoryview(b"three")], 2)
    assert file.pread(100, 0) == b"\0\0onetwothree"
    assert file.pread(3, 5) == b"two"
    assert file.pread(10, 100) == b""
    assert file.size() == 13
    file.close()


def test_more_buffers_than_one_call_takes_are_all_written(disk: tuple[Files, Path]) -> None:
    files, root = disk
    buffers = [f"{number:05d}".encode() for number in range(2 * IOV_MAX + 7)]
    file = files.open(root / "many", create=True)
    file.pwritev(buffers, 0)
    assert file.pread(5 * len(buffers) + 1, 0) == b"".join(buffers)
    file.close()


def test_a_synced_write_is_a_write(disk: tuple[Files, Path]) -> None:
    files, root = disk
    buffers = [f"{number:05d}".encode() for number in range(IOV_MAX + 7)]
    file = files.open(root / "synced", create=True)
    file.pwritev_synced([b"one", bytearray(b"two")], 2)
    assert file.pread(100, 0) == b"\0\0onetwo"
    file.pwritev_synced(buffers, 0)
    assert file.pread(5 * len(buffers) + 1, 0) == b"".join(buffers)
    file.close()


def test_reading_into_memory_stops_at_the_end(disk: tuple[Files, Path]) -> None:
    files, root = disk
    file = files.open(root / "a", create=True)
    file.pwritev([b"0123456789"], 0)
    target = bytearray(8)
    assert file.preadinto(target, 6) == 4
    assert bytes(target) == b"6789\0\0\0\0"
    file.close()


def test_truncate_cuts_and_extends_with_zeros(disk: tuple[Files, Path]) -> None:
    files, root = disk
    file = files.open(root / "a", create=True)
    file.pwritev([b"abcdef"], 0)
    file.truncate(3)
    file.truncate(5)
    assert file.pread(10, 0) == b"abc\0\0"
    file.close()


def test_create_never_empties_a_file(disk: tuple[Files, Path]) -> None:
    files, root = disk
    files.write_atomic(root / "a", b"kept")
    files.open(root / "a", create=True).close()
    assert files.read_bytes(root / "a") == b"kept"


def test_names_appear_move_and_go(disk: tuple[Files, Path]) -> None:
    files, root = disk
    files.mkdir(root / "d" / "e", sync=True)
    files.mkdir(root / "d" / "e")
    files.write_atomic(root / "d" / "x", b"1")
    files.write_atomic(root / "d" / "y", b"2")
    files.rename(root / "d" / "x", root / "d" / "y")
    assert files.listdir(root / "d") == ["e", "y"]
    assert files.read_bytes(root / "d" / "y") == b"1"
    files.remove(root / "d" / "y")
    files.remove(root / "d" / "y")
    assert not files.exists(root / "d" / "y")
    files.sync_dir(root / "d")
    files.sync_all(root)
    files.rmtree(root / "d")
    files.rmtree(root / "d")
    assert files.listdir(root / "d") == []


def test_failures_are_storage_failed_and_name_the_path(disk: tuple[Files, Path]) -> None:
    files, root = disk
    with pytest.raises(StorageFailed, match="absent"):
        files.open(root / "absent")
    with pytest.raises(StorageFailed, match="absent"):
        files.read_bytes(root / "absent")
    with pytest.raises(StorageFailed):
        files.open(root / "no" / "directory", create=True)
    file = files.open(root / "a", create=True)
    file.close()
    file.close()
    with pytest.raises(StorageFailed):
        file.pwritev([b"late"], 0)
    reader = files.open(root / "a", write=False)
    with pytest.raises(StorageFailed):
        reader.pwritev([b"no"], 0)
    reader.close()


def test_a_lock_is_held_until_released(disk: tuple[Files, Path]) -> None:
    files, root = disk
    held = files.lock(root / "lock")
    with pytest.raises(DataDirectoryInUse, match="in use by another broker"):
        files.lock(root / "lock")
    held.release()
    files.lock(root / "lock").release()


def test_free_space_is_a_number(disk: tuple[Files, Path]) -> None:
    files, root = disk
    assert files.free_bytes(root) > 0


# -------------------------------------------------------------------- this world


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_storage_full(number: int) -> None:
    assert isinstance(translate(OSError(number, "full"), "write to", Path("/x")), StorageFull)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_real_full_device_is_storage_full_with_its_cause() -> None:
    file = LocalFiles().open(Path("/dev/full"))
    with pytest.raises(StorageFull) as caught:
        file.pwritev([b"x"], 0)
    assert isinstance(caught.value.__cause__, OSError)
    file.close()


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def three_bytes_at_a_time(descriptor: int, buffers: Sequence[Buffer], at: int) -> int:
        return real(descriptor, [bytes(buffers[0])[:3]], at)

    monkeypatch.setattr(os, "pwritev", three_bytes_at_a_time)
    file = LocalFiles().open(tmp_path / "a", create=True)
    file.pwritev([b"abcdefgh", b"", b"ij", b"klmnop"], 1)
    assert file.pread(100, 1) == b"abcdefghijklmnop"
    file.close()


@pytest.mark.parametrize("refusal", [None, errno.EOPNOTSUPP])
def test_a_synced_write_is_whole_though_the_system_cuts_it_short_or_knows_no_such_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int | None
) -> None:
    real, synced = os.pwritev, list[int]()

    def poor(descriptor: int, buffers: Sequence[Buffer], at: int, flags: int = 0) -> int:
        if flags and refusal is not None:
            raise OSError(refusal, os.strerror(refusal))
        return real(descriptor, [bytes(buffers[0])[:3]], at)

    monkeypatch.setattr(os, "pwritev", poor)
    monkeypatch.setattr("danubius.runtime.files._datasync", synced.append)
    file = LocalFiles().open(tmp_path / "a", create=True)
    file.pwritev_synced([b"abcdefgh", b"", b"ij", b"klmnop"], 1)
    assert file.pread(100, 1) == b"abcdefghijklmnop"
    assert len(synced) == 1, "what the system did not make durable is synced"
    file.close()


def test_a_synced_write_reports_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, buffers: Sequence[Buffer], at: int, flags: int = 0) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwritev", full)
    file = LocalFiles().open(tmp_path / "a", create=True)
    with pytest.raises(StorageFull):
        file.pwritev_synced([b"abc"], 0)
    file.close()


def test_the_lock_of_a_dead_process_is_free(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from danubius.runtime.files import LocalFiles\n"
        "lock = LocalFiles().lock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(DataDirectoryInUse, match=str(process.pid)):
            LocalFiles().lock(tmp_path / "lock")
        process.kill()
    LocalFiles().lock(tmp_path / "lock").release()


def test_write_atomic_leaves_no_temporary_file(tmp_path: Path) -> None:
    LocalFiles().write_atomic(tmp_path / "a", b"1")
    LocalFiles().write_atomic(tmp_path / "a", b"22")
    assert LocalFiles().listdir(tmp_path) == ["a"]


# -------------------------------------------------------------------- the other


def sim(capacity_bytes: int | None = None) -> tuple[SimFiles, Path]:
    files = SimFiles(capacity_bytes=capacity_bytes)
    files.mkdir(Path("/d"), sync=True)
    return files, Path("/d/a")


def test_synced_content_under_a_synced_name_survives_every_crash() -> None:
    for seed in range(50):
        files, path = sim()
        file = files.open(path, create=True)
        file.pwritev([b"x" * 2000], 0)
        file.datasync()
        files.sync_dir(path.parent)
        file.pwritev([b"y" * 1000], 0)
        files.crash(seed)
        content = files.read_bytes(path)
        assert len(content) == 2000
        assert content[1000:] == b"x" * 1000


def test_a_synced_write_survives_every_crash_and_takes_nothing_along() -> None:
    kept: set[bool] = set()
    for seed in range(40):
        files = SimFiles(seed=seed)
        file = files.open(Path("/a"), create=True)
        file.datasync()
        files.sync_dir(Path("/"))
        file.pwritev([b"x" * 512], 0)
        file.pwritev_synced([b"y" * 512], 512)
        files.crash(seed)
        content = files.read_bytes(Path("/a"))
        assert content[512:] == b"y" * 512
        kept.add(content[:512] == b"x" * 512)
    assert kept == {True, False}


def test_crashes_lose_tear_and_keep_unsynced_writes() -> None:
    outcomes: set[bytes] = set()
    for seed in range(60):
        files, path = sim()
        file = files.open(path, create=True)
        files.sync_dir(path.parent)
        file.pwritev([b"x" * 1024], 0)
        files.crash(seed)
        outcomes.add(files.read_bytes(path))
    assert {b"", b"x" * 1024} < outcomes
    assert any(0 < len(outcome.strip(b"\0")) < 1024 for outcome in outcomes)


def test_an_unsynced_name_may_vanish_and_an_unsynced_rename_may_not_have_been() -> None:
    names: set[tuple[str, ...]] = set()
    for seed in range(40):
        files, path = sim()
        files.write_atomic(path, b"1")
        files.rename(path, path.with_name("b"))
        files.crash(seed)
        names.add(tuple(files.listdir(path.parent)))
    assert names == {("a",), ("b",)}


def test_a_killed_process_loses_nothing_written() -> None:
    files, path = sim()
    files.open(path, create=True).pwritev([b"written"], 0)
    files.kill()
    assert files.read_bytes(path) == b"written"


def test_files_of_before_the_crash_are_dead() -> None:
    files, path = sim()
    file = files.open(path, create=True)
    files.crash(1)
    with pytest.raises(PowerLost):
        file.pwritev([b"ghost"], 0)


def test_after_a_failed_sync_the_next_one_is_no_proof() -> None:
    lost = 0
    for seed in range(20):
        files, path = sim()
        file = files.open(path, create=True)
        files.sync_dir(path.parent)
        files._random.seed(seed)
        file.pwritev([b"x" * 512], 0)
        files.fail("sync")
        with pytest.raises(StorageFailed):
            file.datasync()
        file.datasync()
        assert file.pread(512, 0) == b"x" * 512
        files.crash(seed)
        lost += files.read_bytes(path) != b"x" * 512
    assert 0 < lost < 20


def test_a_full_disk_takes_what_fits_and_overwriting_still_works() -> None:
    files, path = sim(capacity_bytes=1000)
    file = files.open(path, create=True)
    with pytest.raises(StorageFull):
        file.pwritev([b"x" * 1500], 0)
    assert file.size() == 1000
    file.pwritev([b"y" * 1000], 0)
    files.capacity_bytes = None
    file.pwritev([b"z"], 1000)


def test_power_fails_at_the_chosen_step_and_nothing_works_until_the_reboot() -> None:
    files, path = sim()
    file = files.open(path, create=True)
    files.lose_power_after(1)
    file.pwritev([b"a"], 0)
    with pytest.raises(PowerLost):
        file.pwritev([b"b"], 1)
    with pytest.raises(PowerLost):
        files.open(path)
    files.crash(0)
    files.listdir(path.parent)
